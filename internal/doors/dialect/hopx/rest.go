package hopx

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Place says where the agents of sandboxes are reached.
type Place struct {
	// URL returns the base of the URLs of a sandbox's agent, without a trailing slash.
	URL func(id string) string
	// Token returns the token for a sandbox.
	Token func(id string) string
	// Origin is the scheme and host by which the client has reached the server; empty if
	// the service's own links are better.
	Origin string
}

// reached rewrites a link to the server to use the host by which the client has reached it,
// whose certificate the client trusts.
func (p *Place) reached(link string) string {
	own, err := url.Parse(link)
	if err != nil || p.Origin == "" {
		return link
	}
	return p.Origin + own.RequestURI()
}

type placeKey struct{}

// nowhere is the place for clients of the MCP server. Its addresses are only names: nothing
// listens there.
var nowhere = &Place{URL: directURL, Token: authToken}

// placeOf returns the place to show in results, and whether the call comes from the REST
// API.
func placeOf(ctx context.Context) (at *Place, rest bool) {
	if at, ok := ctx.Value(placeKey{}).(*Place); ok {
		return at, true
	}
	return nowhere, false
}

// Request is a request to the product's REST API. It is hostile.
type Request struct {
	Method string
	// Path is the path as sent, with its escapes.
	Path  string
	Query url.Values
	// Body is JSON, or empty.
	Body json.RawMessage
	// JSON is set if the client reads pictures as JSON; the product's clients differ.
	JSON bool
}

// Answer is the answer to a [Request]: a value to be sent as JSON, or data of a content
// type.
type Answer struct {
	Status int
	Value  any
	Type   string
	Data   []byte
	asIs   bool // send the data itself, not JSON
}

// Control answers a request to the control plane. Use [Describe] for an error.
func Control(ctx context.Context, c *dialect.Call, at *Place, r *Request) (*Answer, error) {
	out, err := r.serve(context.WithValue(ctx, placeKey{}, at), c, routes, &apiCall{})
	if err == nil && r.Method == http.MethodPost && (r.Path == sandboxesPath || r.Path == templatesPath+"/build") {
		out.Status = http.StatusCreated
	}
	return out, err
}

// Agent answers a request to the agent of a sandbox. Use [Describe] for an error.
func Agent(ctx context.Context, c *dialect.Call, at *Place, id string, r *Request) (*Answer, error) {
	return r.serve(context.WithValue(ctx, placeKey{}, at), c, agentRoutes, &apiCall{sandbox: id})
}

// Routes lists the served routes of the control plane, and of a sandbox's agent, as METHOD
// /pattern.
func Routes() (control, agent []string) {
	list := func(routes []route) (out []string) {
		for _, r := range routes {
			out = append(out, r.method+" "+r.path)
		}
		return out
	}
	return list(routes), list(agentRoutes)
}

// serve finds the route of a request, and runs it. Paths are matched with their escapes, so
// that an escaped slash is part of a name.
func (r *Request) serve(ctx context.Context, c *dialect.Call, table []route, a *apiCall) (*Answer, error) {
	a.Call, a.path, a.query, a.body, a.exact = c, r.Path, r.Query, r.Body, true
	run, err := a.find(table, r.Method)
	if err != nil {
		f := failed(a.sandbox != "", r.Path, err)
		if f.code == "route_not_found" {
			f.err = Unserved(r.Method, r.Path)
		}
		return nil, f
	}
	if slices.ContainsFunc(a.parts, func(p string) bool { return p == "." || p == ".." || len(p) > sandbox.MaxPathBytes }) {
		return nil, failed(a.sandbox != "", r.Path, dialect.Invalid("the path is not valid; write it without dots and no longer than it must be"))
	}
	v, err := run(ctx, a)
	if err != nil {
		return nil, err
	}
	if out, ok := v.(*Answer); ok {
		if out.Type == typePNG && r.JSON && !out.asIs {
			return &Answer{Status: http.StatusOK, Value: octets(out.Data)}, nil
		}
		return out, nil
	}
	return &Answer{Status: http.StatusOK, Value: v}, nil
}

// octets is a byte slice that is encoded as a list of numbers, from which clients that read
// every answer as text restore the bytes.
type octets []byte

// MarshalJSON implements [json.Marshaler].
func (o octets) MarshalJSON() ([]byte, error) {
	numbers := make([]int, len(o))
	for i, b := range o {
		numbers[i] = int(b)
	}
	return json.Marshal(numbers)
}

// Unserved is the error for a route that is not served.
func Unserved(method, path string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "Cove does not serve %s %s of HOPX's API; see docs/compat.md for what it serves", clip.Text(method, 32), clip.Text(path, maxShown))
}

// Describe returns the status and the body for an error of either plane. Clients choose the
// class of their error by them.
func Describe(err error, agent bool, requestID string) (status int, body any) {
	f := *failed(agent, "", err)
	f.agent = agent
	text := hints(f.message())
	switch {
	case strings.EqualFold(f.code, "sandbox_not_found"):
		// Clients recognize by these words that a sandbox no longer exists.
		text = "sandbox not found: " + text
	case f.status == http.StatusNotImplemented:
		// Clients retry three times if the status is 5xx, and take this one for a missing
		// desktop.
		f.status = http.StatusBadRequest
	}
	f.err = sandbox.Wrap(codeOf(f.err), f.err, text)
	all, ok := f.body().(pairs)
	if !ok {
		return f.status, f.body()
	}
	return f.status, append(all, pair{"request_id", requestID})
}

func codeOf(err error) sandbox.Code {
	if code := sandbox.CodeOf(err); code != "" {
		return code
	}
	return sandbox.CodeInternal
}

// tools maps the names of tools in hints to the corresponding routes.
var tools = strings.NewReplacer(
	"list_sandboxes", "GET /v1/sandboxes", "create_sandbox", "POST /v1/sandboxes", "resume_sandbox", "POST /v1/sandboxes/ID/resume",
	"list_templates", "GET /v1/templates", "run_command_background", "POST /commands/background", "run_command", "POST /commands/run",
	"execute_code_background", "POST /execute/background", "execute_code_rich", "POST /execute/rich",
	"execute_list_processes", "GET /execute/processes", "execute_kill_process", "POST /execute/kill/ID", "max_results", "another directory",
)

// hints replaces tools by routes in the part of a text that says what to do. The part
// before it may quote the client.
func hints(text string) string {
	i := strings.LastIndex(text, "; ")
	if i < 0 {
		return text
	}
	return text[:i] + tools.Replace(text[i:])
}
