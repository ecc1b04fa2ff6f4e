package rest

import (
	"bytes"
	"context"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

func lineError(p *Problem) *operation.LineError {
	return &operation.LineError{Code: p.Code, Message: p.Detail, Reason: p.Reason, RetryAfterMS: p.RetryAfterMS}
}

// aliveEvery is how often an idle stream of server-sent events sends a comment: proxies
// and browsers give up a stream that sends nothing for a minute.
const aliveEvery = 15 * time.Second

// lines writes a stream of JSON values, one per line, and sends each at once. The
// response starts with the first line, so an error before it is an ordinary error
// response.
type lines struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	mu      sync.Mutex
	buf     bytes.Buffer // guarded by mu
	started bool         // guarded by mu
	// wanted says that the client accepts lines instead of one value.
	wanted bool
	// events makes each value a server-sent event.
	events bool
}

func (l *lines) send(v any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
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
		if e, ok := v.(interface{ EventID() string }); ok && e.EventID() != "" {
			l.buf.WriteString("id: " + e.EventID() + "\n")
		}
		l.buf.WriteString("data: ")
	}
	if err := encodeJSON(&l.buf, v); err != nil {
		return err
	}
	if l.events {
		l.buf.WriteByte('\n')
	}
	return l.write(l.buf.Bytes())
}

// write sends bytes at once. The caller holds mu.
func (l *lines) write(b []byte) error {
	if _, err := l.w.Write(b); err != nil {
		return gone(err)
	}
	if err := l.rc.Flush(); err != nil {
		return gone(err)
	}
	return nil
}

// keepAlive sends comments between server-sent events until ctx is cancelled.
func (l *lines) keepAlive(ctx context.Context) {
	t := time.NewTicker(aliveEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		l.mu.Lock()
		if l.started {
			_ = l.write([]byte(":\n\n")) // the next event will get the error
		}
		l.mu.Unlock()
	}
}

// gone is the error of a client that has disconnected.
func gone(err error) error {
	return sandbox.Wrap(sandbox.CodeCancelled, err, "the client went away")
}

// stream answers with the lines that run sends. An error of run becomes a problem, or
// the last line if there were lines before.
func stream[Line any, P operation.Line[Line]](h *handlers, run func(ctx context.Context, out *lines) error) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		r, w := humago.Unwrap(hctx)
		accept := r.Header.Get("Accept")
		out := &lines{w: w, rc: http.NewResponseController(w), wanted: wantsLines(accept), events: wantsEvents(accept)}
		err := out.during(r.Context(), run)
		if err == nil {
			return
		}
		p := h.fail(r.Context(), err)
		if !out.started {
			p.write(w)
			return
		}
		var last Line
		P(&last).Last().Error = lineError(p)
		if out.send(last) != nil {
			panic(http.ErrAbortHandler)
		}
	}}
}

// during calls run, and keeps a stream of server-sent events alive meanwhile.
func (l *lines) during(ctx context.Context, run func(context.Context, *lines) error) error {
	if !l.events {
		return run(ctx, l)
	}
	living, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { l.keepAlive(living) })
	defer wg.Wait()
	defer stop()
	return run(ctx, l)
}

// wantsLines reports whether a client accepts a stream instead of one value.
func wantsLines(accept string) bool {
	return strings.Contains(accept, contentLines) || wantsEvents(accept)
}

// wantsEvents reports whether a client accepts a stream as server-sent events.
func wantsEvents(accept string) bool {
	return strings.Contains(accept, contentEvents) && !strings.Contains(accept, contentLines)
}

// answer sends one value instead of lines.
func (l *lines) answer(v any) {
	l.w.Header().Set("Content-Type", contentJSON)
	if encodeJSON(l.w, v) != nil {
		panic(http.ErrAbortHandler)
	}
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
