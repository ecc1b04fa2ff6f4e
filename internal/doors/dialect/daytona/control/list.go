package control

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

const (
	defaultPage = 100
	maxPage     = 200
)

// filters decide by one parameter of a list whether a sandbox is in it.
var filters = map[string]func(values []string) (func(*object) bool, error){
	"id":                    prefix(func(o *object) string { return o.ID }),
	"name":                  prefix(func(o *object) string { return o.Name }),
	"labels":                labelFilter,
	"states":                oneOf(func(o *object) string { return o.State }),
	"snapshots":             oneOf(func(o *object) string { return o.Snapshot }),
	"regionIds":             oneOf(func(o *object) string { return o.Target }),
	"sandboxClasses":        oneOf(func(o *object) string { return o.SandboxClass }),
	"isPublic":              isTrue(func(o *object) bool { return o.Public }),
	"isRecoverable":         isTrue(func(*object) bool { return false }),
	"includeErroredDeleted": isTrue(nil),
	"includeWarm":           isTrue(nil),
	"minCpu":                bound(1, func(o *object) float64 { return float64(o.CPU) }),
	"maxCpu":                bound(-1, func(o *object) float64 { return float64(o.CPU) }),
	"minGpu":                bound(1, func(o *object) float64 { return float64(o.GPU) }),
	"maxGpu":                bound(-1, func(o *object) float64 { return float64(o.GPU) }),
	"minMemoryGiB":          bound(1, func(o *object) float64 { return o.Memory }),
	"maxMemoryGiB":          bound(-1, func(o *object) float64 { return o.Memory }),
	"minDiskGiB":            bound(1, func(o *object) float64 { return o.Disk }),
	"maxDiskGiB":            bound(-1, func(o *object) float64 { return o.Disk }),
	"createdAtAfter":        moment(1, func(o *object) *time.Time { return &o.CreatedAt }),
	"createdAtBefore":       moment(-1, func(o *object) *time.Time { return &o.CreatedAt }),
	"lastEventAfter":        moment(1, func(o *object) *time.Time { return &o.UpdatedAt }),
	"lastEventBefore":       moment(-1, func(o *object) *time.Time { return &o.UpdatedAt }),
	"autoDestroyAtAfter":    moment(1, func(o *object) *time.Time { return o.AutoDestroyAt }),
	"autoDestroyAtBefore":   moment(-1, func(o *object) *time.Time { return o.AutoDestroyAt }),
}

func oneOf(of func(*object) string) func([]string) (func(*object) bool, error) {
	return func(values []string) (func(*object) bool, error) {
		return func(o *object) bool { return slices.Contains(values, of(o)) }, nil
	}
}

// prefix compares the beginning of a text, in any case.
func prefix(of func(*object) string) func([]string) (func(*object) bool, error) {
	return func(values []string) (func(*object) bool, error) {
		want := strings.ToLower(values[0])
		return func(o *object) bool { return strings.HasPrefix(strings.ToLower(of(o)), want) }, nil
	}
}

func labelFilter(values []string) (func(*object) bool, error) {
	var want map[string]string
	if err := json.Unmarshal([]byte(values[0]), &want); err != nil {
		return nil, answer.Invalid("labels is not JSON of names and values")
	}
	return func(o *object) bool {
		for key, value := range want {
			if there, ok := o.Labels[key]; !ok || there != value {
				return false
			}
		}
		return true
	}, nil
}

// isTrue compares a property; without one it only checks the parameter, as there is
// nothing that it could add to the list.
func isTrue(of func(*object) bool) func([]string) (func(*object) bool, error) {
	return func(values []string) (func(*object) bool, error) {
		want, err := strconv.ParseBool(values[0])
		if err != nil {
			return nil, answer.Invalid("%.20q is not true or false", values[0])
		}
		return func(o *object) bool { return of == nil || of(o) == want }, nil
	}
}

func bound(sign float64, of func(*object) float64) func([]string) (func(*object) bool, error) {
	return func(values []string) (func(*object) bool, error) {
		n, err := strconv.ParseFloat(values[0], 64)
		if err != nil {
			return nil, answer.Invalid("%.20q is not a number", values[0])
		}
		return func(o *object) bool { return sign*(of(o)-n) >= 0 }, nil
	}
}

func moment(sign int, of func(*object) *time.Time) func([]string) (func(*object) bool, error) {
	return func(values []string) (func(*object) bool, error) {
		t, err := time.Parse(time.RFC3339, values[0])
		if err != nil {
			return nil, answer.Invalid("%.40q is not a time of RFC 3339", values[0])
		}
		return func(o *object) bool {
			at := of(o)
			return at != nil && sign*at.Compare(t) >= 0
		}, nil
	}
}

