package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// Code attacks its interpreter, and the next call must work. Each piece runs in a context
// in which x is 1.
func TestPythonHostile(t *testing.T) {
	for _, tt := range []struct {
		name, code string
		stdout     string
		exit       int32
		err        string // name of the error
		restarted  bool
		reason     string
	}{
		{name: "fork returns", code: "import os\nif os.fork():\n    os.wait()\nprint('p')", stdout: "p\np\n"},
		{name: "fork exits", code: "import os, sys\np = os.fork()\nif p == 0: sys.exit(5)\nprint(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))", stdout: "5\n"},
		{name: "fork raises", code: "import os\np = os.fork()\nif p == 0: raise ValueError\nprint(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]))", stdout: "1\n"},
		{name: "daemon", code: "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        os.closerange(3, 4096)\n        time.sleep(0.3)\n        os._exit(0)\n    os._exit(0)\nos.wait()\nprint('on')", stdout: "on\n"},
		{name: "multiprocessing", code: "import multiprocessing as mp\ndef sq(a): return a*a\nwith mp.get_context('fork').Pool(2) as p: print(p.map(sq, [1,2,3]))", stdout: "[1, 4, 9]\n"},
		{name: "closes descriptors", code: "import os\nos.closerange(3, 4096)\nprint('still')", stdout: "still\n"},
		{name: "closes stdout", code: "import os\nos.close(1)", stdout: ""},
		{name: "closes sys.stdout", code: "import sys\nsys.stdout.close()", stdout: ""},
		{name: "closes its connection", code: "import ctypes\nfor i in range(3, 2000): ctypes.CDLL(None).close(i)", exit: 70, restarted: true, reason: "file descriptors"},
		{name: "os._exit", code: "import os\nos._exit(7)", exit: 7, restarted: true, reason: "exit code 7"},
		{name: "kills itself", code: "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", exit: 137, restarted: true, reason: "signal 9"},
		{name: "segmentation fault", code: "import ctypes\nctypes.string_at(0)", exit: 139, restarted: true, reason: "SIGSEGV"},
		{name: "redefines print", code: "print = None\nimport builtins\nbuiltins.repr = lambda v: 1/0", stdout: ""},
		{name: "replaces stdout", code: "import sys, io\nsys.stdout = io.StringIO()\nprint('lost')\nsys.stdout = sys.__stdout__\nprint('seen')", stdout: "seen\n"},
		{name: "ignores signals", code: "import signal\nfor s in (signal.SIGINT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)", stdout: ""},
		{name: "changes cwd away", code: "import os, tempfile\nd = tempfile.mkdtemp()\nos.chdir(d)\nos.rmdir(d)", stdout: ""},
		{name: "thread goes on", code: "import threading, time\nthreading.Thread(target=lambda: time.sleep(0.2), daemon=True).start()\nprint('m')", stdout: "m\n"},
		{name: "recursion", code: "def f(): return f()\nf()", exit: 1, err: "RecursionError"},
		{name: "strange exception", code: "class E(Exception):\n    def __str__(self): raise ValueError\nraise E", exit: 1, err: "E"},
		{name: "strange repr", code: "class R:\n    def __repr__(self): raise KeyError('r')\nR()", exit: 1, err: "KeyError"},
		{name: "syntax", code: "def f(:\n  pass", exit: 1, err: "SyntaxError"},
		{name: "breaks the display", code: "import sys\nsys.displayhook = None\n5", exit: 1, err: "TypeError"},
		{name: "binary", code: "import os\nn = os.write(1, bytes(range(256)))", stdout: string(allBytes())},
		{name: "surrogates", code: "print('\\ud800')", stdout: "\\ud800\n"},
		{name: "exit text", code: "import sys\nsys.exit('bye')", exit: 1},
		{name: "interrupts itself", code: "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)", exit: 130, err: "KeyboardInterrupt"},
		{name: "generator exit", code: "raise GeneratorExit", exit: 1, err: "GeneratorExit"},
		{name: "breaks json", code: "import json\njson.dumps = None\ndisplay({'a'})"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.agent.kernelGrace = patience
			s.py(t, "x = 1")
			r := s.py(t, tt.code)
			if r.stdout != tt.stdout || r.GetExitCode() != tt.exit || r.GetError().GetName() != tt.err || r.GetRestarted() != tt.restarted || !strings.Contains(r.GetReason(), tt.reason) {
				t.Errorf("got %q, %v, stderr %q", r.stdout, r.CodeResult, r.stderr)
			}
			again := s.py(t, "import sys\nsys.stdout.write('x' in globals() and 'kept' or 'new')\n6*7")
			want := "kept"
			if tt.restarted {
				want = "new"
			}
			if again.stdout != want || again.value() != "42" && tt.name != "redefines print" && tt.name != "breaks the display" {
				t.Errorf("afterwards: %q %q, want %q; %v %q", again.stdout, again.value(), want, again.CodeResult, again.stderr)
			}
		})
	}
}

