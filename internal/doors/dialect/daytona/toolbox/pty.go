package toolbox

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/internal/doors/stdin"
	"github.com/cove-sh/cove/sandbox"
)

const (
	ptyTag = "daytona.pty."
	// maxID bounds the id of a terminal or a session, in bytes.
	maxID = 128
	// ptyKeep is how much output of a terminal a client may find when it attaches late.
	ptyKeep = 4 << 20
	// maxTerminal bounds the columns and rows of a terminal.
	maxTerminal = 1000
	// pingEvery is how often a client is pinged, and lastInput how long a program may
	// take to read the last input of a client that is gone.
	pingEvery       = 30 * time.Second
	lastInput       = 2 * time.Second
	defaultCols     = 80
	defaultRows     = 24
	shellOfTerminal = `if command -v bash >/dev/null; then exec bash -il; else exec sh -il; fi`
)

func (p *plane) ptyRoutes(rt *answer.Router) {
	rt.On("GET /process/pty", p.listPTYs)
	rt.On("POST /process/pty", decoded(p.createPTY))
	rt.On("GET /process/pty/create-connect", p.createConnectPTY)
	rt.On("GET /process/pty/{id}", p.getPTY)
	rt.On("GET /process/pty/{id}/connect", p.connectPTY)
	rt.On("DELETE /process/pty/{id}", p.deletePTY)
	rt.On("POST /process/pty/{id}/resize", decoded(p.resizePTY))
}

// ptyInfo is a terminal as clients know it.
type ptyInfo struct {
	ID        string            `json:"id"`
	Cwd       string            `json:"cwd"`
	Envs      map[string]string `json:"envs"`
	Cols      int               `json:"cols"`
	Rows      int               `json:"rows"`
	CreatedAt time.Time         `json:"createdAt"`
	Active    bool              `json:"active"`
	LazyStart bool              `json:"lazyStart"`
}

// checkID refuses an id that cannot be part of a tag and of a path.
func checkID(id string) error {
	if id == "" || len(id) > maxID || strings.ContainsFunc(id, func(c rune) bool { return c < ' ' || c == '/' || c == 0x7f }) {
		return answer.Invalid("the id is empty, longer than %d bytes, or has a slash or control characters; choose another", maxID)
	}
	return nil
}

// tagged returns the newest job of a kind with an id, running before ended.
func (p *plane) tagged(ctx context.Context, box, kind, id string) (*sandbox.Job, error) {
	var found *sandbox.Job
	for job, err := range sandbox.Each(ctx, sandbox.Of(box, p.svc.ListJobs)) {
		if err != nil {
			return nil, err
		}
		if job.Tag == kind+id && (found == nil || found.State != sandbox.JobRunning || job.State == sandbox.JobRunning) {
			found = &job
		}
	}
	return found, nil
}

// pty returns the terminal of a request.
func (p *plane) pty(r *http.Request) (*sandbox.Job, error) {
	id := r.PathValue("id")
	job, err := p.tagged(r.Context(), boxOf(r).ID, ptyTag, id)
	if err == nil && (job == nil || !job.Terminal) {
		return nil, missing("PTY session %.128s not found", id)
	}
	return job, err
}

// info describes a terminal. Its size is asked of the terminal itself.
func (p *plane) info(ctx context.Context, job *sandbox.Job) ptyInfo {
	i := ptyInfo{
		ID: strings.TrimPrefix(job.Tag, ptyTag), Cwd: job.WorkDir, Envs: map[string]string{}, Cols: defaultCols, Rows: defaultRows,
		CreatedAt: job.StartedAt, Active: job.State == sandbox.JobRunning,
	}
	if !i.Active {
		return i
	}
	out, err := p.tool(ctx, job.SandboxID, sandbox.ExecRequest{Shell: fmt.Sprintf("stty size </proc/%d/fd/0", job.PID), User: job.User, WorkDir: "/"})
	if err == nil && out.code == 0 {
		var rows, cols int
		if n, _ := fmt.Sscan(out.stdout, &rows, &cols); n == 2 {
			i.Cols, i.Rows = cols, rows
		}
	}
	return i
}

func (p *plane) listPTYs(w http.ResponseWriter, r *http.Request) error {
	all := []ptyInfo{}
	for job, err := range sandbox.Each(r.Context(), sandbox.Of(boxOf(r).ID, p.svc.ListJobs)) {
		if err != nil {
			return err
		}
		if strings.HasPrefix(job.Tag, ptyTag) && job.Terminal && job.State == sandbox.JobRunning {
			all = append(all, p.info(r.Context(), &job))
		}
	}
	return ok(w, map[string]any{"sessions": all})
}

