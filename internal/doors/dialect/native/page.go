package native

import (
	"encoding/json"
	"fmt"

	"github.com/cove-sh/cove/sandbox"
)

// nextPage ends a page in a result with the cursor of the next one.
type nextPage struct {
	NextCursor string `json:"next_cursor,omitempty"`
}

// list renders a page: its lines and how to get the next page, or none if there
// are no lines.
func (p nextPage) list(lines, none string) string {
	if lines == "" {
		return none
	}
	if p.NextCursor != "" {
		lines += fmt.Sprintf("More: call again with cursor %s\n", p.NextCursor)
	}
	return lines
}

// views returns views of the items of a list, which may be nil, and the cursor of
// the next page.
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

// same is the view of an item that is shown unchanged.
func same[T any](v *T) T { return *v }

// fitPage calls load, which fills page, with smaller and smaller limits until the
// page fits into a result. It answers with that page.
func fitPage[P interface{ text() string }](limit int, page *P, load func(limit int) error) (*reply[P], error) {
	for {
		if err := load(limit); err != nil {
			return nil, err
		}
		n, err := encodedSize(page)
		if err != nil {
			return nil, err
		}
		if n <= maxResultBytes || limit <= 1 {
			return answer((*page).text(), *page)
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
