package console

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"golang.org/x/sync/errgroup"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/testing/servertest"
	"github.com/cove-sh/cove/sandbox"
)

// manySandboxes is how many there are in TestSoakManySandboxes, in families of several shapes.
const manySandboxes = 1000

// Bounds of the page with many sandboxes: it renders only what is visible, requests
// nothing that an event has reported, and keeps no more of many events than of few.
const (
	mostRows     = 80
	mostElements = 3000
	mostRequests = 10
	mostHeap     = 64 << 20
)

// crowd is a real server on loopback whose sandboxes cost next to nothing.
type crowd struct {
	client *client.Client
	url    string
}

// startCrowd starts a server that ends with the test.
func startCrowd(t *testing.T) *crowd {
	t.Helper()
	cfg := config.Default(func(string) string { return "" })
	// The path of a socket is short.
	dir, err := os.MkdirTemp("", "cove-crowd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg.StateDir, cfg.Listen, cfg.Dev, cfg.Quotas = dir, "127.0.0.1:0", true, config.Quotas{}
	parts := servertest.Assembly()
	var state *memory.State
	parts.Engine = func(_ context.Context, dir string, _ *config.Config, _ *slog.Logger) (engine.Engine, error) {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		state = memory.NewState(dir)
		return memory.NewKeeper(state), nil
	}
	ready := make(chan net.Addr, 1)
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	deps := server.Deps{
		Assembly: parts, Version: "1.2.3", Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})),
		Ready: func(tcp net.Addr) { ready <- tcp },
	}
	go func() { done <- server.New(cfg, deps).Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if state != nil {
			if err := state.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	select {
	case tcp := <-ready:
		c, err := client.New(client.Config{UnixSocket: cfg.SocketPath()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return &crowd{c, "http://" + tcp.String()}
	case err := <-done:
		done <- nil
		t.Fatal(err)
	}
	return nil
}

// populate makes the sandboxes: one family of hundreds, one of many generations, and
// single ones with metadata; some have snapshots.
func (w *crowd) populate(t *testing.T) {
	t.Helper()
	must := func(s *sandbox.Sandbox, err error) *sandbox.Sandbox {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	made := 0
	fork := func(parent, name string, count int) string {
		t.Helper()
		forks, err := w.client.Fork(t.Context(), parent, sandbox.ForkRequest{Count: count, Name: name})
		if err != nil {
			t.Fatal(err)
		}
		made += count
		return forks.Items[0].ID
	}
	fleet := must(w.client.Create(t.Context(), sandbox.CreateRequest{Name: "fleet"}))
	line := must(w.client.Create(t.Context(), sandbox.CreateRequest{Name: "line"})).ID
	made = 2
	for i := range 8 {
		fork(fleet.ID, fmt.Sprintf("ship-%d", i), sandbox.MaxForks)
	}
	for i := range 12 {
		line = fork(line, fmt.Sprintf("generation-%d", i), 1)
	}
	for range 5 {
		if _, err := w.client.CreateSnapshot(t.Context(), fleet.ID, sandbox.CreateSnapshotRequest{Kind: sandbox.SnapshotFiles}); err != nil {
			t.Fatal(err)
		}
	}
	var g errgroup.Group
	g.SetLimit(8)
	for i := range manySandboxes - made {
		g.Go(func() error {
			_, err := w.client.Create(t.Context(), sandbox.CreateRequest{
				Name: fmt.Sprintf("task-%04d", i), Metadata: map[string]string{"queue": "q" + string(rune('a'+i%7)), "run": fmt.Sprint(i)},
			})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// watcher notes when the page shows something: when first a row, and when first each
// name, in milliseconds since 1970, after they are painted.
const watcher = `window.shown = {}; window.firstRow = 0;
new MutationObserver(() => {
  const names = [...document.querySelectorAll(".tree-row .name")].map((e) => e.textContent).filter((n) => !(n in shown));
  if (!names.length) return;
  for (const n of names) shown[n] = 0;
  requestAnimationFrame(() => {
    const painted = new MessageChannel();
    painted.port1.onmessage = () => {
      const now = performance.timeOrigin + performance.now();
      firstRow ||= performance.now();
      for (const n of names) shown[n] = now;
    };
    painted.port2.postMessage(0);
  });
}).observe(document, {subtree: true, childList: true, characterData: true});`

// requests counts the page's requests from now on.
func (p *tab) requests() *atomic.Int64 {
	p.t.Helper()
	var n atomic.Int64
	chromedp.ListenTarget(p.ctx, func(ev any) {
		if _, ok := ev.(*network.EventRequestWillBeSent); ok {
			n.Add(1)
		}
	})
	p.run(network.Enable())
	return &n
}

// heap returns the memory of the page's scripts, in bytes.
func (p *tab) heap() int {
	p.t.Helper()
	var used, buffers float64
	p.run(heapprofiler.CollectGarbage(), chromedp.ActionFunc(func(ctx context.Context) (err error) {
		used, _, _, buffers, err = runtime.GetHeapUsage().Do(ctx)
		return err
	}))
	return int(used + buffers)
}

// drawn fails the test if the page renders more than what is visible.
func (p *tab) drawn(what string) {
	p.t.Helper()
	var n struct{ Rows, Elements int }
	p.eval(`({Rows: document.querySelectorAll(".tree-row, .table-row").length, Elements: document.querySelectorAll("*").length})`, &n)
	if n.Rows == 0 || n.Rows > mostRows || n.Elements > mostElements {
		p.t.Errorf("%s: %d rows and %d elements are drawn", what, n.Rows, n.Elements)
	}
}

// load opens the console's first page again, and returns when it first painted anything,
// and when it painted sandboxes.
func (p *tab) load() (first, rows time.Duration) {
	p.t.Helper()
	p.visit("/")
	p.waitFor(`window.firstRow > 0`)
	var at struct{ First, Rows float64 }
	p.eval(`({First: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0, Rows: firstRow})`, &at)
	return time.Duration(at.First * float64(time.Millisecond)), time.Duration(at.Rows * float64(time.Millisecond))
}

// A thousand sandboxes are shown as soon as a few, and kept up to date: what that takes
// is bounded, and how long it takes is said. In "make test-all", TestMoreActions,
// which uses the same lists with few sandboxes in them, stands for it.
func TestSoakManySandboxes(t *testing.T) {
	w := startCrowd(t)
	w.populate(t)
	p := openTab(t, browser(t), w.url)
	p.run(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(watcher).Do(ctx)
		return err
	}))
	first, rows := p.load()
	t.Logf("%d sandboxes, nothing cached: first paint %s (target < 1 s), rows painted %s", manySandboxes, round(first), round(rows))
	var firsts, painted []time.Duration
	for range 5 {
		first, rows := p.load()
		firsts, painted = append(firsts, first), append(painted, rows)
	}
	t.Logf("loaded anew: first paint %s (target < 1 s), rows painted %s", spread(firsts), spread(painted))
	p.sees("1,000 running")
	p.drawn("the tree")

	t.Run("update", func(t *testing.T) { p.t = t; manyUpdates(p, w) })
	t.Run("find", func(t *testing.T) { p.t = t; findAmongMany(p) })
	t.Run("flood", func(t *testing.T) { p.t = t; manyEvents(p, w) })
}

// manyUpdates renames a sandbox that is seen, makes one and kills it, and measures how
// long after its event each name is painted.
func manyUpdates(p *tab, w *crowd) {
	t := p.t
	var mu sync.Mutex
	told := map[string]time.Time{}
	ctx, stop := context.WithCancel(t.Context())
	following := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		following <- w.client.FollowEvents(ctx, sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{sandbox.EventSandbox}}, func(e sandbox.Event) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e.Kind == sandbox.EventBegun:
				close(begun)
			case told[e.Sandbox.Name].IsZero():
				told[e.Sandbox.Name] = e.At
			}
			return nil
		})
	}()
	<-begun
	requests := p.requests()
	made, err := w.client.Create(t.Context(), sandbox.CreateRequest{Name: "newest"})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"newest"}
	for i := range 20 {
		name := fmt.Sprintf("renamed-%d", i)
		if _, err := w.client.Update(t.Context(), made.ID, sandbox.UpdateRequest{Name: &name}); err != nil {
			t.Fatal(err)
		}
		p.waitFor(`window.shown[` + quote(name) + `] > 0`)
		names = append(names, name)
	}
	if _, err := w.client.Kill(t.Context(), made.ID); err != nil {
		t.Fatal(err)
	}
	p.waitFor(`[...document.querySelectorAll(".tree-row.ended")].some((e) => e.innerText.includes("renamed-19"))`)
	stop()
	if err := <-following; err != nil && ctx.Err() == nil {
		t.Error(err)
	}
	var seen map[string]float64
	p.eval(`shown`, &seen)
	var took []time.Duration
	for _, name := range names {
		if told[name].IsZero() {
			t.Fatalf("no event tells of %s", name)
		}
		took = append(took, time.UnixMicro(int64(seen[name]*1000)).Sub(told[name]))
	}
	t.Logf("from an event to the painted row: %s (target < 100 ms)", spread(took))
	if n := requests.Load(); n > mostRequests {
		t.Errorf("%d requests were made after %d events", n, len(names)+1)
	}
	p.drawn("after updates")
}

// findAmongMany searches, filters, scrolls and folds.
func findAmongMany(p *tab) {
	const rowsNow = `[...document.querySelectorAll(".tree-row")].map((e) => e.querySelector(".name").textContent)`
	p.fill("Search sandboxes", "task-0123")
	p.waitFor(rowsNow + `.join() === "task-0123"`)
	p.fill("Search sandboxes", "queue:qc run:9")
	p.waitFor(rowsNow + `.every((n) => n.startsWith("task-")) && ` + rowsNow + `.includes("task-0009")`)
	p.fill("Search sandboxes", "generation-11")
	// Its ancestors lead to it.
	p.waitFor(rowsNow + `.length === 13 && ` + rowsNow + `[0] === "line"`)
	p.fill("Search sandboxes", "name:ship-")
	p.waitFor(rowsNow + `.includes("fleet")`)
	p.drawn("one family of hundreds")
	// The lanes of those that are further down are not drawn either.
	var branches int
	p.eval(`document.querySelectorAll(".lanes .branch").length`, &branches)
	if branches == 0 || branches > 3*mostRows {
		p.t.Errorf("%d branches are drawn", branches)
	}
	p.click("Fold")
	p.waitFor(rowsNow + `.length === 1`)
	p.click("Unfold")
	p.fill("Search sandboxes", "")
	p.waitFor(rowsNow + `.length > 10`)
	p.eval(`{ const box = document.querySelector(".tree-box"); box.scrollTop = box.scrollHeight; }`, nil)
	p.waitFor(rowsNow + `.includes("ship-0-31")`)
	p.drawn("at the end")
	p.click("Table")
	p.waitFor(`document.querySelector("[role=table]")?.getAttribute("aria-rowcount") === "` + fmt.Sprint(manySandboxes+2) + `"`)
	p.drawn("the table")
	p.fill("Search sandboxes", "state:killed")
	p.waitFor(`document.querySelectorAll(".table-row").length === 1`)
	p.fill("Search sandboxes", "")
	p.accessible("many")
	p.click("Tree")
	p.waitFor(rowsNow + `.length > 10`)
}

// manyEvents changes each sandbox several times while the page is seen.
func manyEvents(p *tab, w *crowd) {
	t := p.t
	requests := p.requests()
	before := p.heap()
	all, err := sandbox.All(t.Context(), func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		return w.client.List(ctx, sandbox.ListRequest{Page: page})
	})
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 4
	for round := range rounds {
		var g errgroup.Group
		g.SetLimit(8)
		for _, s := range all {
			g.Go(func() error {
				_, err := w.client.Update(t.Context(), s.ID, sandbox.UpdateRequest{Metadata: map[string]string{"round": fmt.Sprint(round)}})
				return err
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	p.fill("Search sandboxes", fmt.Sprintf("round:%d", rounds-1))
	p.click("Table")
	p.waitFor(fmt.Sprintf(`document.querySelector("[role=table]")?.getAttribute("aria-rowcount") === "%d"`, len(all)+1))
	p.click("Tree")
	p.waitFor(`document.querySelectorAll(".tree-row").length > 10`)
	p.drawn("after many events")
	after := p.heap()
	t.Logf("after %d events: %.1f MiB of memory in the page, %.1f MiB before; %d requests", rounds*len(all), float64(after)/(1<<20), float64(before)/(1<<20), requests.Load())
	if after > mostHeap {
		t.Errorf("the page keeps %d bytes", after)
	}
	if n := requests.Load(); n > mostRequests {
		t.Errorf("%d requests were made after %d events", n, rounds*len(all))
	}
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond / 10) }

// spread is the median and the longest of some times.
func spread(all []time.Duration) string {
	all = slices.Sorted(slices.Values(all))
	return strings.TrimSpace(fmt.Sprintf("p50 %s, longest %s of %d", round(all[len(all)/2]), round(all[len(all)-1]), len(all)))
}
