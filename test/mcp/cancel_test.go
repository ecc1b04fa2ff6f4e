package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// killTime is how long a command may outlive its call, in addition to the time that
	// a check takes.
	killTime = time.Second
	// codeKillTime is the same for code: an interpreter that does not heed an
	// interrupt is ended after a second.
	codeKillTime = 10 * time.Second
	// killTries is how often a command may outlive its call for longer, because the machine
	// stood still.
	killTries = 4
)

// begun is a call that a test has begun on a daemon; end is how its client goes
// away.
type begun func(t *testing.T, d *covetest.Daemon, call toolCall) (end func())

var (
	cancelNotification = startInSession(func(w *web, _ context.CancelFunc) {
		w.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9,"reason":"enough"}}`)
	})
	killedClient = startOnStdio(func(p *process) { _ = p.cmd.Process.Kill() })
)

// A call that is cancelled, and a client that goes away, end the command inside the
// sandbox. "make test" has one way by each transport, and leaves code to the tests of
// package agent.
func TestCancellation(t *testing.T) {
	d := daemon(t, covetest.Options{Dev: true})
	box := d.Create(t, sandbox.CreateRequest{}).ID
	for i, tt := range []struct {
		name  string
		more  bool
		start begun
	}{
		{"session, cancel notification", false, cancelNotification},
		{"session, closed stream", true, startInSession(func(_ *web, hangUp context.CancelFunc) { hangUp() })},
		{"session, ended", true, startInSession(func(w *web, _ context.CancelFunc) {
			if res := w.do(w.t.Context(), http.MethodDelete, ""); res.StatusCode >= 300 {
				w.t.Errorf("DELETE of a session: %s", res.Status)
			}
		})},
		{"stateless, closed stream", false, startStateless},
		{"stdio, cancel notification", true, startOnStdio(func(p *process) {
			p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9,"reason":"enough"}}`)
		})},
		{"stdio, killed client", false, killedClient},
		{"stdio, SIGTERM", true, startOnStdio(func(p *process) { p.terminate() })},
	} {
		if tt.more && !needs.More() {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			seconds := fmt.Sprint(30_000 + i)
			for range killTries {
				end := tt.start(t, d, toolCall{"sandbox_exec", map[string]any{"sandbox": box, "shell": "sleep " + seconds + "; true"}})
				if !covetest.Eventually(30*time.Second, func() bool { return runs(t, d, box, seconds) }) {
					t.Fatal("the command does not run")
				}
				look := time.Now()
				runs(t, d, box, seconds)
				limit := killTime + 3*time.Since(look)
				end()
				if covetest.Eventually(limit, func() bool { return !runs(t, d, box, seconds) }) {
					return
				}
				if !covetest.Eventually(covetest.DetectionLimit, func() bool { return !runs(t, d, box, seconds) }) {
					t.Fatal("the command does not end with its call")
				}
				t.Logf("the command ran for more than %s after its call", limit)
			}
			t.Error("each time the command ran on for too long")
		})
	}
	if got := d.Sh(t, box, "echo fine"); got != "fine\n" {
		t.Errorf("afterwards the sandbox says %q", got)
	}
	if needs.More() {
		t.Run("code", func(t *testing.T) { testCodeCancellation(t, d) })
	}
}

