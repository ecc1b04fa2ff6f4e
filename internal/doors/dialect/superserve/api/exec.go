package api

import (
	"bytes"
	"context"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// defaultTimeout is slightly less than clients wait if they set no timeout.
	defaultTimeout = 29 * time.Second
	maxTime        = 12 * time.Hour
	// exitTimeout is the exit code of a command that timed out.
	exitTimeout = 124
	// maxOutput bounds the output of both streams in an answer, in bytes: clients accept 10
	// MiB of JSON.
	maxOutput = 8 << 20
	// keepOutput is how much a command may write before a slow reader loses output.
	keepOutput = 4 << 20
	// killTime bounds the killing of a command whose client is gone.
	killTime = 10 * time.Second
	// patience is how long the status of an answer may be delayed. From then on, blanks are
	// sent, since a client gives up after five minutes without a byte.
	patience   = 20 * time.Second
	blankEvery = time.Minute
)

// execBody describes a command.
type execBody struct {
	Command string            `json:"command"`
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Dir     string            `json:"working_dir"`
	Timeout *int64            `json:"timeout_s"`
}

// request returns the command in the service's terms; usual is the default timeout.
func (b *execBody) request(usual time.Duration) (sandbox.ExecRequest, error) {
	req := sandbox.ExecRequest{Env: b.Env, WorkDir: b.Dir, TimeoutMS: usual.Milliseconds()}
	switch {
	case b.Command == "":
		return req, invalid("command is missing")
	case b.Dir != "" && !path.IsAbs(b.Dir):
		return req, invalid("working_dir %q must begin with /", clip.Text(b.Dir, maxShown))
	case b.Timeout != nil && (*b.Timeout <= 0 || *b.Timeout > int64(maxTime/time.Second)):
		return req, invalid("timeout_s must be between 1 and %d (got %d)", int64(maxTime/time.Second), *b.Timeout)
	case b.Timeout != nil:
		req.TimeoutMS = *b.Timeout * 1000
	}
	req.Command = []string{"/bin/sh", "-c", b.Command}
	if b.Args != nil {
		req.Command = append([]string{b.Command}, b.Args...)
	}
	return req, nil
}

// run runs a command to its end and passes its output to sink. It kills the command if ctx
// is cancelled. A command with a long timeout runs in the background, where the service
// does not bound its time.
func (d *Door) run(ctx context.Context, id string, req sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	if req.TimeoutMS > 0 && req.TimeoutMS <= sandbox.MaxExecTimeout.Milliseconds() {
		req.KeepBytes = 1 // output is streamed
		return d.cfg.Service.Exec(ctx, id, req, sink)
	}
	req.Background, req.KeepBytes = true, keepOutput
	job, err := d.cfg.Service.Exec(sandbox.WithFollowed(ctx), id, req, nil)
	if err != nil {
		return nil, err
	}
	ended, err := d.cfg.Service.Attach(ctx, id, job.ID, sandbox.AttachRequest{}, sink)
	if err != nil {
		d.killJob(ctx, id, job.ID)
	}
	return ended, err
}

func (d *Door) killJob(ctx context.Context, id, job string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if _, err := d.cfg.Service.SignalJob(ctx, id, job, "KILL", 0); err != nil {
		d.cfg.Log.DebugContext(ctx, "kill a command whose client is gone", "sandbox", id, "job", job, "error", err)
	}
}

func exitCode(job *sandbox.Job) int {
	if job.EndCause == sandbox.EndTimeout {
		return exitTimeout
	}
	return job.ExitCode
}

// endNote describes an end that the exit code does not explain.
func endNote(job *sandbox.Job) string {
	switch job.EndCause {
	case sandbox.EndOutOfMemory:
		return "the command was killed: the sandbox ran out of memory\n"
	case sandbox.EndProcessLimit:
		return "the command was killed: it kept the sandbox at its limit of processes\n"
	}
	return ""
}