func allBytes() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// The next run reports a kernel that has died while idle.
func TestKernelDiesIdle(t *testing.T) {
	s := start(t)
	s.py(t, "import os, threading, time\ndef end():\n    while not os.path.exists('end'): time.sleep(0.01)\n    os._exit(3)\nthreading.Thread(target=end).start()")
	if err := os.WriteFile(filepath.Join(s.dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kernel ends", func() bool {
		res, err := s.ListContexts(t.Context(), connect.NewRequest(&agentv1.ListContextsRequest{}))
		return err == nil && res.Msg.GetContexts()[0].GetState() == agentv1.ContextState_CONTEXT_STATE_DEAD
	})
	if r := s.py(t, "1"); !r.GetRestarted() || !strings.Contains(r.GetReason(), "exit code 3") || r.value() != "1" {
		t.Errorf("got %v", r.CodeResult)
	}
	if r := s.py(t, "1"); r.GetRestarted() {
		t.Errorf("told twice: %v", r.CodeResult)
	}
}

// TestCodeTimeout ends code that would run longer than the interrupt's grace, so that a lost
// interrupt is noticed.
func TestCodeTimeout(t *testing.T) {
	needsParser(t)
	tests := map[string]func(*testing.T){}
	for _, tt := range []struct {
		language, before, code, after, want string
		lost                                bool
	}{
		{language: "python", before: "x = 5", code: "print('a')\nwhile True: pass", after: "print(x)", want: "5\n"},
		{language: "python", before: "import asyncio\nx = 5", code: "print('a')\nawait asyncio.sleep(600)", after: "print(x)", want: "5\n"},
		{language: "python", before: "import subprocess\nx = 5", code: "print('a')\nsubprocess.run(['sleep', '600'])", after: "print(x)", want: "5\n"},
		{language: "python", before: "x = 5", code: "print('a')\nimport time\nwhile True:\n  try:\n    time.sleep(600)\n  except BaseException: pass", after: "print('x' in globals())", want: "False\n", lost: true},
		{language: "bash", before: "x=5", code: "echo a; sleep 600; echo b", after: "echo $x", want: "5\n"},
		{language: "bash", before: "x=5", code: "echo a; while :; do :; done", after: "echo $x", want: "5\n"},
		{language: "bash", before: "x=5", code: "echo a; trap '' INT; while :; do :; done", after: "echo [$x]", want: "[]\n", lost: true},
		{language: "javascript", before: "let x = 5", code: "console.log('a'); while (true);", after: "console.log(x)", want: "5\n"},
		{language: "javascript", before: "let x = 5", code: "console.log('a'); await new Promise(r => setTimeout(r, 600000))", after: "console.log(x)", want: "5\n"},
	} {
		tests[tt.language+" "+tt.code] = func(t *testing.T) {
			s := start(t)
			if !tt.lost {
				s.agent.endGrace = patience
			}
			s.code(t, in(tt.language, tt.before))
			req := in(tt.language, tt.code)
			req.TimeoutMs = enoughMs // to print
			r := s.code(t, req)
			for ; r.stdout == "" && !r.GetRestarted() && req.TimeoutMs < 10*enoughMs; r = s.code(t, req) { // the code has not begun
				req.TimeoutMs *= 2
			}
			if r.stdout != "a\n" || !r.GetTimedOut() || r.GetExitCode() != 124 || r.GetRestarted() != tt.lost || !strings.Contains(r.stderr, "time limit") {
				t.Errorf("got %q %v %q", r.stdout, r.CodeResult, r.stderr)
			}
			if r := s.code(t, in(tt.language, tt.after)); r.stdout != tt.want {
				t.Errorf("afterwards %q, want %q; %v %s", r.stdout, tt.want, r.CodeResult, r.stderr)
			}
		}
	}
	atOnce(t, tests)
}

