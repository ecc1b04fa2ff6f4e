package service

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/daemon/service/startup"
	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxGoldens bounds the golden checkpoints that there are at a time: each
	// has room on the disk and an instance that waits. Beyond that, the one that
	// was used least recently is given up for another.
	maxGoldens = 64
	// goldenShare is what one team can push out of others' golden checkpoints.
	// One whose sandboxes have ever-changing resources, each a kind of its own,
	// gives up its own kinds from there on. What it has above its share, which
	// there was room for, goes as soon as another team needs the room.
	goldenShare = maxGoldens / 4
	// goldenRest is how long a kind was not used before it is given up, within
	// its team's share. It keeps what is in use in place, and bounds how many
	// boots one can have the server do in vain.
	goldenRest = 10 * time.Minute
)

// goldenAge is how long a golden checkpoint that this process has not used is
// kept.
const goldenAge = 24 * time.Hour

// goldenTimeout bounds the making of one golden checkpoint.
const goldenTimeout = 2 * time.Minute

// goldens are checkpoints of sandboxes that were booted from a template and
// never used. A creation with the template's resources continues from one, in
// an instance that waits ready if there is one.
type goldens struct {
	s *Service

	mu    sync.Mutex
	ready map[string]engine.WarmSpec // by checkpoint; guarded by mu
	// attempts are those that are being made, are ready, or could not be made.
	// Guarded by mu.
	attempts map[string]*attempt
	// dirty says that the engine does not know yet what is ready, and evicted are
	// checkpoints that were given up meanwhile. Guarded by mu.
	dirty   bool
	evicted []string
	// unused are those given up of which the engine keeps nothing ready any
	// more, and removing those that the collector removes just now. Guarded by mu.
	unused   map[string]bool
	removing map[string]bool

	publishing sync.Mutex // held to tell the engine, before mu: it hears the newest last
}

func newGoldens(s *Service) *goldens {
	return &goldens{
		s: s, ready: map[string]engine.WarmSpec{}, attempts: map[string]*attempt{}, unused: map[string]bool{}, removing: map[string]bool{},
	}
}

// attempt is what is known of the making of a golden checkpoint.
type attempt struct {
	failures int
	// again is when it may be tried again; zero while it is being made and when
	// it is ready.
	again time.Time
	// used is when somebody wanted it last, and team who that was; "" is the
	// server itself.
	used time.Time
	team string
	// spoiled is set while there is a checkpoint that no sandbox can begin with:
	// it has to be removed before it is made anew.
	spoiled bool
}

// failed notes a failure, and when it may be tried again.
func (a *attempt) failed() {
	a.again = time.Now().Add(goldenPauses[min(a.failures, len(goldenPauses)-1)])
	a.failures++
}

// goldenPauses are how long to wait after the first failure to make a golden
// checkpoint, after the second, and after each further one.
var goldenPauses = []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute}

// warmMemory is the least memory in MiB of sandboxes whose interpreters wait
// ready: they take a good part of it.
const warmMemory = 512

// goldenKind is what golden checkpoints differ in.
type goldenKind struct {
	Root      engine.Root
	Resources sandbox.Resources
	// WorkDir, Env and Warm are the template's, and only set if its interpreters
	// wait ready or something runs from the start: these are started with them.
	// User is the template's too, or root where only interpreters wait, for
	// sandboxes that run as root: an interpreter cannot change its user.
	User    string
	WorkDir string
	Env     map[string]string
	Warm    map[string]string
	// Startup is what runs in them already, or nil.
	Startup *startup.Startup `json:"Begins,omitempty"`
}

// kindOf returns the kind of golden checkpoint for sandboxes of a template that
// run as user. Sandboxes of users other than root and the template's share the
// kind of the template's user: the number of kinds stays bounded.
func kindOf(root engine.Root, r sandbox.Resources, t *sandbox.Template, user string) *goldenKind {
	k := &goldenKind{Root: root, Resources: r, WorkDir: "/"}
	if len(t.Warm) > 0 && r.MemoryMiB >= warmMemory {
		k.User, k.WorkDir, k.Env, k.Warm = t.User, cmp.Or(t.WorkDir, "/"), t.Env, t.Warm
		if user == "root" {
			k.User = user
		}
	}
	if t.Start != nil {
		k.User, k.WorkDir, k.Env, k.Startup = t.User, cmp.Or(t.WorkDir, "/"), t.Env, startup.Of(t)
	}
	return k
}

