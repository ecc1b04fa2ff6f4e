package service

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

func init() {
	for verb, call := range map[string]struct {
		scope sandbox.Scope
		f     func(ctx context.Context, s sandbox.Service, ref string) error
	}{
		"GetNetwork": {sandbox.ScopeSandboxesRead, func(ctx context.Context, s sandbox.Service, ref string) error {
			_, err := s.GetNetwork(ctx, ref)
			return err
		}},
		"SetNetwork": {sandbox.ScopeSandboxesWrite, func(ctx context.Context, s sandbox.Service, ref string) error {
			_, err := s.SetNetwork(ctx, ref, sandbox.NetworkPolicy{Preset: sandbox.NetworkNone})
			return err
		}},
		"NetworkLog": {sandbox.ScopeSandboxesRead, func(ctx context.Context, s sandbox.Service, ref string) error {
			_, err := s.NetworkLog(ctx, ref, sandbox.NetworkLogRequest{})
			return err
		}},
		"FollowNetworkLog": {sandbox.ScopeSandboxesRead, func(ctx context.Context, s sandbox.Service, ref string) error {
			return s.FollowNetworkLog(ctx, ref, sandbox.NetworkLogRequest{}, func(sandbox.NetworkEvent) error { return io.EOF })
		}},
		"FollowEvents": {sandbox.ScopeSandboxesRead, func(ctx context.Context, s sandbox.Service, ref string) error {
			return s.FollowEvents(ctx, sandbox.FollowEventsRequest{Sandbox: ref, Once: true}, func(sandbox.Event) error { return nil })
		}},
		"AttachSecret": {sandbox.ScopeSandboxesWrite, func(ctx context.Context, s sandbox.Service, ref string) error {
			_, err := s.AttachSecret(ctx, ref, "no-such-secret", "TOKEN")
			return err
		}},
		"DetachSecret": {sandbox.ScopeSandboxesWrite, func(ctx context.Context, s sandbox.Service, ref string) error {
			_, err := s.DetachSecret(ctx, ref, "TOKEN")
			return err
		}},
		"CreatePreview": {sandbox.ScopeSandboxesWrite, func(ctx context.Context, s sandbox.Service, ref string) error {
			_, err := s.CreatePreview(ctx, ref, sandbox.CreatePreviewRequest{Port: 80})
			return err
		}},
		"ListPreviews": {sandbox.ScopeSandboxesRead, func(ctx context.Context, s sandbox.Service, ref string) error {
			_, err := s.ListPreviews(ctx, ref, sandbox.Page{})
			return err
		}},
		"LinkPreview": {sandbox.ScopeSandboxesWrite, func(ctx context.Context, s sandbox.Service, ref string) error {
			_, err := s.LinkPreview(ctx, ref, 80, sandbox.PreviewLinkRequest{})
			return err
		}},
		"DeletePreview": {sandbox.ScopeSandboxesWrite, func(ctx context.Context, s sandbox.Service, ref string) error {
			return s.DeletePreview(ctx, ref, 80)
		}},
		"DialPort": {sandbox.ScopeSandboxesWrite, func(ctx context.Context, s sandbox.Service, ref string) error {
			c, err := s.DialPort(ctx, ref, 80)
			if err == nil {
				_ = c.Close()
			}
			return err
		}},
	} {
		onSandbox[verb], scopeOf[verb] = call.f, call.scope
	}
	notOnSandbox["CreateSecret"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.CreateSecret(ctx, sandbox.CreateSecretRequest{Name: "s", Value: sandbox.NewSecretValue("v"), Hosts: []string{"a.example.com"}})
		return err
	}
	notOnSandbox["RotateSecret"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.RotateSecret(ctx, "no-such-secret", sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue("v")})
		return err
	}
	notOnSandbox["RotateSecretsKey"] = func(ctx context.Context, s sandbox.Service) error {
		_, err := s.RotateSecretsKey(ctx)
		return err
	}
	scopeOf["RotateSecretsKey"] = sandbox.ScopeAdmin
	notOnSandbox["DeleteSecret"] = func(ctx context.Context, s sandbox.Service) error { return s.DeleteSecret(ctx, "no-such-secret") }
	for _, verb := range []string{"CreateSecret", "RotateSecret", "DeleteSecret"} {
		scopeOf[verb] = sandbox.ScopeSecretsWrite
	}
	for verb := range forAnybody {
		notOnSandbox[verb] = func(context.Context, sandbox.Service) error { return nil }
	}
}

