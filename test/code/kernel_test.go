// Package code holds tests of code that runs in real sandboxes.
package code

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// kernels is a sandbox that has room for interpreters.
func kernels() sandbox.CreateRequest {
	return covetest.Small(func(r *sandbox.CreateRequest) {
		r.Template, r.Resources.MemoryMiB = "host", 512
	})
}

// value is the text of the last expression.
func value(r *sandbox.CodeResult) string {
	for _, o := range r.Outputs {
		if o.Result {
			return strings.Trim(string(o.Data["text/plain"]), `"`)
		}
	}
	return ""
}

// run runs code that must not fail to run.
func run(t testing.TB, d *covetest.Daemon, id string, l sandbox.Language, code string) *sandbox.CodeResult {
	t.Helper()
	r, err := d.Client.RunCode(t.Context(), id, sandbox.RunCodeRequest{Language: l, Code: code}, nil)
	if err != nil {
		t.Fatalf("%s %q: %v", l, code, err)
	}
	return r
}

// says checks what code writes.
func says(t testing.TB, d *covetest.Daemon, id string, l sandbox.Language, code, want string) {
	t.Helper()
	if r := run(t, d, id, l, code); r.Stdout != want || r.ExitCode != 0 {
		t.Errorf("%s: got %q, exit %d, want %q; %v %s %s", code, r.Stdout, r.ExitCode, want, r.Error, r.Stderr, r.Reason)
	}
}

// interruptTries is how often a test interrupts code whose interpreter must survive.
const interruptTries = 5

// tooSlow reports whether an interpreter was killed because it did not react to
// an interrupt in the second that it has: on a busy machine it may be too slow.
func tooSlow(r *sandbox.CodeResult) bool {
	return r.Restarted && (strings.Contains(r.Reason, "did not end within") || strings.Contains(r.Reason, "did not react to an interrupt"))
}

// Interpreters in gVisor: state, and its way through pause, snapshot, restore
// and fork.
func TestKernelsLive(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := d.Create(t, kernels()).ID
		says(t, d, id, sandbox.Python, "import random, os\nx = 5\nf = open('/tmp/open', 'w+')\nn = f.write('held')\nrandom.seed(1)\nos.chdir('/tmp')\nprint(6*7)", "42\n")
		says(t, d, id, sandbox.Bash, "x=6; cd /usr; f() { echo f$x; }; f", "f6\n")
		says(t, d, id, sandbox.JavaScript, "const x = 7; console.log(x)", "7\n")
		// A generator that is half consumed, and a thread in the background.
		says(t, d, id, sandbox.Python, `import threading, time
def numbers():
    n = 0
    while True:
        n += 1
        yield n
g, ticks = numbers(), [0]
def tick():
    while True:
        ticks[0] += 1
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
print(next(g))`, "1\n")
		says(t, d, id, sandbox.JavaScript, `const fs = require('fs'), fd = fs.openSync('/tmp/open.js', 'w+'); fs.writeSync(fd, 'kept')
function* numbers() { for (let n = 1; ; n++) yield n }
const g = numbers(); let ticks = 0; setInterval(() => { ticks++ }, 10)
console.log(g.next().value)`, "1\n")
		check := func(t *testing.T, id string) {
			t.Helper()
			says(t, d, id, sandbox.Python, "n = f.seek(0)\nprint(x, f.read(), os.getcwd())", "5 held /tmp\n")
			says(t, d, id, sandbox.Python, "a, seen = next(g), ticks[0]\nwhile ticks[0] == seen: time.sleep(0.01)\nprint(a > 1, next(g) - a)", "True 1\n")
			says(t, d, id, sandbox.Bash, "f; pwd", "f6\n/usr\n")
			says(t, d, id, sandbox.JavaScript, "console.log(x); const y = 1", "7\n")
			says(t, d, id, sandbox.JavaScript, `const a = g.next().value, seen = ticks, text = Buffer.alloc(4)
while (ticks === seen) await new Promise(r => setTimeout(r, 5))
console.log(a > 1, g.next().value - a, fs.readSync(fd, text, 0, 4, 0), String(text))`, "true 1 4 kept\n")
		}
		check(t, id)
		if _, err := d.Client.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Client.Resume(t.Context(), id, sandbox.ResumeRequest{}); err != nil {
			t.Fatal(err)
		}
		check(t, id)
		snap, err := d.Client.CreateSnapshot(t.Context(), id, sandbox.CreateSnapshotRequest{})
		if err != nil {
			t.Fatal(err)
		}
		says(t, d, id, sandbox.Python, "x = 0; f.close(); g.close()", "")
		if _, err := d.Client.RestoreSnapshot(t.Context(), id, sandbox.RestoreRequest{Snapshot: snap.ID}); err != nil {
			t.Fatal(err)
		}
		check(t, id)
		forks, err := d.Client.Fork(t.Context(), id, sandbox.ForkRequest{Count: 5})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, child := range forks.Items {
			check(t, child.ID)
			for _, draw := range []struct {
				l    sandbox.Language
				code string
			}{
				{sandbox.Python, "random.random()"},
				{sandbox.Python, "import secrets; secrets.token_hex(8)"},
				{sandbox.JavaScript, "Math.random()"},
				{sandbox.JavaScript, "crypto.randomUUID()"},
			} {
				v := value(run(t, d, child.ID, draw.l, draw.code))
				if v == "" || seen[v] {
					t.Errorf("%s: %q, which another child has drawn", draw.code, v)
				}
				seen[v] = true
			}
			r := run(t, d, child.ID, sandbox.Bash, "echo $RANDOM $RANDOM $RANDOM")
			if seen[r.Stdout] {
				t.Errorf("bash draws %q as another child", r.Stdout)
			}
			seen[r.Stdout] = true
			says(t, d, child.ID, sandbox.Python, "print('COVE_FORK_INDEX' in os.environ or sorted(k for k in os.environ if 'FORK' in k) != [])", "True\n")
			if _, err := d.Client.Kill(t.Context(), child.ID); err != nil {
				t.Error(err)
			}
		}
		check(t, id)
	})
}

