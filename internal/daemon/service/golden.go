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
	// maxGoldens is how many golden checkpoints there may be: each takes disk space and
	// an instance in the pool. Beyond that, the least recently used one is evicted.
	maxGoldens = 64
	// goldenShare is how many golden checkpoints one team is sure to keep, and how many
	// of others' it can evict. Above its share a team evicts its own, so that a team
	// with ever-changing resources does no harm to others. What a team has above its
	// share is evicted as soon as another team needs the room.
	goldenShare = maxGoldens / 4
	// goldenRest is how long a golden checkpoint must be unused before it can be
	// evicted within its team's share. It protects those in use, and limits how many
	// boots a caller can waste.
	goldenRest = 10 * time.Minute
)

// goldenAge is how long a golden checkpoint that this process has not used is kept.
const goldenAge = 24 * time.Hour

// goldenTimeout is how long making one golden checkpoint may take.
const goldenTimeout = 2 * time.Minute

// goldens are the checkpoints of sandboxes that were booted from a template and never
// used. Creating a sandbox with the template's resources continues one of them, in an
// instance from the pool if there is one.
type goldens struct {
	s *Service

	mu    sync.Mutex
	ready map[string]engine.WarmSpec // by checkpoint; guarded by mu
	// attempts has an entry for each golden checkpoint that is being made, is ready, or
	// could not be made. Guarded by mu.
	attempts map[string]*attempt
	// dirty says that the engine has not been told of the last change of ready; evicted
	// are the checkpoints that were evicted since. Guarded by mu.
	dirty   bool
	evicted []string
	// unused are the evicted checkpoints for which the engine has no instances any
	// more; removing are those that the collector is removing. Guarded by mu.
	unused   map[string]bool
	removing map[string]bool

	publishing sync.Mutex // held while telling the engine, and taken before mu, so that the engine hears the newest last
}

func newGoldens(s *Service) *goldens {
	return &goldens{
		s: s, ready: map[string]engine.WarmSpec{}, attempts: map[string]*attempt{}, unused: map[string]bool{}, removing: map[string]bool{},
	}
}

// attempt is the state of making a golden checkpoint.
type attempt struct {
	failures int
	// again is when the next attempt may begin; zero while the checkpoint is being made
	// and once it is ready.
	again time.Time
	// used is when the checkpoint was last wanted, and team is the team that wanted it;
	// "" is the server itself.
	used time.Time
	team string
	// spoiled is set while a checkpoint exists from which no sandbox can start: it must
	// be removed before it can be made again.
	spoiled bool
}

// failed records a failure, and when to try again.
func (a *attempt) failed() {
	a.again = time.Now().Add(goldenPauses[min(a.failures, len(goldenPauses)-1)])
	a.failures++
}

// goldenPauses are the waiting times after the first failure to make a golden
// checkpoint, the second, and each further one.
var goldenPauses = []time.Duration{time.Minute, 5 * time.Minute, 30 * time.Minute}

// warmMemory is the least memory, in MiB, of sandboxes in which interpreters are
// started ahead of need: these take a good part of it.
const warmMemory = 512

// goldenKind is what distinguishes golden checkpoints.
type goldenKind struct {
	Root      engine.Root
	Resources sandbox.Resources
	// WorkDir, Env and Warm are the template's. They are set only if interpreters are
	// started ahead of need or a start command runs, since those are started with them.
	// User is the template's too; or root for sandboxes that run as root, where only
	// interpreters are started, since an interpreter cannot change its user.
	User    string
	WorkDir string
	Env     map[string]string
	Warm    map[string]string
	// Startup is what already runs in the checkpoint, or nil.
	Startup *startup.Startup `json:"Begins,omitempty"`
	// Place is where it is, if the engine has several places.
	Place string `json:",omitempty"`
}

// kindOf returns the kind of golden checkpoint for sandboxes of a template that run as
// user. Users other than root and the template's share the kind of the template's user,
// which limits the number of kinds.
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