func (d *Door) exec(w http.ResponseWriter, r *http.Request, _ []string) error {
	var body execBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	req, err := body.request(defaultTimeout)
	if err != nil {
		return err
	}
	s, _ := gate.SandboxOf(r.Context())
	var out [2]bytes.Buffer
	left, cut := maxOutput, false
	wait := newPatient(w)
	defer wait.stop()
	job, err := d.run(r.Context(), s.ID, req, func(e sandbox.JobEvent) error {
		kept := e.Data[:min(left, len(e.Data))]
		left -= len(kept)
		cut = cut || len(kept) < len(e.Data)
		out[streamIndex(e.Stream)].Write(kept)
		return nil
	})
	wait.stop()
	if err != nil {
		if !wait.begun {
			return err
		}
		panic(http.ErrAbortHandler) // the status is already sent; break the answer so that the client notices
	}
	stderr := clip.ToText(out[1].Bytes()) + endNote(job)
	if cut {
		stderr += "\n[the output was cut at 8 MiB]\n"
	}
	answer := map[string]any{"stdout": clip.ToText(out[0].Bytes()), "stderr": stderr, "exit_code": exitCode(job)}
	if cut {
		answer["truncated"] = true
	}
	w.Header().Set("Content-Type", "application/json")
	encode(w, answer)
	return nil
}

func streamIndex(s sandbox.Stream) int {
	if s == sandbox.Stderr {
		return 1
	}
	return 0
}

// patient keeps the client of a long-running answer waiting with blanks, which are legal
// before JSON.
type patient struct {
	mu    sync.Mutex
	timer *time.Timer
	over  bool // guarded by mu
	// begun is set once the status is sent. It does not change after stop.
	begun bool
}

func newPatient(w http.ResponseWriter) *patient {
	p := &patient{}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(patience, func() { p.blank(w) })
	return p
}

func (p *patient) blank(w http.ResponseWriter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	p.begun = true
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(" ")) // the client may be gone
	_ = http.NewResponseController(w).Flush()
	p.timer.Reset(blankEvery)
}

func (p *patient) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.over = true
	p.timer.Stop()
}

// execEvent is an event of a streamed command.
type execEvent struct {
	Time     string `json:"timestamp"`
	Stdout   string `json:"stdout,omitempty"`
	Stderr   string `json:"stderr,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
	Error    string `json:"error,omitempty"`
	Code     string `json:"code,omitempty"`
	Finished bool   `json:"finished,omitempty"`
}

// texts converts a command's output to text. Characters may be split across events.
type texts struct {
	streams [2]clip.Stream
}

func (t *texts) event(e sandbox.JobEvent) execEvent {
	i := streamIndex(e.Stream)
	return t.of(i, t.streams[i].Write(e.Offset, e.Data))
}

func (t *texts) of(i int, text string) execEvent {
	out := execEvent{Time: dialect.Stamp(time.Now())}
	if i == 1 {
		out.Stderr = text
	} else {
		out.Stdout = text
	}
	return out
}

func (d *Door) execStream(w http.ResponseWriter, r *http.Request, _ []string) error {
	var body execBody
	if err := decode(w, r, &body); err != nil {
		return err
	}
	req, err := body.request(0)
	if err != nil {
		return err
	}
	s, _ := gate.SandboxOf(r.Context())
	out := newStream(w)
	defer out.close()
	var t texts
	job, err := d.run(r.Context(), s.ID, req, func(e sandbox.JobEvent) error {
		if len(e.Data) == 0 {
			return nil
		}
		return out.send(t.event(e))
	})
	if err != nil && !out.started() {
		return err
	}
	for i := range t.streams {
		if rest := t.streams[i].End(); rest != "" {
			_ = out.send(t.of(i, rest)) // the client may be gone
		}
	}
	_ = out.send(lastEvent(job, err))
	return nil
}

// lastEvent returns the event for a command's end.
func lastEvent(job *sandbox.Job, err error) execEvent {
	last := execEvent{Time: dialect.Stamp(time.Now()), Finished: true}
	code := 1 // clients treat a missing code as success
	if err != nil {
		last.Error, last.Code = sandbox.MessageOf(err), "exec_failed"
	} else {
		code, last.Error = exitCode(job), strings.TrimSpace(endNote(job))
	}
	last.ExitCode = &code
	return last
}
