package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type roots struct{}

func (roots) Root(_ context.Context, digest string, _ []engine.Bind) (engine.Root, func(), error) {
	return engine.Root{Digest: digest, Dir: "/"}, func() {}, nil
}

// machine is a node with an engine in memory.
type machine struct {
	name   string
	state  *memory.State
	server *remote.Server
	engine *memory.Keeper
	conn   net.Conn // its end of the present connection
}

// world is a fleet with nodes.
type world struct {
	*fleet.Fleet
	t      *testing.T
	cfg    fleet.Config
	failed chan engine.Status
	wg     sync.WaitGroup
}

func newWorld(t *testing.T, lease time.Duration) *world {
	t.Helper()
	w := &world{t: t, cfg: fleet.Config{Files: durable.Dir(t.TempDir()), Lease: lease, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}}
	w.open()
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		w.wg.Wait()
	})
	return w
}

func (w *world) open() {
	f, err := fleet.New(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	failed := make(chan engine.Status, 16)
	f.Notify(func(st engine.Status) { failed <- st })
	w.Fleet, w.failed = f, failed
}

// restart replaces the fleet, as after a restart of the server.
func (w *world) restart() {
	if err := w.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.open()
}

func (w *world) join(name string) *machine {
	w.t.Helper()
	return w.joinWith(name, sandbox.Resources{MemoryMiB: 16 << 10})
}

// joinWith adds a node that has these resources.
func (w *world) joinWith(name string, has sandbox.Resources) *machine {
	w.t.Helper()
	return w.joinAs(name, false, func() remote.Report {
		return remote.Report{Capacity: has, FreeMemory: 8 << 30, FreeDisk: 8 << 30, Disk: 32 << 30}
	})
}

// joinAs adds a node, which may be dedicated, with a report.
func (w *world) joinAs(name string, dedicated bool, report func() remote.Report) *machine {
	w.t.Helper()
	if err := w.Join(name, "id-of-"+name, dedicated); err != nil {
		w.t.Fatal(err)
	}
	s := memory.NewState(w.t.TempDir())
	w.t.Cleanup(func() { s.Close() })
	m := &machine{name: name, state: s, engine: memory.NewKeeper(s)}
	m.server = remote.NewServer(remote.Config{
		Engine: m.engine, Roots: roots{}, AsideDir: w.t.TempDir(), Log: w.cfg.Log, Report: report,
	})
	w.attach(m)
	return m
}

func (w *world) attach(m *machine) {
	w.t.Helper()
	if err := w.tryAttach(m, "id-of-"+m.name); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) tryAttach(m *machine, id string) error {
	l, err := new(net.ListenConfig).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	near, err := new(net.Dialer).DialContext(w.t.Context(), "tcp", l.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	if m.conn, err = l.Accept(); err != nil {
		w.t.Fatal(err)
	}
	far, served := m.conn, make(chan struct{})
	w.wg.Go(func() {
		defer close(served)
		_ = m.server.Serve(context.Background(), far)
	})
	if err := w.Attach(w.t.Context(), m.name, id, "test", remote.New(near)); err != nil {
		<-served // a node makes one connection after another: a later one must not be ended by this one
		return err
	}
	return nil
}

// cut ends the connection of a node and waits until the fleet has noticed.
func (w *world) cut(m *machine) {
	w.t.Helper()
	m.conn.Close()
	w.until(func() bool { return w.state(m.name) == sandbox.NodeUnreachable || w.state(m.name) == sandbox.NodeLost })
}

func (w *world) state(name string) sandbox.NodeState {
	all := w.Nodes(w.t.Context())
	i := slices.IndexFunc(all, func(n sandbox.Node) bool { return n.Name == name })
	if i < 0 {
		return ""
	}
	return all[i].State
}

func (w *world) until(ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("it does not come to that")
		}
	}
}

