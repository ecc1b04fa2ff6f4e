package service

import (
	"maps"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

func (w *harness) env(id string) map[string]string {
	w.t.Helper()
	list, err := w.GetEnv(asRed(w.t), id, sandbox.Page{})
	must(w.t, err)
	got := map[string]string{}
	for _, v := range list.Items {
		got[v.Name] = v.Source + " " + v.Value
	}
	return got
}

// TestEnv changes the environment that commands and code see, of a paused
// sandbox too.
func TestEnv(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Env: map[string]string{"A": "1", "B": "2"}})
	_, err := w.store.UpdateSandbox(t.Context(), sbx.ID, store.Change{Apply: func(r *store.Record) error {
		r.BaseEnv = map[string]string{"BASE": "0", "B": "below", "PATH": os.Getenv("PATH")}
		return nil
	}})
	must(t, err)
	w.bash(sbx.ID, "true") // an interpreter that runs already
	set := func(req sandbox.SetEnvRequest) {
		t.Helper()
		_, err := w.SetEnv(asRed(t), sbx.ID, req)
		must(t, err)
	}
	set(sandbox.SetEnvRequest{Set: map[string]string{"C": "ü=3"}, Unset: []string{"A", "BASE"}})
	want := map[string]string{"B": "sandbox 2", "C": "sandbox ü=3", "PATH": "template " + os.Getenv("PATH")}
	if diff := cmp.Diff(want, w.env(sbx.ID)); diff != "" {
		t.Error(diff)
	}
	const show = `echo "[$A] [$B] [$C] [$BASE]"`
	if got := w.shell(sbx.ID, show); got != "[] [2] [ü=3] []" {
		t.Errorf("a command sees %s", got)
	}
	if got := w.bash(sbx.ID, show); got.Stdout != "[] [2] [ü=3] []\n" {
		t.Errorf("an interpreter that ran before sees %s", got.Stdout)
	}
	_, err = w.Pause(asRed(t), sbx.ID)
	must(t, err)
	set(sandbox.SetEnvRequest{Set: map[string]string{"D": "4"}, Replace: true})
	if got := w.get(sbx.ID); got.State != sandbox.StatePaused {
		t.Errorf("it is %s", got.State)
	}
	want = map[string]string{"B": "template below", "D": "sandbox 4", "PATH": want["PATH"]}
	if diff := cmp.Diff(want, w.env(sbx.ID)); diff != "" {
		t.Error(diff)
	}
	if got := w.shell(sbx.ID, `echo "[$B] [$C] [$D]"`); got != "[below] [] [4]" {
		t.Errorf("after a pause a command sees %s", got)
	}
	for _, bad := range []sandbox.SetEnvRequest{
		{Set: map[string]string{"": "x"}}, {Set: map[string]string{"A=B": "x"}}, {Unset: []string{""}}, {Unset: []string{"A=B"}},
		{Set: map[string]string{"A": "x"}, Unset: []string{"A"}}, {Set: map[string]string{"A": strings.Repeat("x", sandbox.MaxEnvBytes)}},
	} {
		_, err := w.SetEnv(asRed(t), sbx.ID, bad)
		wantCode(t, err, sandbox.CodeInvalid)
	}
	w.agree()
}

// TestEnvOfSecrets shows no placeholder, and leaves its variable alone.
func TestEnvOfSecrets(t *testing.T) {
	r := store.Record{Sandbox: sandbox.Sandbox{Env: map[string]string{"A": "1"}}, BaseEnv: map[string]string{"KEY": "base"}, Bindings: []store.Binding{{Env: "KEY", Secret: "mine", Placeholder: "sk-placeholder"}}}
	list, err := variables(&r, sandbox.Page{})
	must(t, err)
	if diff := cmp.Diff([]sandbox.EnvVar{{Name: "A", Value: "1", Source: "sandbox"}, {Name: "KEY", Value: "[secret mine]", Source: "secret"}}, list.Items); diff != "" {
		t.Error(diff)
	}
	for _, req := range []sandbox.SetEnvRequest{{Set: map[string]string{"KEY": "x"}}, {Unset: []string{"KEY"}}} {
		wantCode(t, editEnv(&r, &req), sandbox.CodeConflict)
	}
	must(t, editEnv(&r, &sandbox.SetEnvRequest{Replace: true}))
	if len(r.Env) != 0 || r.BaseEnv["KEY"] != "base" {
		t.Errorf("got %+v, %+v", r.Env, r.BaseEnv)
	}
}

