package kernel

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// TestInterruptBeforeCode interrupts code before the interpreter has begun it. The code
// ends, later code is not interrupted, and the interpreter keeps its state.
func TestInterruptBeforeCode(t *testing.T) {
	for _, tt := range []struct {
		language                        sandbox.Language
		program, before, forever, after string
		want                            string
	}{
		{sandbox.Python, "python3", "x = 5", "while True: pass", "print(x)", "KeyboardInterrupt"},
		{sandbox.JavaScript, "node", "var x = 5", "while (true);", "console.log(x)", "Interrupted"},
		{sandbox.Bash, "bash", "x=5", "while :; do :; done", "echo $x", ""},
		{sandbox.Bash, "bash", "x=5; exec 2>&-; set -x", "while :; do :; done", "[[ $- == *x* ]] && echo $x", ""},
		{sandbox.JavaScript, "node", "var x = 5", "new Promise(r => setTimeout(r, 600000))", "console.log(x)", "Interrupted"},
	} {
		t.Run(string(tt.language)+" "+tt.forever, func(t *testing.T) {
			k := startReal(t, tt.language, tt.program)
			count := 0
			run := func(code string, interrupt bool) (*Outcome, string) {
				t.Helper()
				count++
				k.Prepare()
				if interrupt {
					k.Interrupt()
				}
				return runReal(t, k, count, code)
			}
			run(tt.before, false)
			for range 20 {
				out, _ := run(tt.forever, true)
				if out.Interrupted != (tt.language != sandbox.Bash) || out.Exit != 130 || !strings.Contains(out.Error.GetName(), tt.want) {
					t.Fatalf("interrupted before it began: %+v", out)
				}
				if out, text := run(tt.after, false); out.Interrupted || out.Exit != 0 || text != "5\n" {
					t.Fatalf("the next code: %+v, %q", out, text)
				}
			}
		})
	}
}

// TestInterruptAtAnyTime interrupts short code at any time: before it runs, within, and
// after. Later code is not interrupted, and the interpreter keeps its state.
func TestInterruptAtAnyTime(t *testing.T) {
	const js, log = sandbox.JavaScript, "console.log(x)"
	for _, tt := range []struct {
		name                        string
		language                    sandbox.Language
		program, begin, code, after string
	}{
		{"script", js, "node", "var x = 5", "1 + 1", log},
		{"await", js, "node", "var x = 5", "await new Promise(setImmediate)", log},
		{"with a handler", js, "node", "var x = 5; process.on('SIGINT', () => {})", "1 + 1", log},
		{"await with a handler", js, "node", "var x = 5; process.on('SIGINT', () => {})", "await new Promise(setImmediate)", log},
		{"Python", sandbox.Python, "python3", "x = 5", "1 + 1", "print(x)"},
		{"shell", sandbox.Bash, "bash", "x=5", ":", "echo $x"},
		{"command", sandbox.Bash, "bash", "x=5", "/bin/true", "echo $x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := startReal(t, tt.language, tt.program)
			k.Prepare()
			runReal(t, k, 1, tt.begin)
			interrupted := 0
			for i := range 100 {
				k.Prepare()
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					for range rand.IntN(20000) {
						runtime.Gosched()
					}
					k.Interrupt()
				}()
				out, _ := runReal(t, k, 2*i+2, tt.code)
				<-sent
				if out.Interrupted {
					interrupted++
				}
				k.Prepare()
				if out, text := runReal(t, k, 2*i+3, tt.after); out.Died || out.Interrupted || out.Exit != 0 || !strings.HasSuffix(text, "5\n") { // IPython may warn first
					t.Fatalf("the code after %d: %+v, %q", i, out, text)
				}
			}
			t.Logf("%d of 100 were interrupted", interrupted)
		})
	}
}

// TestInterruptOfHandler runs code with a handler for SIGINT of its own. The handler is
// called, and the interpreter keeps its state.
func TestInterruptOfHandler(t *testing.T) {
	k := startReal(t, sandbox.JavaScript, "node")
	for count, tt := range []struct{ code, want string }{
		{"var hits = 0; process.on('SIGINT', () => hits++)", ""},
		{"var alive = setTimeout(() => {}, 600000)", ""},
		{"await new Promise((r) => { process.once('SIGINT', r); setTimeout(() => process.kill(process.pid, 'SIGINT')) }); console.log(hits)", "1\n"},
		{"await new Promise((r) => setTimeout(r, 600000)) // interrupted", ""},
		{"await null; process.removeAllListeners('SIGINT'); console.log(process.listenerCount('SIGINT'))", "0\n"},
		{"process.kill(process.pid, 'SIGINT'); while (true);", ""},
		{"process.kill(process.pid, 'SIGINT'); await new Promise((r) => setTimeout(r, 600000))", ""},
		{"console.log(hits > 0)", "true\n"},
	} {
		k.Prepare()
		if strings.HasSuffix(tt.code, "// interrupted") {
			k.Interrupt()
		}
		if out, text := runReal(t, k, count+1, tt.code); out.Died || text != tt.want {
			t.Fatalf("%s: %+v, %q", tt.code, out, text)
		}
	}
}

func startReal(t *testing.T, language sandbox.Language, program string) *Kernel {
	t.Helper()
	needs.Command(t, program)
	k, err := Start(t.Context(), Config{Language: language, Spawn: spawnReal, Env: map[string]string{}, Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Quiet)
	t.Cleanup(k.Kill)
	return k
}

// runReal runs code, and returns what came of it and what it wrote.
func runReal(t *testing.T, k *Kernel, count int, code string) (*Outcome, string) {
	t.Helper()
	box := NewOutbox(1 << 10)
	out, err := k.Run(&Run{Count: count, Code: code, Env: map[string]string{}}, box)
	if err != nil {
		t.Fatal(err)
	}
	events, _ := box.Take()
	text := ""
	for _, e := range events {
		text += string(e.GetOutput().GetData())
	}
	return out, text
}
