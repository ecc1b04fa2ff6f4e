package api

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cove-sh/cove/sandbox"
)

// LineError is the last line of a stream that went wrong after its start.
type LineError struct {
	Code         sandbox.Code   `json:"code"`
	Message      string         `json:"message"`
	Reason       sandbox.Reason `json:"reason,omitempty"`
	RetryAfterMS int64          `json:"retry_after_ms,omitempty"`
}

// JobLine is one line of a stream of job events: an event, the final state of
// the job, or an error. A stream without a final line or an error was cut.
type JobLine struct {
	sandbox.JobEvent
	Final bool       `json:"final,omitempty"`
	Error *LineError `json:"error,omitempty"`
}

// BuildLine is one line of the stream of a template build.
type BuildLine struct {
	sandbox.BuildEvent
	// Build is the build as it has ended, in the last line of a build that is
	// followed.
	Build *sandbox.Build `json:"build,omitempty"`
	Final bool           `json:"final,omitempty"`
	Error *LineError     `json:"error,omitempty"`
}

// WatchLine is one line of a stream of file changes.
type WatchLine struct {
	sandbox.WatchEvent
	Final bool       `json:"final,omitempty"`
	Error *LineError `json:"error,omitempty"`
}

// TryLine is one line of the stream of a try: an attempt that has ended, the
// result, or an error.
type TryLine struct {
	Attempt *sandbox.Attempt `json:"attempt,omitempty"`
	// Done and Total count attempts.
	Done   int                `json:"done,omitempty" doc:"How many attempts have ended."`
	Total  int                `json:"total,omitempty" doc:"How many attempts there are."`
	Result *sandbox.TryResult `json:"result,omitempty"`
	Final  bool               `json:"final,omitempty"`
	Error  *LineError         `json:"error,omitempty"`
}

func lineError(p *Problem) *LineError {
	return &LineError{Code: p.Code, Message: p.Detail, Reason: p.Reason, RetryAfterMS: p.RetryAfterMS}
}

// lines writes a stream of JSON values, one a line, each sent at once. The
// response starts with the first, so that an error before it is a plain one.
type lines struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	buf     bytes.Buffer
	started bool
	// events makes each value a server-sent event.
	events bool
}

func (l *lines) send(v any) error {
	if !l.started {
		l.started = true
		l.w.Header().Set("Content-Type", contentLines)
		if l.events {
			l.w.Header().Set("Content-Type", contentEvents)
		}
		l.w.Header().Set("Cache-Control", "no-store")
		l.w.Header().Set("X-Accel-Buffering", "no")
		l.w.WriteHeader(http.StatusOK)
	}
	l.buf.Reset()
	if l.events {
		l.buf.WriteString("data: ")
	}
	if err := encodeJSON(&l.buf, v); err != nil {
		return err
	}
	if l.events {
		l.buf.WriteByte('\n')
	}
	if _, err := l.w.Write(l.buf.Bytes()); err != nil {
		return gone(err)
	}
	if err := l.rc.Flush(); err != nil {
		return gone(err)
	}
	return nil
}

// gone is the error of a client that takes no more.
func gone(err error) error {
	return sandbox.Wrap(sandbox.CodeCancelled, err, "the client went away")
}

// stream answers with the lines that run sends. An error of run becomes a
// problem, or the last line when there were lines before.
func (h *handlers) stream(run func(ctx context.Context, out *lines) error, failed func(*LineError) any) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humago.Unwrap(hctx)
		out := &lines{w: w, rc: http.NewResponseController(w), events: wantsEvents(r.Header.Get("Accept"))}
		err := run(r.Context(), out)
		if err == nil {
			return
		}
		p := h.fail(r.Context(), err)
		if !out.started {
			p.write(w)
			return
		}
		if out.send(failed(lineError(p))) != nil {
			panic(http.ErrAbortHandler)
		}
	}}
}

func failedJob(e *LineError) any   { return JobLine{Error: e} }
func failedBuild(e *LineError) any { return BuildLine{Error: e} }
func failedWatch(e *LineError) any { return WatchLine{Error: e} }
func failedTry(e *LineError) any   { return TryLine{Error: e} }

// wantsLines reports whether a client asks for a stream in place of one value.
func wantsLines(accept string) bool {
	return strings.Contains(accept, contentLines) || wantsEvents(accept)
}

// wantsEvents reports whether a client asks for the lines of a stream as
// server-sent events.
func wantsEvents(accept string) bool {
	return strings.Contains(accept, contentEvents) && !strings.Contains(accept, contentLines)
}

// streams documents an operation that answers with lines of T.
func streams[T any](a huma.API, o huma.Operation) huma.Operation {
	return answers[T](a, o, contentLines)
}

// answers documents that an operation may answer with T as contentType.
func answers[T any](a huma.API, o huma.Operation, contentType string) huma.Operation {
	response := responseOf(&o)
	response.Content[contentType] = &huma.MediaType{Schema: huma.SchemaFromType(a.OpenAPI().Components.Schemas, reflect.TypeFor[T]())}
	return o
}

func responseOf(o *huma.Operation) *huma.Response {
	if o.Responses == nil {
		o.Responses = map[string]*huma.Response{}
	}
	response := o.Responses["200"]
	if response == nil {
		response = &huma.Response{Description: "OK", Content: map[string]*huma.MediaType{}}
		o.Responses["200"] = response
	}
	return response
}