// goldenID names the golden checkpoint of a kind, made by this build of Cove.
func (s *Service) goldenID(k *goldenKind) (string, error) {
	data, err := json.Marshal(struct {
		Build string
		Kind  *goldenKind
	}{s.cfg.Build, k})
	if err != nil {
		return "", fmt.Errorf("name a golden checkpoint: %w", err)
	}
	sum := sha256.Sum256(data)
	return ids.Golden + hex.EncodeToString(sum[:16]), nil
}

// use returns the golden checkpoint for a team to begin with, if there is one.
// It stays in place until it is released. If there is none, one is made for the
// next.
func (g *goldens) use(k *goldenKind, team string) (id string, release func(), ok bool) {
	if g.s.checkpointer == nil || g.s.cfg.Warm <= 0 {
		return "", nil, false
	}
	id, err := g.s.goldenID(k)
	if err != nil {
		return "", nil, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if a := g.attempts[id]; a != nil {
		a.used, a.team = time.Now(), team
	}
	if _, ok := g.ready[id]; ok {
		return id, g.s.use(id), true
	}
	g.begin(id, k, team)
	return "", nil, false
}

// begin makes a golden checkpoint in the background, if nobody does and it has
// not failed just before.
//
// Preconditions: g.mu is held.
func (g *goldens) begin(id string, k *goldenKind, team string) {
	if g.s.gate.Context().Err() != nil || !g.claim(id, team) {
		return
	}
	g.s.gate.Go(func() {
		if err := g.make(g.s.gate.Context(), id, k); err != nil && g.s.gate.Context().Err() == nil {
			g.s.log.Warn("make a golden checkpoint; creations boot afresh", "error", err)
		}
	})
}

// claim reports whether the caller is the first to want this checkpoint, and
// has to make it with [goldens.make].
//
// Preconditions: g.mu is held.
func (g *goldens) claim(id, team string) bool {
	if g.removing[id] {
		return false // the next one makes it
	}
	if a := g.attempts[id]; a != nil {
		if a.again.IsZero() || a.spoiled || time.Now().Before(a.again) {
			return false
		}
		a.again = time.Time{}
		return true
	}
	if len(g.attempts) >= maxGoldens && !g.evict(team) {
		return false
	}
	g.attempts[id] = &attempt{used: time.Now(), team: team}
	delete(g.unused, id)
	return true
}

// evict makes room for a kind that a team wants: of those that may go, what a
// team has above its share goes first, and then what was used least recently.
// It reports whether there was one.
//
// Preconditions: g.mu is held.
func (g *goldens) evict(team string) bool {
	now, has := time.Now(), map[string]int{}
	for _, a := range g.attempts {
		has[a.team]++
	}
	var victim string
	var above bool // of the victim's team
	for id, a := range g.attempts {
		_, ready := g.ready[id]
		if !ready && a.again.IsZero() {
			continue // it is being made
		}
		over := a.team != "" && a.team != team && has[a.team] > goldenShare
		switch {
		case team != "" && has[team] >= goldenShare && a.team != team:
			continue
		case !over && (now.Sub(a.used) < goldenRest || now.Before(a.again)):
			continue
		}
		if victim == "" || over && !above || over == above && a.used.Before(g.attempts[victim].used) {
			victim, above = id, over
		}
	}
	if victim == "" {
		return false
	}
	g.drop(victim)
	return true
}

// drop forgets a golden checkpoint. Whoever begins with it now still does.
//
// Preconditions: g.mu is held, and it is not being made.
func (g *goldens) drop(id string) {
	delete(g.attempts, id)
	if _, ok := g.ready[id]; ok {
		delete(g.ready, id)
		g.dirty, g.evicted = true, append(g.evicted, id)
	}
}

// make makes a golden checkpoint that the caller has claimed, and notes when it
// may be tried again if that fails.
func (g *goldens) make(ctx context.Context, id string, k *goldenKind) error {
	ctx, cancel := context.WithTimeout(ctx, goldenTimeout+k.Startup.Patience())
	defer cancel()
	g.publish() // of the one that was given up for it, whose room it takes
	err := g.boot(ctx, id, k)
	if err == nil {
		g.mu.Lock()
		g.ready[id] = engine.WarmSpec{
			Checkpoint: id, Root: k.Root, Resources: k.Resources, Max: g.s.cfg.Warm,
			Failed: func(err error) { g.spoil(id, err) },
		}
		g.dirty = true
		g.mu.Unlock()
		g.publish()
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.attempts[id].failed()
	return err
}

// spoil gives up a golden checkpoint that no sandbox could be started from. It is
// removed, and made anew when somebody wants it after a pause.
func (g *goldens) spoil(id string, err error) {
	g.mu.Lock()
	_, ready := g.ready[id]
	if ready {
		delete(g.ready, id)
		a := g.attempts[id]
		a.failed()
		a.spoiled = true
		g.dirty, g.evicted = true, append(g.evicted, id)
	}
	g.mu.Unlock()
	if !ready {
		return
	}
	g.s.log.Warn("a golden checkpoint does not start and is removed; creations boot afresh until it is made anew", "checkpoint", id, "error", err)
	g.publish()
}

// boot boots a sandbox that nobody uses, and keeps its state. The instance has
// no record: what a crash leaves of it is removed at the next start.
func (g *goldens) boot(ctx context.Context, id string, k *goldenKind) error {
	s := g.s
	defer s.use(id)()
	kept, err := s.checkpointer.Checkpoints(ctx)
	if err != nil {
		return err
	}
	for _, c := range kept {
		if c.ID == id && c.SizeBytes > 0 {
			return nil
		}
	}
	spec := engine.Spec{
		ID: ids.New(ids.Sandbox), Root: k.Root, Resources: k.Resources, Hostname: "sandbox", User: k.User, WorkDir: k.WorkDir, Env: k.Env,
	}
	instance, err := s.cfg.Engine.Create(ctx, spec)
	if err != nil {
		return err
	}
	g.warm(ctx, instance, k)
	first := bootSource{startup: k.Startup}
	if err = first.startIn(ctx, instance); err == nil {
		_, err = s.checkpointer.Checkpoint(ctx, spec.ID, id, engine.CheckpointOptions{Durable: true, Commit: func(engine.Checkpoint) error { return nil }})
	}
	if err != nil {
		clean, cancel := call.Teardown(ctx)
		defer cancel()
		if derr := s.cfg.Engine.Destroy(clean, spec.ID); derr != nil {
			s.log.Error("remove the instance of a golden checkpoint", "error", derr)
		}
		return err
	}
	return nil
}

// warm starts the interpreters of a template's languages, so that the first
// code in a sandbox finds one that runs. One that fails is left out.
func (g *goldens) warm(ctx context.Context, instance engine.Instance, k *goldenKind) {
	if len(k.Warm) == 0 {
		return
	}
	client := agentclient.New(instance.ID(), instance.Dial)
	defer client.Close()
	for _, lang := range slices.Sorted(maps.Keys(k.Warm)) {
		req := sandbox.RunCodeRequest{Language: sandbox.Language(lang), Code: k.Warm[lang]}
		err := validate.Code(&req)
		if err == nil {
			var result *sandbox.CodeResult
			if result, err = client.RunCode(ctx, &req, nil); err == nil && result.Error != nil {
				err = fmt.Errorf("%s: %s", result.Error.Name, result.Error.Message)
			}
		}
		if err != nil {
			g.s.log.Warn("start an interpreter ahead of need", "language", lang, "error", err)
		}
	}
}

// publish has the engine keep instances of what is ready, and of nothing else. The
// checkpoints that were given up can be removed from then on.
func (g *goldens) publish() {
	g.publishing.Lock()
	defer g.publishing.Unlock()
	g.mu.Lock()
	dirty, evicted := g.dirty, g.evicted
	g.dirty, g.evicted = false, nil
	specs := slices.Collect(maps.Values(g.ready))
	g.mu.Unlock()
	if !dirty {
		return
	}
	g.s.checkpointer.Warm(specs)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range evicted {
		if a := g.attempts[id]; a == nil || a.spoiled { // nobody has wanted it again
			g.unused[id] = true
		}
	}
	if len(evicted) > 0 {
		g.s.collectSoon()
	}
}

// forget has no more sandboxes begin with golden checkpoints of roots that are
// gone.
func (g *goldens) forget(digests []string) {
	g.mu.Lock()
	for id, w := range g.ready {
		if slices.Contains(digests, w.Root.Digest) {
			g.drop(id)
		}
	}
	g.mu.Unlock()
	g.publish()
}

// stale reports whether a golden checkpoint is not needed any more. From then
// on nobody begins with it, until [goldens.removed] is called.
func (g *goldens) stale(c *engine.Checkpoint) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.attempts[c.ID]
	if a != nil && !a.spoiled || !g.unused[c.ID] && (a != nil || time.Since(c.CreatedAt) <= goldenAge) {
		return false
	}
	g.removing[c.ID] = true
	return true
}

// removed ends the removal of a checkpoint that was stale; gone says whether it
// is removed.
func (g *goldens) removed(id string, gone bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.removing, id)
	if gone {
		delete(g.unused, id)
		if a := g.attempts[id]; a != nil {
			a.spoiled = false
		}
	}
}
