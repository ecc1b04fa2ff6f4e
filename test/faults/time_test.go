package faults

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// scene is sandboxes on which one of the verbs of time is about to be called.
type scene struct {
	// act calls the verb.
	act func(context.Context) error
	// before is the expected state now, after the one once the verb has completed.
	before, after covetest.Expected
	// hit are the sandboxes whose machines may be struck.
	hit []string
	// extra checks what the expected state does not cover, if set.
	extra func(t *testing.T, done bool)
}

// deeds are the verbs of time that are cut off.
var deeds = []struct {
	name    string
	prepare func(t *testing.T, d *covetest.Daemon) *scene
}{
	{"pause", pausing}, {"resume", resuming}, {"snapshot", snapshotting}, {"fork", forking},
	{"restore", restoring}, {"merge whole", mergingWhole}, {"merge files", mergingFiles},
}

// instants are when the victim dies, as fractions of the usual duration of the verb. The
// last is right after the verb.
var instants = []float64{0.2, 0.6, 1.1}

// SIGKILL of the daemon, of a cell or of gVisor while the state of sandboxes is saved,
// continued or exchanged: afterwards all sandboxes are in their old state or all in the new
// one, and can be used.
//
// "make soak" kills each of them at each of the instants of each verb. Otherwise one of them,
// in turn, dies half-way through each; TestCrashes of internal/daemon/service stands for the
// instants, before and after each change that the service makes. In "make test", TestCrashes of
// package service, and TestCellKilledDuringCheckpoint and TestSentryKilledDuringCheckpoint of
// package cells, stand for all of it.
func TestMoreKillMatrixOfTime(t *testing.T) {
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		for i, deed := range deeds {
			moments, victims := instants, []string{serve, "cove", "runsc-sandbox"}
			if !needs.Soak() {
				moments, victims = []float64{0.5}, victims[i%3:i%3+1]
			}
			t.Run(deed.name, func(t *testing.T) {
				usual := undisturbed(t, d, deed.prepare(t, d))
				for _, victim := range victims {
					// The usual duration may have been measured much too long, so that all
					// instants come too late.
					for scale := 1.0; ; scale /= 2 {
						ran, struck := 0, 0
						for i, part := range moments {
							t.Run(fmt.Sprintf("%s at %.3g%%", victim, 100*scale*part), func(t *testing.T) {
								ran++
								if cutOff(t, d, deed.prepare(t, d), victim, i, time.Duration(scale*part*float64(usual))) {
									struck++
								}
							})
						}
						t.Logf("%s was killed in %d of %d cases", victim, struck, ran)
						// Only a resume has no instance at the beginning, and perhaps at
						// none of the instants.
						if ran != len(instants) || struck > 0 || deed.name == "resume" || t.Failed() {
							break
						}
						if scale < 0.1 {
							t.Errorf("%s was killed in none of %d cases, which prove nothing", victim, ran)
							break
						}
					}
				}
			})
		}
	})
}

