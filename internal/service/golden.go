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

	"github.com/cove-sh/cove/internal/agentclient"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// maxGoldens bounds the golden checkpoints that one process makes.
const maxGoldens = 64

// goldenTimeout bounds the making of one golden checkpoint.
const goldenTimeout = 2 * time.Minute

// goldens are checkpoints of sandboxes that were booted from a template and
// never used. A creation with the template's resources continues from one, in
// an instance that waits ready if there is one.
type goldens struct {
	s *Service

	mu    sync.Mutex
	ready map[string]engine.WarmSpec // by checkpoint; guarded by mu
	// begun are those that are being made, are ready, or could not be made.
	// Guarded by mu.
	begun map[string]*attempt
}

// attempt is what is known of the making of a golden checkpoint.
type attempt struct {
	failures int
	// again is when it may be tried again; zero while it is being made and when
	// it is ready.
	again time.Time
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
	// User, WorkDir, Env and Warm are the template's, and only set if its
	// interpreters wait ready or something runs from the start: these are
	// started with them.
	User    string
	WorkDir string
	Env     map[string]string
	Warm    map[string]string
	// Begins is what runs in them already, or nil.
	Begins *begins `json:",omitempty"`
}

func kindOf(root engine.Root, r sandbox.Resources, t *sandbox.Template) *goldenKind {
	k := &goldenKind{Root: root, Resources: r, WorkDir: "/"}
	if len(t.Warm) > 0 && r.MemoryMiB >= warmMemory {
		k.User, k.WorkDir, k.Env, k.Warm = t.User, cmp.Or(t.WorkDir, "/"), t.Env, t.Warm
	}
	if t.Start != nil {
		k.User, k.WorkDir, k.Env, k.Begins = t.User, cmp.Or(t.WorkDir, "/"), t.Env, beginsOfTemplate(t)
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
	return goldenPrefix + hex.EncodeToString(sum[:16]), nil
}

// use returns the golden checkpoint to begin with, if there is one. It stays
// in place until it is released. If there is none, one is made for the next.
func (g *goldens) use(k *goldenKind) (id string, release func(), ok bool) {
	if g.s.keeper == nil || g.s.cfg.Warm <= 0 {
		return "", nil, false
	}
	id, err := g.s.goldenID(k)
	if err != nil {
		return "", nil, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.ready[id]; ok {
		return id, g.s.use(id), true
	}
	g.begin(id, k)
	return "", nil, false
}

// begin makes a golden checkpoint in the background, if nobody does and it has
// not failed just before.
//
// Preconditions: g.mu is held.
func (g *goldens) begin(id string, k *goldenKind) {
	if !g.claim(id) {
		return
	}
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if g.s.closed {
		return
	}
	g.s.wg.Go(func() {
		if err := g.make(g.s.ctx, id, k); err != nil && g.s.ctx.Err() == nil {
			g.s.log.Warn("make a golden checkpoint; creations boot afresh", "error", err)
		}
	})
}

// claim reports whether the caller is the first to want this checkpoint, and
// has to make it with [goldens.make].
//
// Preconditions: g.mu is held.
func (g *goldens) claim(id string) bool {
	if a := g.begun[id]; a != nil {
		if a.again.IsZero() || time.Now().Before(a.again) {
			return false
		}
		a.again = time.Time{}
		return true
	}
	if len(g.begun) >= maxGoldens {
		return false
	}
	if g.begun == nil {
		g.begun, g.ready = map[string]*attempt{}, map[string]engine.WarmSpec{}
	}
	g.begun[id] = &attempt{}
	return true
}

// make makes a golden checkpoint that the caller has claimed, and notes when it
// may be tried again if that fails.
func (g *goldens) make(ctx context.Context, id string, k *goldenKind) error {
	ctx, cancel := context.WithTimeout(ctx, goldenTimeout+k.Begins.patience())
	defer cancel()
	err := g.boot(ctx, id, k)
	g.mu.Lock()
	defer g.mu.Unlock()
	if a := g.begun[id]; err != nil {
		a.again = time.Now().Add(goldenPauses[min(a.failures, len(goldenPauses)-1)])
		a.failures++
	}
	return err
}

// boot boots a sandbox that nobody uses, and keeps its state. The instance has
// no record: what a crash leaves of it is removed at the next start.
func (g *goldens) boot(ctx context.Context, id string, k *goldenKind) error {
	s := g.s
	defer s.use(id)()
	kept, err := s.keeper.Checkpoints(ctx)
	if err != nil {
		return err
	}
	for _, c := range kept {
		if c.ID == id && c.SizeBytes > 0 {
			return g.offer(id, k)
		}
	}
	spec := engine.Spec{
		ID: newID(idPrefix), Root: k.Root, Resources: k.Resources, Hostname: "sandbox", User: k.User, WorkDir: k.WorkDir, Env: k.Env,
	}
	instance, err := s.cfg.Engine.Create(ctx, spec)
	if err != nil {
		return err
	}
	g.warm(ctx, instance, k)
	first := beginning{begins: k.Begins}
	if err = first.startIn(ctx, instance); err == nil {
		_, err = s.keeper.Checkpoint(ctx, spec.ID, id, engine.CheckpointOptions{Commit: func(engine.Checkpoint) error { return nil }})
	}
	if err != nil {
		clean, cancel := teardown(ctx)
		defer cancel()
		if derr := s.cfg.Engine.Destroy(clean, spec.ID); derr != nil {
			s.log.Error("remove the instance of a golden checkpoint", "error", derr)
		}
		return err
	}
	return g.offer(id, k)
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
		err := checkCode(&req)
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

// offer has creations begin with a golden checkpoint.
func (g *goldens) offer(id string, k *goldenKind) error {
	g.mu.Lock()
	g.ready[id] = engine.WarmSpec{Checkpoint: id, Root: k.Root, Resources: k.Resources, Max: g.s.cfg.Warm}
	specs := make([]engine.WarmSpec, 0, len(g.ready))
	for _, w := range g.ready {
		specs = append(specs, w)
	}
	g.mu.Unlock()
	g.s.keeper.Warm(specs)
	return nil
}

// stale reports whether a golden checkpoint is not needed any more.
func (g *goldens) stale(c *engine.Checkpoint) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begun[c.ID] == nil && time.Since(c.CreatedAt) > goldenAge
}

// Prepare makes a template ready to be used, and begins to make its golden
// checkpoint, so that its sandboxes are created in milliseconds from then on.
func (s *Service) Prepare(ctx context.Context, template string) error {
	k, err := s.defaults(ctx, template)
	if err != nil {
		return err
	}
	if _, release, ok := s.golden.use(k); ok {
		release()
	}
	return nil
}

// prepare makes the golden checkpoint of a template, if nobody else does.
func (s *Service) prepare(ctx context.Context, template string) error {
	k, err := s.defaults(ctx, template)
	if err != nil {
		return err
	}
	id, err := s.goldenID(k)
	if err != nil {
		return err
	}
	s.golden.mu.Lock()
	first := s.golden.claim(id)
	s.golden.mu.Unlock()
	if !first {
		return nil
	}
	return s.golden.make(ctx, id, k)
}

// defaults returns what the sandboxes of a template begin with.
func (s *Service) defaults(ctx context.Context, template string) (*goldenKind, error) {
	root, t, err := s.cfg.Templates.Root(ctx, template)
	if err != nil {
		return nil, err
	}
	return kindOf(root, s.newRecord(&sandbox.CreateRequest{}, &t, "").Resources, &t), nil
}