// forAnybody are verbs that need no particular scope; TestSecretsOfOthers and TestVisit
// check what they show.
var forAnybody = map[string]bool{
	"GetSecret": true, "ListSecrets": true, "ListProviders": true, "VisitPreview": true, "DialPreview": true,
}

// stayAsleep are verbs that leave a paused sandbox paused.
var stayAsleep = []string{
	"GetNetwork", "SetNetwork", "NetworkLog", "FollowNetworkLog", "FollowEvents", "AttachSecret", "DetachSecret",
	"CreatePreview", "ListPreviews", "LinkPreview", "DeletePreview",
	"GetEnv", "SetEnv", "StatsSeries", "ListDeliveries",
}

// strict returns a policy that differs from every default.
func strict() *sandbox.NetworkPolicy {
	return &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen, AllowOut: []string{"a.example.com"}, DenyOut: []string{"0.0.0.0/0"}}
}

// gate returns the policy and values that the gateway of a sandbox has.
func (w *harness) gate(id string) (sandbox.NetworkPolicy, map[string]string) {
	w.t.Helper()
	r := w.record(id)
	n, values := w.state.Network(r.Instance)
	if n.SandboxID != r.ID {
		w.t.Errorf("the gateway of %s logs for %q", r.ID, n.SandboxID)
	}
	return n.Policy, values
}

// gated checks that the gateway and the record of a sandbox have a policy.
func (w *harness) gated(what, id string, want *sandbox.NetworkPolicy) {
	w.t.Helper()
	got, _ := w.gate(id)
	if diff := cmp.Diff(*want, got); diff != "" {
		w.t.Errorf("%s: the gateway has another policy (-want +got):\n%s", what, diff)
	}
	have, err := w.GetNetwork(asRed(w.t), id)
	must(w.t, err)
	if diff := cmp.Diff(want, have); diff != "" {
		w.t.Errorf("%s: the record has another policy (-want +got):\n%s", what, diff)
	}
}

// TestNetworkIsCarried makes instances in every way: each has the policy of its sandbox
// from the first instant.
func TestNetworkIsCarried(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Network = sandbox.NetworkPackages })
	ctx := asRed(t)
	plain := w.create(sandbox.CreateRequest{})
	w.gated("default", plain.ID, &sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages})
	given := w.create(sandbox.CreateRequest{Network: &sandbox.NetworkPolicy{}})
	w.gated("the zero policy", given.ID, &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen})

	x := w.create(sandbox.CreateRequest{Name: "x", Network: strict()})
	w.gated("create", x.ID, strict())
	if diff := cmp.Diff(strict(), x.Network); diff != "" {
		t.Errorf("the answer differs (-want +got):\n%s", diff)
	}
	forks, err := w.Fork(ctx, "x", sandbox.ForkRequest{Count: 2, Name: "f"})
	must(t, err)
	for _, f := range forks.Items {
		w.gated("fork", f.ID, strict())
	}
	w.snapshot("x", "s")
	from := w.create(sandbox.CreateRequest{Snapshot: "s"})
	w.gated("from a snapshot", from.ID, strict())
	own := w.create(sandbox.CreateRequest{Snapshot: "s", Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}})
	w.gated("from a snapshot with its own", own.ID, &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone})

	none := &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}
	_, err = w.SetNetwork(ctx, "x", *none)
	must(t, err)
	w.gated("set", x.ID, none)
	w.gated("the fork, by itself", forks.Items[0].ID, strict())
	w.pause("x")
	if got, err := w.GetNetwork(ctx, "x"); err != nil || got.Preset != sandbox.NetworkNone {
		t.Errorf("paused: %+v, %v", got, err)
	}
	wantState := func(want sandbox.State) {
		t.Helper()
		if got := w.get("x").State; got != want {
			t.Errorf("it is %s, want %s", got, want)
		}
	}
	wantState(sandbox.StatePaused)
	_, err = w.SetNetwork(ctx, "x", *strict())
	must(t, err)
	wantState(sandbox.StatePaused)
	_, err = w.Resume(ctx, "x", sandbox.ResumeRequest{})
	must(t, err)
	w.gated("resume", x.ID, strict())
	_, err = w.SetNetwork(ctx, "x", *none)
	must(t, err)
	_, err = w.RestoreSnapshot(ctx, "x", sandbox.RestoreRequest{Snapshot: "s"})
	must(t, err)
	w.gated("restore", x.ID, none)
	_, err = w.Merge(ctx, "x", sandbox.MergeRequest{Winner: "f-0"})
	must(t, err)
	w.gated("merge", x.ID, none)
	w.restart()
	w.gated("restart", x.ID, none)
	w.agree()
}