func TestCodeInterruptAndCancel(t *testing.T) {
	s := start(t)
	s.agent.interruptGrace, s.agent.endGrace = patience, patience
	ref := &agentv1.ContextRef{Language: "python"}
	s.py(t, "x = 1")
	busy := func() {
		eventually(t, "the context is busy", func() bool {
			_, err := os.Stat(filepath.Join(s.dir, "on"))
			return err == nil
		})
		_ = os.Remove(filepath.Join(s.dir, "on"))
	}
	const forever = "print('a')\nopen('on', 'w').close()\nwhile True: pass"
	var all sync.WaitGroup
	all.Go(func() {
		r, err := s.tryCode(t.Context(), in("python", forever))
		if err != nil || !r.GetInterrupted() || r.GetExitCode() != 130 || r.GetError().GetName() != "KeyboardInterrupt" || r.stdout != "a\n" {
			t.Errorf("interrupt: %v %v", r, err)
		}
	})
	busy()
	if _, err := s.ControlContext(t.Context(), connect.NewRequest(&agentv1.ControlContextRequest{Ref: ref, Action: agentv1.ControlContextRequest_ACTION_INTERRUPT})); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	all.Go(func() {
		if _, err := s.tryCode(ctx, in("python", forever)); err == nil {
			t.Error("a cancelled run ended well")
		}
	})
	busy()
	cancel()
	all.Wait()
	if r := s.py(t, "x"); r.value() != "1" {
		t.Errorf("the state is lost: %v", r.CodeResult)
	}
	s.agent.endGrace = endGrace // which is waited for in vain
	ctx, cancel = context.WithCancel(t.Context())
	all.Go(func() {
		const deaf = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nopen('on', 'w').close()\ntime.sleep(600)"
		if _, err := s.tryCode(ctx, in("python", deaf)); err == nil {
			t.Error("a cancelled run of deaf code ended well")
		}
	})
	busy()
	cancel()
	all.Wait()
	if r := s.py(t, "x = 1"); !r.GetRestarted() || !strings.Contains(r.GetReason(), "it was killed: it did not react to an interrupt") {
		t.Errorf("the next caller is not told that the state is lost: %v", r.CodeResult)
	}
	if r := s.py(t, "x"); r.value() != "1" || r.GetRestarted() {
		t.Errorf("told twice: %v", r.CodeResult)
	}
	all.Go(func() {
		r, err := s.tryCode(t.Context(), in("python", forever))
		if err != nil || !r.GetRestarted() || !strings.Contains(r.GetReason(), "restarted") {
			t.Errorf("restart: %v %v", r, err)
		}
	})
	busy()
	res, err := s.ControlContext(t.Context(), connect.NewRequest(&agentv1.ControlContextRequest{Ref: ref, Action: agentv1.ControlContextRequest_ACTION_RESTART}))
	if err != nil || res.Msg.GetContext().GetState() != agentv1.ContextState_CONTEXT_STATE_IDLE {
		t.Errorf("got %v %v", res, err)
	}
	all.Wait()
	if r := s.py(t, "'x' in globals()"); r.value() != "False" || r.GetRestarted() {
		t.Errorf("after a restart: %v %v", r.value(), r.CodeResult)
	}
	if _, err := s.ControlContext(t.Context(), connect.NewRequest(&agentv1.ControlContextRequest{Ref: ref, Action: agentv1.ControlContextRequest_ACTION_DELETE})); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ControlContext(t.Context(), connect.NewRequest(&agentv1.ControlContextRequest{Ref: ref, Action: agentv1.ControlContextRequest_ACTION_DELETE})); err != nil {
		t.Errorf("delete again: %v", err)
	}
	_, err = s.ControlContext(t.Context(), connect.NewRequest(&agentv1.ControlContextRequest{Ref: ref, Action: agentv1.ControlContextRequest_ACTION_INTERRUPT}))
	wantCode(t, err, connect.CodeNotFound, "no context python/default")
}

