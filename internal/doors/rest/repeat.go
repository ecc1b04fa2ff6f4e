package rest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// keyHeader makes a request repeatable.
	keyHeader = "Idempotency-Key"
	// replayHeader marks an answer that was given before.
	replayHeader = "Idempotent-Replayed"
	// maxKey bounds a key, and maxKeptAnswer a stored answer, in bytes.
	maxKey        = 255
	maxKeptAnswer = 1 << 20
	// noteTime bounds storing an answer.
	noteTime = 10 * time.Second
	// underWayRetry is when a client may ask again for an answer that is not there yet.
	underWayRetry = time.Second
)

// keyParameter describes the key of operations that take one.
func keyParameter(how operation.Repeat) *huma.Param {
	longest := maxKey
	text := "Makes it safe to send the request again. A second request with the key gets the first one's answer, with the header `" + replayHeader + ": true`, for 24 hours, of the newest 10,000 requests of a team. " +
		"While the first is worked on, the second is a conflict (409) with a Retry-After. With another body it is refused (422). Failures are not kept: the key is free again."
	if how == operation.RepeatBackground {
		text += " Taken with `background` only."
	}
	return &huma.Param{Name: keyHeader, In: "header", Description: text, Schema: &huma.Schema{Type: huma.TypeString, MaxLength: &longest}}
}

// repeats answers repeated requests.
type repeats struct {
	store limits.Requests
	// run identifies this run of the server. Nobody works on requests that another run
	// has begun.
	run string
}

func newRepeats(s limits.Requests) *repeats {
	if s == nil {
		return nil
	}
	return &repeats{store: s, run: rand.Text()}
}

// once runs a request with a key if it has not been run before.
func (h *handlers) once(hctx huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(hctx)
	keys := r.Header.Values(keyHeader)
	if len(keys) == 0 || r.Method != http.MethodPost {
		next(hctx) // other methods can be repeated without a key
		return
	}
	how := infoOf(hctx.Operation()).Repeat
	if how != operation.RepeatNone && h.repeats == nil {
		next(hctx)
		return
	}
	body, err := h.checkRepeat(hctx, r, keys, how)
	if err != nil {
		w.Header().Set("Connection", "close")
		WriteError(w, err)
		return
	}
	if body == nil {
		next(hctx) // the body cannot be read or is too large; the handler reports that
		return
	}
	caller, _ := sandbox.CallerOf(r.Context())
	record := limits.Request{Team: caller.Team, Key: recordedKey(&caller, keys[0]), Hash: hashOf(r, body), Run: h.repeats.run, CreatedAt: time.Now()}
	earlier, err := h.repeats.store.BeginRequest(r.Context(), record, record.CreatedAt.Add(-limits.RequestRetention))
	switch {
	case err != nil:
		h.fail(r.Context(), err).write(w)
	case earlier != nil:
		h.repeats.again(w, &record, earlier)
	default:
		h.runOnce(hctx.Operation(), r, w, how, &record, next)
	}
}

// recordedKey returns the key under which a request is stored: each namespace has its
// own keys. A key contains no line break.
func recordedKey(caller *sandbox.Caller, key string) string {
	if caller.Namespace == "" {
		return key
	}
	return caller.Namespace + "\n" + key
}

// checkRepeat refuses a key that would have no effect, and returns the body. The body
// is nil if no handler would take it.
func (h *handlers) checkRepeat(hctx huma.Context, r *http.Request, keys []string, how operation.Repeat) ([]byte, error) {
	switch {
	case how == operation.RepeatNone:
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "this operation takes no %s; leave the header out", keyHeader)
	case len(keys) > 1 || !validKey(keys[0]):
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the header %s is not one text of 1 to %d printable ASCII characters; correct it", keyHeader, maxKey)
	}
	limit := hctx.Operation().MaxBodyBytes
	data, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	rest := io.Reader(r.Body)
	if err != nil {
		rest = brokenBody{err}
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(data), rest), r.Body}
	if err != nil || int64(len(data)) > limit {
		return nil, nil
	}
	if how == operation.RepeatBackground {
		var command struct {
			Background bool `json:"background"`
		}
		if json.Unmarshal(data, &command) == nil && !command.Background {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "%s is taken for commands that run in the background; set background, or leave the header out", keyHeader)
		}
	}
	return data, nil
}

// brokenBody is a body whose reading fails with the error that it has failed with
// before.
type brokenBody struct{ err error }

func (b brokenBody) Read([]byte) (int, error) { return 0, b.err }

func validKey(key string) bool {
	return key != "" && len(key) <= maxKey && strings.IndexFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) < 0
}

// hashOf returns a hash of everything in a request that its answer can depend on.
func hashOf(r *http.Request, body []byte) []byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n", r.Method, r.URL.EscapedPath(), r.URL.RawQuery)
	h.Write(body)
	return h.Sum(nil)
}

