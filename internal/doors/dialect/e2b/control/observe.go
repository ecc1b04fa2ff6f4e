package control

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

// metric is what a sandbox used at one time; sizes are bytes.
type metric struct {
	Timestamp     time.Time `json:"timestamp"`
	TimestampUnix int64     `json:"timestampUnix"`
	CPUCount      int       `json:"cpuCount"`
	CPUUsedPct    float64   `json:"cpuUsedPct"`
	MemUsed       int64     `json:"memUsed"`
	MemTotal      int64     `json:"memTotal"`
	MemCache      int64     `json:"memCache"`
	DiskUsed      int64     `json:"diskUsed"`
	DiskTotal     int64     `json:"diskTotal"`
}

func viewMetric(box *sandbox.Sandbox, p *sandbox.StatsPoint) metric {
	cpus := max(box.Resources.VCPUs, 1)
	return metric{
		Timestamp: p.Time.UTC(), TimestampUnix: p.Time.Unix(), CPUCount: cpus,
		CPUUsedPct: math.Round(p.CPUPercent/float64(cpus)*100) / 100,
		MemUsed:    p.MemoryBytes, MemTotal: box.Resources.MemoryMiB << 20,
		DiskUsed: p.DiskBytes, DiskTotal: box.Resources.DiskMiB << 20,
	}
}

func (p *plane) metrics(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	start, err := readUnix(r.URL.Query(), "start")
	if err != nil {
		return nil, err
	}
	end, err := readUnix(r.URL.Query(), "end")
	if err != nil {
		return nil, err
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	points, err := p.points(r.Context(), box)
	if err != nil {
		return nil, about(args[0], err)
	}
	out := []metric{}
	for i := range points {
		at := points[i].Time
		if (start == nil || !at.Before(*start)) && (end == nil || !at.After(*end)) {
			out = append(out, viewMetric(box, &points[i]))
		}
	}
	return &response{http.StatusOK, out}, nil
}

func (p *plane) points(ctx context.Context, box *sandbox.Sandbox) ([]sandbox.StatsPoint, error) {
	series, err := p.cfg.Service.StatsSeries(ctx, box.ID, sandbox.StatsSeriesRequest{})
	if err != nil {
		return nil, err
	}
	return series.Items, nil
}

func readUnix(v url.Values, name string) (*time.Time, error) {
	text := v.Get(name)
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return nil, invalid("validation error: %s %.80q is not a Unix time", name, text)
	}
	at := time.Unix(n, 0)
	return &at, nil
}

// metricsOfMany serves the newest metric of each of several sandboxes.
func (p *plane) metricsOfMany(_ http.ResponseWriter, r *http.Request, _ []string) (*response, error) {
	out := map[string]metric{}
	names := strings.Split(r.URL.Query().Get("sandbox_ids"), ",")
	if len(names) > maxPage {
		return nil, invalid("validation error: sandbox_ids names %d sandboxes; name at most %d", len(names), maxPage)
	}
	for _, id := range names {
		box, err := p.living(r.Context(), id)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		points, err := p.points(r.Context(), box)
		if err != nil {
			return nil, about(id, err)
		}
		if len(points) > 0 {
			out[access.ToE2B(box.ID)] = viewMetric(box, &points[len(points)-1])
		}
	}
	return &response{http.StatusOK, map[string]any{"sandboxes": out}}, nil
}

// entry is a line of a sandbox's log: an event of the audit record. It has no output of
// programs, which clients read elsewhere.
type entry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

const (
	maxLogs   = 1000
	maxSearch = 256
)

// logQuery selects entries of a log.
type logQuery struct {
	from     time.Time
	limit    int
	backward bool
	level    string
	search   string
}

func readLogQuery(v url.Values) (q logQuery, err error) {
	q = logQuery{limit: maxLogs, level: v.Get("level"), search: v.Get("search")}
	if text := v.Get("limit"); text != "" {
		if q.limit, err = strconv.Atoi(text); err != nil || q.limit < 0 || q.limit > maxLogs {
			return q, invalid("validation error: limit %.80q is not 0 to %d", text, maxLogs)
		}
	}
	for _, name := range []string{"start", "cursor"} {
		if text := v.Get(name); text != "" {
			ms, err := strconv.ParseInt(text, 10, 64)
			if err != nil || ms < 0 {
				return q, invalid("validation error: %s %.80q is not a Unix time in milliseconds", name, text)
			}
			q.from = time.UnixMilli(ms)
		}
	}
	if len(q.search) > maxSearch {
		return q, invalid("validation error: search has more than %d bytes", maxSearch)
	}
	return q, nil
}

func (p *plane) entries(ctx context.Context, id string, q *logQuery) ([]entry, error) {
	box, err := p.living(ctx, id)
	if err != nil {
		return nil, err
	}
	list, err := p.cfg.Service.Audit(ctx, sandbox.AuditRequest{SandboxID: box.ID, Page: sandbox.Page{Limit: sandbox.MaxPageSize}})
	if err != nil {
		return nil, about(id, err)
	}
	out := []entry{}
	for i := range list.Items { // the newest first
		e := viewEntry(&list.Items[i])
		before := e.Timestamp.Before(q.from)
		if q.backward && !q.from.IsZero() && !before || !q.backward && before ||
			q.level != "" && e.Level != q.level || !strings.Contains(e.Message, q.search) {
			continue
		}
		out = append(out, e)
	}
	if !q.backward {
		slices.Reverse(out)
	}
	return out[:min(len(out), q.limit)], nil
}

func viewEntry(e *sandbox.AuditEvent) entry {
	out := entry{Timestamp: e.Time.UTC(), Message: e.Action, Level: "info", Fields: map[string]string{"logger": "cove", "key": e.KeyID}}
	if e.Detail != "" {
		out.Message += ": " + e.Detail
	}
	if e.Code != "" {
		out.Level, out.Fields["code"] = "error", string(e.Code)
	}
	return out
}

func (p *plane) logs(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	q, err := readLogQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	switch direction := r.URL.Query().Get("direction"); direction {
	case "", "backward":
		q.backward = true
	case "forward":
	default:
		return nil, invalid("validation error: direction %.80q is not forward or backward", direction)
	}
	found, err := p.entries(r.Context(), args[0], &q)
	if err != nil {
		return nil, err
	}
	return &response{http.StatusOK, map[string]any{"logs": found}}, nil
}

// logsV1 serves the deprecated form, in which each line is JSON.
func (p *plane) logsV1(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	q, err := readLogQuery(r.URL.Query())
	if err != nil {
		return nil, err
	}
	found, err := p.entries(r.Context(), args[0], &q)
	if err != nil {
		return nil, err
	}
	type line struct {
		Timestamp time.Time `json:"timestamp"`
		Line      string    `json:"line"`
	}
	lines := make([]line, len(found))
	for i, e := range found {
		text, err := json.Marshal(map[string]string{"level": e.Level, "logger": "cove", "message": e.Message})
		if err != nil {
			return nil, err
		}
		lines[i] = line{e.Timestamp, string(text)}
	}
	return &response{http.StatusOK, map[string]any{"logs": lines, "logEntries": found}}, nil
}
