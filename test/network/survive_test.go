package network

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// wantStrict checks that a sandbox reaches example.com, and not evil.test.
func wantStrict(t *testing.T, d *covetest.Daemon, id, when string) {
	t.Helper()
	if out, code := try(t, d, id, curl("http://example.com/")); code != 0 {
		t.Errorf("%s: example.com: %s", when, out)
	}
	for _, url := range []string{"http://evil.test/", "http://203.0.113.66/"} {
		if out, code := try(t, d, id, curl(url)); code == 0 {
			t.Errorf("%s: %s: %s", when, url, out)
		}
	}
}

// A policy stays with its sandbox in every case: through a pause, in forks, in a sandbox from a
// snapshot, after a restore, when the daemon is killed, and in a sandbox from the pool. In
// "make test", TestRealAsk, whose policy goes through a pause and into a fork, and
// TestNetworkIsCarried of package service stand for it.
func TestMorePolicySurvives(t *testing.T) {
	own(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Network: &strict})
		wantStrict(t, d, s.ID, "created")
		if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Client.Resume(t.Context(), s.ID, sandbox.ResumeRequest{}); err != nil {
			t.Fatal(err)
		}
		wantStrict(t, d, s.ID, "resumed")
		forks, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{Count: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range forks.Items {
			wantStrict(t, d, f.ID, "forked")
		}
		if _, err := d.Client.CreateSnapshot(t.Context(), s.ID, sandbox.CreateSnapshotRequest{Name: "kept"}); err != nil {
			t.Fatal(err)
		}
		second := d.Create(t, sandbox.CreateRequest{Snapshot: "kept"})
		wantStrict(t, d, second.ID, "created from a snapshot")
		restore := func(id string) {
			t.Helper()
			if _, err := d.Client.RestoreSnapshot(t.Context(), id, sandbox.RestoreRequest{Snapshot: "kept"}); err != nil {
				t.Fatal(err)
			}
		}
		restore(s.ID)
		wantStrict(t, d, s.ID, "restored")
		// What holds now counts, not what held then.
		if _, err := d.Client.SetNetwork(t.Context(), second.ID, sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}); err != nil {
			t.Fatal(err)
		}
		restore(second.ID)
		fails(t, d, second.ID, curl("http://example.com/"))
		wantStrict(t, d, fromPool(t, d, sandbox.CreateRequest{Network: &strict}), "ready in the pool")
		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantStrict(t, d, s.ID, "after the daemon's death")
		if p, err := d.Client.GetNetwork(t.Context(), s.ID); err != nil || len(p.AllowOut) != 1 {
			t.Errorf("policy: %+v, %v", p, err)
		}
		if _, err := d.Client.SetNetwork(t.Context(), s.ID, sandbox.NetworkPolicy{}); err != nil {
			t.Fatal(err)
		}
		works(t, d, s.ID, curl("http://evil.test/"))
	})
}

