package nodes

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/sandbox"
)

// replica is one of several servers with one database.
type replica struct {
	*covetest.Daemon // for its command; it is not started
	api, nodes       string
	env, args        []string
	cmd              *exec.Cmd
	output           *output
	exited           chan struct{}
}

// unused returns an address on which nobody listens, with a port that is not given to those
// who take any: a server listens there again and again.
func unused(t *testing.T) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.N(20_000)))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String()
	}
}

// newReplica prepares a server of a database. Nothing that the servers share is in its state
// directory.
func newReplica(t *testing.T, binary string, store sandbox.SecretValue, bucket, key string) *replica {
	t.Helper()
	r := &replica{
		Daemon: &covetest.Daemon{Binary: binary, StateDir: t.TempDir()}, api: unused(t), nodes: unused(t), output: new(output),
		env: []string{"COVE_STORE=" + store.Reveal(), "COVE_SECRETS_KEY=" + key, "COVE_OBJECTS=file://" + bucket, "COVE_STANDBY=true"},
	}
	r.args = slices.Concat([]string{"serve", "--state-dir", r.StateDir, "--listen", r.api, "--dev", "--nodes", r.nodes, "--nodes-only", "--node-lease", lease.String(), "--warm", "0"}, internet.Here(t).Args())
	return r
}

// run starts the server's process.
func (r *replica) run(t *testing.T) {
	t.Helper()
	r.cmd = r.Command(context.WithoutCancel(t.Context()), r.args...)
	r.cmd.Env = append(append(r.cmd.Env, "HOME="+r.StateDir), r.env...)
	r.cmd.Stdout, r.cmd.Stderr = r.output, r.output
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	r.exited = exited
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(exited)
	}(r.cmd)
}

// end ends the server's process.
func (r *replica) end(signal syscall.Signal) {
	_ = r.cmd.Process.Signal(signal)
	<-r.exited
}

// state is what the server says to a probe: "ok" if it is active.
func (r *replica) state() string {
	c := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := c.Get("http://" + r.api + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	data, _ := io.ReadAll(res.Body)
	return strings.TrimSpace(string(data))
}

func (r *replica) waitFor(t *testing.T, want string) {
	t.Helper()
	var got string
	if !covetest.Eventually(time.Minute, func() bool { got = r.state(); return strings.Contains(got, want) }) {
		t.Fatalf("the server at %s says %q, want %q; its log:\n%s", r.api, got, want, r.output)
	}
}

// pair is two servers and what is in front of them: a client reaches the one that is ready.
type pair struct {
	*server
	a, b *replica
	both atomic.Int64 // how often both were ready
	at   time.Time    // when the active one was taken away last
}

func (p *pair) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	for _, r := range []*replica{p.a, p.b} {
		if r.state() == "ok" {
			return new(net.Dialer).DialContext(ctx, network, r.api)
		}
	}
	return nil, errors.New("no server is ready")
}

// watch probes both servers until the end of the test.
func (p *pair) watch(t *testing.T) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			// The first is asked again: it may have stopped since.
			if p.a.state() == "ok" && p.b.state() == "ok" && p.a.state() == "ok" {
				p.both.Add(1)
			}
		}
	})
	t.Cleanup(func() {
		close(stop)
		wg.Wait()
		if n := p.both.Load(); n > 0 {
			t.Errorf("both servers were ready, in %d probes", n)
		}
	})
}

// counted waits until counters go on, and returns how far they are.
func (p *pair) counted(t *testing.T, what string, from map[string]int) map[string]int {
	t.Helper()
	now := map[string]int{}
	for id := range from {
		var err error
		if !covetest.Eventually(time.Minute, func() bool {
			_, err = p.Exec(t.Context(), id, sandbox.ExecRequest{Shell: "true"})
			if code := sandbox.CodeOf(err); err != nil && code != sandbox.CodeUnavailable {
				t.Fatalf("%s: a call fails with %s: %v", what, code, err)
			}
			return err == nil
		}) {
			t.Fatalf("%s: no call works: %v\n%s\n%s", what, err, p.a.output, p.b.output)
		}
		now[id] = p.counts(t, id, from[id])
	}
	t.Logf("%s: calls work after %s", what, time.Since(p.at).Round(100*time.Millisecond))
	return now
}

