package code

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// Hostile code attacks its output and its process, in gVisor and through every part of
// Cove. Output must be streamed and kept properly, and the interpreter must still work.
// The agent's own tests have more such code, on the host's kernel.
func TestHostileOutput(t *testing.T) {
	const flood = 100_000_000
	bytes := make([]byte, 256)
	for i := range bytes {
		bytes[i] = byte(i)
	}
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := d.Create(t, kernels()).ID
		says(t, d, id, sandbox.Python, "import os, time\nx = 'kept'", "")
		for _, tt := range []struct {
			name, code string
			streamed   string // nothing is not compared
			stdout     string
		}{
			{name: "flood", code: "block = ('x' * 999 + '\\n') * 1000\nfor _ in range(100): print(end=block)"},
			{name: "split characters", code: "for b in '🙂é€🎉'.encode():\n  n = os.write(1, bytes([b])); time.sleep(.003)", streamed: "🙂é€🎉", stdout: "🙂é€🎉"},
			{name: "binary", code: "n = os.write(1, bytes(range(256)))", streamed: string(bytes)},
			{name: "closes descriptors", code: "os.closerange(3, 4096)\nprint('still')", streamed: "still\n", stdout: "still\n"},
			{name: "closes stdout", code: "print('last', flush=True)\nos.close(1)", streamed: "last\n", stdout: "last\n"},
			{
				name: "becomes a daemon", streamed: "on\n", stdout: "on\n",
				code: "if os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    os.closerange(0, 4096)\n    time.sleep(.5)\n    open('/tmp/daemon', 'w').write('lives')\n  os._exit(0)\nn = os.wait()\nprint('on')",
			},
		} {
			t.Run(tt.name, func(t *testing.T) {
				var streamed strings.Builder
				split := false
				r, err := d.Client.RunCode(t.Context(), id, sandbox.RunCodeRequest{Language: sandbox.Python, Code: tt.code}, func(e sandbox.CodeEvent) error {
					split = split || !utf8.Valid(e.Data)
					streamed.Write(e.Data)
					return nil
				})
				if err != nil || r.ExitCode != 0 || r.Restarted || !utf8.ValidString(r.Stdout) {
					t.Fatalf("got %v, %v, %s", r, err, r.Stderr)
				}
				if tt.streamed != "" && streamed.String() != tt.streamed || tt.stdout != "" && r.Stdout != tt.stdout {
					t.Errorf("streamed %q, kept %q", streamed.String(), r.Stdout)
				}
				if split && tt.name != "binary" {
					t.Error("a character was cut in two")
				}
				// The beginning of the output is streamed and kept; the rest is
				// counted.
				if tt.name == "flood" && (r.StdoutBytes != flood || streamed.Len() != sandbox.DefaultKeepBytes || !strings.HasPrefix(r.Stdout, streamed.String()) || len(r.Stdout) > sandbox.DefaultKeepBytes+100) {
					t.Errorf("%d bytes, streamed %d, kept %d", r.StdoutBytes, streamed.Len(), len(r.Stdout))
				}
				if after := run(t, d, id, sandbox.Python, "x"); value(after) != "'kept'" && value(after) != "kept" || after.Restarted {
					t.Errorf("afterwards: %+v", after)
				}
			})
		}
		if !covetest.Eventually(30*time.Second, func() bool { return d.Sh(t, id, "cat /tmp/daemon || true") == "lives" }) {
			t.Error("the daemon did not live on")
		}
	})
}
