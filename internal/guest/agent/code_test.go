package agent

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// ran is everything that a run of code returned.
type ran struct {
	*agentv1.CodeResult
	stdout, stderr string
	outputs        []*agentv1.CodeOutput
	order          []string // "out:…", "err:…", "rich:mime"
}

type codeStream interface {
	Receive() bool
	Msg() *agentv1.CodeEvent
	Err() error
}

// collect reads a stream of events to its end.
func collect(s codeStream) (*ran, error) {
	r := &ran{}
	var pos [3]int64
	for s.Receive() {
		switch e := s.Msg().GetEvent().(type) {
		case *agentv1.CodeEvent_Output:
			o := e.Output
			if o.GetOffset() != pos[o.GetStream()] {
				return r, fmt.Errorf("output at %d, want %d", o.GetOffset(), pos[o.GetStream()])
			}
			pos[o.GetStream()] += int64(len(o.GetData()))
			if o.GetStream() == agentv1.Stream_STREAM_STDOUT {
				r.stdout += string(o.GetData())
				r.order = append(r.order, "out:"+string(o.GetData()))
			} else {
				r.stderr += string(o.GetData())
				r.order = append(r.order, "err:"+string(o.GetData()))
			}
		case *agentv1.CodeEvent_Rich:
			r.outputs = append(r.outputs, e.Rich)
			r.order = append(r.order, "rich:"+e.Rich.GetSource())
		case *agentv1.CodeEvent_Result:
			r.CodeResult = e.Result
		}
	}
	if s.Err() == nil && r.CodeResult == nil {
		return r, fmt.Errorf("the stream ended without a result")
	}
	return r, s.Err()
}

