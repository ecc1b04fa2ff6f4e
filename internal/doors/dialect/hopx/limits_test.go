package hopx_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// holding is a service with one file, in which no command can start.
type holding struct {
	*imaginary
	content string
	refusal error
}

func (s *holding) ReadFile(_ context.Context, _ string, req sandbox.ReadFileRequest) (*sandbox.FileReader, error) {
	return &sandbox.FileReader{ReadCloser: io.NopCloser(strings.NewReader(s.content[:min(int64(len(s.content)), req.Limit)]))}, nil
}

func (s *holding) Exec(context.Context, string, sandbox.ExecRequest, sandbox.JobSink) (*sandbox.Job, error) {
	return nil, s.refusal
}

// TestReadIsBounded checks that a file may be large or binary, but not both: binary content
// is six times as long in a result. What is taken at the limit is encoded and decoded for
// seconds under the race detector: "make soak" has that.
func TestReadIsBounded(t *testing.T) {
	const most = 8 << 20
	for name, tt := range map[string]struct {
		content string
		status  any
	}{
		"text":           {strings.Repeat("a line!\n", most/8), nil},
		"too large":      {strings.Repeat("x", most+1), 413.0},
		"a little, zero": {strings.Repeat("\x00", most/4), nil},
		"zero":           {strings.Repeat("\x00", most), 413.0},
		"no UTF-8":       {strings.Repeat("\xff", most), nil}, // a run of them becomes one U+FFFD
		"no UTF-8 apart": {strings.Repeat("\xffx", most/2), nil},
	} {
		if tt.status == nil && !needs.Soak() {
			continue
		}
		got := answer(t, first, &holding{imaginary: newImaginary(), content: tt.content}, "file_read", `{"vm_url":"sbx-1","path":"/tmp/f"}`)
		if content, _ := got["content"].(string); got["status_code"] != tt.status || (tt.status == nil) == (content == "") {
			t.Errorf("%s: %v, %d bytes", name, got["status_code"], len(content))
		}
	}
}

// TestCallbackErrors checks that errors about a callback name the arguments that the client
// knows.
func TestCallbackErrors(t *testing.T) {
	for ours, theirs := range map[string]string{
		"webhook.url points to the server's own network": "callback_url points to the server's own network",
		`webhook header "Host" is set by Cove`:           `callback_headers: "Host" is set by Cove`,
		"webhook.headers has 99 entries":                 "callback_headers has 99 entries",
		"webhook.secret has 9999 bytes":                  "callback_signature_secret has 9999 bytes",
		"workdir is not there":                           "workdir is not there",
	} {
		svc := &holding{imaginary: newImaginary(), refusal: sandbox.Errorf(sandbox.CodeInvalid, "%s", ours)}
		got := answer(t, first, svc, "execute_code_async", `{"vm_url":"sbx-1","code":"1","callback_url":"http://127.0.0.1/"}`)
		body, _ := got["body"].(map[string]any)
		if body["error"] != theirs || got["status_code"] != 400.0 {
			t.Errorf("%s: %v", ours, got)
		}
	}
}

// TestFirstInvalidNumberIsReported checks that of several invalid numbers, the first is always
// the one reported.
func TestFirstInvalidNumberIsReported(t *testing.T) {
	for range 20 {
		got := answer(t, first, newImaginary(), "create_sandbox", `{"template_id":"host","vcpu":0,"memory_mb":0,"disk_gb":0}`)
		if text := fmt.Sprint(got["body"]); !strings.Contains(text, "vcpu is 0") {
			t.Fatal(text)
		}
	}
}

// TestLargeOutputsAreReported checks that outputs too large for a result are reported, with
// their place. "make soak" has those that are taken, and are as large.
func TestLargeOutputsAreReported(t *testing.T) {
	value := func(n int) json.RawMessage { return json.RawMessage(`"` + strings.Repeat("x", n) + `"`) }
	output := func(mime string, n int) sandbox.CodeOutput {
		return sandbox.CodeOutput{Data: map[string]json.RawMessage{mime: value(n)}}
	}
	spilled := sandbox.CodeOutput{Result: true, Files: map[string]string{"text/plain": "/tmp/a.txt", "image/png": "/tmp/b.png"}}
	const (
		plain  = "execute_code_rich returns 8 MiB of outputs; save what is larger to a file."
		richly = "Save what is larger to a file."
		left   = "Left out of this result: "
		text   = "the result as text (too large, it is in the file /tmp/a.txt)"
	)
	for name, tt := range map[string]struct {
		tool    string
		outputs []sandbox.CodeOutput
		want    string
	}{
		"little":             {"execute_code", []sandbox.CodeOutput{output("text/html", 100)}, ""},
		"large":              {"execute_code", []sandbox.CodeOutput{output("text/html", 2<<20)}, left + "text/html (2097152 bytes; all outputs may have 1024 KiB). " + plain},
		"spilled":            {"execute_code", []sandbox.CodeOutput{spilled}, left + text + ", image/png (too large, it is in the file /tmp/b.png). " + plain},
		"large, richly":      {"execute_code_rich", []sandbox.CodeOutput{output("text/html", 2<<20)}, ""},
		"spilled, richly":    {"execute_code_rich", []sandbox.CodeOutput{spilled}, left + text + ". " + richly},
		"very large, richly": {"execute_code_rich", []sandbox.CodeOutput{output("text/html", 3<<20), output("text/html", 3<<20), output("text/html", 3<<20)}, left + "text/html (3145728 bytes; all outputs may have 8192 KiB). " + richly},
		"very many":          {"execute_code", []sandbox.CodeOutput{spilled, spilled, spilled, spilled, spilled}, "2 more. " + plain},
	} {
		if tt.want == "" && name != "little" && !needs.Soak() {
			continue
		}
		svc := newImaginary()
		svc.result.Outputs = tt.outputs
		got, _ := answer(t, first, svc, tt.tool, `{"vm_url":"sbx-1","code":"1"}`)["_note"].(string)
		if got != tt.want && (name != "very many" || !strings.HasSuffix(got, tt.want)) {
			t.Errorf("%s: the note is %q, want %q", name, got, tt.want)
		}
	}
	svc := newImaginary()
	svc.result.Outputs = []sandbox.CodeOutput{spilled}
	if got := answer(t, first, svc, "execute_code_isolated", `{"code":"1","template_name":"host"}`)["_note"]; !strings.Contains(got.(string), "auto-destroy") || !strings.Contains(got.(string), "/tmp/b.png") {
		t.Errorf("isolated, the note is %q", got)
	}
	if got := answer(t, second, svc, "execute_code", `{"sandbox_id":"sbx-1","code":"1","mode":"rich"}`)["_note"]; got != left+text+". "+richly {
		t.Errorf("in v0.2, the note is %q", got)
	}
}