// fromPool makes a sandbox that waited ready.
func fromPool(t *testing.T, d *covetest.Daemon, req sandbox.CreateRequest) (id string) {
	t.Helper()
	ready := func() bool {
		id = d.Create(t, req).ID
		log, err := os.ReadFile(filepath.Join(d.StateDir, "engine", "cells", id, "cell.log"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(log), "sandbox restored") {
			return true
		}
		if _, err := d.Client.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return false
	}
	if !covetest.Eventually(30*time.Second, ready) {
		t.Fatal("no sandbox was made ahead of need")
	}
	return id
}

// holding is a program that waits for data on a connection to the outside. Once
// /tmp/poke exists, it sends a request. It writes the result to /tmp/said: the answer,
// the end of the connection, or an error.
const holding = `
import os
s = socket.create_connection(("203.0.113.10", 7), 10); s.settimeout(None)
s.sendall(b"first"); s.recv(10)
def poke():
    while not os.path.exists("/tmp/poke"): time.sleep(0.02)
    s.sendall(b"goes on")
threading.Thread(target=poke, daemon=True).start()
open("/tmp/holds", "w").close()
def result(f):
    try: return f()
    except OSError as e: return type(e).__name__
said = result(lambda: s.recv(10).decode() or "end")
if said == "end": said += ", " + str(result(lambda: s.send(b"more"))) + " " + str(result(lambda: s.recv(10))) + " " + str(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
open("/tmp/said.new", "w").write(said); os.rename("/tmp/said.new", "/tmp/said")`

// atEnd is what programs see of a connection that has ended: end of file when they
// read, and an error when they write.
const atEnd = "end, BrokenPipeError b'' 0"

// After a pause and in forks, a program that waits on a connection to the outside learns at
// once that the connection is gone. A fork does not affect the parent's connection. "make test"
// has forks only.
func TestOutsideConnectionsEnd(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, sandbox.NetworkPolicy{})
		hold := func() {
			t.Helper()
			works(t, d, id, "rm -f /tmp/said /tmp/poke /tmp/holds")
			if _, err := d.Client.Exec(t.Context(), id, sandbox.ExecRequest{Shell: python(holding), Background: true}, nil); err != nil {
				t.Fatal(err)
			}
			works(t, d, id, "for i in $(seq 1500); do [ -e /tmp/holds ] && exit; sleep 0.02; done; exit 1")
		}
		// said waits, for at most 10 s, for the program's result.
		said := func(id string) string {
			t.Helper()
			out, _ := try(t, d, id, "for i in $(seq 500); do [ -e /tmp/said ] && exec cat /tmp/said; sleep 0.02; done; echo nothing")
			return out
		}
		hold()
		forks, err := d.Client.Fork(t.Context(), id, sandbox.ForkRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if got := said(forks.Items[0].ID); got != atEnd {
			t.Errorf("in a fork: %s", got)
		}
		works(t, d, id, "touch /tmp/poke")
		if got := said(id); got != "goes on" {
			t.Errorf("the parent of a fork: %s", got)
		}
		if !needs.More() {
			return
		}
		hold()
		if _, err := d.Client.Pause(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Client.Resume(t.Context(), id, sandbox.ResumeRequest{}); err != nil {
			t.Fatal(err)
		}
		if got := said(id); got != atEnd {
			t.Errorf("after a pause: %s", got)
		}
	})
}

// A change of the rules is in effect when the call returns, also for open and busy connections.
// Connections that are still allowed continue. In "make test",
// TestPolicyChangeClosesConnections and TestManyConnections of package egress stand for it.
func TestMoreRulesChangeUnderLoad(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, sandbox.NetworkPolicy{})
		load := func(addr string) <-chan string {
			ended := make(chan string, 1)
			go func() {
				res, err := d.Exec(context.WithoutCancel(t.Context()), id, sandbox.ExecRequest{TimeoutMS: 300_000, Shell: python(`
import os
s = socket.create_connection(("` + addr + `", 7), 60); s.settimeout(120); n = 0
stop = False
try:
    while not stop:
        stop = os.path.exists("/tmp/stop") # one more round
        s.sendall(b"x" * 10000); got = 0
        while got < 10000:
            b = s.recv(65536)
            if not b: raise OSError("closed")
            got += len(b)
        n += 1
        if n == 1: open("/tmp/busy-` + addr + `", "w")
        time.sleep(0.001)
    print("done")
except OSError as e: print("ended:", e)`)})
				if err != nil {
					ended <- err.Error()
					return
				}
				ended <- strings.TrimSpace(res.Stdout + res.Stderr)
			}()
			return ended
		}
		allowed, denied := load("198.51.100.10"), load("203.0.113.66")
		works(t, d, id, "while ! test -e /tmp/busy-198.51.100.10 -a -e /tmp/busy-203.0.113.66; do sleep 0.05; done")
		policy := sandbox.NetworkPolicy{AllowOut: []string{"198.51.100.0/24"}, DenyOut: []string{"0.0.0.0/0"}}
		if _, err := d.Client.SetNetwork(t.Context(), id, policy); err != nil {
			t.Fatal(err)
		}
		fails(t, d, id, python(`socket.create_connection(("203.0.113.66", 7), 5)`))
		select {
		case out := <-denied:
			if !strings.HasPrefix(out, "ended:") {
				t.Errorf("the connection that is denied now: %s", out)
			}
		case <-time.After(time.Minute):
			t.Error("the connection that is denied now goes on")
		}
		works(t, d, id, "touch /tmp/stop")
		if out := <-allowed; out != "done" {
			t.Errorf("the connection that is still allowed: %s", out)
		}
	})
}

