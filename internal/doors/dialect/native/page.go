package native

import (
	"encoding/json"
	"fmt"

	"github.com/cove-sh/cove/sandbox"
)

// nextPage is the end of a page in a result.
type nextPage struct {
	NextCursor string `json:"next_cursor,omitempty"`
}

// list is a page as text: its lines and how to get the next one, or what is said of
// no items.
func (p nextPage) list(lines, none string) string {
	if lines == "" {
		return none
	}
	if p.NextCursor != "" {
		lines += fmt.Sprintf("More: call again with cursor %s\n", p.NextCursor)
	}
	return lines
}

// views returns views of the items of a part of a listing, which may be nil, and
// where the next part is.
func views[T, V any](list *sandbox.List[T], view func(*T) V) ([]V, nextPage) {
	if list == nil {
		return nil, nextPage{}
	}
	out := make([]V, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, view(&list.Items[i]))
	}
	return out, nextPage{list.NextCursor}
}

// whole is the view of what is shown as it is.
func whole[T any](v *T) T { return *v }

// fitPage calls load with smaller and smaller limits until the page that it loads
// fits into a result.
func fitPage(limit int, page any, load func(limit int) error) error {
	for {
		if err := load(limit); err != nil {
			return err
		}
		n, err := encodedSize(page)
		if err != nil {
			return err
		}
		if n <= maxResultBytes || limit <= 1 {
			return nil
		}
		limit = max(1, min(limit/2, limit*maxResultBytes/n))
	}
}

func encodedSize(v any) (int, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return 0, fmt.Errorf("encode a result: %w", err)
	}
	return len(data), nil
}
