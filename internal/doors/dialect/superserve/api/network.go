package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

const (
	defaultRows = 50
	maxRows     = 200
)

// event is a [terms.Event] with the field names of the REST interface.
type event struct {
	Kind     string `json:"kind"`
	ID       int64  `json:"id"`
	Time     string `json:"ts"`
	Host     string `json:"host,omitempty"`
	IP       string `json:"dst_ip,omitempty"`
	Port     int    `json:"dst_port,omitempty"`
	Verdict  string `json:"verdict,omitempty"`
	Match    string `json:"match_rule,omitempty"`
	Sent     *int64 `json:"bytes_sent,omitempty"`
	Received *int64 `json:"bytes_recv,omitempty"`
	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	Status   int    `json:"status,omitempty"`
	Upstream int    `json:"upstream_status,omitempty"`
	Latency  *int64 `json:"latency_ms,omitempty"`
	Secret   string `json:"secret_id,omitempty"`
	Error    string `json:"error_code,omitempty"`
}

// logQuery is a client's query of the network log.
type logQuery struct {
	limit         int
	before, since *time.Time
	verdict       sandbox.NetworkVerdict
}

func readLogQuery(r *http.Request) (*logQuery, error) {
	query, err := onlyParams(r, "limit", "before", "since", "verdict")
	if err != nil {
		return nil, err
	}
	q := &logQuery{verdict: sandbox.NetworkVerdict(query.Get("verdict"))}
	switch q.verdict {
	case "", sandbox.NetworkAllowed, sandbox.NetworkBlocked, sandbox.NetworkFailed:
	default:
		return nil, invalid("verdict %q is not allowed, blocked or failed", clip.Text(string(q.verdict), maxShown))
	}
	if q.limit, err = readLimit(query.Get("limit"), defaultRows, maxRows); err != nil {
		return nil, err
	}
	if q.before, err = readTime("before", query.Get("before")); err != nil {
		return nil, err
	}
	q.since, err = readTime("since", query.Get("since"))
	return q, err
}

// readLimit reads a number of rows, capped at most.
func readLimit(text string, usual, most int) (int, error) {
	if text == "" {
		return usual, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n == 0 {
		return 0, invalid("limit %q is not a positive number", clip.Text(text, maxShown))
	}
	return int(min(n, uint64(most))), nil
}

func readTime(name, text string) (*time.Time, error) {
	if text == "" {
		return nil, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return nil, invalid("%s %q is not a time of RFC 3339", name, clip.Text(text, maxShown))
	}
	return &t, nil
}

// events returns the newest events that match, and whether there are more.
func (d *Door) events(ctx context.Context, id string, q *logQuery) (events []sandbox.NetworkEvent, more bool, err error) {
	kinds := []sandbox.NetworkKind{sandbox.NetworkConnection, sandbox.NetworkRequest}
	if q.verdict != "" {
		kinds = kinds[:1] // requests have no verdict in the product
	}
	for _, kind := range kinds {
		// A long connection has two events, of which one is shown.
		list, err := d.cfg.Service.NetworkLog(ctx, id, sandbox.NetworkLogRequest{
			Kind: kind, Verdict: q.verdict, Since: q.since, Until: q.before, Page: sandbox.Page{Limit: 2*q.limit + 1},
		})
		if err != nil {
			return nil, false, err
		}
		events = append(events, list.Items...)
		more = more || list.NextCursor != ""
	}
	events = terms.Newest(events)
	if len(events) > q.limit {
		events, more = events[:q.limit], true
	}
	return events, more, nil
}

func (d *Door) networkLog(w http.ResponseWriter, r *http.Request, args []string) error {
	q, err := readLogQuery(r)
	if err != nil {
		return err
	}
	s, err := d.living(r.Context(), args[0])
	if err != nil {
		return err
	}
	events, more, err := d.events(r.Context(), s.ID, q)
	if err != nil {
		return err
	}
	rows := make([]event, len(events))
	for i := range events {
		rows[i] = event(terms.RowOf(&events[i]))
	}
	var next *string
	if n := len(events); more && n > 0 {
		at := events[n-1].Time.UTC().Format(time.RFC3339Nano) // before excludes it
		next = &at
	}
	writeJSON(w, http.StatusOK, map[string]any{"data": rows, "next_cursor": next, "has_more": more})
	return nil
}
