package agentclient

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxTraceback bounds the texts of an error in code, in bytes.
	maxTraceback = 256 << 10
	// maxCodePath bounds the path of a file in an output, and maxMetadata the metadata
	// of one representation.
	maxCodePath = 4096
	maxMetadata = 64 << 10
	// maxMIMETypes bounds the representations of an output, and maxParts the parts of a
	// stream with gaps between them: the agent leaves one gap.
	maxMIMETypes = 64
	maxParts     = 64
	// maxMetadataTotal bounds the metadata, names and paths of all outputs.
	maxMetadataTotal = 512 << 10
	// queueTime bounds how long a run waits for others in its context.
	queueTime = sandbox.MaxCodeTimeout
)

// RunCode runs code and passes its output to sink, which may be nil; it returns the
// result. Language, Context, TimeoutMS and KeepBytes of the request must be set. When
// ctx is cancelled or sink fails, the agent interrupts the code.
func (c *Client) RunCode(ctx context.Context, req *sandbox.RunCodeRequest, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
	limit := time.Duration(req.TimeoutMS)*time.Millisecond + grace
	if !req.Fresh {
		limit += queueTime
	}
	ctx, cancel := withLimit(ctx, limit)
	defer cancel()
	stream, err := c.rpc.RunCode(ctx, connect.NewRequest(&agentv1.RunCodeRequest{
		Context: &agentv1.ContextRef{Language: string(req.Language), Name: req.Context},
		Code:    req.Code, Fresh: req.Fresh, Env: maps.Clone(req.Env), Workdir: req.WorkDir, User: req.User,
		TimeoutMs: req.TimeoutMS, Stdin: req.Stdin, HasStdin: req.Stdin != nil, KeepBytes: req.KeepBytes,
	}))
	if err != nil {
		return nil, mapError(ctx, err)
	}
	r := &run{sink: sink, result: sandbox.CodeResult{SandboxID: c.sandboxID, Language: req.Language, Context: req.Context}}
	r.streams[0].room, r.streams[1].room = req.KeepBytes, req.KeepBytes
	if err := events(ctx, cancel, stream, r.event); err != nil {
		return nil, err
	}
	return &r.result, nil
}

// run collects the events of one run of code.
type run struct {
	sink    sandbox.CodeSink
	streams [2]collected // stdout, stderr
	shown   int64        // bytes of rich outputs
	result  sandbox.CodeResult
}

func (r *run) event(e *agentv1.CodeEvent) (last bool, err error) {
	switch ev := e.GetEvent().(type) {
	case *agentv1.CodeEvent_Output:
		return false, r.output(ev.Output)
	case *agentv1.CodeEvent_Rich:
		return false, r.rich(ev.Rich)
	case *agentv1.CodeEvent_Result:
		r.finish(ev.Result)
		return true, nil
	}
	return false, errProtocol("an unknown event of code")
}

func (r *run) output(o *agentv1.Output) error {
	i, name, err := streamOf(o.GetStream())
	if err != nil {
		return err
	}
	data, err := r.streams[i].take(o)
	if err != nil || len(data) == 0 || r.sink == nil {
		return err
	}
	return r.sink(sandbox.CodeEvent{Stream: name, Data: data})
}

// rich adds a rich output. It drops outputs beyond the limits, which Cove's agent never
// sends.
func (r *run) rich(w *agentv1.CodeOutput) error {
	out, size := codeOutput(w)
	if len(out.Data)+len(out.Files) == 0 || len(r.result.Outputs) >= sandbox.MaxOutputs || r.shown+size > sandbox.MaxOutputsBytes+maxMetadataTotal {
		return nil
	}
	r.shown += size
	r.result.Outputs = append(r.result.Outputs, out)
	if r.sink == nil {
		return nil
	}
	return r.sink(sandbox.CodeEvent{Output: &out})
}

