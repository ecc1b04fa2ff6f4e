package native

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// shows is a service whose code returns what a test wants.
type shows struct {
	sandbox.Service
	result *sandbox.CodeResult
	events []sandbox.CodeEvent
}

func (s shows) RunCode(_ context.Context, _ string, _ sandbox.RunCodeRequest, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
	for _, e := range s.events {
		if err := sink(e); err != nil {
			return nil, err
		}
	}
	return s.result, nil
}

func (s shows) RunIsolated(context.Context, sandbox.RunIsolatedRequest, sandbox.CodeSink) (*sandbox.CodeResult, error) {
	return s.result, nil
}

func callCode(t *testing.T, s shows, args string, status func(string)) (*mcp.CallToolResult, codeResult) {
	t.Helper()
	if status == nil {
		status = func(string) {}
	}
	res, err := named("run_code").Run(t.Context(), &dialect.Call{Service: s, Args: json.RawMessage(args), Status: status, Output: func(dialect.Output) {}})
	if err != nil {
		t.Fatal(err)
	}
	return res, res.StructuredContent.(codeResult)
}

func encodedText(s string) json.RawMessage {
	data, _ := json.Marshal(s)
	return data
}

// TestRichOutputs shows a figure, a table and a value: an image block, text,
// and JSON.
func TestRichOutputs(t *testing.T) {
	png := []byte("\x89PNG\r\n\x1a\nrest")
	s := shows{result: &sandbox.CodeResult{SandboxID: "sbx", Stdout: "hi\x00\n", StdoutBytes: 4, Outputs: []sandbox.CodeOutput{
		{Source: "matplotlib", Data: map[string]json.RawMessage{"image/png": encodedText(base64.StdEncoding.EncodeToString(png)), "text/plain": encodedText("<Figure>")}},
		{Result: true, Source: "pandas", Data: map[string]json.RawMessage{
			"text/html": encodedText("<table>"), "text/plain": encodedText("   a\n0  1"), "application/vnd.dataframe+json": json.RawMessage(`[{"a":1}]`),
		}},
		{Data: map[string]json.RawMessage{"image/png": encodedText("!! no base64"), "application/json": json.RawMessage(`{"k":[1,2]}`)}, Files: map[string]string{"text/html": "/tmp/big.html"}},
	}}}
	res, view := callCode(t, s, `{"sandbox":"x","code":"1"}`, nil)
	if len(res.Content) != 2 {
		t.Fatalf("%d blocks", len(res.Content))
	}
	img, ok := res.Content[1].(*mcp.ImageContent)
	if !ok || string(img.Data) != string(png) || img.MIMEType != "image/png" {
		t.Errorf("the image is %+v", res.Content[1])
	}
	text := res.Content[0].(*mcp.TextContent).Text
	for _, want := range []string{"output (matplotlib): image 1\n", "result (pandas):\n   a\n0  1\n", `output: {"k":[1,2]}`, "/tmp/big.html", "hi\uFFFD\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "<Figure>") || strings.Contains(text, "<table>") {
		t.Errorf("it shows what says nothing:\n%s", text)
	}
	if o := view.Outputs; len(o) != 3 || o[0].Image != 1 || string(o[1].Data) != `[{"a":1}]` || o[2].Files["text/html"] != "/tmp/big.html" {
		t.Errorf("outputs are %+v", o)
	}
	// The files of a sandbox that is gone are too.
	if _, view := callCode(t, s, `{"code":"1"}`, nil); view.Outputs[2].Files != nil || view.SandboxID != "" {
		t.Errorf("without a sandbox: %+v", view)
	}
}

// TestTellingText shows what an output is, where its text is only the name of
// an object, and lists in lines what has line ends.
func TestTellingText(t *testing.T) {
	const repr = "<IPython.core.display.HTML object>"
	s := shows{result: &sandbox.CodeResult{Outputs: []sandbox.CodeOutput{
		{Data: map[string]json.RawMessage{"text/plain": encodedText(repr), "text/html": encodedText("<b>bold</b>")}},
		{Data: map[string]json.RawMessage{"text/plain": encodedText("<x.Y object at 0x7f00>"), "application/json": json.RawMessage(`{"k":1}`)}},
		{Data: map[string]json.RawMessage{"text/plain": encodedText("<x.Z object at 0x7f00>")}},
	}}}
	res, _ := callCode(t, s, `{"sandbox":"x","code":"1"}`, nil)
	text := res.Content[0].(*mcp.TextContent).Text
	for _, want := range []string{"output: <b>bold</b>\n", `output: {"k":1}`, "output: <x.Z object at 0x7f00>\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, repr) {
		t.Errorf("it shows what says nothing:\n%s", text)
	}
	if line := (jobView{JobID: "job-1", Command: "sh -c a\njob-2 exited"}).line(); strings.Contains(line, "\n") {
		t.Errorf("a job takes two lines: %q", line)
	}
	if line := (&processView{PID: 5, Command: "a\n6 root S"}).line(); strings.Contains(line, "\n") {
		t.Errorf("a process takes two lines: %q", line)
	}
}

// TestHugeCode returns the most that a service may return.
func TestHugeCode(t *testing.T) {
	out := sandbox.CodeOutput{Result: true, Data: map[string]json.RawMessage{}}
	for _, mime := range []string{"text/plain", "text/html", "text/markdown", "image/svg+xml"} {
		out.Data[mime] = encodedText(strings.Repeat(nasty, 100_000))
	}
	out.Data["image/png"] = encodedText(base64.StdEncoding.EncodeToString(make([]byte, 3<<20)))
	out.Data["application/json"] = encodedText(strings.Repeat("x", 1<<20))
	long := strings.Repeat(nasty, 100_000)
	r := &sandbox.CodeResult{Stdout: strings.Repeat("x", maxStreamBytes), StdoutBytes: 1 << 40, Error: &sandbox.CodeError{Name: "E", Message: long, Traceback: long}}
	outputs := 8
	if needs.Soak() {
		outputs = sandbox.MaxOutputs
	}
	for range outputs {
		r.Outputs = append(r.Outputs, out)
	}
	res, view := callCode(t, shows{result: r}, `{"sandbox":"x","code":"1"}`, nil)
	images := 0
	for _, c := range res.Content[1:] {
		images += len(c.(*mcp.ImageContent).Data)
	}
	if text := res.Content[0].(*mcp.TextContent).Text; len(text) > 256<<10 || images > maxImageBytes {
		t.Errorf("%d bytes of text, %d of images", len(text), images)
	}
	data, err := json.Marshal(view)
	if err != nil || len(data) > 512<<10 || !view.Truncated {
		t.Errorf("structured: %d bytes, truncated %v, %v", len(data), view.Truncated, err)
	}
}

// TestCodeStatus checks that the status is the last line of the output, however it
// arrives.
func TestCodeStatus(t *testing.T) {
	var got []string
	s := shows{result: &sandbox.CodeResult{}}
	for _, piece := range []string{"one\n", "tw", "o\nthr", "ee \xe2\x82", strings.Repeat("y", 10_000)} {
		s.events = append(s.events, sandbox.CodeEvent{Stream: sandbox.Stdout, Data: []byte(piece)})
	}
	callCode(t, s, `{"sandbox":"x","code":"1"}`, func(m string) { got = append(got, m) })
	want := []string{"running", "running: one", "running: tw", "running: thr", "running: three "}
	if len(got) != 6 || fmt.Sprint(got[:5]) != fmt.Sprint(want) || len(got[5]) > maxStatusLine+20 {
		t.Errorf("got %q", got)
	}
}