func TestCodeFlood(t *testing.T) {
	s := start(t)
	req := in("python", "import sys\nline = 'é' * 499 + '\\n'\nfor _ in range(100_000): sys.stdout.write(line)")
	req.KeepBytes = 100_001
	r := s.code(t, req)
	if len(r.stdout) > 100_001 || len(r.stdout) < 99_998 || r.GetStdoutBytes() != 999*100_000 || !utf8.ValidString(r.stdout) {
		t.Errorf("got %d of %d bytes, valid %v", len(r.stdout), r.GetStdoutBytes(), utf8.ValidString(r.stdout))
	}
	for _, language := range []string{"bash", "javascript"} {
		code := "yes | head -c 20000000"
		if language == "javascript" {
			code = "for (let i = 0; i < 20; i++) process.stdout.write('y\\n'.repeat(500000)); undefined"
		}
		if r := s.code(t, in(language, code)); r.GetStdoutBytes() != 20_000_000 || len(r.stdout) != sandbox.DefaultKeepBytes {
			t.Errorf("%s: got %d of %d", language, len(r.stdout), r.GetStdoutBytes())
		}
	}
	// A child keeps flooding: the next run gets no more of its output than is kept.
	s.code(t, in("bash", "yes & flood=$!"))
	r = s.code(t, in("bash", "sleep 0.1; kill $flood; echo; echo end"))
	if r.GetExitCode() != 0 || len(r.stdout) > sandbox.DefaultKeepBytes {
		t.Errorf("got %d bytes, %v", len(r.stdout), r.CodeResult)
	}
}

func TestCodeSplitCharacters(t *testing.T) {
	s := start(t)
	stream, err := s.RunCode(t.Context(), connect.NewRequest(in("python",
		"import os, time\nfor b in '🙂é€🎉'.encode():\n    os.write(1, bytes([b])); time.sleep(0.003)\nn = os.write(1, b'\\xf0\\x9f')")))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	all := ""
	for stream.Receive() {
		data := string(stream.Msg().GetOutput().GetData())
		// The half of a character may come with what is before it; the other half of a whole
		// one that was split would be broken too.
		if !utf8.ValidString(strings.TrimSuffix(data, "\xf0\x9f")) {
			t.Errorf("a broken piece: %q", data)
		}
		all += data
	}
	if all != "🙂é€🎉\xf0\x9f" {
		t.Errorf("got %q", all)
	}
}

func TestCodeManyCalls(t *testing.T) {
	s := start(t)
	calls := 200
	if needs.Soak() {
		calls = 1000
	}
	for _, tt := range []struct{ language, first, step, last string }{
		{"python", "n = 0", "n += 1\nprint(n)", "print(n)"},
		{"bash", "n=0", "((n+=1)); echo $n", "echo $n"},
		{"javascript", "let n = 0", "n++; console.log(n)", "console.log(n)"},
	} {
		s.code(t, in(tt.language, tt.first))
		for i := range calls {
			if r := s.code(t, in(tt.language, tt.step)); r.stdout != fmt.Sprintln(i+1) {
				t.Fatalf("%s: call %d: %q %v", tt.language, i, r.stdout, r.CodeResult)
			}
		}
		if r := s.code(t, in(tt.language, tt.last)); r.stdout != fmt.Sprintln(calls) || int(r.GetCount()) != calls+2 {
			t.Errorf("%s: %q %v", tt.language, r.stdout, r.CodeResult)
		}
	}
}