// TestSetNetworkFails makes the gateway refuse: nothing changes.
func TestSetNetworkFails(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.create(sandbox.CreateRequest{Network: strict()})
	w.state.Fail(memory.StepSetNetwork, memory.Before, errors.New("boom"))
	_, err := w.SetNetwork(ctx, x.ID, sandbox.NetworkPolicy{Preset: sandbox.NetworkNone})
	wantCode(t, err, sandbox.CodeUnavailable)
	w.gated("refused", x.ID, strict())
	w.state.Fail(memory.StepSetNetwork, memory.After, errors.New("lost"))
	_, err = w.SetNetwork(ctx, x.ID, sandbox.NetworkPolicy{Preset: sandbox.NetworkNone})
	wantCode(t, err, sandbox.CodeUnavailable)
	w.gated("reply lost", x.ID, strict())
	w.agree()

	for _, bad := range []sandbox.NetworkPolicy{
		{Preset: "closed"}, {DenyOut: []string{"not a host"}}, {Rules: []sandbox.NetworkRule{{Action: "maybe", To: "*"}}},
	} {
		_, err := w.SetNetwork(ctx, x.ID, bad)
		wantCode(t, err, sandbox.CodeInvalid)
		_, err = w.Create(ctx, sandbox.CreateRequest{Network: &bad})
		wantCode(t, err, sandbox.CodeInvalid)
	}
	_, err = w.Kill(ctx, x.ID)
	must(t, err)
	_, err = w.SetNetwork(ctx, x.ID, sandbox.NetworkPolicy{})
	wantCode(t, err, sandbox.CodeNotRunning)
	if got, err := w.GetNetwork(ctx, x.ID); err != nil || len(got.AllowOut) != 1 {
		t.Errorf("of an ended one: %+v, %v", got, err)
	}
}

// TestNetworkCrashes kills the daemon before each change that a verb makes: at
// the next start, the gateway does what the record says. "make test" has one verb of the
// policy and one of secrets.
func TestNetworkCrashes(t *testing.T) {
	for name, verb := range map[string]func(ctx context.Context, w *harness) error{
		"set": func(ctx context.Context, w *harness) error {
			_, err := w.SetNetwork(ctx, "x", sandbox.NetworkPolicy{Preset: sandbox.NetworkNone})
			return err
		},
		"attach": func(ctx context.Context, w *harness) error {
			_, err := w.AttachSecret(ctx, "x", "two", "TWO")
			return err
		},
		"detach": func(ctx context.Context, w *harness) error { _, err := w.DetachSecret(ctx, "x", "ONE"); return err },
		"rotate": func(ctx context.Context, w *harness) error {
			_, err := w.RotateSecret(ctx, "one", sandbox.RotateSecretRequest{Value: sandbox.NewSecretValue("new")})
			return err
		},
		"delete": func(ctx context.Context, w *harness) error { return w.DeleteSecret(ctx, "one") },
	} {
		if name != "set" && name != "delete" && !needs.More() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for n := 0; ; n++ {
				w := (&harness{mortal: &mortality{}}).begin(t)
				w.secret("one", "first")
				w.secret("two", "second")
				w.create(sandbox.CreateRequest{Name: "x", Network: strict(), Secrets: map[string]string{"ONE": "one"}})
				w.mortal.arm(n)
				err := verb(asRed(t), w)
				died := w.crash()
				w.agree()
				w.inStep("x", "first", "second", "new")
				if !died {
					must(t, err)
					if n == 0 {
						t.Fatal("nothing was changed")
					}
					return
				}
			}
		})
	}
}