// Every attempt is in the log, with what decided and how many bytes went.
func TestLogTells(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, strict)
		works(t, d, id, curl("http://example.com/bytes?n=100000", "-o /dev/null"))
		fails(t, d, id, curl("http://203.0.113.66/"))
		fails(t, d, id, "getent hosts evil.test")
		want := map[string]bool{"allowed example.com": true, "blocked 203.0.113.66": true, "dns blocked evil.test": true}
		missing := map[string]bool{}
		look := func() bool {
			list, err := d.Client.NetworkLog(t.Context(), id, sandbox.NetworkLogRequest{})
			if err != nil {
				t.Fatal(err)
			}
			missing = maps.Clone(want)
			for _, ev := range list.Items {
				switch {
				case ev.Kind == sandbox.NetworkConnection && ev.Host == "example.com" && ev.Verdict == sandbox.NetworkAllowed && ev.BytesIn > 100_000 && ev.Port == 80:
					delete(missing, "allowed example.com")
				case ev.Kind == sandbox.NetworkConnection && ev.Address == "203.0.113.66" && ev.Verdict == sandbox.NetworkBlocked && ev.Rule != "":
					delete(missing, "blocked 203.0.113.66")
				case ev.Kind == sandbox.NetworkDNS && ev.Host == "evil.test" && ev.Verdict == sandbox.NetworkBlocked:
					delete(missing, "dns blocked evil.test")
				}
			}
			return len(missing) == 0
		}
		if !covetest.Eventually(30*time.Second, look) {
			list, _ := d.Client.NetworkLog(t.Context(), id, sandbox.NetworkLogRequest{})
			t.Errorf("missing: %v in %+v", missing, list.Items)
		}
		if _, err := d.Client.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if !look() {
			t.Errorf("after the kill the log misses %v", missing)
		}
	})
}

// Ports can be reached from outside, including those of servers that listen only on the
// loopback device, but not the agent's port, which would let a stranger run commands as
// root.
func TestDialPort(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, sandbox.NetworkPolicy{Preset: sandbox.NetworkNone})
		d.Sh(t, id, "mkdir -p /tmp/w; cd /tmp/w; echo hello > index.html; nohup python3 -m http.server 8000 >/dev/null 2>&1 & disown; while ! curl -sf http://127.0.0.1:8000/ >/dev/null; do sleep 0.05; done")
		conn, err := d.Client.DialPort(t.Context(), id, 8000)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(conn); !strings.HasSuffix(string(got), "hello\n") {
			t.Errorf("read %q, %v", got, err)
		}
		d.Sh(t, id, "cd /tmp/w; nohup python3 -m http.server -b 127.0.0.1 8001 >/dev/null 2>&1 & disown; while ! curl -sf http://127.0.0.1:8001/ >/dev/null; do sleep 0.05; done")
		local, err := d.Client.DialPort(t.Context(), id, 8001)
		if err != nil {
			t.Fatal(err)
		}
		defer local.Close()
		if _, err := io.WriteString(local, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(local); !strings.HasSuffix(string(got), "hello\n") {
			t.Errorf("from the loopback device: read %q, %v", got, err)
		}
		if c, err := d.Client.DialPort(t.Context(), id, 8002); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
			t.Errorf("a port without a server: %v, %v", c, err)
		}
		if c, err := d.Client.DialPort(t.Context(), id, 7007); err == nil {
			defer c.Close()
			_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
			if got, err := io.ReadAll(c); len(got) > 0 {
				t.Errorf("the agent answers %q, %v", got, err)
			}
		}
	})
}