// If code breaks its interpreter in a sandbox with limits, the result says so, and the next
// call works. In "make test", the tests of package agent in which interpreters end stand for
// it.
func TestMoreKernelsDie(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := d.Create(t, kernels()).ID
		for _, tt := range []struct {
			name   string
			l      sandbox.Language
			code   string
			reason string
		}{
			{"memory", sandbox.Python, "a = []\nwhile True: a.append(bytearray(8 << 20))", "out of memory"},
			{"memory of node", sandbox.JavaScript, "const a = []; for (;;) a.push(Buffer.alloc(8 << 20, 1))", "out of memory"},
			{"kill", sandbox.Python, "import os\nos.kill(os.getpid(), 9)", "signal 9"},
			{"kill of a shell", sandbox.Bash, "kill -9 $$", "signal 9"},
			{"exit", sandbox.Python, "import os\nos._exit(3)", "exit code 3"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				r := run(t, d, id, tt.l, tt.code)
				if !r.Restarted || !strings.Contains(r.Reason, tt.reason) || r.ExitCode == 0 {
					t.Errorf("got %+v", r)
				}
				after := map[sandbox.Language]string{sandbox.Python: "print(6*7)", sandbox.Bash: "echo 42", sandbox.JavaScript: "console.log(42)"}
				says(t, d, id, tt.l, after[tt.l], "42\n")
			})
		}
		t.Run("fork bomb", func(t *testing.T) {
			r, err := d.Client.RunCode(t.Context(), id, sandbox.RunCodeRequest{
				Language: sandbox.Bash, Code: "b() { b | b & }; b; while :; do :; done", TimeoutMS: 30_000,
			}, nil)
			if err != nil || r.ExitCode == 0 {
				t.Errorf("got %+v %v", r, err)
			}
			says(t, d, id, sandbox.Python, "print(1)", "1\n")
			says(t, d, id, sandbox.Bash, "echo 1", "1\n")
		})
	})
}

// After a caller goes away, or its time is up, the interpreter works and has its state.
func TestKernelsAreInterrupted(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := d.Create(t, kernels()).ID
		for l, tt := range map[sandbox.Language]struct{ before, code, after string }{
			sandbox.Python:     {"x = 5", "print('on', flush=True)\nwhile True: pass", "print(x)"},
			sandbox.Bash:       {"x=5", "echo on; while :; do sleep 0.1; done", "echo $x"},
			sandbox.JavaScript: {"let x = 5", "console.log('on'); for (;;);", "console.log(x)"},
		} {
			run(t, d, id, l, tt.before)
			for try, limit := 1, int64(500); ; try, limit = try+1, 2*limit {
				r, err := d.Client.RunCode(t.Context(), id, sandbox.RunCodeRequest{Language: l, Code: tt.code, TimeoutMS: limit}, nil)
				if err != nil || !r.TimedOut || r.ExitCode != 124 {
					t.Fatalf("%s: %+v %v", l, r, err)
				}
				if try < interruptTries && (tooSlow(r) || r.Stdout == "") {
					run(t, d, id, l, tt.before)
					continue
				}
				if r.Restarted || r.Stdout != "on\n" {
					t.Errorf("%s: %+v", l, r)
				}
				break
			}
			for try := 1; ; try++ {
				ctx, cancel := context.WithCancel(t.Context())
				_, err := d.Client.RunCode(ctx, id, sandbox.RunCodeRequest{Language: l, Code: tt.code}, func(sandbox.CodeEvent) error {
					cancel()
					return nil
				})
				cancel()
				if err == nil {
					t.Errorf("%s: a cancelled run ended well", l)
				}
				free, cancel := context.WithTimeout(t.Context(), time.Minute)
				r, err := d.Client.RunCode(free, id, sandbox.RunCodeRequest{Language: l, Code: tt.after}, nil)
				cancel()
				if err != nil {
					t.Fatalf("%s: the interpreter is not free: %v", l, err)
				}
				if try < interruptTries && tooSlow(r) {
					run(t, d, id, l, tt.before)
					continue
				}
				if r.Stdout != "5\n" || r.ExitCode != 0 || r.Restarted {
					t.Errorf("%s: %s: %+v, want 5", l, tt.after, r)
				}
				break
			}
		}
	})
}