func (s *server) tryCode(ctx context.Context, req *agentv1.RunCodeRequest) (*ran, error) {
	stream, err := s.RunCode(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return collect(stream)
}

func in(language, code string) *agentv1.RunCodeRequest {
	return &agentv1.RunCodeRequest{Context: &agentv1.ContextRef{Language: language}, Code: code}
}

// code runs a request to its end.
func (s *server) code(t testing.TB, req *agentv1.RunCodeRequest) *ran {
	t.Helper()
	if programs := kernel.Programs(sandbox.Language(req.GetContext().GetLanguage())); len(programs) > 0 {
		needs.Command(t, programs[0])
	}
	r, err := s.tryCode(t.Context(), req)
	if err != nil {
		t.Fatalf("run %q: %v", req.GetCode(), err)
	}
	return r
}

func (s *server) py(t testing.TB, code string) *ran {
	t.Helper()
	return s.code(t, in("python", code))
}

// value returns the text of the last expression.
func (r *ran) value() string {
	for _, o := range r.outputs {
		if o.GetResult() {
			return string(o.GetData()["text/plain"])
		}
	}
	return ""
}

func TestPythonState(t *testing.T) {
	s := start(t)
	if r := s.py(t, "print(6*7)"); r.stdout != "42\n" || r.GetExitCode() != 0 || r.GetCount() != 1 {
		t.Errorf("got %q %v", r.stdout, r.CodeResult)
	}
	s.py(t, "import math\nx = 20\ndef f(a):\n    return a + x\n\nclass C: pass")
	if r := s.py(t, "f(1)"); r.value() != "21" || r.stdout != "" {
		t.Errorf("got %q, want 21; %+v", r.value(), r)
	}
	if r := s.py(t, "import asyncio\nawait asyncio.sleep(0)\n_ + 1"); r.value() != "22" {
		t.Errorf("await: got %q %+v", r.value(), r)
	}
	if r := s.py(t, "import pickle\npickle.loads(pickle.dumps(C())).__class__.__name__"); r.value() != "'C'" {
		t.Errorf("pickle: %+v", r)
	}
	r := s.py(t, "def g():\n    return 1/0\n\ng()")
	if r.GetError().GetName() != "ZeroDivisionError" || r.GetExitCode() != 1 ||
		!strings.Contains(r.GetError().GetTraceback(), "line 4, in <module>") ||
		!strings.Contains(r.GetError().GetTraceback(), "return 1/0") || strings.Contains(r.GetError().GetTraceback(), "cove>") {
		t.Errorf("error: %v", r.CodeResult)
	}
	if r := s.py(t, "import sys\nsys.exit(3)"); r.GetExitCode() != 3 || r.GetError() != nil {
		t.Errorf("exit: %v", r.CodeResult)
	}
	if r := s.py(t, "exit()"); r.GetExitCode() != 0 || r.GetError() != nil {
		t.Errorf("exit(): %v", r.CodeResult)
	}
	if r := s.py(t, "input()"); r.GetError().GetName() != "EOFError" || !strings.Contains(r.GetError().GetMessage(), "pass stdin") {
		t.Errorf("input: %v", r.CodeResult)
	}
	req := in("python", "a = input()\nimport subprocess\nb = subprocess.run(['cat'], capture_output=True, text=True).stdout\n(a, b)")
	req.Stdin, req.HasStdin = []byte("one\ntwo\n"), true
	if r := s.code(t, req); !strings.Contains(r.value(), "one") {
		t.Errorf("stdin: %+v", r)
	}
	if r := s.py(t, "x"); r.value() != "20" {
		t.Errorf("state is lost: %+v", r)
	}
}

func TestBashState(t *testing.T) {
	s := start(t)
	sh := func(code string) *ran { t.Helper(); return s.code(t, in("bash", code)) }
	if r := sh("x=5; cd /tmp; f() { echo f$1; }; declare -A m=([a]=1)\necho hi >&2"); r.stderr != "hi\n" || r.GetExitCode() != 0 {
		t.Errorf("got %+v %v", r, r.CodeResult)
	}
	if r := sh("echo $x $PWD ${m[a]}; f 1"); r.stdout != "5 /tmp 1\nf1\n" || r.stderr != "" {
		t.Errorf("got %+v", r)
	}
	if r := sh("(exit 4)"); r.GetExitCode() != 4 {
		t.Errorf("got %v", r.CodeResult)
	}
	if r := sh("echo a; if true; then exit 7; fi; echo b"); r.GetExitCode() != 7 || r.stdout != "a\n" || r.stderr != "" || r.GetRestarted() {
		t.Errorf("exit: %+v %v", r, r.CodeResult)
	}
	if r := sh("echo $x; cat; read y || echo none"); r.stdout != "5\nnone\n" {
		t.Errorf("state after exit: %+v", r)
	}
	if r := sh("echo one\nnosuch\n"); r.GetExitCode() != 127 || !strings.Contains(r.stderr, "nosuch: command not found") {
		t.Errorf("error: %+v", r)
	}
	if r := sh("set -euo pipefail; y=8; f() { false; echo no; }; f; echo no"); r.GetExitCode() != 1 || r.stdout != "" || r.GetRestarted() {
		t.Errorf("set -e: %+v %v", r, r.CodeResult)
	}
	if r := sh("if false; then :; fi; false || true; (exit 2) && :; echo $y; set +eu; false; echo on"); r.stdout != "8\non\n" {
		t.Errorf("after set -e: %+v %v %q", r.stdout, r.CodeResult, r.stderr)
	}
	req := in("bash", "echo $A $PWD; cat")
	req.Env, req.Workdir, req.Stdin, req.HasStdin = map[string]string{"A": "it's"}, "/usr", []byte("in"), true
	if r := s.code(t, req); r.stdout != "it's /usr\nin" {
		t.Errorf("got %+v", r)
	}
	if r := sh("echo [$A] $PWD"); r.stdout != "[] /tmp\n" {
		t.Errorf("got %+v", r)
	}
	req.Workdir = "/nonexistent"
	_, err := s.tryCode(t.Context(), req)
	wantCode(t, err, connect.CodeInvalidArgument, "working directory")
}

// TestBashTrace checks that "set -x" traces what was sent, and stays on or off as a run left
// it.
func TestBashTrace(t *testing.T) {
	s := start(t)
	const source = "+ . FILE\n"
	for _, run := range []struct {
		code, want string
		exit       int32
		dir        string // where it does not run
	}{
		{"set -x\necho a", "++ echo a\n", 0, ""},
		{dir: "/nonexistent"},
		{"echo b; false; (exit 2)", source + "++ echo b\n++ false\n++ exit 2\n", 2, ""},
		{"exit 3", source + "++ exit 3\n", 3, ""},
		{"IFS=x; set -eu; false", source + "++ IFS=x\n++ set -eu\n++ false\n+++ exit 1\n", 1, ""},
		{"set +eu; no() { exit 4; }; no", source + "++ set +eu\n++ no\n++ exit 4\n", 4, ""},
		{"set +x; echo c", source + "++ set +x\n", 0, ""},
		{"echo d", "", 0, ""},
		{"trap '[[ 1 == 2 ]]' DEBUG; (exit 6)", "", 6, ""},
		{"(exit 7)", "", 7, ""},
	} {
		if run.dir != "" {
			req := in("bash", "")
			req.Workdir = run.dir
			_, err := s.tryCode(t.Context(), req)
			wantCode(t, err, connect.CodeInvalidArgument, "working directory")
			continue
		}
		r := s.code(t, in("bash", run.code))
		got := regexp.MustCompile(`(?m)^\+ \. .*$`).ReplaceAllString(r.stderr, "+ . FILE")
		if got != run.want || r.GetExitCode() != run.exit || r.GetRestarted() {
			t.Errorf("%q: %d, %q, want %d, %q", run.code, r.GetExitCode(), got, run.exit, run.want)
		}
	}
}

func TestGoCode(t *testing.T) {
	s := start(t)
	run := func(code string) *ran { t.Helper(); return s.code(t, in("go", code)) }
	if r := run("package main\nimport \"fmt\"\nfunc main() { fmt.Println(6*7) }"); r.stdout != "42\n" {
		t.Errorf("got %+v %v", r, r.CodeResult)
	}
	if r := run("import \"fmt\" // says\nfmt.Println(6*7)"); r.stdout != "42\n" {
		t.Errorf("got %+v %v", r, r.CodeResult)
	}
	if r := run("import \"os\"\n\nos.Exit(9)"); r.GetExitCode() != 9 {
		t.Errorf("got %+v %v", r, r.CodeResult)
	}
	// Columns are those of the user's lines, too.
	for code, place := range map[string]string{
		"x := 1": "main.go:1:1: ", "import \"os\"\nx := 1": "main.go:2:1: ", "import (\"os\"); x := 1": "main.go:1:16: ",
		"func main() { x := 1 }": "main.go:1:15: ",
	} {
		if r := run(code); !strings.Contains(r.GetError().GetMessage(), place+"declared and not used: x") {
			t.Errorf("%q: got %q", code, r.GetError().GetMessage())
		}
	}
	if r := run("package main\n\nfunc main() {\n\tx := 1\n}"); r.GetExitCode() == 0 || !strings.Contains(r.GetError().GetMessage(), "main.go:4:2: declared and not used: x") || r.stderr != "" {
		t.Errorf("got %+v %v", r, r.CodeResult)
	}
}

// An interpreter that was started ahead adapts to the new sandbox: runs count from 1,
// and its directory is the sandbox's.
func TestSpareKernels(t *testing.T) {
	s := start(t)
	for _, l := range []string{"python", "bash", "javascript"} {
		s.code(t, in(l, ""))
	}
	s.py(t, "x = 1")
	dir := t.TempDir()
	if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{Fresh: true, Workdir: &dir})); err != nil {
		t.Fatal(err)
	}
	for l, code := range map[string]string{"bash": "echo $PWD", "javascript": "console.log(process.cwd())"} {
		pid := s.contextOf(t, l).GetPid()
		if r := s.code(t, in(l, code)); r.GetCount() != 1 || r.stdout != dir+"\n" || r.GetRestarted() {
			t.Errorf("%s: %q %v", l, r.stdout, r.CodeResult)
		}
		if c := s.contextOf(t, l); c.GetRuns() != 1 || c.GetPid() != pid {
			t.Errorf("%s: %v", l, c)
		}
	}
	if r := s.py(t, "x"); r.value() != "1" || r.GetCount() != 3 {
		t.Errorf("what was in use goes on: %v %q", r.CodeResult, r.value())
	}
}