// kindHere is [kindOf] at the place where a new sandbox of this kind would run now.
func (s *Service) kindHere(root engine.Root, r sandbox.Resources, t *sandbox.Template, user string) *goldenKind {
	k := kindOf(root, r, t, user)
	if p, ok := s.cfg.Engine.(engine.Placer); ok {
		k.Place = p.Place(r)
	}
	return k
}

// goldenID returns the id of the golden checkpoint of a kind, as made by this build of
// Cove. The root counts by its content, not by its place: a state directory that was
// moved keeps its golden checkpoints.
func (s *Service) goldenID(k *goldenKind) (string, error) {
	kind := *k
	kind.Root = engine.Root{Digest: k.Root.Digest}
	data, err := json.Marshal(struct {
		Build string
		Kind  goldenKind
	}{s.cfg.Build, kind})
	if err != nil {
		return "", fmt.Errorf("name a golden checkpoint: %w", err)
	}
	sum := sha256.Sum256(data)
	return ids.Golden + hex.EncodeToString(sum[:16]), nil
}

// use returns the golden checkpoint from which a team's sandbox can start, if there is
// one, and holds it until release is called. If there is none, use has one made for
// later.
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

// begin makes a golden checkpoint in the background, unless it is being made or has
// just failed.
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

// claim reports whether the caller must make this checkpoint, by [goldens.make]: nobody
// else does.
//
// Preconditions: g.mu is held.
func (g *goldens) claim(id, team string) bool {
	if g.removing[id] {
		return false // the next caller makes it
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

// evict makes room for a kind that a team wants. It prefers a checkpoint of a team
// above its share, and then the least recently used one. It reports whether one could
// be evicted.
//
// Preconditions: g.mu is held.
func (g *goldens) evict(team string) bool {
	now, has := time.Now(), map[string]int{}
	for _, a := range g.attempts {
		has[a.team]++
	}
	var victim string
	var above bool // whether the victim's team is above its share
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

// drop forgets a golden checkpoint. A creation that already uses the checkpoint is not
// affected.
//
// Preconditions: g.mu is held, and it is not being made.
func (g *goldens) drop(id string) {
	delete(g.attempts, id)
	if _, ok := g.ready[id]; ok {
		delete(g.ready, id)
		g.dirty, g.evicted = true, append(g.evicted, id)
	}
}

// make makes a golden checkpoint that the caller has claimed, and records a failure.
func (g *goldens) make(ctx context.Context, id string, k *goldenKind) error {
	ctx, cancel := context.WithTimeout(ctx, goldenTimeout+k.Startup.Patience())
	defer cancel()
	g.publish() // the evicted checkpoint frees its place in the pool first
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

// spoil gives up a golden checkpoint from which no sandbox could be started. The
// checkpoint is removed, and made again on demand after a pause.
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

// boot boots a sandbox for nobody and keeps its state. The instance has no record: if
// the daemon crashes, the next start removes it.
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
		ID: ids.New(ids.Sandbox), Root: k.Root, Resources: k.Resources, Hostname: "sandbox", User: k.User, WorkDir: k.WorkDir, Env: k.Env, Place: k.Place,
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

// warm starts the interpreters of a template's languages, so that the first code in a
// sandbox finds its interpreter running. An interpreter that fails is left out.
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

// publish tells the engine to keep instances of the ready checkpoints, and of no
// others. After that the evicted checkpoints can be removed.
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
		if a := g.attempts[id]; a == nil || a.spoiled { // nobody has wanted it since
			g.unused[id] = true
		}
	}
	if len(evicted) > 0 {
		g.s.collectSoon()
	}
}

// forget drops the golden checkpoints of roots that were deleted.
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

// stale reports whether a golden checkpoint is no longer needed. Nobody can use the
// checkpoint from then on, until [goldens.removed] is called.
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

// removed ends the removal of a stale checkpoint; gone says whether it succeeded.
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