func TestCodeQueue(t *testing.T) {
	s := start(t)
	s.py(t, "import time\nseen = []")
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() { s.py(t, fmt.Sprintf("seen.append(%d); time.sleep(0.01)", i)) })
	}
	all.Wait()
	if r := s.py(t, "sorted(seen)"); r.value() != "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]" {
		t.Errorf("got %s", r.value())
	}
	// More runs wait than are allowed.
	c := newCodeContext(contextKey{sandbox.Python, "q"}, &account{})
	<-c.turn
	ctx, cancel := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range sandbox.MaxQueuedRuns {
		waiting.Go(func() { _ = c.wait(ctx, 0) })
	}
	eventually(t, "all wait", func() bool { return c.describe().GetQueued() == sandbox.MaxQueuedRuns })
	wantCode(t, c.wait(ctx, 0), connect.CodeResourceExhausted, "wait for the context")
	cancel()
	waiting.Wait()
}

func TestCodeEnvAndDirectory(t *testing.T) {
	for language, show := range map[string]string{
		"python":     "import os\nprint(os.environ.get('A'), os.environ.get('B'), os.environ.get('D'), os.getcwd())",
		"javascript": "console.log(process.env.A ?? 'None', process.env.B ?? 'None', process.env.D ?? 'None', process.cwd())",
		"bash":       "echo ${A-None} ${B-None} ${D-None} $PWD",
	} {
		t.Run(language, func(t *testing.T) {
			s := start(t)
			set := func(env map[string]string) {
				if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{Env: env, ReplaceEnv: true})); err != nil {
					t.Fatal(err)
				}
			}
			want := func(req *agentv1.RunCodeRequest, want string) {
				t.Helper()
				if r := s.code(t, req); r.stdout != want+"\n" {
					t.Errorf("got %q, want %q; %v", r.stdout, want, r.CodeResult)
				}
			}
			want(in(language, show), "None None None "+s.dir)
			set(map[string]string{"A": "1", "D": "d"})
			want(in(language, show), "1 None d "+s.dir)
			one := in(language, show)
			one.Env, one.Workdir = map[string]string{"A": "2", "B": "x y"}, "/usr"
			want(one, "2 x y d /usr")
			want(in(language, show), "1 None d "+s.dir)
			set(map[string]string{"A": "3"})
			want(in(language, show), "3 None None "+s.dir)
			one.Workdir = "/nonexistent"
			_, err := s.tryCode(t.Context(), one)
			wantCode(t, err, connect.CodeInvalidArgument, "the working directory /nonexistent")
			want(in(language, show), "3 None None "+s.dir)
		})
	}
}

func TestCodeRequests(t *testing.T) {
	s := start(t)
	for name, req := range map[string]*agentv1.RunCodeRequest{
		"language \"perl\"":     in("perl", "1"),
		"not valid":             {Context: &agentv1.ContextRef{Language: "python", Name: "a b"}},
		"longer than 63":        {Context: &agentv1.ContextRef{Language: "python", Name: strings.Repeat("a", 64)}},
		"NUL":                   in("bash", "a\x00b"),
		"keep_bytes":            {Context: &agentv1.ContextRef{Language: "python"}, KeepBytes: -1},
		"timeout_ms":            {Context: &agentv1.ContextRef{Language: "python"}, TimeoutMs: -1},
		"variable name":         {Context: &agentv1.ContextRef{Language: "python"}, Env: map[string]string{"": "x"}},
		"no user \"nobodyatall": {Context: &agentv1.ContextRef{Language: "python"}, User: "nobodyatall"},
	} {
		_, err := s.tryCode(t.Context(), req)
		wantCode(t, err, connect.CodeInvalidArgument, name)
	}
	s.agent.mu.Lock()
	s.agent.settings.env = map[string]string{"PATH": "/nonexistent"}
	s.agent.mu.Unlock()
	_, err := s.tryCode(t.Context(), in("python", "1"))
	wantCode(t, err, connect.CodeNotFound, "the sandbox's template has no Python 3")
	for i := range sandbox.MaxContexts {
		_, _ = s.tryCode(t.Context(), &agentv1.RunCodeRequest{Context: &agentv1.ContextRef{Language: "python", Name: fmt.Sprint("c", i)}})
	}
	_, err = s.tryCode(t.Context(), &agentv1.RunCodeRequest{Context: &agentv1.ContextRef{Language: "python", Name: "more"}})
	wantCode(t, err, connect.CodeResourceExhausted, "delete one")
}