func TestStatsSeries(t *testing.T) {
	w := newHarness(t)
	sbx := w.create(sandbox.CreateRequest{Name: "a"})
	paused := w.create(sandbox.CreateRequest{Name: "b", Namespace: "other"})
	_, err := w.Pause(asRed(t), paused.ID)
	must(t, err)
	for range 5 {
		w.measure(t.Context())
	}
	series := func(id string, req sandbox.StatsSeriesRequest) []sandbox.StatsPoint {
		t.Helper()
		list, err := w.StatsSeries(asRed(t), id, req)
		must(t, err)
		return list.Items
	}
	if n := len(series(sbx.ID, sandbox.StatsSeriesRequest{})); n != 5 {
		t.Errorf("%d points, want 5", n)
	}
	if n := len(series(sbx.ID, sandbox.StatsSeriesRequest{MaxPoints: 2})); n != 2 {
		t.Errorf("%d points, want 2", n)
	}
	if n := len(series(sbx.ID, sandbox.StatsSeriesRequest{Since: ptr(time.Now().Add(time.Minute))})); n != 0 {
		t.Errorf("%d points of the future", n)
	}
	if n := len(series(paused.ID, sandbox.StatsSeriesRequest{})); n != 0 {
		t.Errorf("%d points of a paused sandbox", n)
	}
	_, err = w.StatsSeries(asRed(t), sbx.ID, sandbox.StatsSeriesRequest{Since: ptr(time.Now().Add(-2 * sandbox.StatsRetention))})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = w.StatsSeries(asRed(t), sbx.ID, sandbox.StatsSeriesRequest{MaxPoints: -1})
	wantCode(t, err, sandbox.CodeInvalid)
	for req, want := range map[sandbox.StatsRequest]int{{}: 2, {Namespace: "*"}: 2, {Namespace: "other"}: 1, {Sandbox: "a"}: 1, {Sandbox: paused.ID}: 1} {
		list, err := w.ListStats(asRed(t), req)
		must(t, err)
		if len(list.Items) != want {
			t.Errorf("%+v: %d, want %d", req, len(list.Items), want)
		}
		for _, s := range list.Items {
			if (s.Stats != nil) != (s.State == sandbox.StateRunning) {
				t.Errorf("%+v: %+v", req, s)
			}
		}
	}
	if got := w.get(paused.ID); got.State != sandbox.StatePaused {
		t.Errorf("looking has made it %s", got.State)
	}
	if list, err := w.ListStats(as(t.Context(), "blue"), sandbox.StatsRequest{}); err != nil || len(list.Items) != 0 {
		t.Errorf("another team sees %v, %v", list, err)
	}
	_, err = w.ListStats(asRed(t), sandbox.StatsRequest{Sandbox: "a", Namespace: "other"})
	wantCode(t, err, sandbox.CodeInvalid)
}

// TestMeterBounds fills a series beyond its length.
func TestMeterBounds(t *testing.T) {
	one := &series{}
	m := meter{series: map[string]*series{"x": one}}
	began := time.Now()
	now := began
	for i := range seriesLength + 10 {
		now = now.Add(sandbox.StatsInterval)
		p := sandbox.StatsPoint{Time: now, CPUPercent: one.share("i", 1, nil, now, float64(i)*5), MemoryBytes: int64(i)}
		if len(one.ring) < seriesLength {
			one.ring = append(one.ring, p)
		} else {
			one.ring[one.next] = p
			one.next = (one.next + 1) % seriesLength
		}
	}
	points := m.points("x", began)
	if len(points) != seriesLength || points[0].MemoryBytes != 10 || points[len(points)-1].MemoryBytes != int64(seriesLength+9) {
		t.Errorf("%d points, from %d", len(points), points[0].MemoryBytes)
	}
	for i := 1; i < len(points); i++ {
		if !points[i].Time.After(points[i-1].Time) || points[i].CPUPercent != 50 {
			t.Fatalf("point %d is %+v", i, points[i])
		}
	}
	// A new instance starts from 0.
	if got := one.share("j", 1, nil, now.Add(time.Second), 1000); got != 0 {
		t.Errorf("a new machine has used %v%% at once", got)
	}
	m.forget(now.Add(time.Minute))
	if len(m.series) != 0 {
		t.Error("an old series is kept")
	}
}

// A measurement right after another returns the same percentage, and the next one is
// not computed from it: the percentage never exceeds the sandbox's processors.
func TestMeterPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := meter{}, newHandle(&store.Record{Sandbox: sandbox.Sandbox{ID: "x", Resources: sandbox.Resources{VCPUs: 1}}}, named{id: "i"})
		began := time.Now()
		// Each reading is up to 40 ms newer than its time.
		used := func(late time.Duration) float64 { return (time.Since(began) + late).Seconds() / 2 }
		m.add(h, &began, &sandbox.Stats{CPUSeconds: used(0)})
		time.Sleep(10 * time.Second)
		if got := m.percent(h, &began, used(0)); got != 50 {
			t.Errorf("%v%% were used, want 50%%", got)
		}
		time.Sleep(time.Millisecond)
		m.add(h, &began, &sandbox.Stats{CPUSeconds: used(40 * time.Millisecond)})
		if got := m.series["x"].latest().CPUPercent; got != 50 {
			t.Errorf("the look after a poll says %v%%, want 50%%", got)
		}
		time.Sleep(leastLook - time.Millisecond)
		if got := m.percent(h, &began, used(time.Second)); got != 100 {
			t.Errorf("a reading that came late says %v%%, want no more than its processor", got)
		}
		started := time.Now()
		time.Sleep(time.Millisecond)
		fresh := newHandle(&store.Record{Sandbox: sandbox.Sandbox{ID: "y", Resources: sandbox.Resources{VCPUs: 2}}}, named{id: "j"})
		if got := m.percent(fresh, &started, 0.8); got != 0 {
			t.Errorf("a sandbox of a millisecond says %v%%", got)
		}
	})
}

