package superserve

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

type previewArgs struct {
	inSandbox
	Port float64 `json:"port"`
}

// minPreviewPort is the first port that the product makes public.
const minPreviewPort = 1024

func previewURL(ctx context.Context, c *dialect.Call, in previewArgs) (*mcp.CallToolResult, error) {
	if strings.Trim(in.Sandbox, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-") != "" || in.Sandbox == "" {
		return refuse("Invalid sandbox id: %s", clip.Text(in.Sandbox, maxShown))
	}
	port := int(in.Port)
	if port < minPreviewPort {
		return refuse("Port must be an integer between 1024 and 65535 (got %d).", port)
	}
	s, err := c.Service.Get(ctx, in.Sandbox)
	if err != nil {
		return nil, err
	}
	url, err := dialect.PublicURL(ctx, c.Service, s.ID, port)
	if err != nil {
		return nil, err
	}
	return dialect.Text(url, dialect.ObjectOf("sandbox_id", s.ID, "port", port, "url", url)), nil
}

type logArgs struct {
	inSandbox
	Limit   float64                `json:"limit"`
	Verdict sandbox.NetworkVerdict `json:"verdict"`
}

// maxLogRows bounds the rows of the network log that are returned.
const maxLogRows = 200

// event is a row of the network log.
type event struct {
	Kind     string `json:"kind"`
	ID       int64  `json:"id"`
	Time     string `json:"ts"`
	Host     string `json:"host,omitempty"`
	IP       string `json:"dstIp,omitempty"`
	Port     int    `json:"dstPort,omitempty"`
	Verdict  string `json:"verdict,omitempty"`
	Match    string `json:"matchRule,omitempty"`
	Sent     *int64 `json:"bytesSent,omitempty"`
	Received *int64 `json:"bytesRecv,omitempty"`
	Method   string `json:"method,omitempty"`
	Path     string `json:"path,omitempty"`
	Status   int    `json:"status,omitempty"`
	Upstream int    `json:"upstreamStatus,omitempty"`
	Latency  *int64 `json:"latencyMs,omitempty"`
	Secret   string `json:"secretId,omitempty"`
	Error    string `json:"errorCode,omitempty"`
}

// eventLog is the newest part of a network log.
type eventLog struct {
	Events []event `json:"events"`
	More   bool    `json:"has_more"`
	Cursor string  `json:"next_cursor,omitempty"`
}

func networkLog(ctx context.Context, c *dialect.Call, in logArgs) (*mcp.CallToolResult, error) {
	limit := int(min(in.Limit, maxLogRows))
	kinds := []sandbox.NetworkKind{sandbox.NetworkConnection, sandbox.NetworkRequest}
	if in.Verdict != "" {
		kinds = kinds[:1] // requests have no verdict in the product
	}
	var out eventLog
	var events []sandbox.NetworkEvent
	for _, kind := range kinds {
		// A long connection has two events, of which one is shown.
		list, err := c.Service.NetworkLog(ctx, in.Sandbox, sandbox.NetworkLogRequest{
			Kind: kind, Verdict: in.Verdict, Page: sandbox.Page{Limit: 2*limit + 1},
		})
		if err != nil {
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				err = errNoSandbox(in.Sandbox)
			}
			return nil, err
		}
		events = append(events, list.Items...)
		out.More = out.More || list.NextCursor != ""
	}
	events = terms.Newest(events)
	if len(events) > limit {
		events, out.More = events[:limit], true
	}
	out.Events = make([]event, 0, len(events))
	lines := make([]string, 0, len(events))
	for i := range events {
		e := event(terms.RowOf(&events[i]))
		out.Events = append(out.Events, e)
		lines = append(lines, e.line())
	}
	if n := len(out.Events); out.More && n > 0 {
		out.Cursor = out.Events[n-1].Time
	}
	return dialect.Text(cmp.Or(strings.Join(lines, "\n"), "(no network activity)"), out), nil
}

// line returns a row as text. Control characters in hosts and paths, which the sandbox
// chooses, are escaped.
func (e *event) line() string {
	host := dialect.OneLine(cmp.Or(e.Host, e.IP))
	if e.Kind == string(sandbox.NetworkConnection) {
		return e.Time + "\t" + e.Verdict + " " + host
	}
	return e.Time + "\treq " + dialect.OneLine(e.Method) + " " + host + dialect.OneLine(e.Path) + " → " + strconv.Itoa(e.Status)
}
