package native_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// imaginary is a service whose sandboxes are maps of files, and that keeps,
// forks, compares and merges them as the contract of [sandbox.Snapshots] says.
// Its command lines are words: write PATH TEXT, rm PATH, print TEXT, flood N,
// exit N and hang, with ; between them.
type imaginary struct {
	sandbox.Service

	mu        sync.Mutex
	boxes     []*box             // guarded by mu
	snapshots []*kept            // guarded by mu
	clock     time.Time          // guarded by mu
	ids       map[string]int     // guarded by mu
	lastTry   sandbox.TryRequest // guarded by mu
}

type box struct {
	sandbox.Sandbox
	files, base map[string]string
}

type kept struct {
	sandbox.Snapshot
	files map[string]string
}

func newImaginary() *imaginary {
	return &imaginary{clock: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), ids: make(map[string]int)}
}

func (m *imaginary) id(kind string) string {
	m.ids[kind]++
	return fmt.Sprintf("%s-%06d", kind, m.ids[kind])
}

func (m *imaginary) now() time.Time {
	m.clock = m.clock.Add(time.Second)
	return m.clock
}

func (m *imaginary) box(ref string) (*box, error) {
	for _, b := range m.boxes {
		if (b.ID == ref || b.Name == ref) && !b.State.Final() {
			return b, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %q; sandbox_list shows yours", ref)
}

func (m *imaginary) snapshot(ref string) (*kept, error) {
	for _, s := range m.snapshots {
		if s.ID == ref || s.Name == ref {
			return s, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no snapshot %q; snapshot_list shows yours", ref)
}

func (m *imaginary) add(b box) *box {
	now := m.now()
	b.ID, b.State, b.CreatedAt, b.StartedAt, b.LastActiveAt = m.id("sbx"), sandbox.StateRunning, now, &now, now
	b.base = maps.Clone(b.files)
	m.boxes = append(m.boxes, &b)
	return &b
}

// own returns a record that the caller may keep.
func (b *box) own() *sandbox.Sandbox {
	c := b.Sandbox
	return &c
}

func (m *imaginary) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := box{files: map[string]string{}, Sandbox: sandbox.Sandbox{
		Name: req.Name, Team: "default", Namespace: "default", Template: "host", User: "user", WorkDir: "/workspace", OnTimeout: sandbox.ActionKill,
		Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 1024, DiskMiB: 4096, MaxPIDs: 512}, History: req.History,
	}}
	if req.OnTimeout != "" {
		b.OnTimeout = req.OnTimeout
	}
	if req.LifetimeSeconds != nil {
		b.LifetimeSeconds = *req.LifetimeSeconds
		end := m.clock.Add(time.Duration(b.LifetimeSeconds) * time.Second)
		b.ExpiresAt = &end
	}
	if req.Snapshot != "" {
		s, err := m.snapshot(req.Snapshot)
		if err != nil {
			return nil, err
		}
		b.Snapshot, b.files = s.ID, maps.Clone(s.files)
	}
	return m.add(b).own(), nil
}

func (m *imaginary) List(context.Context, sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out sandbox.List[sandbox.Sandbox]
	for _, b := range slices.Backward(m.boxes) {
		if !b.State.Final() {
			out.Items = append(out.Items, *b.own())
		}
	}
	return &out, nil
}

func (m *imaginary) Get(_ context.Context, ref string) (*sandbox.Sandbox, error) {
	return m.with(ref, func(*box) error { return nil })
}

func (m *imaginary) Update(_ context.Context, ref string, req sandbox.UpdateRequest) (*sandbox.Sandbox, error) {
	return m.with(ref, func(b *box) error {
		if req.History != nil {
			b.History = *req.History
		}
		if req.OnTimeout != nil {
			b.OnTimeout = *req.OnTimeout
		}
		return nil
	})
}

func (m *imaginary) with(ref string, do func(b *box) error) (*sandbox.Sandbox, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.box(ref)
	if err == nil {
		err = do(b)
	}
	if err != nil {
		return nil, err
	}
	return b.own(), nil
}

func (m *imaginary) Pause(_ context.Context, ref string) (*sandbox.Sandbox, error) {
	return m.with(ref, func(b *box) error {
		now := m.now()
		b.State, b.PausedAt = sandbox.StatePaused, &now
		return nil
	})
}

func (m *imaginary) Resume(_ context.Context, ref string, _ sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	return m.with(ref, func(b *box) error {
		b.State, b.PausedAt = sandbox.StateRunning, nil
		return nil
	})
}

func (m *imaginary) Fork(_ context.Context, ref string, req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	parent, err := m.box(ref)
	if err != nil {
		return nil, err
	}
	var out sandbox.List[sandbox.Sandbox]
	for i := range max(1, req.Count) {
		b := box{Sandbox: *parent.own(), files: maps.Clone(parent.files)}
		b.Name, b.ForkedFrom = req.Name, parent.ID
		if req.Name != "" && req.Count > 1 {
			b.Name += "-" + strconv.Itoa(i)
		}
		out.Items = append(out.Items, *m.add(b).own())
	}
	return &out, nil
}

func (m *imaginary) keep(b *box, s sandbox.Snapshot) *sandbox.Snapshot {
	s.ID, s.SandboxID, s.Team, s.Template, s.Resources = m.id("snp"), b.ID, b.Team, b.Template, b.Resources
	s.ParentID, s.SizeBytes, s.CreatedAt = b.Snapshot, int64(1000*len(b.files)), m.now()
	m.snapshots = append(m.snapshots, &kept{s, maps.Clone(b.files)})
	return &s
}

func (m *imaginary) CreateSnapshot(_ context.Context, ref string, req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.box(ref)
	if err != nil {
		return nil, err
	}
	return m.keep(b, sandbox.Snapshot{Name: req.Name, Kind: req.Kind}), nil
}

func (m *imaginary) ListSnapshots(_ context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []sandbox.Snapshot
	for _, s := range slices.Backward(m.snapshots) {
		if (req.Sandbox == "" || s.SandboxID == req.Sandbox) && (req.Automatic || !s.Automatic) {
			all = append(all, s.Snapshot)
		}
	}
	start := 0
	if req.Cursor != "" {
		start, _ = strconv.Atoi(strings.TrimPrefix(req.Cursor, "from-"))
	}
	end := min(len(all), start+req.Limit)
	out := sandbox.List[sandbox.Snapshot]{Items: all[start:end]}
	if end < len(all) {
		out.NextCursor = fmt.Sprintf("from-%d", end)
	}
	return &out, nil
}

func (m *imaginary) RestoreSnapshot(_ context.Context, ref string, req sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
	return m.with(ref, func(b *box) error {
		if req.Snapshot != "" {
			s, err := m.snapshot(req.Snapshot)
			if err != nil {
				return err
			}
			b.files, b.Snapshot = maps.Clone(s.files), s.ID
			return nil
		}
		step := 0
		for _, s := range slices.Backward(m.snapshots) {
			if s.Automatic && s.SandboxID == b.ID {
				if step--; step == req.Step {
					b.files, b.Snapshot = maps.Clone(s.files), s.ID
					return nil
				}
			}
		}
		return sandbox.Errorf(sandbox.CodeNotFound, "the history has only %d steps; snapshot_list shows them", -step)
	})
}

func (m *imaginary) DeleteSnapshot(_ context.Context, ref string) (*sandbox.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := m.snapshot(ref)
	if err != nil {
		return nil, err
	}
	m.snapshots = slices.DeleteFunc(m.snapshots, func(x *kept) bool { return x == s })
	return &s.Snapshot, nil
}

func (m *imaginary) files(ref string) (map[string]string, error) {
	if b, err := m.box(ref); err == nil {
		return b.files, nil
	}
	s, err := m.snapshot(ref)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox or snapshot %q", ref)
	}
	return s.files, nil
}

func compare(from, to map[string]string, req sandbox.DiffRequest) *sandbox.Diff {
	var d sandbox.Diff
	for _, p := range slices.Sorted(maps.Keys(to)) {
		old, was := from[p]
		c := sandbox.Change{Path: p, Type: sandbox.TypeFile, NewSize: int64(len(to[p]))}
		switch {
		case !was:
			c.Kind = sandbox.ChangeAdded
			d.Added++
		case old != to[p]:
			c.Kind, c.Aspects, c.OldSize = sandbox.ChangeModified, []sandbox.Aspect{sandbox.AspectContent}, int64(len(old))
			d.Modified++
		default:
			continue
		}
		if req.Patch {
			c.Patch = fmt.Sprintf("@@ -1 +1 @@\n-%s\n+%s\n", old, to[p])
		}
		d.Changes = append(d.Changes, c)
	}
	for _, p := range slices.Sorted(maps.Keys(from)) {
		if _, is := to[p]; !is {
			d.Removed++
			d.Changes = append(d.Changes, sandbox.Change{Path: p, Kind: sandbox.ChangeRemoved, Type: sandbox.TypeFile, OldSize: int64(len(from[p]))})
		}
	}
	if req.Limit > 0 && len(d.Changes) > req.Limit {
		d.Changes, d.Truncated = d.Changes[:req.Limit], true
	}
	return &d
}

func (m *imaginary) Diff(_ context.Context, ref string, req sandbox.DiffRequest) (*sandbox.Diff, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	to, err := m.files(ref)
	if err != nil {
		return nil, err
	}
	var from map[string]string
	if req.Against != "" {
		if from, err = m.files(req.Against); err != nil {
			return nil, err
		}
	}
	return compare(from, to, req), nil
}

func (m *imaginary) Merge(_ context.Context, ref string, req sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.merge(ref, req)
}

func (m *imaginary) merge(ref string, req sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	parent, err := m.box(ref)
	if err != nil {
		return nil, err
	}
	winner, err := m.box(req.Winner)
	if err != nil {
		return nil, err
	}
	res := &sandbox.MergeResult{Merged: true, Kind: req.Kind, Sandbox: parent.own()}
	if req.Kind == sandbox.MergeWhole {
		parent.files, winner.State = maps.Clone(winner.files), sandbox.StateKilled
		return res, nil
	}
	ours := make(map[string]sandbox.ChangeKind)
	for _, c := range compare(winner.base, parent.files, sandbox.DiffRequest{}).Changes {
		ours[c.Path] = c.Kind
	}
	for _, c := range compare(winner.base, winner.files, sandbox.DiffRequest{}).Changes {
		switch did := ours[c.Path]; {
		case did != "" && req.Policy == sandbox.PolicyNone:
			res.Conflicts = append(res.Conflicts, sandbox.Conflict{Path: c.Path, Ours: did, Theirs: c.Kind})
		case did == "" || req.Policy == sandbox.PolicyTheirs:
			res.Applied = append(res.Applied, c)
		}
	}
	if len(res.Conflicts) > 0 {
		res.Merged, res.Applied = false, nil
		return res, nil
	}
	for _, c := range res.Applied {
		if text, is := winner.files[c.Path]; is {
			parent.files[c.Path] = text
		} else {
			delete(parent.files, c.Path)
		}
	}
	if req.KillWinner {
		winner.State = sandbox.StateKilled
	}
	return res, nil
}

// run applies a command line to files. hung is set if the command would not end.
func run(files map[string]string, line string) (stdout string, code int, hung bool) {
	for part := range strings.SplitSeq(line, ";") {
		words := strings.Fields(part)
		switch words[0] {
		case "write":
			files[words[1]] = strings.Join(words[2:], " ")
		case "rm":
			delete(files, words[1])
		case "print":
			stdout += strings.Join(words[1:], " ") + "\n"
		case "flood":
			n, _ := strconv.Atoi(words[1])
			stdout += strings.Repeat("x", n)
		case "exit":
			code, _ = strconv.Atoi(words[1])
		case "hang":
			return stdout, 137, true
		}
	}
	return stdout, code, false
}

func (m *imaginary) Exec(_ context.Context, ref string, req sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, err := m.box(ref)
	if err != nil {
		return nil, err
	}
	b.State, b.PausedAt = sandbox.StateRunning, nil
	if b.History > 0 {
		m.keep(b, sandbox.Snapshot{Kind: sandbox.SnapshotMemory, Automatic: true, Label: req.Shell})
	}
	stdout, code, _ := run(b.files, req.Shell)
	now := m.now()
	job := &sandbox.Job{ID: m.id("job"), SandboxID: b.ID, State: sandbox.JobExited, ExitCode: code, StartedAt: now, EndedAt: &now}
	return job, sink(sandbox.JobEvent{Stream: sandbox.Stdout, Data: []byte(stdout)})
}

func (m *imaginary) Try(ctx context.Context, ref string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	count := max(req.Count, len(req.Commands))
	list, err := m.Fork(ctx, ref, sandbox.ForkRequest{Count: count})
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastTry = req
	if req.Pick == sandbox.PickNone && req.Merge != "" { // as the service does
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "merge says how the picked attempt comes back, but none is picked")
	}
	req.Merge = cmp.Or(req.Merge, sandbox.MergeWhole)
	out := &sandbox.TryResult{}
	for i, sb := range list.Items {
		b, err := m.box(sb.ID)
		if err != nil {
			return nil, err
		}
		line := req.Commands[min(i, len(req.Commands)-1)].Shell
		a := sandbox.Attempt{Index: i, SandboxID: b.ID, DurationMS: 100}
		var hung bool
		if a.Stdout, a.ExitCode, hung = run(b.files, line); hung {
			a.Signal, a.EndCause = "KILL", sandbox.EndTimeout
		}
		if !req.NoDiff {
			a.Changes = compare(b.base, b.files, sandbox.DiffRequest{})
		}
		if a.ExitCode == 0 && out.Picked == nil && req.Pick == sandbox.PickFirstSuccess || strconv.Itoa(i) == req.Pick {
			out.Picked = &i
		}
		a.Kept = req.Keep == sandbox.KeepAll || req.Keep == sandbox.KeepWinners && a.ExitCode == 0
		out.Attempts = append(out.Attempts, a)
		if err := sink(sandbox.TryEvent{Attempt: a, Done: i + 1, Total: count}); err != nil {
			return nil, err
		}
	}
	if out.Picked != nil {
		picked := &out.Attempts[*out.Picked]
		if out.Merge, err = m.merge(ref, sandbox.MergeRequest{Winner: picked.SandboxID, Kind: req.Merge, Policy: req.Policy}); err != nil {
			return nil, err
		}
		picked.Kept = false
	}
	for _, a := range out.Attempts {
		if b, err := m.box(a.SandboxID); err == nil && !a.Kept {
			b.State = sandbox.StateKilled
		}
	}
	return out, nil
}
