package interpreter

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

// withData is the variable that makes interpreters describe charts, dicts and lists as
// data too.
const withData = "COVE_DATA"

// executeRequest is code to run, as clients send it.
type executeRequest struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id"`
	Language string            `json:"language"`
	Env      map[string]string `json:"env_vars"`
}

// request translates a client's request into the service's.
func (s *plane) request(ctx context.Context, box string, in *executeRequest) (sandbox.RunCodeRequest, error) {
	req := sandbox.RunCodeRequest{Code: in.Code, TimeoutMS: sandbox.MaxCodeTimeout.Milliseconds(), KeepBytes: sandbox.MaxKeepBytes}
	req.Env = access.Env(in.Env, box)
	if _, set := req.Env[withData]; !set {
		req.Env[withData] = "1"
	}
	if strings.TrimSpace(req.Code) == "" {
		req.Code = "\n" // empty code is not an error for clients
	}
	if in.Context == "" {
		language, err := languageOf(in.Language)
		req.Language = language
		return req, err
	}
	if in.Language != "" {
		return req, refused(http.StatusBadRequest, "Only one of context_id or language can be provided")
	}
	ref, _, err := s.find(ctx, box, in.Context)
	req.Language, req.Context = ref.Language, ref.Name
	return req, err
}

// execute runs code and streams its events as lines of JSON.
func (s *plane) execute(w http.ResponseWriter, r *http.Request, box string) error {
	var in executeRequest
	if err := decode(w, r, &in); err != nil {
		return err
	}
	req, err := s.request(r.Context(), box, &in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	out := &lines{w: w, rc: http.NewResponseController(w), bytes: map[sandbox.Stream]int64{}}
	over := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() { out.keepAlive(over, s.header, s.keepalive) })
	result, err := s.svc.RunCode(ctx, box, req, func(e sandbox.CodeEvent) error { return out.event(&e) })
	close(over)
	ticking.Wait()
	switch {
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // nobody reads
	case err != nil && !out.begun:
		return err
	case err != nil && s.gone(r.Context(), box):
		panic(http.ErrAbortHandler) // clients then ask whether it still runs
	case err != nil:
		_ = out.send(failure("UnexpectedEndOfExecution", err.Error(), err.Error()))
	default:
		out.finish(req, result)
	}
	_ = out.send(line{Type: "end_of_execution"})
	return nil
}

// line is one line of the answer.
type line struct {
	Type      string  `json:"type"`
	Text      *string `json:"text,omitempty"`
	Timestamp string  `json:"timestamp,omitempty"`
	Count     int     `json:"execution_count,omitempty"`
	Name      *string `json:"name,omitempty"`
	Value     *string `json:"value,omitempty"`
	Traceback *string `json:"traceback,omitempty"`
}

func failure(name, value, traceback string) line {
	return line{Type: "error", Name: &name, Value: &value, Traceback: &traceback}
}

// lines writes an answer's lines. Its methods are safe for concurrent use.
type lines struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	mu    sync.Mutex
	begun bool                     // guarded by mu while the run goes on
	sent  bool                     // guarded by mu; since the last check of keepAlive
	bytes map[sandbox.Stream]int64 // guarded by mu; sent of each stream
}

// send writes a line at once.
func (l *lines) send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.w.Header().Set("Content-Type", "application/x-ndjson")
		l.w.Header().Set("Cache-Control", "no-store")
		l.begun = true
	}
	l.sent = true
	if _, err := l.w.Write(append(data, '\n')); err != nil {
		return err
	}
	return l.rc.Flush()
}

// keepAlive starts the answer and sends keepalives while it is silent, until the run is
// over.
func (l *lines) keepAlive(over <-chan struct{}, header, every time.Duration) {
	timer := time.NewTimer(header)
	defer timer.Stop()
	for {
		select {
		case <-over:
			return
		case <-timer.C:
		}
		l.mu.Lock()
		quiet := !l.sent
		l.sent = false
		l.mu.Unlock()
		if quiet && l.send(line{Type: "keepalive"}) != nil {
			return
		}
		timer.Reset(every)
	}
}

// event sends an event of running code.
func (l *lines) event(e *sandbox.CodeEvent) error {
	switch {
	case e.Output != nil:
		if err := l.send(resultOf(e.Output)); err != nil {
			return err
		}
		for mime, path := range e.Output.Files {
			if err := l.output(sandbox.Stderr, fmt.Sprintf("%s is too large to be sent; it is in the file %s\n", mime, path)); err != nil {
				return err
			}
		}
	case e.Result == nil:
		l.mu.Lock()
		l.bytes[e.Stream] += int64(len(e.Data))
		l.mu.Unlock()
		return l.output(e.Stream, strings.ToValidUTF8(string(e.Data), "\uFFFD"))
	}
	return nil
}

func (l *lines) output(stream sandbox.Stream, text string) error {
	return l.send(line{Type: string(stream), Text: &text, Timestamp: time.Now().UTC().Format("2006-01-02T15:04:05.000000")})
}

// finish sends what is known only at the end of a run.
func (l *lines) finish(req sandbox.RunCodeRequest, r *sandbox.CodeResult) {
	for _, stream := range []struct {
		name  sandbox.Stream
		total int64
	}{{sandbox.Stdout, r.StdoutBytes}, {sandbox.Stderr, r.StderrBytes}} {
		if rest := stream.total - l.bytes[stream.name]; rest > 0 {
			_ = l.output(stream.name, fmt.Sprintf("\n[… %d bytes left out …]\n", rest))
		}
	}
	if count := r.Count; count > 0 {
		if strings.HasPrefix(req.Context, namePrefix) {
			count-- // the run that created the context
		}
		_ = l.send(line{Type: "number_of_executions", Count: count})
	}
	if e := problemOf(req, r); e != nil {
		_ = l.send(e)
	}
}

// problemOf describes an error of the code, nil if there was none.
func problemOf(req sandbox.RunCodeRequest, r *sandbox.CodeResult) any {
	switch {
	case r.TimedOut:
		text := fmt.Sprintf("the code was interrupted after %s, the most that this server allows; start what takes longer as a command in the background", sandbox.MaxCodeTimeout)
		return failure("TimeoutError", text, text)
	case r.Error != nil:
		return failure(r.Error.Name, r.Error.Message, r.Error.Traceback)
	case r.Restarted && r.ExitCode != 0:
		return failure("UnexpectedEndOfExecution", r.Reason, r.Reason)
	case r.ExitCode == 0:
		return nil
	case req.Language == sandbox.Python:
		code := fmt.Sprint(r.ExitCode)
		return failure("SystemExit", code, "SystemExit: "+code)
	default:
		code := fmt.Sprint(r.ExitCode)
		return failure("ExitCode", code, "the code has ended with exit code "+code)
	}
}
