package toolbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

const (
	defaultContext = "default"
	// contextPrefix begins the names of contexts that clients have made.
	contextPrefix = "daytona-"
	// codeSeconds is the default time limit of code.
	codeSeconds = 600
	// firstTime is how long a client may take to say what to run.
	firstTime = 30 * time.Second
)

func (p *plane) interpreterRoutes(rt *answer.Router) {
	rt.On("GET /process/interpreter/execute", p.interpret)
	rt.On("POST /process/interpreter/context", decoded(p.createContext))
	rt.On("GET /process/interpreter/context", p.listContexts)
	rt.On("DELETE /process/interpreter/context/{id}", p.deleteContext)
}

// codeContext is an interpreter as clients know it.
type codeContext struct {
	ID        string    `json:"id"`
	Cwd       string    `json:"cwd"`
	Language  string    `json:"language"`
	Active    bool      `json:"active"`
	CreatedAt time.Time `json:"createdAt"`
}

// contexts lists the interpreters of Python, without the default one.
func (p *plane) contexts(ctx context.Context, box *sandbox.Sandbox) ([]codeContext, error) {
	list, err := p.svc.ListContexts(ctx, box.ID)
	if err != nil {
		return nil, err
	}
	all := []codeContext{}
	for _, c := range list.Items {
		if c.Language != sandbox.Python || c.Name == defaultContext {
			continue
		}
		dir := c.WorkDir
		if dir == "" {
			dir = box.WorkDir
		}
		all = append(all, codeContext{c.Name, dir, string(c.Language), c.State != sandbox.ContextDead, c.CreatedAt})
	}
	return all, nil
}

func (p *plane) findContext(ctx context.Context, box *sandbox.Sandbox, id string) (*codeContext, error) {
	all, err := p.contexts(ctx, box)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].ID == id {
			return &all[i], nil
		}
	}
	return nil, missing("context %.128s not found", id)
}

func (p *plane) listContexts(w http.ResponseWriter, r *http.Request) error {
	all, err := p.contexts(r.Context(), boxOf(r))
	if err != nil {
		return err
	}
	return ok(w, map[string]any{"contexts": all})
}

type contextBody struct {
	Cwd      string `json:"cwd"`
	Language string `json:"language"`
}