// named is an instance that has only an id.
type named struct {
	engine.Instance
	id string
}

func (n named) ID() string { return n.id }

// The totals of the network never decrease, whatever happens to sandboxes.
func TestNetworkTotals(t *testing.T) {
	m := meter{}
	for i, step := range []struct {
		sandbox, instance string
		in, out           int64
		wantIn, wantOut   int64
		first             bool // of the daemon
	}{
		{sandbox: "a", instance: "a1", in: 1000, out: 500, first: true},
		{sandbox: "a", instance: "a1", in: 1010, out: 501, wantIn: 10, wantOut: 1},
		{sandbox: "b", instance: "b1", in: 7, out: 2, wantIn: 17, wantOut: 3},
		{sandbox: "a", instance: "a2", in: 4, out: 0, wantIn: 21, wantOut: 3},
		{sandbox: "a", instance: "a2", in: 4, out: 9, wantIn: 21, wantOut: 12},
		{sandbox: "b", instance: "b1", in: 5, out: 2, wantIn: 21, wantOut: 12},
	} {
		m.mu.Lock()
		m.carry(m.of(step.sandbox), step.instance, step.in, step.out)
		m.mu.Unlock()
		if step.first {
			m.looked()
		}
		if in, out := m.network(); in != step.wantIn || out != step.wantOut {
			t.Errorf("after step %d: %d and %d, want %d and %d", i, in, out, step.wantIn, step.wantOut)
		}
	}
	m.forget(time.Now())
	if in, _ := m.network(); in != 21 {
		t.Errorf("%d after the sandboxes were forgotten", in)
	}
}

// TestMetrics scrapes: labels are of fixed sets.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	w := newHarness(t, func(c *Config) { c.Metrics = registry })
	sbx := w.create(sandbox.CreateRequest{})
	w.bash(sbx.ID, "true")
	_, err := w.Exec(asRed(t), "nobody", sandbox.ExecRequest{Shell: "true"}, nil)
	wantCode(t, err, sandbox.CodeNotFound)
	families, err := registry.Gather()
	must(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
				if strings.Contains(l.GetValue(), sbx.ID) {
					t.Errorf("%s has an id as a label", f.GetName())
				}
			}
			got[name] = m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range map[string]float64{
		"cove_sandboxes running": 1, "cove_sandboxes paused": 0, "cove_verb_seconds ok sandbox.create": 1,
		"cove_verb_seconds ok code.run": 1, "cove_verb_seconds not_found job.start": 1,
		"cove_sandboxes_network_in_bytes_total": 0, "cove_sandboxes_network_out_bytes_total": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v; there are %v", name, v, ok, want, maps.Keys(got))
		}
	}
}

// TestWarmInterpreters checks that a template's interpreters run in its golden
// checkpoint, and that one that fails does no harm.
func TestWarmInterpreters(t *testing.T) {
	w := newHarness(t, func(c *Config) { c.Warm = 1 })
	w.templates.Put(sandbox.Template{
		Name: "warm", Source: "debian", State: sandbox.TemplateReady, Digest: "sha256:warm", Resources: sandbox.Resources{MemoryMiB: 600},
		Warm: map[string]string{"bash": "echo begun > warmed", "python": "1/0", "cobol": "x"},
	})
	must(t, w.Prepare(t.Context(), "warm"))
	wait(t, func() bool { return len(w.state.Warm()) == 1 }, func() string { return "no golden checkpoint is offered" })
	sbx := w.create(sandbox.CreateRequest{Template: "warm"})
	if got := w.shell(sbx.ID, "cat warmed"); got != "begun" {
		t.Errorf("it begins with %q", got)
	}
	// An interpreter runs as one user: sandboxes of root have a checkpoint of
	// their own, and all others share that of the template's user.
	_, shared, err := w.cfg.Templates.Root(t.Context(), "warm")
	must(t, err)
	shared.User = "user"
	r := sandbox.Resources{MemoryMiB: 600}
	for user, want := range map[string]string{"root": "root", "user": "user", "daemon": "user"} {
		if got := kindOf(engine.Root{}, r, &shared, user).User; got != want {
			t.Errorf("the interpreters for sandboxes of %s belong to %q, want %s", user, got, want)
		}
	}
	// A small sandbox has no room for interpreters that wait.
	small := w.create(sandbox.CreateRequest{Template: "warm", Resources: sandbox.Resources{MemoryMiB: 128}})
	wait(t, func() bool { return len(w.state.Warm()) == 2 }, func() string { return "no second golden checkpoint is offered" })
	small = w.create(sandbox.CreateRequest{Template: "warm", Resources: small.Resources})
	if got := w.shell(small.ID, "ls"); got != "" {
		t.Errorf("a small one begins with %q", got)
	}
}