func (p *plane) getPTY(w http.ResponseWriter, r *http.Request) error {
	job, err := p.pty(r)
	if err != nil {
		return err
	}
	return ok(w, p.info(r.Context(), job))
}

func (p *plane) deletePTY(w http.ResponseWriter, r *http.Request) error {
	job, err := p.pty(r)
	if err != nil {
		return err
	}
	if _, err = p.svc.SignalJob(r.Context(), job.SandboxID, job.ID, "KILL", 0); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
		return err
	}
	return ok(w, map[string]string{"message": "PTY session deleted"})
}

type sizeBody struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

func (s sizeBody) size() (*sandbox.TerminalSize, error) {
	if s.Cols < 1 || s.Cols > maxTerminal || s.Rows < 1 || s.Rows > maxTerminal {
		return nil, answer.Invalid("a terminal of %d columns and %d rows is not possible; give 1 to %d of each", s.Cols, s.Rows, maxTerminal)
	}
	return &sandbox.TerminalSize{Cols: uint16(s.Cols), Rows: uint16(s.Rows)}, nil
}

func (p *plane) resizePTY(w http.ResponseWriter, r *http.Request, body *sizeBody) error {
	size, err := body.size()
	if err != nil {
		return err
	}
	job, err := p.pty(r)
	if err != nil {
		return err
	}
	err = p.svc.ResizeTerminal(r.Context(), job.SandboxID, job.ID, *size)
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		return answer.Fail(http.StatusGone, answer.SessionEnded, "the PTY session has ended")
	}
	if err != nil {
		return err
	}
	i := p.info(r.Context(), job)
	i.Cols, i.Rows = body.Cols, body.Rows
	return ok(w, i)
}

// ptyBody describes a terminal to be made.
type ptyBody struct {
	ID        string            `json:"id"`
	Cwd       string            `json:"cwd"`
	Envs      map[string]string `json:"envs"`
	Cols      *int              `json:"cols"`
	Rows      *int              `json:"rows"`
	LazyStart bool              `json:"lazyStart"`
}

// open starts a shell on a terminal.
func (p *plane) open(r *http.Request, body *ptyBody) (*sandbox.Job, error) {
	if body.LazyStart {
		return nil, answer.Refused("lazyStart", "a terminal starts at once")
	}
	if err := checkID(body.ID); err != nil {
		return nil, err
	}
	want := sizeBody{defaultCols, defaultRows}
	if body.Cols != nil {
		want.Cols = *body.Cols
	}
	if body.Rows != nil {
		want.Rows = *body.Rows
	}
	size, err := want.size()
	if err != nil {
		return nil, err
	}
	box := boxOf(r)
	there, err := p.tagged(r.Context(), box.ID, ptyTag, body.ID)
	if err != nil {
		return nil, err
	}
	if there != nil && there.State == sandbox.JobRunning {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "PTY session %.128s is there already; choose another id", body.ID)
	}
	env := map[string]string{"TERM": "xterm-256color"}
	for name, value := range body.Envs {
		env[name] = value
	}
	return p.svc.Exec(sandbox.WithFollowed(r.Context()), box.ID, sandbox.ExecRequest{
		Shell: shellOfTerminal, WorkDir: body.Cwd, Env: env, Terminal: size, OpenStdin: true, Background: true, KeepBytes: ptyKeep, Tag: ptyTag + body.ID,
	}, nil)
}

func (p *plane) createPTY(w http.ResponseWriter, r *http.Request, body *ptyBody) error {
	if _, err := p.open(r, body); err != nil {
		return err
	}
	answer.JSON(w, http.StatusCreated, map[string]string{"sessionId": body.ID})
	return nil
}

// readPTY reads a terminal to be made from the query and the subprotocols.
func readPTY(r *http.Request) (*ptyBody, error) {
	query := r.URL.Query()
	body := &ptyBody{ID: query.Get("id"), Cwd: query.Get("cwd")}
	for name, to := range map[string]**int{"cols": &body.Cols, "rows": &body.Rows} {
		if text := query.Get(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				return nil, answer.Invalid("%s is %.20q; give a number", name, text)
			}
			*to = &n
		}
	}
	for _, name := range offered(r) {
		encoded, is := strings.CutPrefix(name, envsProtocol)
		if !is {
			continue
		}
		data, err := base64.RawURLEncoding.DecodeString(encoded)
		if err != nil || json.Unmarshal(data, &body.Envs) != nil {
			return nil, answer.Invalid("the variables in the subprotocol are not base64 of JSON")
		}
	}
	return body, nil
}

