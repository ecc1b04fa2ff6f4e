package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/postgres"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/sandbox"
)

const (
	nodes     = 200
	sandboxes = 50_000
	teams     = 50
	// placements are measured one after another, and then so many at a time.
	placements, together = 1000, 8
	quota                = 1 << 40
)

var small = sandbox.Resources{VCPUs: 1, MemoryMiB: 512, DiskMiB: 1024}

// world is a server's database and nodes.
type world struct {
	address  sandbox.SecretValue
	dir      string
	machines []*machine
	serving  sync.WaitGroup

	store *postgres.Store
	fleet *fleet.Fleet
}

// BenchmarkFleet measures a server's restart with all sandboxes, and then how long it takes to
// place a further one.
func BenchmarkFleet(b *testing.B) {
	w := prepare(b)
	var opened, loaded, connected, listed time.Duration
	for b.Loop() {
		w.close(b)
		began := time.Now()
		w.openStore(b)
		opened = time.Since(began)
		n := 0
		for _, err := range store.All(b.Context(), w.store.ListSandboxes, store.SandboxFilter{States: []sandbox.State{sandbox.StateRunning}}) {
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		if n < sandboxes {
			b.Fatalf("there are %d records", n)
		}
		listed = time.Since(began) - opened
		at := time.Now()
		w.openFleet(b, w.dir)
		loaded = time.Since(at)
		at = time.Now()
		w.attach(b)
		running, err := w.fleet.List(b.Context())
		if err != nil || len(running) < sandboxes {
			b.Fatalf("%d instances run, %v", len(running), err)
		}
		connected = time.Since(at)
	}
	w.fleet.Started()
	seconds := func(name string, d time.Duration) { b.ReportMetric(d.Seconds(), name+"-s") }
	seconds("restart", opened+listed+loaded+connected)
	seconds("restart-open-store", opened)
	seconds("restart-read-records", listed)
	seconds("restart-read-nodes", loaded)
	seconds("restart-connect-nodes", connected)

	var choices []time.Duration
	for range placements {
		at := time.Now()
		if w.fleet.Place(small) == "" {
			b.Fatal("no node has room")
		}
		choices = append(choices, time.Since(at))
	}
	percentiles(b, "choose", choices)
	var whole []time.Duration
	for n := range placements {
		whole = append(whole, w.place(b, fmt.Sprintf("alone-%d", n)))
	}
	percentiles(b, "place", whole)
	whole = make([]time.Duration, placements)
	var g errgroup.Group
	g.SetLimit(together)
	for n := range whole {
		g.Go(func() error {
			whole[n] = w.place(b, fmt.Sprintf("together-%d", n))
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
	percentiles(b, fmt.Sprintf("place-%d-at-once", together), whole)
}

// percentiles reports the 50th, 95th and 99th percentile.
func percentiles(b *testing.B, name string, values []time.Duration) {
	s := figures.Series{Values: values}
	for _, p := range []int{50, 95, 99} {
		b.ReportMetric(float64(s.Percentile(p).Microseconds())/1000, fmt.Sprintf("%s-p%d-ms", name, p))
	}
}

// place makes a sandbox as the server does: its record under the team's quota, the instance on
// the node that is chosen, and that it runs. It returns how long that took.
func (w *world) place(b *testing.B, id string) time.Duration {
	began := time.Now()
	r := record(id, 0)
	r.State = sandbox.StateCreating
	if err := w.store.CreateSandbox(b.Context(), r, store.Quota{Sandboxes: quota, VCPUs: quota, MemoryMiB: quota}); err != nil {
		b.Error(err)
	}
	if _, err := w.fleet.Create(b.Context(), engine.Spec{ID: r.Instance, Root: engine.Root{Digest: "d"}, Resources: small, Network: &engine.Network{SandboxID: id}}); err != nil {
		b.Error(err)
	}
	if _, err := w.store.UpdateSandbox(b.Context(), id, store.Change{Apply: func(r *store.Record) error {
		r.State = sandbox.StateRunning
		return nil
	}}); err != nil {
		b.Error(err)
	}
	return time.Since(began)
}

func record(id string, team int) store.Record {
	return store.Record{
		Sandbox: sandbox.Sandbox{
			ID: id, Team: fmt.Sprint("team-", team), Template: "host", State: sandbox.StateRunning, Resources: small,
			User: "user", WorkDir: "/workspace", CreatedAt: time.Now().UTC(), LastActiveAt: time.Now().UTC(),
		},
		Instance: "i-" + id,
	}
}

// prepare fills the database, and has the nodes tell of their instances once. What the server
// keeps of nodes is written in memory, and then copied onto the disk.
func prepare(b *testing.B) *world {
	server := postgrestest.Start(b)
	address, schema := server.NewSchema(b)
	w := &world{address: address, dir: filepath.Join(b.TempDir(), "nodes")}
	w.openStore(b)
	if err := w.store.CreateSandbox(b.Context(), record("sbx-0", 0), store.Quota{}); err != nil {
		b.Fatal(err)
	}
	// The others are like it.
	table := fmt.Sprintf("%q.sandboxes", schema) // a name of the test's own
	server.Exec(b, fmt.Sprintf(`INSERT INTO %s SELECT (jsonb_populate_record(s, jsonb_build_object(
		'id', 'sbx-' || n, 'instance', 'i-sbx-' || n, 'team', 'team-' || n %% %d))).* FROM %s s, generate_series(1, %d) n`, table, teams, table, sandboxes-1))
	server.Exec(b, "VACUUM ANALYZE "+table) // as the database does by itself, again and again
	for n := range nodes {
		has := map[string]bool{}
		for i := n; i < sandboxes; i += nodes {
			has[fmt.Sprint("i-sbx-", i)] = true
		}
		w.machines = append(w.machines, newMachine(b, n, has))
	}
	memory, err := os.MkdirTemp("/dev/shm", "cove-fleet-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := os.RemoveAll(memory); err != nil {
			b.Error(err)
		}
	})
	w.openFleet(b, memory)
	for _, m := range w.machines {
		if err := w.fleet.Join(m.name, "id-of-"+m.name, false); err != nil {
			b.Fatal(err)
		}
	}
	w.attach(b)
	if err := w.fleet.Close(); err != nil {
		b.Fatal(err)
	}
	if err := os.CopyFS(w.dir, os.DirFS(memory)); err != nil {
		b.Fatal(err)
	}
	w.openFleet(b, w.dir)
	b.Cleanup(func() {
		w.close(b)
		w.serving.Wait()
	})
	return w
}

func (w *world) openStore(b *testing.B) {
	var err error
	if w.store, err = postgres.Open(b.Context(), w.address); err != nil {
		b.Fatal(err)
	}
}

func (w *world) openFleet(b *testing.B, dir string) {
	var err error
	if w.fleet, err = fleet.New(fleet.Config{Files: durable.Dir(dir), Lease: time.Hour, Log: slog.New(slog.DiscardHandler)}); err != nil {
		b.Fatal(err)
	}
}

// attach connects all nodes at once, as they do after a restart.
func (w *world) attach(b *testing.B) {
	g, ctx := errgroup.WithContext(context.WithoutCancel(b.Context()))
	for _, m := range w.machines {
		g.Go(func() error { return m.attach(ctx, w.fleet, &w.serving) })
	}
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
}

func (w *world) close(b *testing.B) {
	if err := w.fleet.Close(); err != nil {
		b.Error(err)
	}
	if err := w.store.Close(); err != nil {
		b.Error(err)
	}
}