// TestMergeIsSettledLater has a gateway that does not answer after a merge: it gets the
// network when it answers again.
func TestMergeIsSettledLater(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	w.fork("x", sandbox.ForkRequest{Name: "f"})
	_, err := w.SetNetwork(ctx, "x", *strict())
	must(t, err)
	for range 2 { // at once, and when it is settled
		w.state.Fail(memory.StepSetNetwork, memory.Before, errors.New("no answer"))
	}
	_, err = w.Merge(ctx, "x", sandbox.MergeRequest{Winner: "f"})
	must(t, err)
	if !w.record(x.ID).Applying {
		t.Error("the record says that the merge is settled")
	}
	must(t, w.Repair(t.Context()))
	w.gated("later", x.ID, strict())
	w.agree()
}

// inStep checks that the gateway and the environment of a running sandbox are
// those of its record.
func (w *harness) inStep(name string, values ...string) {
	w.t.Helper()
	sbx := w.get(name)
	r := w.record(sbx.ID)
	policy, told := w.gate(sbx.ID)
	if diff := cmp.Diff(call.PolicyOf(&r), policy); diff != "" {
		w.t.Errorf("the gateway has another policy (-record +gateway):\n%s", diff)
	}
	n, _ := w.state.Network(r.Instance)
	for i, b := range r.Bindings {
		_, err := w.store.Secret(w.t.Context(), b.SecretID)
		gone := sandbox.CodeOf(err) == sandbox.CodeNotFound
		value, has := told[b.Placeholder]
		if has == gone || has && !slices.Contains(values, value) {
			w.t.Errorf("the gateway has %q, %v for %s; the secret is gone: %v", value, has, b.Secret, gone)
		}
		if n.Bindings[i].Placeholder != b.Placeholder || n.Bindings[i].Revoked != gone {
			w.t.Errorf("the gateway has %+v for %+v", n.Bindings[i], b)
		}
		if got := w.output(sbx.ID, sandbox.ExecRequest{Shell: "printf %s \"$" + b.Env + "\""}); got != b.Placeholder {
			w.t.Errorf("%s is %q inside, want %q", b.Env, got, b.Placeholder)
		}
	}
	if len(n.Bindings) != len(r.Bindings) {
		w.t.Errorf("the gateway has %d bindings, the record %d", len(n.Bindings), len(r.Bindings))
	}
}