// An interpreter that was started ahead for another user is replaced. It has no
// variables yet, so the caller is not told that any are lost.
func TestSpareKernelOfAnotherUser(t *testing.T) {
	needs.Root(t)
	s := start(t)
	dir := "/" // where every user may be
	if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{Workdir: &dir})); err != nil {
		t.Fatal(err)
	}
	for _, l := range []string{"python", "bash"} {
		req := in(l, "")
		req.User = "nobody"
		s.code(t, req)
	}
	if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{Fresh: true})); err != nil {
		t.Fatal(err)
	}
	for l, code := range map[string]string{"python": "import os; print(os.getuid())", "bash": "id -u"} {
		if r := s.code(t, in(l, code)); r.stdout != "0\n" || r.stderr != "" || r.GetRestarted() || r.GetReason() != "" {
			t.Errorf("%s: %q, %q, %v", l, r.stdout, r.stderr, r.CodeResult)
		}
	}
}

func (s *server) contextOf(t testing.TB, language string) *agentv1.CodeContext {
	t.Helper()
	res, err := s.ListContexts(t.Context(), connect.NewRequest(&agentv1.ListContextsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range res.Msg.GetContexts() {
		if c.GetRef().GetLanguage() == language {
			return c
		}
	}
	t.Fatalf("there is no context of %s: %v", language, res.Msg)
	return nil
}

// A caller that has the result of a run finds its context idle, and the run counted.
func TestContextIsFreeWithTheResult(t *testing.T) {
	s := start(t)
	for n := range int32(300) {
		s.code(t, in("bash", ":"))
		if c := s.contextOf(t, "bash"); c.GetState() != agentv1.ContextState_CONTEXT_STATE_IDLE || c.GetRuns() != n+1 {
			t.Fatalf("after run %d: %v", n+1, c)
		}
	}
}

// A context can be deleted at the moment at which a run in it is over but has not left
// it yet.
func TestDeleteContextAsItsRunEnds(t *testing.T) {
	s := start(t)
	s.code(t, in("bash", ":"))
	c, err := s.agent.code.find(contextKey{sandbox.Bash, defaultContext})
	if err != nil {
		t.Fatal(err)
	}
	r := newCodeRun(c.kernel)
	r.limit(t.Context(), 0, 0)()
	c.setBusy(r)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := s.ControlContext(ctx, connect.NewRequest(&agentv1.ControlContextRequest{
		Ref: &agentv1.ContextRef{Language: "bash"}, Action: agentv1.ControlContextRequest_ACTION_DELETE,
	})); err != nil {
		t.Fatal(err)
	}
}

// An agent that ends removes the files of its interpreters.
func TestCloseLeavesNoFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	files := func() []os.DirEntry {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	t.Cleanup(func() { // after the agent's end
		if left := files(); len(left) != 0 {
			t.Errorf("left are %v", left)
		}
	})
	s := start(t)
	s.code(t, in("bash", ":"))
	if len(files()) == 0 {
		t.Error("the interpreter has no files, so that none can be left")
	}
}

// An interrupt that comes as a run ends does not undo an earlier interrupt.
func TestInterruptTwice(t *testing.T) {
	r := newCodeRun(&stages{})
	done := r.limit(t.Context(), 0, 0)
	r.interrupt(patience)
	done()
	r.interrupt(patience)
	if m := r.result(&kernel.Outcome{}, &codePlan{}, kernel.NewOutbox(0)); !m.GetInterrupted() {
		t.Errorf("the run is not said to be interrupted: %v", m)
	}
}