// socketLink is the network between a server and PostgreSQL, which can be cut.
func socketLink(t *testing.T, store sandbox.SecretValue) (*link, sandbox.SecretValue) {
	t.Helper()
	u, err := url.Parse(store.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	k := newLink(t, filepath.Join(query.Get("host"), ".s.PGSQL."+query.Get("port")))
	t.Cleanup(k.close)
	query.Del("host")
	query.Del("port")
	u.Host, u.RawQuery = k.address, query.Encode()
	return k, sandbox.NewSecretValue(u.String())
}

// template builds a template, whose files then are in the object store, and makes a sandbox of
// it with a file of its own, which is paused.
func (p *pair) template(t *testing.T) *sandbox.Template {
	t.Helper()
	tm, err := p.Client.BuildTemplate(t.Context(), sandbox.BuildTemplateRequest{Name: "mine", Spec: &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Host: true}, Run: []sandbox.TemplateStep{{Run: "echo built >/etc/mine"}},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !covetest.Eventually(time.Minute, func() bool {
		return strings.Contains(p.a.output.String(), "the object store has the files of a template\" digest="+tm.Digest)
	}) {
		t.Fatalf("they are not:\n%s", p.a.output)
	}
	req := covetest.Small()
	req.Name, req.Template = "of-mine", tm.Name
	p.Sh(t, p.Create(t, req).ID, "echo made >/workspace/made")
	if _, err := p.Client.Pause(t.Context(), req.Name); err != nil {
		t.Fatal(err)
	}
	return tm
}

// wantTemplate compares a sandbox of the template, whose files this server may not have, with
// the template, and makes another one.
func (p *pair) wantTemplate(t *testing.T, want *sandbox.Template) {
	t.Helper()
	d, err := p.Client.Diff(t.Context(), "of-mine", sandbox.DiffRequest{})
	if err != nil || !slices.ContainsFunc(d.Changes, func(c sandbox.Change) bool { return c.Path == "/workspace/made" }) {
		t.Errorf("a sandbox of the server before differs from its template by %+v, %v", d, err)
	}
	if _, err := p.Client.Kill(t.Context(), "of-mine"); err != nil {
		t.Error(err)
	}
	got, err := p.Client.GetTemplate(t.Context(), want.Name)
	if err != nil || got.Digest != want.Digest || got.State != sandbox.TemplateReady {
		t.Fatalf("the template: %+v, %v", got, err)
	}
	req := covetest.Small()
	req.Template = want.Name
	sb := p.Create(t, req)
	if got := p.Sh(t, sb.ID, "cat /etc/mine"); got != "built\n" {
		t.Errorf("a sandbox of the template says %q", got)
	}
	if _, err := p.Client.Kill(t.Context(), sb.ID); err != nil {
		t.Error(err)
	}
}

// TestMoreWaitsStandby takes the active one of two servers away in all ways: the other one has the
// same sandboxes, of which each ran once and without a gap. In "make test", the tests of
// package store/postgres and TestStandby of package server stand for it.
func TestMoreWaitsStandby(t *testing.T) {
	needs.GVisor(t)
	binary, err := covetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	postgres := postgrestest.Start(t)
	address := postgres.Schema(t)
	network, near := socketLink(t, address)
	key, bucket := base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef")), t.TempDir()
	a, b := newReplica(t, binary, near, bucket, key), newReplica(t, binary, address, bucket, key)
	p := &pair{a: a, b: b, server: &server{Daemon: &covetest.Daemon{Binary: binary, StateDir: a.StateDir}, args: internet.Here(t).Args(), nodes: map[string]*node{}}}
	if p.Client, err = client.New(client.Config{URL: "http://127.0.0.1", Dial: p.dial}); err != nil {
		t.Fatal(err)
	}
	a.run(t)
	a.waitFor(t, "ok")
	b.run(t)
	b.waitFor(t, "is active")
	t.Cleanup(func() {
		network.restore()
		if !covetest.Eventually(time.Minute, func() bool { return p.Client.Ping(context.Background()) == nil }) {
			t.Error("no server is active at the end")
		}
		p.end(t)
		for _, r := range []*replica{a, b} {
			r.end(syscall.SIGTERM)
			if t.Failed() {
				t.Logf("the server at %s said:\n%s", r.api, r.output)
			}
		}
	})
	for _, name := range []string{"one", "two"} {
		p.join(t, name, a.nodes+","+b.nodes)
	}
	on := p.onEach(t)
	n := map[string]int{}
	for _, sb := range on {
		p.startCounter(t, sb.ID)
		n[sb.ID] = 0
	}
	template := p.template(t)
	t.Run("takeovers", func(t *testing.T) {
		p.canary(t, len(on))
		p.watch(t)
		p.at = time.Now()
		n = p.counted(t, "at first", n)

		p.at = time.Now()
		a.end(syscall.SIGKILL)
		n = p.counted(t, "the active one was killed", n)
		b.waitFor(t, "ok")
		a.run(t)
		a.waitFor(t, "is active")

		p.at = time.Now()
		b.end(syscall.SIGTERM)
		n = p.counted(t, "the active one was stopped", n)
		a.waitFor(t, "ok")
		b.run(t)
		b.waitFor(t, "is active")

		p.at = time.Now()
		network.stop()
		postgres.CutConnections(t)
		n = p.counted(t, "the active one was cut off", n)
		b.waitFor(t, "ok")
		a.waitFor(t, "on standby")
		network.restore()
		a.waitFor(t, "is active")

		postgres.Crash(t)
		b.waitFor(t, "the database cannot be reached")
		p.at = time.Now()
		postgres.Run(t)
		n = p.counted(t, "the database was away", n)

		for id := range n {
			if sb, err := p.Client.Get(t.Context(), id); err != nil || sb.State != sandbox.StateRunning {
				t.Errorf("sandbox %s: %+v, %v", id, sb, err)
			}
		}
	})
	if a.state() == "ok" { // it has built the template
		a.end(syscall.SIGTERM)
		b.waitFor(t, "ok")
		a.run(t)
	}
	if err := os.Rename(filepath.Join(a.StateDir, "templates"), filepath.Join(a.StateDir, "away")); err != nil { // as on another machine
		t.Error(err)
	}
	p.wantTemplate(t, template)
	if got := p.Create(t, covetest.Small()); got.Node == "" {
		t.Errorf("a new sandbox: %+v", got)
	} else if _, err := p.Client.Kill(t.Context(), got.ID); err != nil {
		t.Error(err)
	}
	for _, r := range []*replica{a, b} {
		for _, name := range []string{"nodes", "preview-links.key", "secrets.key"} {
			if _, err := os.Lstat(filepath.Join(r.StateDir, name)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a server has %s of its own: %v", name, err)
			}
		}
	}
}