// Output that comes between two runs belongs to the next one, and its writer does not
// block.
func TestCodeLateOutput(t *testing.T) {
	s := start(t)
	s.py(t, "import threading, time, os\ndef late():\n    while not os.path.exists('over'): time.sleep(0.01)\n    os.write(1, b'l' * 200_000)\n    open('written', 'w').close()\nthreading.Thread(target=late).start()")
	if err := os.WriteFile(filepath.Join(s.dir, "over"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the thread has written", func() bool {
		_, err := os.Stat(filepath.Join(s.dir, "written"))
		return err == nil
	})
	r := s.py(t, "print('now')")
	if !strings.HasPrefix(r.stdout, "lll") || !strings.HasSuffix(r.stdout, "now\n") || len(r.stdout) > 70_000 {
		t.Errorf("got %d bytes: …%q", len(r.stdout), r.stdout[max(0, len(r.stdout)-10):])
	}
}

func TestCodeReseed(t *testing.T) {
	s := start(t)
	draw := map[string]string{
		"python":     "import random\nrandom.seed(1)",
		"javascript": "1",
		"bash":       "RANDOM=1",
	}
	next := map[string]string{"python": "print(random.random())", "javascript": "console.log(Math.random())", "bash": "echo $RANDOM $RANDOM"}
	first := s.py(t, "import random\nrandom.seed(1)\nrandom.random()").value()
	for language, code := range draw {
		s.code(t, in(language, code))
	}
	s.agent.code.reseed()
	if got := strings.TrimSpace(s.py(t, next["python"]).stdout); got == first {
		t.Errorf("python goes on with %s", got)
	}
	if r := s.code(t, in("javascript", "[require('crypto').randomBytes(4).length, crypto.randomUUID().length, require('crypto').randomInt(5) < 5, crypto.getRandomValues(new Uint8Array(3)).length].join()")); r.value() != "'4,36,true,3'" {
		t.Errorf("javascript: %s %v", r.value(), r.CodeResult)
	}
	if r := s.code(t, in("bash", next["bash"])); r.stdout == "16807 15089\n" {
		t.Errorf("bash goes on: %s", r.stdout)
	}
	first = s.py(t, "random.seed(1)\nrandom.random()").value()
	s.py(t, "random.seed(1)")
	s.agent.code.reseed()
	s.agent.mu.Lock()
	s.agent.settings.env = map[string]string{noReseed: "1", "PATH": os.Getenv("PATH")}
	s.agent.mu.Unlock()
	if got := strings.TrimSpace(s.py(t, next["python"]).stdout); got != first {
		t.Errorf("reseeded though told not to: %s, want %s", got, first)
	}
}

func TestFreshCode(t *testing.T) {
	s := start(t)
	s.py(t, "x = 1")
	req := in("python", "'x' in globals()")
	req.Fresh = true
	if r := s.code(t, req); r.value() != "False" || r.GetRestarted() {
		t.Errorf("got %s %v", r.value(), r.CodeResult)
	}
	req = in("bash", "set -e; false; echo no")
	req.Fresh = true
	if r := s.code(t, req); r.GetExitCode() != 1 || r.GetRestarted() || r.stdout != "" {
		t.Errorf("got %v %q", r.CodeResult, r.stdout)
	}
	req = in("bash", "set -u\necho $nosuch\necho no")
	req.Fresh = true
	if r := s.code(t, req); r.GetExitCode() != 1 || !strings.Contains(r.stderr, "line 2: nosuch: unbound variable") {
		t.Errorf("got %v %q", r.CodeResult, r.stderr)
	}
	req = in("bash", "kill -9 $$")
	req.Fresh = true
	if r := s.code(t, req); r.GetExitCode() != 137 || r.GetRestarted() {
		t.Errorf("got %v %q", r.CodeResult, r.stderr)
	}
	eventually(t, "its process is gone", func() bool { return len(s.agent.code.sessions()) == 1 })
}