// undisturbed plays a scene without a kill and returns how long the verb took.
func undisturbed(t *testing.T, d *covetest.Daemon, s *scene) time.Duration {
	t.Helper()
	began := time.Now()
	if err := s.act(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	now, err := d.Settle(t.Context(), never, s.after)
	if err != nil {
		t.Fatal(err)
	}
	if s.extra != nil {
		s.extra(t, true)
	}
	usable(t, d, now)
	wipe(t, d, nil)
	t.Logf("%v when nothing happens", took.Round(time.Millisecond))
	return took
}

func never(string) bool { return false }

// cutOff has the victim die in the middle of a scene and checks what became
// of the sandboxes. It reports whether there was one.
func cutOff(t *testing.T, d *covetest.Daemon, s *scene, victim string, turn int, after time.Duration) (struck bool) {
	known, err := d.Machines(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	groups := d.Groups()
	targets := aim(d, s, known, victim)
	done := make(chan error, 1)
	go func() { done <- s.act(t.Context()) }()
	<-time.After(after)
	groups = append(groups, d.Groups()...)
	mayFail := never
	if victim == serve {
		d.Kill()
		struck = true
	} else {
		mayFail, struck = strikeMachine(t, d, targets, known, victim, turn)
	}
	at := time.Now()
	var actErr error
	select {
	case actErr = <-done:
	case <-time.After(covetest.DetectionLimit):
		t.Fatal("the call in flight hangs")
	}
	if victim == serve {
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	answered := time.Since(at)
	expected := []covetest.Expected{s.before, s.after}
	switch {
	case actErr == nil:
		expected = expected[1:] // the verb has succeeded, so it must have taken effect
	case victim != serve:
		expected = expected[:1]
	}
	if code := sandbox.CodeOf(actErr); actErr != nil && (code == sandbox.CodeInternal || strings.Contains(actErr.Error(), "\n")) {
		t.Errorf("the error has the code %q: %v", code, actErr)
	}
	now, err := d.Settle(t.Context(), mayFail, expected...)
	if err != nil {
		t.Errorf("the call ended with %v, and then: %v", actErr, err)
		wipe(t, d, groups)
		return struck
	}
	t.Logf("answered %v after the kill, settled after %v: %v", answered.Round(time.Millisecond), time.Since(at).Round(time.Millisecond), actErr)
	if s.extra != nil {
		s.extra(t, actErr == nil)
	}
	usable(t, d, now)
	wipe(t, d, groups)
	return struck
}

// aim finds the victims among the instances that exist before the verb.
func aim(d *covetest.Daemon, s *scene, known covetest.Machines, victim string) []covetest.Target {
	var machines []string
	for _, id := range s.hit {
		machines = append(machines, known.Instances[id])
	}
	return d.Targets(machines, victim == "runsc-sandbox")
}

// strikeMachine kills a process of a sandbox: one that existed before or, every other time,
// one that is being made. It returns which sandboxes may have failed because of that, and
// whether there was a process to kill.
func strikeMachine(t *testing.T, d *covetest.Daemon, old []covetest.Target, known covetest.Machines, victim string, turn int) (mayFail func(string) bool, struck bool) {
	t.Helper()
	among := old
	if turn%2 == 1 || len(old) == 0 {
		fresh := d.Targets(d.Fresh(known), victim == "runsc-sandbox")
		if len(fresh) > 0 {
			among = fresh
		}
	}
	if len(among) == 0 {
		return never, false
	}
	hit := among[turn/2%len(among)]
	err := syscall.Kill(hit.PID, syscall.SIGKILL)
	if err != nil && err != syscall.ESRCH {
		t.Fatal(err)
	}
	return func(id string) bool {
		now, err := d.Machines(t.Context())
		return err == nil && (known.Last[id] == hit.Machine || now.Last[id] == hit.Machine)
	}, err == nil
}

// usable checks that every living sandbox of w can be worked with.
func usable(t *testing.T, d *covetest.Daemon, w covetest.Expected) {
	t.Helper()
	paused := false
	for id, want := range w.Sandboxes {
		held, err := d.Look(t.Context(), id)
		if err != nil {
			t.Errorf("look into %s, which was %s: %v", id, want.State, err)
			continue
		}
		if !held.Equal(want.Held) {
			t.Errorf("%s, which was %s, holds %+v; want %+v", id, want.State, held, want.Held)
		}
		if !paused { // one is enough
			paused = true
			if _, err := d.Client.Pause(t.Context(), id); err != nil {
				t.Errorf("pause %s: %v", id, err)
			}
		}
		if err := d.Count(t.Context(), id); err != nil {
			t.Errorf("count in %s after a pause: %v", id, err)
		}
		if again, err := d.Look(t.Context(), id); err != nil || again.Memory == held.Memory || fmt.Sprint(again.Files) != fmt.Sprint(held.Files) {
			t.Errorf("after a pause and one count %s holds %+v, before %+v; %v", id, again, held, err)
		}
	}
}

// wipe ends all sandboxes and deletes all snapshots, and checks that nothing is left of
// them.
func wipe(t *testing.T, d *covetest.Daemon, groups []string) {
	t.Helper()
	all, err := d.All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for id, s := range all {
		if s.State.Final() {
			continue
		}
		if _, err := d.Client.Kill(t.Context(), id); err != nil {
			t.Errorf("kill %s: %v", id, err)
		}
	}
	list, err := d.Client.ListSnapshots(t.Context(), sandbox.ListSnapshotsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, snap := range list.Items {
		if _, err := d.Client.DeleteSnapshot(t.Context(), snap.ID); err != nil {
			t.Errorf("delete %s: %v", snap.ID, err)
		}
	}
	if err := d.Tidy(t.Context(), groups, 30*time.Second); err != nil {
		t.Error(err)
	}
}

// stage makes a running sandbox with a witness and a file. It returns its id and the state
// that is expected of it.
func stage(t *testing.T, d *covetest.Daemon) (string, covetest.Want) {
	t.Helper()
	s := d.Create(t, covetest.Small())
	if err := d.StartWitness(t.Context(), s.ID, "word-"+s.ID); err != nil {
		t.Fatal(err)
	}
	want := covetest.Want{State: sandbox.StateRunning, Held: covetest.Held{Files: map[string]string{}, Memory: "word-" + s.ID + " 0"}}
	put(t, d, s.ID, &want, "first", "of "+s.ID)
	return s.ID, want
}

// put writes a file and notes it.
func put(t *testing.T, d *covetest.Daemon, id string, want *covetest.Want, name, content string) {
	t.Helper()
	if _, err := d.Client.WriteFile(t.Context(), id, sandbox.WriteFileRequest{Path: "/workspace/w/" + name}, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(content))
	files := map[string]string{name: hex.EncodeToString(sum[:])}
	for n, digest := range want.Held.Files {
		if n != name {
			files[n] = digest
		}
	}
	want.Held.Files = files
}

// count has the witness count and notes it.
func count(t *testing.T, d *covetest.Daemon, id string, want *covetest.Want) {
	t.Helper()
	if err := d.Count(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	var word string
	var n int
	if _, err := fmt.Sscan(want.Held.Memory, &word, &n); err != nil {
		t.Fatal(err)
	}
	want.Held.Memory = fmt.Sprintf("%s %d", word, n+1)
}

func alone(id string, want covetest.Want) covetest.Expected {
	return covetest.Expected{Sandboxes: map[string]covetest.Want{id: want}}
}

func pausing(t *testing.T, d *covetest.Daemon) *scene {
	id, want := stage(t, d)
	paused := want
	paused.State = sandbox.StatePaused
	return &scene{
		before: alone(id, want), after: alone(id, paused), hit: []string{id},
		act: func(ctx context.Context) error {
			_, err := d.Client.Pause(ctx, id)
			return err
		},
	}
}

func resuming(t *testing.T, d *covetest.Daemon) *scene {
	s := pausing(t, d)
	if err := s.act(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.before, s.after = s.after, s.before
	s.act = func(ctx context.Context) error {
		_, err := d.Client.Resume(ctx, s.hit[0], sandbox.ResumeRequest{})
		return err
	}
	return s
}

func snapshotting(t *testing.T, d *covetest.Daemon) *scene {
	id, want := stage(t, d)
	return &scene{
		before: alone(id, want), after: alone(id, want), hit: []string{id},
		act: func(ctx context.Context) error {
			_, err := d.Client.CreateSnapshot(ctx, id, sandbox.CreateSnapshotRequest{Name: "cut-off"})
			return err
		},
		extra: func(t *testing.T, done bool) {
			made, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Snapshot: "cut-off"})
			if sandbox.CodeOf(err) == sandbox.CodeNotFound && !done {
				return
			}
			if err != nil {
				t.Errorf("create from the snapshot: %v", err)
				return
			}
			if held, err := d.Look(t.Context(), made.ID); err != nil || !held.Equal(want.Held) {
				t.Errorf("the snapshot holds %+v, %v; want %+v", held, err, want.Held)
			}
		},
	}
}

func forking(t *testing.T, d *covetest.Daemon) *scene {
	id, want := stage(t, d)
	after := alone(id, want)
	after.Born, after.Parent, after.Child = 2, id, want
	return &scene{
		before: alone(id, want), after: after, hit: []string{id},
		act: func(ctx context.Context) error {
			_, err := d.Client.Fork(ctx, id, sandbox.ForkRequest{Count: 2})
			return err
		},
	}
}

func restoring(t *testing.T, d *covetest.Daemon) *scene {
	id, was := stage(t, d)
	snap, err := d.Client.CreateSnapshot(t.Context(), id, sandbox.CreateSnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := was
	put(t, d, id, &want, "second", "newer")
	count(t, d, id, &want)
	return &scene{
		before: alone(id, want), after: alone(id, was), hit: []string{id},
		act: func(ctx context.Context) error {
			_, err := d.Client.RestoreSnapshot(ctx, id, sandbox.RestoreRequest{Snapshot: snap.ID})
			return err
		},
	}
}

// family is a parent and a child that have both gone on since the fork.
func family(t *testing.T, d *covetest.Daemon) (parent, child string, w covetest.Expected) {
	t.Helper()
	parent, p := stage(t, d)
	list, err := d.Client.Fork(t.Context(), parent, sandbox.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	child = list.Items[0].ID
	c := p
	put(t, d, parent, &p, "ours", "of the parent")
	for i := range 5 {
		put(t, d, child, &c, fmt.Sprintf("theirs-%d", i), strings.Repeat("of the child", 10_000*i))
	}
	put(t, d, child, &c, "first", "changed by the child")
	count(t, d, child, &c)
	return parent, child, covetest.Expected{Sandboxes: map[string]covetest.Want{parent: p, child: c}}
}

func mergingWhole(t *testing.T, d *covetest.Daemon) *scene {
	parent, child, before := family(t, d)
	after := before.Clone()
	after.Sandboxes[parent] = before.Sandboxes[child]
	after.Sandboxes[child] = covetest.Want{State: sandbox.StateKilled}
	return &scene{before: before, after: after, hit: []string{parent, child}, act: merge(d, parent, child, sandbox.MergeWhole)}
}

func mergingFiles(t *testing.T, d *covetest.Daemon) *scene {
	parent, child, before := family(t, d)
	merged := before.Sandboxes[parent]
	merged.Held.Files = map[string]string{"ours": merged.Held.Files["ours"]}
	for name, digest := range before.Sandboxes[child].Held.Files {
		merged.Held.Files[name] = digest
	}
	after := before.Clone()
	after.Sandboxes[parent] = merged
	return &scene{before: before, after: after, hit: []string{parent, child}, act: merge(d, parent, child, sandbox.MergeFiles)}
}

func merge(d *covetest.Daemon, parent, child string, kind sandbox.MergeKind) func(context.Context) error {
	return func(ctx context.Context) error {
		res, err := d.Client.Merge(ctx, parent, sandbox.MergeRequest{Winner: child, Kind: kind})
		if err == nil && !res.Merged {
			err = fmt.Errorf("there are conflicts: %+v", res.Conflicts)
		}
		return err
	}
}