func TestNetworkLog(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x, other := w.create(sandbox.CreateRequest{Name: "x"}), w.create(sandbox.CreateRequest{})
	for i, v := range []sandbox.NetworkVerdict{sandbox.NetworkAllowed, sandbox.NetworkBlocked, sandbox.NetworkAllowed} {
		w.state.AddEvent(sandbox.NetworkEvent{SandboxID: x.ID, Verdict: v, Port: i, Time: time.Unix(int64(i), 0)})
	}
	w.state.AddEvent(sandbox.NetworkEvent{SandboxID: other.ID, Port: 99})
	ports := func(req sandbox.NetworkLogRequest) (got []int, next string) {
		t.Helper()
		list, err := w.NetworkLog(ctx, "x", req)
		must(t, err)
		for _, ev := range list.Items {
			got = append(got, ev.Port)
		}
		return got, list.NextCursor
	}
	got, next := ports(sandbox.NetworkLogRequest{Page: sandbox.Page{Limit: 2}})
	if !slices.Equal(got, []int{2, 1}) || next == "" {
		t.Errorf("the first page has %v, next %q", got, next)
	}
	if got, next = ports(sandbox.NetworkLogRequest{Page: sandbox.Page{Limit: 2, Cursor: next}}); !slices.Equal(got, []int{0}) || next != "" {
		t.Errorf("the second page has %v, next %q", got, next)
	}
	if got, _ = ports(sandbox.NetworkLogRequest{Verdict: sandbox.NetworkBlocked}); !slices.Equal(got, []int{1}) {
		t.Errorf("blocked: %v", got)
	}
	for _, bad := range []sandbox.NetworkLogRequest{
		{Kind: "x"}, {Verdict: "x"}, {Host: "a\x00"}, {Since: ptr(time.Unix(2, 0)), Until: ptr(time.Unix(1, 0))},
		{Page: sandbox.Page{Limit: -1}}, {Page: sandbox.Page{Cursor: "?"}},
	} {
		_, err := w.NetworkLog(ctx, "x", bad)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	_, err := w.Kill(ctx, "x")
	must(t, err)
	if got, _ = ports(sandbox.NetworkLogRequest{}); len(got) != 3 {
		t.Errorf("after the end: %v", got)
	}
	must(t, w.Repair(ctx))
	if logs, _ := w.engine.NetworkLogs(ctx); len(logs) != 2 {
		t.Errorf("logs of known sandboxes were removed, left: %v", logs)
	}
	must(t, w.store.DeleteSandbox(ctx, x.ID))
	must(t, w.Repair(ctx))
	if logs, _ := w.engine.NetworkLogs(ctx); !slices.Equal(logs, []string{other.ID}) {
		t.Errorf("left: %v", logs)
	}
}

func TestFollowNetworkLog(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	w.state.AddEvent(sandbox.NetworkEvent{SandboxID: x.ID, Port: 1})
	events, done := make(chan int), make(chan error, 1)
	follow := func(ctx context.Context) {
		go func() {
			done <- w.FollowNetworkLog(ctx, "x", sandbox.NetworkLogRequest{}, func(ev sandbox.NetworkEvent) error {
				if ev.Port == 66 {
					return io.ErrShortWrite
				}
				events <- ev.Port
				return nil
			})
		}()
		// The stream has begun once an event arrives.
		for n := 100; ; n++ {
			w.state.AddEvent(sandbox.NetworkEvent{SandboxID: x.ID, Port: n})
			select {
			case first := <-events:
				for ; first < n; first = <-events {
				}
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	follow(ctx)
	w.pause("x")
	_, err := w.Resume(ctx, "x", sandbox.ResumeRequest{})
	must(t, err)
	w.state.AddEvent(sandbox.NetworkEvent{SandboxID: x.ID, Port: 7})
	if got := <-events; got != 7 {
		t.Errorf("after a pause came %d", got)
	}
	w.state.AddEvent(sandbox.NetworkEvent{SandboxID: x.ID, Port: 66})
	if err := <-done; err != io.ErrShortWrite {
		t.Errorf("an error of the sink became %v", err)
	}
	leaving, leave := context.WithCancel(ctx)
	follow(leaving)
	leave()
	if err := <-done; err != nil {
		t.Errorf("leaving gave %v", err)
	}
	follow(ctx)
	_, err = w.Kill(ctx, "x")
	must(t, err)
	if err := <-done; err != nil {
		t.Errorf("the end of the sandbox gave %v", err)
	}
	must(t, w.FollowNetworkLog(ctx, "x", sandbox.NetworkLogRequest{}, nil))
}

// echo listens on loopback, where the programs of the fake engine's sandboxes run, and
// sends back what it receives. It returns its port.
func echo(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	ended := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

// says checks that a connection leads to [echo], and closes it.
func says(t *testing.T, c net.Conn) {
	t.Helper()
	defer c.Close()
	_, err := io.WriteString(c, "hello")
	must(t, err)
	must(t, c.(interface{ CloseWrite() error }).CloseWrite())
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "hello" {
		t.Errorf("the echo is %q, %v", got, err)
	}
}

// closedPort returns a port on which nothing listens.
func closedPort(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestDialPort(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	w.create(sandbox.CreateRequest{Name: "x"})
	port := echo(t)
	c, err := w.DialPort(ctx, "x", port)
	must(t, err)
	says(t, c)
	w.pause("x")
	c, err = w.DialPort(ctx, "x", port)
	must(t, err)
	says(t, c)
	if got := w.get("x").State; got != sandbox.StateRunning {
		t.Errorf("after a connection it is %s", got)
	}
	_, err = w.DialPort(ctx, "x", closedPort(t))
	wantCode(t, err, sandbox.CodeUnavailable)
	for _, bad := range []int{0, -1, 65536, validate.AgentPort} {
		_, err = w.DialPort(ctx, "x", bad)
		wantCode(t, err, sandbox.CodeInvalid)
	}
}

// TestUseOfAPort checks the time of last use while a connection is open: bytes count,
// waiting does not.
func TestUseOfAPort(t *testing.T) {
	w := newHarness(t)
	x := w.create(sandbox.CreateRequest{Name: "x"})
	c, err := w.DialPort(asRed(t), "x", echo(t))
	must(t, err)
	defer c.Close()
	w.ago(x.ID, time.Hour)
	if at := w.get("x").LastActiveAt; time.Since(at) < 50*time.Minute {
		t.Errorf("an idle connection counts as use at %v", at)
	}
	_, err = c.Write([]byte("x"))
	must(t, err)
	if at := w.get("x").LastActiveAt; time.Since(at) > time.Minute {
		t.Errorf("bytes do not count as use; it was last used at %v", at)
	}
}

func TestDialPeer(t *testing.T) {
	w := newHarness(t)
	ctx := asRed(t)
	port := echo(t)
	rule := func(action sandbox.NetworkAction, to, protocol string, ports ...string) sandbox.NetworkRule {
		return sandbox.NetworkRule{Action: action, To: to, Protocol: protocol, Ports: ports}
	}
	from := w.create(sandbox.CreateRequest{Name: "from", Network: &sandbox.NetworkPolicy{Rules: []sandbox.NetworkRule{
		rule(sandbox.NetworkAllow, "*", ""),
		rule(sandbox.NetworkDeny, "sandbox:to", "tcp", "9"),
		rule(sandbox.NetworkAllow, "sandbox:to", "", "1-65000"),
		rule(sandbox.NetworkAllow, "sandbox:theirs", ""),
		rule(sandbox.NetworkAllow, "sandbox:elsewhere", ""),
	}}})
	w.create(sandbox.CreateRequest{Name: "to"})

	w.create(sandbox.CreateRequest{Name: "unnamed"})
	_, err := w.Create(as(t.Context(), "blue"), sandbox.CreateRequest{Name: "theirs"})
	must(t, err)
	// A name is looked up in the namespace of the sandbox that dials.
	w.create(sandbox.CreateRequest{Name: "elsewhere", Namespace: "other"})
	dial := func(name string, port int) error {
		c, err := w.engine.DialPeer(t.Context(), from.ID, name, port)
		if err == nil {
			says(t, c)
		}
		return err
	}
	must(t, dial("to", port))
	w.pause("to")
	must(t, dial("to", port))
	wantCode(t, dial("to", 9), sandbox.CodeForbidden)
	wantCode(t, dial("to", 65535), sandbox.CodeForbidden)
	wantCode(t, dial("to", validate.AgentPort), sandbox.CodeInvalid)
	wantCode(t, dial("unnamed", port), sandbox.CodeForbidden)
	wantCode(t, dial("theirs", port), sandbox.CodeNotFound)
	wantCode(t, dial("elsewhere", port), sandbox.CodeNotFound)
	wantCode(t, dial(w.get("to").ID, port), sandbox.CodeForbidden)
	// The policy in the record decides, whatever the gateway requests.
	_, err = w.SetNetwork(ctx, "from", sandbox.NetworkPolicy{})
	must(t, err)
	wantCode(t, dial("to", port), sandbox.CodeForbidden)
	_, err = w.Kill(ctx, "from")
	must(t, err)
	wantCode(t, dial("to", port), sandbox.CodeNotRunning)
	_, err = w.engine.DialPeer(t.Context(), "sbx-none", "to", port)
	wantCode(t, err, sandbox.CodeNotFound)
}