func (w *world) create(id string, change ...func(*engine.Spec)) engine.Instance {
	w.t.Helper()
	spec := engine.Spec{ID: id, Root: engine.Root{Digest: "d"}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 64, DiskMiB: 16}, Network: &engine.Network{SandboxID: id}}
	for _, f := range change {
		f(&spec)
	}
	i, err := w.Create(w.t.Context(), spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return i
}

func at(place string) func(*engine.Spec) { return func(s *engine.Spec) { s.Place = place } }

func (w *world) list() (running []string) {
	w.t.Helper()
	all, err := w.List(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, st := range all {
		if st.Running {
			running = append(running, st.ID)
		}
	}
	slices.Sort(running)
	return running
}

// TestSpread checks that sandboxes are spread over nodes with the same room, and that a
// draining node takes none.
func TestSpread(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.join("a")
	w.join("b")
	for n := range 4 {
		w.create(fmt.Sprint("sbx-", n))
	}
	for _, n := range w.Nodes(t.Context()) {
		if n.Sandboxes != 2 || n.State != sandbox.NodeReady {
			t.Errorf("node %+v, want 2 sandboxes", n)
		}
	}
	if _, err := w.Drain("a", &sandbox.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		if i := w.create(fmt.Sprint("sbx-more-", n)); w.PlaceOf(engine.Source{Instance: i.ID()}) != "b" {
			t.Errorf("a draining node took %s", i.ID())
		}
	}
	w.restart() // draining is kept
	if _, err := w.Drain("b", &sandbox.DrainRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := w.Create(t.Context(), engine.Spec{ID: "sbx-none"})
	if e, ok := errors.AsType[*sandbox.Error](err); !ok || !errors.Is(err, engine.ErrNoRoom) || e.Code != sandbox.CodeQuotaExceeded || e.RetryAfter <= 0 {
		t.Errorf("Create without a node: %v", err)
	}
}

// TestCreateAwaitsNodes checks that a new instance waits for nodes that are about to be back,
// as after a restart of the server, and only as long as its caller does.
func TestCreateAwaitsNodes(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	w.restart()
	spec := engine.Spec{ID: "one", Root: engine.Root{Digest: "d"}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 64, DiskMiB: 16}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := w.Create(ctx, spec); !errors.Is(err, engine.ErrNoRoom) || ctx.Err() == nil {
		t.Errorf("while the node is away: %v, and the caller waits: %v", err, ctx.Err() == nil)
	}
	made := make(chan error)
	go func() {
		_, err := w.Create(t.Context(), spec)
		made <- err
	}()
	w.attach(a)
	if err := <-made; err != nil {
		t.Error(err)
	}
	if got := w.list(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("running: %v", got)
	}
}

// TestCheckpointStays checks that what continues from a checkpoint is made where it is, and
// that a commit ends the instance.
func TestCheckpointStays(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.join("a")
	b := w.join("b")
	w.create("parent", at("b"))
	if _, err := w.Checkpoint(t.Context(), "parent", "ckp", engine.CheckpointOptions{Commit: func(engine.Checkpoint) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	if got := w.list(); len(got) > 0 {
		t.Errorf("still running: %v", got)
	}
	for _, id := range []string{"child-1", "child-2"} {
		w.create(id, func(s *engine.Spec) { s.Checkpoint = "ckp" })
		if got := w.PlaceOf(engine.Source{Instance: id}); got != "b" {
			t.Errorf("%s is on %s", id, got)
		}
	}
	w.cut(b)
	if _, err := w.Create(t.Context(), engine.Spec{ID: "child-3", Checkpoint: "ckp"}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("from a checkpoint that is away: %v", err)
	}
	if all, err := w.Checkpoints(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("Checkpoints: %v, %v", all, err)
	}
	if err := w.RemoveCheckpoint(t.Context(), "ckp"); err != nil {
		t.Fatal(err)
	}
	w.attach(b)
	if kept := b.state.Kept(); len(kept) > 0 {
		t.Errorf("the node has kept %v", kept)
	}
}

// TestReturnInTime checks that a node that is back within its lease keeps its instances.
func TestReturnInTime(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	i := w.create("one")
	w.cut(a)
	if got := w.list(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("while it is away: %v", got)
	}
	if _, err := i.Stats(t.Context()); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("Stats while it is away: %v", err)
	}
	if err := w.Destroy(t.Context(), "one"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("Destroy while it is away: %v", err)
	}
	w.attach(a)
	if _, err := i.Stats(t.Context()); err != nil {
		t.Errorf("Stats when it is back: %v", err)
	}
	w.restart()
	w.attach(a)
	if got := w.list(); !slices.Equal(got, []string{"one"}) {
		t.Errorf("after a restart of the server: %v", got)
	}
	if _, err := w.Open(t.Context(), "one"); err != nil {
		t.Error(err)
	}
}

// TestLeaseRunsOut checks that instances of a lost node have failed, whatever the node
// thinks, and are ended when it is back.
func TestLeaseRunsOut(t *testing.T) {
	w := newWorld(t, 10*time.Millisecond)
	a := w.join("a")
	w.create("one")
	w.cut(a)
	if st := <-w.failed; st.ID != "one" || st.Running || !strings.Contains(st.Reason, "node a") {
		t.Errorf("told %+v", st)
	}
	if got := w.list(); len(got) > 0 {
		t.Errorf("the lost node runs %v", got)
	}
	if err := w.Destroy(t.Context(), "one"); err != nil {
		t.Errorf("Destroy of what is lost: %v", err)
	}
	w.restart() // it is remembered
	if got := a.state.IDs(); !slices.Equal(got, []string{"one"}) {
		t.Fatalf("the node has %v", got)
	}
	w.attach(a)
	if got := a.state.IDs(); len(got) > 0 {
		t.Errorf("the node still has %v", got)
	}
	if got := w.list(); len(got) > 0 {
		t.Errorf("running: %v", got)
	}
}

// TestFence checks that it is known of an instance of a lost node whether it has stopped
// there, until the node is back.
func TestFence(t *testing.T) {
	w := newWorld(t, 10*time.Millisecond)
	a := w.join("a")
	w.create("one")
	w.create("two")
	for range 2 {
		if err := w.Fence(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
	}
	if a.state.LeaseOf("one") == 0 || a.state.LeaseOf("two") != 0 {
		t.Errorf("the leases are %v and %v", a.state.LeaseOf("one"), a.state.LeaseOf("two"))
	}
	lost := func(id string, lost, stopped bool) {
		t.Helper()
		if l, s := w.Lost(id); l != lost || s != stopped {
			t.Errorf("%s is lost: %v, stopped %v", id, l, s)
		}
	}
	lost("one", false, false)
	w.cut(a)
	<-w.failed
	<-w.failed
	lost("one", true, true)
	lost("two", true, false)
	if err := w.Fence(t.Context(), "two"); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("Fence of what is lost: %v", err)
	}
	w.restart() // it is remembered
	lost("one", true, true)
	lost("two", true, false)
	w.attach(a)
	lost("one", false, false)
	lost("two", false, false)
}

// TestLeaseOfNode checks that the lease of an instance ends before the server's patience, and
// is counted from a report that has arrived.
func TestLeaseOfNode(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	w.create("one")
	if err := w.Fence(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	now, err := a.engine.LeaseTime()
	if err != nil {
		t.Fatal(err)
	}
	if until := a.state.LeaseOf("one"); until > now+time.Hour-3*time.Minute || until < now+50*time.Minute {
		t.Errorf("at %v the lease ends at %v", now, until)
	}
}

// TestShorterLease checks that a server with a shorter lease than the one before gives nothing
// up that may run for the longer one, also when it starts again meanwhile.
func TestShorterLease(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	w.create("one")
	w.cut(a)
	synctest.Test(t, func(t *testing.T) {
		cfg := w.cfg
		cfg.Lease, cfg.Log = time.Minute, slog.New(slog.DiscardHandler)
		begin := func() *fleet.Fleet {
			f, err := fleet.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		lost := func(f *fleet.Fleet, after time.Duration, want bool) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			if got, _ := f.Lost("one"); got != want {
				t.Errorf("it is lost: %v", got)
			}
		}
		f := begin()
		lost(f, 59*time.Minute, false)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		f = begin()
		lost(f, 59*time.Minute, false)
		lost(f, 2*time.Minute, true)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLostAnswer checks that an instance that was made when nobody could hear of it is
// ended.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	conn := a.conn
	a.state.Trap(memory.StepCreate, memory.After, func(context.Context) error {
		conn.Close()
		return nil
	})
	if _, err := w.Create(t.Context(), engine.Spec{ID: "one", Root: engine.Root{Digest: "d"}}); err == nil {
		t.Fatal("Create succeeded without an answer")
	}
	w.attach(a)
	if got := a.state.IDs(); len(got) > 0 {
		t.Errorf("the node has %v", got)
	}
}

// TestInterruptedCommit checks that what was recorded counts if the connection ends before
// the node hears of it.
func TestInterruptedCommit(t *testing.T) {
	for _, recorded := range []bool{true, false} {
		w := newWorld(t, time.Hour)
		a := w.join("a")
		w.create("one")
		c, err := w.Checkpoint(t.Context(), "one", "ckp", engine.CheckpointOptions{Commit: func(engine.Checkpoint) error {
			a.conn.Close()
			if !recorded {
				return errors.New("not recorded")
			}
			return nil
		}})
		if recorded != (err == nil) || recorded && c.ID != "ckp" {
			t.Fatalf("Checkpoint: %+v, %v", c, err)
		}
		w.until(func() bool { return w.state("a") != sandbox.NodeReady })
		w.attach(a)
		want := []string{"one"}
		if recorded {
			want = nil
		}
		if got := a.state.IDs(); !slices.Equal(got, want) {
			t.Errorf("recorded %t: the node runs %v, want %v", recorded, got, want)
		}
		if kept := a.state.Kept(); len(kept) != 1 {
			t.Errorf("recorded %t: the node keeps %v", recorded, kept)
		}
	}
}

// TestUnknownInstances checks that instances that nobody has recorded are left to the
// service while it starts, and end later.
func TestUnknownInstances(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	for _, late := range []bool{false, true} {
		w.cut(a)
		if _, err := a.engine.Create(t.Context(), engine.Spec{ID: fmt.Sprint("unknown-", late)}); err != nil {
			t.Fatal(err)
		}
		if late {
			w.Started()
		}
		w.attach(a)
	}
	if got := w.list(); !slices.Equal(got, []string{"unknown-false"}) || !slices.Equal(a.state.IDs(), got) {
		t.Errorf("running are %v and on the node %v", got, a.state.IDs())
	}
}

// TestRestartedNode checks that instances that a node does not have any more have failed.
func TestRestartedNode(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	w.create("one")
	w.create("two")
	w.cut(a)
	if err := a.engine.Destroy(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if err := a.state.Kill("two", "its supervisor died"); err != nil {
		t.Fatal(err)
	}
	w.attach(a)
	reasons := map[string]string{}
	for range 2 {
		st := <-w.failed
		reasons[st.ID] = st.Reason
	}
	if !strings.Contains(reasons["one"], "restarted") || reasons["two"] != "its supervisor died" {
		t.Errorf("reasons are %v", reasons)
	}
}

// TestForeignClaims checks that a node cannot speak for what is on another.
func TestForeignClaims(t *testing.T) {
	w := newWorld(t, time.Hour)
	asked := make(chan string, 8)
	w.SetAsked(func(id string, _ []engine.Question) { asked <- id })
	a, b := w.join("a"), w.join("b")
	w.create("of-a", at("a"))
	w.create("of-b", at("b"))
	// Node b says that it has an instance of a's, that it has failed, and what it asks.
	if _, err := b.engine.Create(t.Context(), engine.Spec{ID: "of-a"}); err != nil {
		t.Fatal(err)
	}
	b.engine.Ask("of-a", engine.Question{ID: "apr-1"})
	b.engine.Ask("of-b", engine.Question{ID: "apr-2"})
	if err := b.state.Kill("of-a", "a lie"); err != nil {
		t.Fatal(err)
	}
	if err := b.state.Kill("of-b", "the truth"); err != nil {
		t.Fatal(err)
	}
	if st := <-w.failed; st.ID != "of-b" || st.Reason != "the truth" {
		t.Errorf("told %+v", st)
	}
	if id := <-asked; id != "of-b" {
		t.Errorf("asked by %s", id)
	}
	all, err := w.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range all {
		if st.ID == "of-a" && !st.Running {
			t.Errorf("the lie counts: %+v", st)
		}
	}
	// When it connects anew it has to end it, and a keeps its own.
	w.cut(b)
	w.attach(b)
	if slices.Contains(b.state.IDs(), "of-a") || !slices.Contains(a.state.IDs(), "of-a") {
		t.Errorf("a has %v, b has %v", a.state.IDs(), b.state.IDs())
	}
}

// Attack: a node says that it has an instance and a checkpoint of the server's own machine.
func TestClaimsOfTheServersOwn(t *testing.T) {
	state := memory.NewState(t.TempDir())
	t.Cleanup(func() { state.Close() })
	w := newWorld(t, time.Hour)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	w.cfg.Local = memory.NewKeeper(state)
	w.cfg.LocalReport = func() remote.Report { return remote.Report{FreeMemory: 8 << 30, FreeDisk: 8 << 30} }
	w.open()
	if _, err := w.Create(t.Context(), engine.Spec{ID: "own", Place: sandbox.LocalNode}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Checkpoint(t.Context(), "own", "ckp-own", engine.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	a := w.join("a")
	w.cut(a)
	if _, err := a.engine.Create(t.Context(), engine.Spec{ID: "own"}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.engine.Checkpoint(t.Context(), "own", "ckp-own", engine.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	w.attach(a)
	for what, of := range map[string]engine.Source{"instance": {Instance: "own"}, "checkpoint": {Checkpoint: "ckp-own"}} {
		if got := w.PlaceOf(of); got != sandbox.LocalNode {
			t.Errorf("the %s is believed to be on %q", what, got)
		}
	}
	if slices.Contains(a.state.IDs(), "own") {
		t.Error("the node has not ended what is not its own")
	}
}

// TestMembers checks names and removal.
func TestMembers(t *testing.T) {
	w := newWorld(t, time.Hour)
	a := w.join("a")
	for name, want := range map[string]sandbox.Code{"a": sandbox.CodeConflict, "local": sandbox.CodeInvalid, "../a": sandbox.CodeInvalid, "": sandbox.CodeInvalid} {
		if err := w.Join(name, "x", false); sandbox.CodeOf(err) != want {
			t.Errorf("Join %q: %v", name, err)
		}
	}
	if err := w.tryAttach(a, "another id"); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("Attach with another id: %v", err)
	}
	w.attach(a) // the attempt has ended the node's connection
	w.create("one")
	if err := w.Remove("a"); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("Remove of a node with a sandbox: %v", err)
	}
	if err := w.Destroy(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	if err := w.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if err := w.tryAttach(a, "id-of-a"); sandbox.CodeOf(err) != sandbox.CodeForbidden {
		t.Errorf("Attach after removal: %v", err)
	}
	if err := w.Join("a", "new", false); err != nil || w.IsMember("a", "id-of-a") {
		t.Errorf("Join again: %v", err)
	}
}

// TestMounts checks that directories of the server's machine are not looked for elsewhere.
func TestMounts(t *testing.T) {
	w := newWorld(t, time.Hour)
	w.join("a")
	spec := engine.Spec{ID: "one", Mounts: []engine.Mount{{Source: "/data", Target: "/data"}}}
	if _, err := w.Create(t.Context(), spec); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("Create: %v", err)
	}
	spec.Mounts = []engine.Mount{{Target: "/tmp/x", SizeBytes: 1 << 20}}
	if _, err := w.Create(t.Context(), spec); err != nil {
		t.Errorf("in memory: %v", err)
	}
}