func (p *plane) createContext(w http.ResponseWriter, r *http.Request, body *contextBody) error {
	if body.Language != "" && body.Language != string(sandbox.Python) {
		return answer.Invalid("language %.32q has no contexts; use python", body.Language)
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	ref := sandbox.ContextRef{Language: sandbox.Python, Name: contextPrefix + hex.EncodeToString(random[:])}
	box := boxOf(r)
	if err := p.enter(r.Context(), box.ID, ref, body.Cwd); err != nil {
		ctx, cancel := detached(r.Context())
		defer cancel()
		_ = p.svc.DeleteContext(ctx, box.ID, ref)
		return err
	}
	c, err := p.findContext(r.Context(), box, ref.Name)
	if err != nil {
		return err
	}
	return ok(w, c)
}

// enter starts the interpreter of a context, in a directory unless that is "".
func (p *plane) enter(ctx context.Context, id string, ref sandbox.ContextRef, dir string) error {
	code := "\n"
	if dir != "" {
		quoted, err := json.Marshal(dir)
		if err != nil {
			return err
		}
		code = `__import__("os").chdir(__import__("json").loads(r'''` + strings.ReplaceAll(string(quoted), "'", `\u0027`) + `'''))`
	}
	res, err := p.svc.RunCode(ctx, id, sandbox.RunCodeRequest{Language: ref.Language, Context: ref.Name, Code: code}, nil)
	if err == nil && (res.Error != nil || res.ExitCode != 0) {
		return answer.Invalid("the directory %.200q cannot be the context's; make it first", dir)
	}
	return err
}

func (p *plane) deleteContext(w http.ResponseWriter, r *http.Request) error {
	id, box := r.PathValue("id"), boxOf(r)
	if id == defaultContext {
		return answer.Invalid("the default context cannot be deleted")
	}
	if _, err := p.findContext(r.Context(), box, id); err != nil {
		return err
	}
	if err := p.svc.DeleteContext(r.Context(), box.ID, sandbox.ContextRef{Language: sandbox.Python, Name: id}); err != nil {
		return err
	}
	return ok(w, map[string]string{"message": "context deleted"})
}

// interpretBody is the code of a connection.
type interpretBody struct {
	Code    string            `json:"code"`
	Context string            `json:"contextId"`
	Envs    map[string]string `json:"envs"`
	Timeout *int64            `json:"timeout"`
}

// request translates a client's request. An error is for the client.
func (p *plane) request(ctx context.Context, box *sandbox.Sandbox, data []byte) (req sandbox.RunCodeRequest, err error) {
	var body interpretBody
	if err := answer.Parse(data, &body); err != nil {
		return req, err
	}
	req = sandbox.RunCodeRequest{
		Language: sandbox.Python, Code: body.Code, Context: body.Context, Env: body.Envs, KeepBytes: sandbox.MaxKeepBytes, TimeoutMS: codeSeconds * 1000,
	}
	most := sandbox.MaxCodeTimeout
	switch {
	case body.Timeout == nil:
	case *body.Timeout < 0 || *body.Timeout > int64(most/time.Second):
		return req, answer.Invalid("timeout is %d; give 0 to %d seconds", *body.Timeout, int64(most/time.Second))
	case *body.Timeout == 0:
		req.TimeoutMS = most.Milliseconds()
	default:
		req.TimeoutMS = *body.Timeout * 1000
	}
	if strings.TrimSpace(req.Code) == "" {
		req.Code = "\n"
	}
	if req.Context != "" && req.Context != defaultContext {
		_, err = p.findContext(ctx, box, req.Context)
	}
	return req, err
}

// frame is a message about code that runs.
type frame struct {
	Type      string  `json:"type"`
	Text      *string `json:"text,omitempty"`
	Name      *string `json:"name,omitempty"`
	Value     *string `json:"value,omitempty"`
	Traceback *string `json:"traceback,omitempty"`
}

func said(kind, text string) frame { return frame{Type: kind, Text: &text} }

// interpret runs the code of one connection.
func (p *plane) interpret(w http.ResponseWriter, r *http.Request) error {
	if !isSocket(r) {
		return answer.Invalid("this route is a WebSocket")
	}
	conn, err := accept(w, r)
	if err != nil {
		return nil // it has answered
	}
	defer conn.CloseNow()
	first, cancel := context.WithTimeout(r.Context(), firstTime)
	_, data, err := conn.Read(first)
	cancel()
	if err != nil {
		return nil // the client is gone
	}
	box := boxOf(r)
	ctx := conn.CloseRead(r.Context())
	req, err := p.request(ctx, box, data)
	if err != nil {
		_ = conn.Close(websocket.StatusPolicyViolation, clip(answer.Of(err).Message))
		return nil
	}
	res, err := p.svc.RunCode(ctx, box.ID, req, func(e sandbox.CodeEvent) error { return sendEvent(ctx, conn, &e) })
	p.conclude(r.Context(), conn, res, err)
	return nil
}

// sendEvent passes on what code writes and shows.
func sendEvent(ctx context.Context, conn *websocket.Conn, e *sandbox.CodeEvent) error {
	switch {
	case len(e.Data) > 0:
		return sendJSON(ctx, conn, said(string(e.Stream), strings.ToValidUTF8(string(e.Data), "\uFFFD")))
	case e.Output != nil && !e.Output.Result:
		// Clients have no place for what is shown but the output.
		var plain string
		if json.Unmarshal(e.Output.Data["text/plain"], &plain) == nil && plain != "" {
			return sendJSON(ctx, conn, said(string(sandbox.Stdout), plain+"\n"))
		}
	}
	return nil
}

// conclude sends how the code has ended.
func (p *plane) conclude(ctx context.Context, conn *websocket.Conn, res *sandbox.CodeResult, err error) {
	fail := func(name, value, traceback string) {
		_ = sendJSON(ctx, conn, frame{Type: "error", Name: &name, Value: &value, Traceback: &traceback})
	}
	last := "completed"
	switch {
	case err != nil:
		_ = conn.Close(websocket.StatusInternalError, clip(sandbox.MessageOf(err)))
		return
	case res.TimedOut:
		_ = conn.Close(statusTimeout, "execution timed out")
		return
	case res.Interrupted:
		last = "interrupted"
	case res.Error != nil:
		fail(res.Error.Name, res.Error.Message, res.Error.Traceback)
	case res.ExitCode != 0:
		fail("SystemExit", res.Reason, res.Reason)
	}
	_ = sendJSON(ctx, conn, said("control", last))
	_ = conn.Close(websocket.StatusNormalClosure, "")
}

// clip shortens the reason of a close to what fits into a frame.
func clip(s string) string {
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "")
	}
	return s
}