func (p *plane) createConnectPTY(w http.ResponseWriter, r *http.Request) error {
	if !isSocket(r) {
		return answer.Invalid("this route is a WebSocket")
	}
	body, err := readPTY(r)
	if err != nil {
		return err
	}
	job, err := p.open(r, body)
	if err != nil {
		return err
	}
	p.attach(w, r, job, sandbox.AttachRequest{})
	return nil
}

func (p *plane) connectPTY(w http.ResponseWriter, r *http.Request) error {
	if !isSocket(r) {
		return answer.Invalid("this route is a WebSocket")
	}
	job, err := p.pty(r)
	if err != nil {
		return err
	}
	p.attach(w, r, job, sandbox.AttachRequest{StdoutOffset: job.StdoutBytes})
	return nil
}

// control is a message of a terminal other than output.
type control struct {
	Type       string `json:"type"`
	Status     string `json:"status"`
	ExitCode   *int   `json:"exitCode,omitempty"`
	ExitReason string `json:"exitReason,omitempty"`
}

type exit struct {
	ExitCode   int    `json:"exitCode"`
	ExitReason string `json:"exitReason,omitempty"`
}

var errSlow = errors.New("output was read too slowly")

// attach connects a client with a terminal, which continues when the client goes away.
func (p *plane) attach(w http.ResponseWriter, r *http.Request, job *sandbox.Job, from sandbox.AttachRequest) {
	conn, err := accept(w, r)
	if err != nil {
		return // it has answered
	}
	var workers sync.WaitGroup
	defer workers.Wait()
	defer conn.CloseNow()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if sendJSON(ctx, conn, control{Type: "control", Status: "connected"}) != nil {
		return
	}
	p.typing(ctx, cancel, &workers, conn, job)
	next := from.StdoutOffset
	ended, err := p.svc.Attach(ctx, job.SandboxID, job.ID, from, func(e sandbox.JobEvent) error {
		if len(e.Data) == 0 {
			return nil
		}
		if e.Offset > next {
			return errSlow
		}
		next = e.Offset + int64(len(e.Data))
		return conn.Write(ctx, websocket.MessageBinary, e.Data)
	})
	switch {
	case errors.Is(err, errSlow):
		_ = conn.Close(websocket.StatusPolicyViolation, reason(map[string]string{"error": errSlow.Error()}))
	case err != nil:
		_ = conn.Close(websocket.StatusInternalError, reason(map[string]string{"error": sandbox.MessageOf(err)}))
	default:
		p.say(r.Context(), conn, ended)
	}
}

// typing passes a client's input to a terminal, and calls cancel when the client is
// gone. The client's last input still reaches the terminal.
func (p *plane) typing(ctx context.Context, cancel context.CancelFunc, workers *sync.WaitGroup, conn *websocket.Conn, job *sandbox.Job) {
	input := stdin.New(func(ctx context.Context, data []byte, end bool) error {
		return p.svc.WriteInput(ctx, job.SandboxID, job.ID, data, end)
	})
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	workers.Go(func() { input.Run(writing) })
	workers.Go(func() {
		defer cancel()
		_ = input.Watch(ctx, pingEvery, conn.Ping)
	})
	workers.Go(func() {
		defer stop()
		// A read that is cancelled would close the connection before the last words.
		for _, data, err := conn.Read(writing); err == nil; _, data, err = conn.Read(writing) {
			input.Put(ctx, data)
		}
		cancel()
		last, done := context.WithTimeout(writing, lastInput)
		defer done()
		input.Drain(last)
	})
}

// say sends a client how a terminal's program has ended.
func (p *plane) say(ctx context.Context, conn *websocket.Conn, job *sandbox.Job) {
	e := exit{job.ExitCode, exitReason(job)}
	if conn.Subprotocol() == exitControl {
		_ = sendJSON(ctx, conn, control{"control", "exited", &e.ExitCode, e.ExitReason})
	}
	status := websocket.StatusNormalClosure
	if e.ExitCode != 0 {
		status = websocket.StatusInternalError
	}
	_ = conn.Close(status, reason(e))
}

func exitReason(job *sandbox.Job) string {
	switch {
	case job.EndCause == sandbox.EndOutOfMemory:
		return "the sandbox ran out of memory"
	case job.Signal != "":
		return "ended by signal " + job.Signal
	case job.ExitCode != 0:
		return "exit status " + strconv.Itoa(job.ExitCode)
	}
	return ""
}
