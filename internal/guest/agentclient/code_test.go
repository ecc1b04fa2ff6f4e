package agentclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// coder is an agent that answers code as a test wants.
type coder struct {
	impostor
	events    []*agentv1.CodeEvent
	contexts  *agentv1.ListContextsResponse
	context   *agentv1.CodeContext
	processes *agentv1.ListProcessesResponse
	asked     *agentv1.RunCodeRequest
}

func (c *coder) RunCode(_ context.Context, req *connect.Request[agentv1.RunCodeRequest], s *connect.ServerStream[agentv1.CodeEvent]) error {
	c.asked = req.Msg
	for _, e := range c.events {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return nil
}

func (c *coder) ListContexts(context.Context, *connect.Request[agentv1.ListContextsRequest]) (*connect.Response[agentv1.ListContextsResponse], error) {
	return connect.NewResponse(c.contexts), nil
}

func (c *coder) ControlContext(context.Context, *connect.Request[agentv1.ControlContextRequest]) (*connect.Response[agentv1.ControlContextResponse], error) {
	return connect.NewResponse(&agentv1.ControlContextResponse{Context: c.context}), nil
}

func (c *coder) ListProcesses(context.Context, *connect.Request[agentv1.ListProcessesRequest]) (*connect.Response[agentv1.ListProcessesResponse], error) {
	return connect.NewResponse(c.processes), nil
}

func wrote(stream agentv1.Stream, offset int64, data string) *agentv1.CodeEvent {
	return &agentv1.CodeEvent{Event: &agentv1.CodeEvent_Output{Output: &agentv1.Output{Stream: stream, Offset: offset, Data: []byte(data)}}}
}

func showed(o *agentv1.CodeOutput) *agentv1.CodeEvent {
	return &agentv1.CodeEvent{Event: &agentv1.CodeEvent_Rich{Rich: o}}
}

func came(r *agentv1.CodeResult) *agentv1.CodeEvent {
	return &agentv1.CodeEvent{Event: &agentv1.CodeEvent_Result{Result: r}}
}

const (
	toOut = agentv1.Stream_STREAM_STDOUT
	toErr = agentv1.Stream_STREAM_STDERR
)

func TestRunCode(t *testing.T) {
	c := &coder{events: []*agentv1.CodeEvent{
		wrote(toOut, 0, "a\xe2\x82"), wrote(toErr, 0, "e"), wrote(toOut, 3, "\xac!"),
		showed(&agentv1.CodeOutput{Result: true, Source: "x", Data: map[string][]byte{
			"text/plain": []byte("ü\xff"), "image/png": {0x89, 0}, "application/json": []byte(`{"a":1}`), "application/vnd.x+json": []byte("{broken"), "no mime": []byte("x"),
		}, Metadata: map[string][]byte{"image/png": []byte(`{"width":1}`), "text/plain": []byte("{")}, Files: map[string]string{"text/html": "/tmp/x", "text/csv": "a\x00"}}),
		wrote(toOut, 100, "\xacend"),
		came(&agentv1.CodeResult{Count: 3, ExitCode: 1, DurationMs: 5, StdoutBytes: 110, StderrBytes: 1, Reason: "a\nb", Error: &agentv1.CodeError{Name: "E\x1b[1m", Message: "m\x07", Traceback: "t\n\x1b[31mred"}}),
	}}
	var streamed strings.Builder
	req := &sandbox.RunCodeRequest{Language: sandbox.Python, Context: "default", Code: "x", KeepBytes: 1000, TimeoutMS: 1000, Stdin: []byte{}}
	got, err := serveAgent(t, c).RunCode(t.Context(), req, func(e sandbox.CodeEvent) error { streamed.Write(e.Data); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := &sandbox.CodeResult{
		SandboxID: got.SandboxID, Language: sandbox.Python, Context: "default", Count: 3, ExitCode: 1, DurationMS: 5, Reason: "a b",
		Stdout: "a€!\n[… 96 bytes left out …]\nend\n[… 6 bytes left out …]\n", StdoutBytes: 110, Stderr: "e", StderrBytes: 1,
		Error: &sandbox.CodeError{Name: "E[1m", Message: "m", Traceback: "t\n[31mred"},
		Outputs: []sandbox.CodeOutput{{
			Result: true, Source: "x", Files: map[string]string{"text/html": "/tmp/x"}, Metadata: map[string]json.RawMessage{"image/png": json.RawMessage(`{"width":1}`)},
			Data: map[string]json.RawMessage{
				"text/plain": json.RawMessage(`"ü` + "\uFFFD" + `"`), "image/png": json.RawMessage(`"iQA="`),
				"application/json": json.RawMessage(`{"a":1}`), "application/vnd.x+json": json.RawMessage(`"{broken"`),
			},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if streamed.String() != "a\xe2\x82e\xac!\xacend" || !c.asked.GetHasStdin() {
		t.Errorf("streamed %q, asked %v", streamed.String(), c.asked)
	}
}

// TestHostileCode is an agent that says what cannot be, and too much of it.
func TestHostileCode(t *testing.T) {
	done := came(&agentv1.CodeResult{})
	for name, events := range map[string][]*agentv1.CodeEvent{
		"nothing":             {},
		"no kind":             {{}},
		"no result":           {wrote(toOut, 0, "x")},
		"no stream":           {wrote(0, 0, "x"), done},
		"backwards":           {wrote(toOut, 5, "xx"), wrote(toOut, 5, "x"), done},
		"negative":            {wrote(toOut, -1, "x"), done},
		"beyond":              {wrote(toOut, math.MaxInt64, "x"), done},
		"more after the end":  {done, wrote(toOut, 0, "x")},
		"two results":         {done, done},
		"a result of nothing": {{Event: &agentv1.CodeEvent_Output{}}, done},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := serveAgent(t, &coder{events: events}).RunCode(t.Context(), &sandbox.RunCodeRequest{Language: sandbox.Bash, KeepBytes: 10, TimeoutMS: 1}, nil)
			if code := sandbox.CodeOf(err); code != sandbox.CodeUnavailable {
				t.Errorf("got %v", err)
			}
		})
	}
	var events []*agentv1.CodeEvent
	for i := range 3 * sandbox.MaxOutputs {
		events = append(events, showed(&agentv1.CodeOutput{Data: map[string][]byte{"text/plain": []byte(strings.Repeat("x", 1<<20))}}), wrote(toOut, int64(i)<<20, strings.Repeat("y", 1<<10)))
	}
	events = append(events, came(&agentv1.CodeResult{ExitCode: -5, DurationMs: -1, Count: -1, Error: &agentv1.CodeError{Traceback: strings.Repeat("t", 4<<20)}}))
	r, err := serveAgent(t, &coder{events: events}).RunCode(t.Context(), &sandbox.RunCodeRequest{Language: sandbox.Bash, KeepBytes: 2048, TimeoutMS: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for _, o := range r.Outputs {
		size += len(o.Data["text/plain"])
	}
	if size > sandbox.MaxOutputsBytes+1<<20 || len(r.Outputs) > sandbox.MaxOutputs || len(r.Stdout) > 4096 || len(r.Error.Traceback) > maxTraceback+16 || r.DurationMS < 0 || r.Count < 0 {
		t.Errorf("%d bytes of %d outputs, %d of stdout, %d of traceback", size, len(r.Outputs), len(r.Stdout), len(r.Error.Traceback))
	}
	mine := errors.New("the caller's own error")
	_, err = serveAgent(t, &coder{events: events}).RunCode(t.Context(), &sandbox.RunCodeRequest{Language: sandbox.Bash, KeepBytes: 10, TimeoutMS: 1}, func(sandbox.CodeEvent) error { return mine })
	if err != mine {
		t.Errorf("got %v", err)
	}
}

// TestHostileCodeSize is an agent that sends little of what is counted, and much of what comes
// with it; in "make test", less.
func TestHostileCodeSize(t *testing.T) {
	types, writes := 2*maxMIMETypes, 4*maxParts
	if needs.More() {
		types, writes = 1000, 10_000
	}
	names := func(n int) map[string]string {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprintf("text/x%d", i)] = "/" + strings.Repeat("p", 4000)
		}
		return all
	}
	var events []*agentv1.CodeEvent
	for range sandbox.MaxOutputs {
		empty := map[string][]byte{}
		for mime := range names(types) {
			empty[mime] = nil
		}
		events = append(events, showed(&agentv1.CodeOutput{Data: empty, Metadata: empty, Files: names(types)}))
	}
	for i := range writes {
		events = append(events, wrote(toOut, int64(2*i), "x"))
	}
	events = append(events, came(&agentv1.CodeResult{}))
	r, err := serveAgent(t, &coder{events: events}).RunCode(t.Context(), &sandbox.RunCodeRequest{Language: sandbox.Bash, KeepBytes: 1 << 20, TimeoutMS: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(r.Outputs)
	if err != nil || len(data) > sandbox.MaxOutputsBytes+(1<<20) {
		t.Errorf("%d bytes of outputs, %v", len(data), err)
	}
	for _, o := range r.Outputs {
		if n := max(len(o.Data), len(o.Files)); n > maxMIMETypes {
			t.Errorf("an output of %d types", n)
		}
	}
	if gaps := strings.Count(r.Stdout, "left out"); gaps > maxParts+1 {
		t.Errorf("%d gaps", gaps)
	}
}

func TestHostileContexts(t *testing.T) {
	good := &agentv1.CodeContext{Ref: &agentv1.ContextRef{Language: "python", Name: "a"}, State: agentv1.ContextState_CONTEXT_STATE_IDLE, Runs: -1, Pid: -1}
	for name, c := range map[string]*agentv1.CodeContext{
		"nothing":     nil,
		"no language": {Ref: &agentv1.ContextRef{Name: "a"}, State: agentv1.ContextState_CONTEXT_STATE_IDLE},
		"no state":    {Ref: &agentv1.ContextRef{Language: "python", Name: "a"}},
		"no name":     {Ref: &agentv1.ContextRef{Language: "python"}, State: agentv1.ContextState_CONTEXT_STATE_IDLE},
		"odd name":    {Ref: &agentv1.ContextRef{Language: "python", Name: "a b"}, State: agentv1.ContextState_CONTEXT_STATE_IDLE},
	} {
		a := serveAgent(t, &coder{context: c, contexts: &agentv1.ListContextsResponse{Contexts: []*agentv1.CodeContext{good, c}}})
		if _, err := a.RestartContext(t.Context(), sandbox.ContextRef{Language: sandbox.Python, Name: "a"}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s: got %v", name, err)
		}
		if _, err := a.ListContexts(t.Context()); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("%s in a list: got %v", name, err)
		}
	}
	a := serveAgent(t, &coder{context: good})
	if got, err := a.InterruptContext(t.Context(), sandbox.ContextRef{}); err != nil || got.Runs != 0 || got.PID != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := a.DeleteContext(t.Context(), sandbox.ContextRef{}); err != nil {
		t.Error(err)
	}
}

func TestHostileProcesses(t *testing.T) {
	long := strings.Repeat("é\x1b", 10_000)
	p := &agentv1.Process{Pid: -1, CpuPercent: math.NaN(), CpuNanos: -1, MemoryBytes: -1, User: long, Name: "a\nb\x1b", State: long, JobId: "no id", Context: long}
	for range 100 {
		p.Command = append(p.Command, long)
	}
	list, err := serveAgent(t, &coder{processes: &agentv1.ListProcessesResponse{Processes: []*agentv1.Process{p}}}).ListProcesses(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := list[0]
	data, err := json.Marshal(got)
	if err != nil || len(data) > 16<<10 || got.PID != 0 || got.CPUPercent != 0 || got.Job != "" || got.Name != "a b" {
		t.Errorf("%d bytes, %v: %+v", len(data), err, got)
	}
}

// FuzzCodeText puts pieces of a stream together: the text is always valid and
// tells all that is missing.
func FuzzCodeText(f *testing.F) {
	f.Add([]byte("a\xe2\x82"), []byte("\xac"), uint8(0), uint16(4))
	f.Add([]byte("a\xe2"), []byte("\xacb"), uint8(7), uint16(100))
	f.Add([]byte("\xff\xfe"), []byte("\x80\x80\x80\x80"), uint8(1), uint16(0))
	f.Fuzz(func(t *testing.T, a, b []byte, gap uint8, total uint16) {
		w := collected{room: 1 << 20}
		at := int64(len(a)) + int64(gap)
		for _, o := range []*agentv1.Output{{Offset: 0, Data: a}, {Offset: at, Data: b}} {
			if _, err := w.take(o); err != nil {
				t.Fatal(err)
			}
		}
		text, n := w.text(int64(total))
		if !utf8.ValidString(text) || n < int64(total) || n < w.next {
			t.Errorf("%q, %d", text, n)
		}
		if whole := string(a) + string(b); gap == 0 && int(total) <= len(whole) && text != strings.ToValidUTF8(whole, "\uFFFD") {
			t.Errorf("got %q of %q", text, whole)
		}
		if missing := gap > 0 && len(b) > 0; missing != strings.Contains(text, "left out") && n == w.next && !strings.Contains(string(a)+string(b), "left out") {
			t.Errorf("%q of gap %d", text, gap)
		}
	})
}