// runs reports whether the command of a test runs inside a sandbox.
func runs(t *testing.T, d *covetest.Daemon, box, seconds string) bool {
	t.Helper()
	return strings.Contains(d.Sh(t, box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"), "sleep "+seconds)
}

// Code ends with its call too: a loop stops, even if it ignores interrupts, and
// processes that the code started are gone. The context can be used afterwards.
func testCodeCancellation(t *testing.T, d *covetest.Daemon) {
	const (
		python  = "while True:\n  try:\n    open('/tmp/beats','a').write('x'); time.sleep(.01)\n"
		ignores = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n" + python + "  except BaseException: pass"
		heeds   = "import time\n" + python + "  finally: pass"
		bash    = "while :; do printf x >> /tmp/beats; sleep 0.01; done"
		node    = "const fs = require('fs'); for (;;) { fs.appendFileSync('/tmp/beats', 'x'); for (let i = 0; i < 1e5; i++); }"
	)
	box := d.Create(t, sandbox.CreateRequest{Template: "host", Resources: sandbox.Resources{MemoryMiB: 512}}).ID
	beats := func() string { return d.Sh(t, box, "cat /tmp/beats 2>/dev/null | wc -c") }
	for _, tt := range []struct {
		name     string
		start    begun
		language sandbox.Language
		code     string
	}{
		{"Python", cancelNotification, sandbox.Python, heeds},
		{"Python that ignores it", cancelNotification, sandbox.Python, ignores},
		{"Python with a child", cancelNotification, sandbox.Python, "import subprocess\nsubprocess.run(['sh', '-c', '" + bash + "'])"},
		{"Bash", cancelNotification, sandbox.Bash, bash},
		{"Bash that ignores it", cancelNotification, sandbox.Bash, "trap '' INT; " + bash},
		{"JavaScript", cancelNotification, sandbox.JavaScript, node},
		{"stateless, closed stream", startStateless, sandbox.Python, heeds},
		{"stdio, killed client", killedClient, sandbox.Python, ignores},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.language == sandbox.JavaScript {
				needs.Command(t, "node")
			}
			d.Sh(t, box, "rm -f /tmp/beats")
			checkInterpreter(t, d, box, tt.language) // its start is not part of what is timed
			end := tt.start(t, d, toolCall{"run_code", map[string]any{"sandbox": box, "language": tt.language, "code": tt.code, "timeout_ms": 600_000}})
			if !covetest.Eventually(30*time.Second, func() bool { return beats() != "0\n" }) {
				t.Fatal("the code does not run")
			}
			end()
			start := time.Now()
			if !covetest.Eventually(codeKillTime, func() bool {
				before := beats()
				time.Sleep(200 * time.Millisecond)
				return beats() == before
			}) {
				t.Fatalf("the code still runs %s after its call", time.Since(start))
			}
			checkInterpreter(t, d, box, tt.language)
		})
	}
}

// checkInterpreter checks that the interpreter of a language answers.
func checkInterpreter(t *testing.T, d *covetest.Daemon, box string, language sandbox.Language) {
	t.Helper()
	code := map[sandbox.Language]string{sandbox.Python: "print('fine')", sandbox.Bash: "echo fine", sandbox.JavaScript: "console.log('fine')"}[language]
	r, err := d.Client.RunCode(t.Context(), box, sandbox.RunCodeRequest{Language: language, Code: code}, nil)
	if err != nil || r.Stdout != "fine\n" {
		t.Fatalf("the interpreter says %+v, %v", r, err)
	}
}

// toolCall is a call of a tool.
type toolCall struct {
	tool string
	args map[string]any
}

// fields are the call's, as JSON without its braces.
func (c toolCall) fields(t *testing.T) string {
	t.Helper()
	args, err := json.Marshal(c.args)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`"name":%q,"arguments":%s`, c.tool, args)
}

func startInSession(end func(w *web, hangUp context.CancelFunc)) begun {
	return func(t *testing.T, d *covetest.Daemon, call toolCall) func() {
		w := &web{t: t, url: d.URL + "/mcp"}
		w.initialize()
		hangUp := w.begin(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{` + call.fields(t) + `}}`)
		return func() { end(w, hangUp) }
	}
}

func startStateless(t *testing.T, d *covetest.Daemon, call toolCall) func() {
	w := &web{t: t, url: d.URL + "/mcp", headers: map[string]string{
		"Mcp-Protocol-Version": statelessRevision, "Mcp-Method": "tools/call", "Mcp-Name": call.tool,
	}}
	return w.begin(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{` + call.fields(t) +
		`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}}}`)
}

func startOnStdio(end func(p *process)) begun {
	return func(t *testing.T, d *covetest.Daemon, call toolCall) func() {
		p := startProcess(t, coveMCP(d))
		p.hello()
		p.send(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{` + call.fields(t) + `}}`)
		return func() { end(p) }
	}
}
