package control

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/volumefiles"
	"github.com/cove-sh/cove/sandbox"
)

const (
	headerNext    = "X-Next-Token"
	headerRunning = "X-Total-Running"
	maxPage       = 100
)

// query filters and orders a list of sandboxes.
type query struct {
	metadata     map[string]string
	states       []sandbox.State
	oldestFirst  bool
	startedAfter time.Time
	template     string
}

func readQuery(v url.Values) (q query, err error) {
	if q.metadata, err = readMetadata(v.Get("metadata")); err != nil {
		return q, err
	}
	for _, value := range v["state"] {
		for name := range strings.SplitSeq(value, ",") {
			switch s := sandbox.State(strings.TrimSpace(name)); s {
			case sandbox.StateRunning, sandbox.StatePaused:
				q.states = append(q.states, s)
			case "":
			default:
				return q, invalid("validation error: state %.80q is not running or paused", name)
			}
		}
	}
	switch order := v.Get("order"); order {
	case "", "desc":
	case "asc":
		q.oldestFirst = true
	default:
		return q, invalid("validation error: order %.80q is not asc or desc", order)
	}
	if after := v.Get("startedAfter"); after != "" {
		if q.startedAfter, err = time.Parse(time.RFC3339, after); err != nil {
			return q, invalid("validation error: startedAfter %.80q is not a time of RFC 3339", after)
		}
	}
	q.template = v.Get("template")
	if strings.Contains(q.template, ":") {
		return q, invalid("template %.80q has a tag; leave it out", q.template)
	}
	return q, nil
}

// readMetadata parses a filter that is encoded three times. The outer layer is decoded
// already; what is left is form-encoded pairs whose keys and values are encoded once
// more.
func readMetadata(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	pairs, err := url.ParseQuery(text)
	if err != nil {
		return nil, invalid("validation error: metadata is not of the form key=value&key=value")
	}
	out := map[string]string{}
	for key, values := range pairs {
		k, err1 := url.PathUnescape(key)
		v, err2 := url.PathUnescape(values[len(values)-1])
		if err1 != nil || err2 != nil || strings.HasPrefix(k, access.TagPrefix) {
			return nil, invalid("validation error: metadata %.80q cannot be looked for", key)
		}
		out[k] = v
	}
	return out, nil
}

// find returns all sandboxes that match, in order, and how many of the caller's
// run.
func (p *plane) find(ctx context.Context, q *query) (found []sandbox.Sandbox, running int, err error) {
	req := sandbox.ListRequest{States: []sandbox.State{sandbox.StateRunning, sandbox.StatePaused}, Page: sandbox.Page{Limit: sandbox.MaxPageSize}}
	all, err := sandbox.All(ctx, func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		req.Page = page
		return p.cfg.Service.List(ctx, req)
	})
	if err != nil {
		return nil, 0, err
	}
	wanted, _ := builtinTemplate(q.template)
	for i := range all {
		box := &all[i]
		if box.State == sandbox.StateRunning {
			running++
		}
		if q.matches(box, wanted) {
			found = append(found, *box)
		}
	}
	slices.SortFunc(found, func(a, b sandbox.Sandbox) int {
		c := cmp.Or(startedAt(&a).Compare(startedAt(&b)), cmp.Compare(a.ID, b.ID))
		if q.oldestFirst {
			return c
		}
		return -c
	})
	return found, running, nil
}

func (q *query) matches(box *sandbox.Sandbox, template string) bool {
	if box.Metadata[volumefiles.Tag] != "" {
		return false // it serves clients, but is not a client's sandbox
	}
	for key, value := range q.metadata {
		if there, ok := box.Metadata[key]; !ok || there != value {
			return false
		}
	}
	return (len(q.states) == 0 || slices.Contains(q.states, box.State)) &&
		!startedAt(box).Before(q.startedAfter) &&
		(q.template == "" || templateOf(box) == template || templateOf(box) == q.template)
}

// list serves a page of sandboxes. A page starts after the last sandbox of the previous
// page, whether or not that still exists.
func (p *plane) list(w http.ResponseWriter, r *http.Request, _ []string) (*response, error) {
	values := r.URL.Query()
	q, err := readQuery(values)
	if err != nil {
		return nil, err
	}
	limit, err := readLimit(values)
	if err != nil {
		return nil, err
	}
	after, err := readToken(values.Get("nextToken"), q.oldestFirst)
	if err != nil {
		return nil, err
	}
	found, running, err := p.find(r.Context(), &q)
	if err != nil {
		return nil, err
	}
	found = after.rest(found, q.oldestFirst)
	if len(found) > limit {
		found = found[:limit]
		w.Header().Set(headerNext, tokenAt(&found[limit-1], q.oldestFirst))
	}
	w.Header().Set(headerRunning, strconv.Itoa(running))
	exposeHeaders(w)
	return &response{http.StatusOK, p.views(r.Context(), found)}, nil
}

// listV1 serves the deprecated list of all running sandboxes.
func (p *plane) listV1(_ http.ResponseWriter, r *http.Request, _ []string) (*response, error) {
	metadata, err := readMetadata(r.URL.Query().Get("metadata"))
	if err != nil {
		return nil, err
	}
	found, _, err := p.find(r.Context(), &query{metadata: metadata, states: []sandbox.State{sandbox.StateRunning}})
	if err != nil {
		return nil, err
	}
	return &response{http.StatusOK, p.views(r.Context(), found)}, nil
}

func (p *plane) views(ctx context.Context, found []sandbox.Sandbox) []listed {
	out := make([]listed, len(found))
	for i := range found {
		out[i] = viewListed(&found[i])
		p.nameVolumes(ctx, &out[i])
	}
	return out
}

func exposeHeaders(w http.ResponseWriter) {
	w.Header().Set("Access-Control-Expose-Headers", headerNext+", "+headerRunning)
}

func readLimit(v url.Values) (int, error) {
	text := v.Get("limit")
	if text == "" {
		return maxPage, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxPage {
		return 0, invalid("validation error: limit %.80q is not 1 to %d", text, maxPage)
	}
	return n, nil
}

// position is the last sandbox of a page; without an id it is the beginning.
type position struct {
	at int64 // of its start, in nanoseconds
	id string
}

var errToken = invalid("Invalid next token")

func orderName(oldestFirst bool) string {
	if oldestFirst {
		return "asc"
	}
	return "desc"
}

func tokenAt(box *sandbox.Sandbox, oldestFirst bool) string {
	text := orderName(oldestFirst) + " " + strconv.FormatInt(startedAt(box).UnixNano(), 10) + " " + box.ID
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func readToken(token string, oldestFirst bool) (position, error) {
	if token == "" {
		return position{}, nil
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	parts := strings.Split(string(text), " ")
	if err != nil || len(parts) != 3 || parts[0] != orderName(oldestFirst) || parts[2] == "" {
		return position{}, errToken
	}
	at, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return position{}, errToken
	}
	return position{at, parts[2]}, nil
}

// rest returns the sandboxes after a position.
func (p position) rest(found []sandbox.Sandbox, oldestFirst bool) []sandbox.Sandbox {
	if p.id == "" {
		return found
	}
	i := slices.IndexFunc(found, func(box sandbox.Sandbox) bool {
		c := cmp.Or(cmp.Compare(startedAt(&box).UnixNano(), p.at), cmp.Compare(box.ID, p.id))
		return oldestFirst && c > 0 || !oldestFirst && c < 0
	})
	if i < 0 {
		return nil
	}
	return found[i:]
}