// again answers a request whose key was used before.
func (s *repeats) again(w http.ResponseWriter, r, earlier *limits.Request) {
	switch a := earlier.Answer; {
	case !bytes.Equal(r.Hash, earlier.Hash):
		p := problemOf(sandbox.Errorf(sandbox.CodeInvalid, "the %s was used for another request; use a new one for each", keyHeader))
		p.Status, p.Title = http.StatusUnprocessableEntity, http.StatusText(http.StatusUnprocessableEntity)
		p.write(w)
	case a != nil:
		h := w.Header()
		h.Set("Content-Type", a.ContentType)
		if a.Location != "" {
			h.Set("Location", a.Location)
		}
		h.Set(replayHeader, "true")
		w.WriteHeader(a.Status)
		_, _ = w.Write(a.Body) // the client may be gone
	case earlier.Run == s.run:
		err := sandbox.Errorf(sandbox.CodeConflict, "the request with this %s is still worked on; ask again in a moment", keyHeader)
		err.RetryAfter = underWayRetry
		WriteError(w, err)
	default:
		WriteError(w, sandbox.Errorf(sandbox.CodeConflict, "the request with this %s was begun and its outcome is not known, since the server or the command was cut off; look whether what it makes is there, and use a new key", keyHeader))
	}
}

// runOnce runs a request, stores its answer, and only then sends the answer.
func (h *handlers) runOnce(o *huma.Operation, r *http.Request, w http.ResponseWriter, how operation.Repeat, record *limits.Request, next func(huma.Context)) {
	answer := &heldAnswer{header: http.Header{}, status: http.StatusOK}
	whole := false // unless the handler panics
	defer func() {
		// The outcome is stored even if the client goes away.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), noteTime)
		defer cancel()
		if err := h.repeats.note(ctx, how, record, answer, whole); err != nil {
			h.log.ErrorContext(ctx, "note the answer to a request that may come again", "error", err)
		}
		if whole && r.Context().Err() != nil && h.abandon(ctx, o, record, answer) {
			return // the client learns nothing
		}
		if whole {
			answer.send(w)
		}
	}()
	next(humago.NewContext(o, r, answer))
	whole = true
}

// abandon ends the sandboxes that a request has made if its client went away while the
// answer was being stored: the client gave up, or lost its connection and will send the
// request again. It reports whether there were any.
func (h *handlers) abandon(ctx context.Context, o *huma.Operation, r *limits.Request, a *heldAnswer) bool {
	var made struct {
		sandbox.Sandbox
		Items []sandbox.Sandbox `json:"items"`
	}
	if a.status >= 300 || o.OperationID != operation.Create.ID && o.OperationID != operation.Fork.ID || json.Unmarshal(a.body.Bytes(), &made) != nil {
		return false
	}
	if o.OperationID == operation.Create.ID {
		made.Items = []sandbox.Sandbox{made.Sandbox}
	}
	if err := h.repeats.store.ForgetRequest(ctx, r.Team, r.Key); err != nil {
		h.log.ErrorContext(ctx, "forget a request whose client has gone", "error", err)
	}
	for i := range made.Items {
		if _, err := h.svc.Kill(ctx, made.Items[i].ID); err != nil {
			h.log.ErrorContext(ctx, "end a sandbox whose client has gone", "sandbox", made.Items[i].ID, "error", err)
		}
	}
	return true
}

// note stores the outcome of a request. Whole says that there is an answer.
func (s *repeats) note(ctx context.Context, how operation.Repeat, r *limits.Request, a *heldAnswer, whole bool) error {
	var kept limits.Answer // empty: the request was begun, and nobody works on it
	switch {
	case whole && a.status < 300 && a.body.Len() <= maxKeptAnswer:
		kept = limits.Answer{Status: a.status, ContentType: a.header.Get("Content-Type"), Location: a.header.Get("Location"), Body: a.body.Bytes()}
	case whole && a.status >= 300 && (how == operation.RepeatWhole || a.status < statusCancelled):
		return s.store.ForgetRequest(ctx, r.Team, r.Key)
	}
	return s.store.AnswerRequest(ctx, r.Team, r.Key, kept)
}

// heldAnswer is an answer that is not sent yet.
type heldAnswer struct {
	header http.Header
	status int
	begun  bool
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (a *heldAnswer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *heldAnswer) WriteHeader(status int) {
	if !a.begun {
		a.status, a.begun = status, true
	}
}

// Write implements [http.ResponseWriter].
func (a *heldAnswer) Write(p []byte) (int, error) {
	a.begun = true
	return a.body.Write(p)
}

// FlushError is for [http.ResponseController].
func (a *heldAnswer) FlushError() error { return nil }

// send sends the answer.
func (a *heldAnswer) send(w http.ResponseWriter) {
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // the client may be gone; it may ask again
}