func (r *run) finish(w *agentv1.CodeResult) {
	res := &r.result
	res.Count, res.ExitCode, res.DurationMS = int(max(0, w.GetCount())), int(w.GetExitCode()), max(0, w.GetDurationMs())
	res.TimedOut, res.Interrupted, res.Restarted = w.GetTimedOut(), w.GetInterrupted(), w.GetRestarted()
	res.Reason = clean(w.GetReason(), maxErrorText)
	if e := w.GetError(); e != nil {
		res.Error = &sandbox.CodeError{
			Name: clean(e.GetName(), 256), Message: plain(e.GetMessage(), maxTraceback), Traceback: plain(e.GetTraceback(), maxTraceback),
		}
	}
	res.Stdout, res.StdoutBytes = r.streams[0].text(w.GetStdoutBytes())
	res.Stderr, res.StderrBytes = r.streams[1].text(w.GetStderrBytes())
}

// collected is what has been received of one stream.
type collected struct {
	parts []part
	next  int64 // lowest offset of what comes next
	room  int64 // how much more is kept
}

// part is a part of a stream without gaps.
type part struct {
	offset int64
	data   []byte
}

// take checks and keeps a piece of output, and returns the part that it has kept.
func (w *collected) take(o *agentv1.Output) ([]byte, error) {
	if o.GetOffset() < w.next || o.GetOffset() > 1<<62 {
		return nil, errProtocol("output out of order")
	}
	data := o.GetData()[:min(int64(len(o.GetData())), w.room)]
	if len(data) == 0 {
		return nil, nil
	}
	if o.GetOffset() > w.next || len(w.parts) == 0 {
		if len(w.parts) == maxParts {
			w.room = 0
			return nil, nil
		}
		w.parts = append(w.parts, part{offset: o.GetOffset()})
	}
	last := &w.parts[len(w.parts)-1]
	last.data = append(last.data, data...)
	w.next = o.GetOffset() + int64(len(data))
	w.room -= int64(len(data))
	return data, nil
}