// orders are the keys that a list can be sorted by, as texts that compare as the values
// do.
var orders = map[string]func(*object) string{
	"name":           func(o *object) string { return o.Name },
	"cpu":            func(o *object) string { return digits(float64(o.CPU)) },
	"memoryGib":      func(o *object) string { return digits(o.Memory) },
	"diskGib":        func(o *object) string { return digits(o.Disk) },
	"createdAt":      func(o *object) string { return nanos(o.CreatedAt) },
	"lastActivityAt": func(o *object) string { return nanos(o.LastActivityAt) },
}

func digits(n float64) string  { return fmt.Sprintf("%020.4f", n) }
func nanos(t time.Time) string { return fmt.Sprintf("%020d", t.UnixNano()) }

// query is a client's query of a list.
type query struct {
	match []func(*object) bool
	sort  string
	asc   bool
	limit int
	after *position
}

// position is the last sandbox of a page: the next one begins behind it, whether or not
// it still exists.
type position struct {
	Sort string `json:"s"`
	Asc  bool   `json:"a"`
	Key  string `json:"k"`
	ID   string `json:"i"`
}

func readQuery(v url.Values) (*query, error) {
	q := &query{sort: "createdAt", limit: defaultPage}
	for name, values := range v {
		var err error
		switch name {
		case "cursor":
			err = q.readCursor(values[0])
		case "limit":
			if q.limit, err = strconv.Atoi(values[0]); err != nil || q.limit < 1 || q.limit > maxPage {
				err = answer.Invalid("limit is %.20q; give 1 to %d", values[0], maxPage)
			}
		case "sort":
			if q.sort = values[0]; orders[q.sort] == nil {
				err = answer.Refused("sort", "sandboxes are sorted by name, cpu, memoryGib, diskGib, createdAt or lastActivityAt")
			}
		case "order":
			if q.asc = values[0] == "asc"; !q.asc && values[0] != "desc" {
				err = answer.Invalid("order is %.20q; give asc or desc", values[0])
			}
		default:
			filter := filters[name]
			if filter == nil {
				return nil, answer.Refused(name, "sandboxes cannot be selected by it")
			}
			var match func(*object) bool
			if match, err = filter(values); err == nil {
				q.match = append(q.match, match)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if q.after != nil && (q.after.Sort != q.sort || q.after.Asc != q.asc) {
		return nil, errCursor
	}
	return q, nil
}

var errCursor = answer.Invalid("the cursor is not of a page of this list; begin at the first page")

func (q *query) readCursor(text string) error {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &q.after)
	}
	if err != nil || q.after == nil || q.after.ID == "" {
		return errCursor
	}
	return nil
}

// compare orders sandboxes, and a position among them.
func (q *query) compare(keyA, idA, keyB, idB string) int {
	c := cmp.Or(cmp.Compare(keyA, keyB), cmp.Compare(idA, idB))
	if q.asc {
		return c
	}
	return -c
}

// page returns the sandboxes of a page, and the cursor of the next one.
func (q *query) page(all []object) ([]object, *string) {
	key := orders[q.sort]
	all = slices.DeleteFunc(all, func(o object) bool {
		return slices.ContainsFunc(q.match, func(match func(*object) bool) bool { return !match(&o) }) ||
			q.after != nil && q.compare(key(&o), o.ID, q.after.Key, q.after.ID) <= 0
	})
	slices.SortFunc(all, func(a, b object) int { return q.compare(key(&a), a.ID, key(&b), b.ID) })
	if len(all) <= q.limit {
		return all, nil
	}
	last := &all[q.limit-1]
	data, err := json.Marshal(position{q.sort, q.asc, key(last), last.ID})
	if err != nil {
		return all, nil
	}
	return all[:q.limit], new(base64.RawURLEncoding.EncodeToString(data))
}

func (p *plane) list(w http.ResponseWriter, r *http.Request) error {
	q, err := readQuery(r.URL.Query())
	if err != nil {
		return err
	}
	found, err := sandbox.All(r.Context(), func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		return p.cfg.Service.List(ctx, sandbox.ListRequest{Page: page})
	})
	if err != nil {
		return err
	}
	all := make([]object, len(found))
	for i := range found {
		all[i] = p.view(r, &found[i])
	}
	items, next := q.page(all)
	answer.JSON(w, http.StatusOK, map[string]any{"items": items, "nextCursor": next})
	return nil
}