// text returns the stream as text, and its full length. A line replaces what is missing;
// characters next to it are whole.
func (w *collected) text(total int64) (string, int64) {
	total = max(total, w.next)
	var b strings.Builder
	at := int64(0) // the offset that the text has reached
	for i, p := range w.parts {
		data := p.data
		if p.offset > at {
			data = clip.TrimStart(data)
			fmt.Fprintf(&b, "\n[… %d bytes left out …]\n", p.offset+int64(len(p.data)-len(data))-at)
		}
		at = p.offset + int64(len(p.data))
		if i < len(w.parts)-1 || at < total {
			whole := clip.TrimEnd(data)
			at -= int64(len(data) - len(whole))
			data = whole
		}
		b.Write(data)
	}
	if at < total {
		fmt.Fprintf(&b, "\n[… %d bytes left out …]\n", total-at)
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD"), total
}

// plain makes a longer text safe to display: valid, and without control characters
// other than line ends and tabs.
func plain(s string, limit int) string {
	if len(s) > limit {
		s = clip.Head(s, limit) + "\n[…]"
	}
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (r < 0x20 || r == 0x7f) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

var mimeTypes = lazyregexp.New(`^[a-z0-9][a-z0-9.+_-]{0,62}/[A-Za-z0-9][A-Za-z0-9.+_-]{0,126}(; ?[a-z]+=[A-Za-z0-9.+_-]{1,64})?$`)

// codeOutput translates a rich output, without parts that are invalid or too large. It
// also returns its size, with names and paths.
func codeOutput(w *agentv1.CodeOutput) (sandbox.CodeOutput, int64) {
	out := sandbox.CodeOutput{Result: w.GetResult(), Source: clean(w.GetSource(), 64)}
	size := int64(0)
	for _, mime := range slices.Sorted(maps.Keys(w.GetData())) {
		data := w.GetData()[mime]
		if len(data) <= sandbox.MaxOutputBytes && put(&out.Data, mime, encoded(mime, data)) {
			size += int64(len(mime) + len(data))
		}
	}
	for mime, meta := range w.GetMetadata() {
		if len(meta) <= maxMetadata && json.Valid(meta) && put(&out.Metadata, mime, meta) {
			size += int64(len(mime) + len(meta))
		}
	}
	for mime, path := range w.GetFiles() {
		valid := path != "" && len(path) <= maxCodePath && utf8.ValidString(path) && !strings.ContainsRune(path, 0)
		if valid && put(&out.Files, mime, path) {
			size += int64(len(mime) + len(path))
		}
	}
	return out, size
}

// put adds a representation to m, which may be nil. It returns false if the MIME type is
// invalid or m is full.
func put[V any](m *map[string]V, mime string, v V) bool {
	if len(*m) == maxMIMETypes || !mimeTypes.MatchString(mime) {
		return false
	}
	if *m == nil {
		*m = map[string]V{}
	}
	(*m)[mime] = v
	return true
}

// encoded encodes data of a MIME type as JSON: see [sandbox.CodeOutput].
func encoded(mime string, data []byte) json.RawMessage {
	var v any = data // base64
	switch {
	case sandbox.JSONType(mime) && json.Valid(data):
		return slices.Clone(data)
	case sandbox.JSONType(mime), sandbox.TextType(mime):
		v = strings.ToValidUTF8(string(data), "\uFFFD")
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is a string or bytes
	}
	return text
}

var contextStates = map[agentv1.ContextState]sandbox.CodeContextState{
	agentv1.ContextState_CONTEXT_STATE_IDLE: sandbox.ContextIdle,
	agentv1.ContextState_CONTEXT_STATE_BUSY: sandbox.ContextBusy,
	agentv1.ContextState_CONTEXT_STATE_DEAD: sandbox.ContextDead,
}

// codeContext checks and translates a context.
func codeContext(w *agentv1.CodeContext) (*sandbox.CodeContext, error) {
	lang, err := sandbox.ParseLanguage(w.GetRef().GetLanguage())
	state, known := contextStates[w.GetState()]
	if err != nil || !known || !ValidContextName(w.GetRef().GetName()) {
		return nil, errProtocol("an invalid context")
	}
	return &sandbox.CodeContext{
		Language: lang, Name: w.GetRef().GetName(), State: state, PID: int(max(0, w.GetPid())), User: clean(w.GetUser(), 256),
		WorkDir: clip.Valid(w.GetWorkdir(), maxPath), Runs: int(max(0, w.GetRuns())), Queued: int(max(0, w.GetQueued())),
		CreatedAt: time.Unix(0, w.GetCreatedUnixNano()).UTC(),
	}, nil
}

// ValidContextName reports whether s has the form of a context's name.
func ValidContextName(s string) bool { return len(s) <= 63 && sandbox.ValidJobID(s) }

// ListContexts returns all contexts, the oldest first.
func (c *Client) ListContexts(ctx context.Context) ([]sandbox.CodeContext, error) {
	resp, err := call(ctx, callTimeout, c.rpc.ListContexts, &agentv1.ListContextsRequest{})
	if err != nil {
		return nil, err
	}
	return translate(resp.GetContexts(), 4*sandbox.MaxContexts, codeContext)
}

// InterruptContext interrupts the code that runs in a context.
func (c *Client) InterruptContext(ctx context.Context, ref sandbox.ContextRef) (*sandbox.CodeContext, error) {
	return c.control(ctx, ref, agentv1.ControlContextRequest_ACTION_INTERRUPT)
}

// RestartContext gives a context a new interpreter.
func (c *Client) RestartContext(ctx context.Context, ref sandbox.ContextRef) (*sandbox.CodeContext, error) {
	return c.control(ctx, ref, agentv1.ControlContextRequest_ACTION_RESTART)
}

// DeleteContext ends a context.
func (c *Client) DeleteContext(ctx context.Context, ref sandbox.ContextRef) error {
	_, err := c.control(ctx, ref, agentv1.ControlContextRequest_ACTION_DELETE)
	return err
}

func (c *Client) control(ctx context.Context, ref sandbox.ContextRef, action agentv1.ControlContextRequest_Action) (*sandbox.CodeContext, error) {
	resp, err := call(ctx, callTimeout, c.rpc.ControlContext, &agentv1.ControlContextRequest{
		Ref: &agentv1.ContextRef{Language: string(ref.Language), Name: ref.Name}, Action: action,
	})
	if err != nil || action == agentv1.ControlContextRequest_ACTION_DELETE {
		return nil, err
	}
	return codeContext(resp.GetContext())
}
