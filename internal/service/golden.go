package service

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// maxGoldens bounds the golden checkpoints that one process makes.
const maxGoldens = 8

// goldenTimeout bounds the making of one golden checkpoint.
const goldenTimeout = 2 * time.Minute

// goldens are checkpoints of sandboxes that were booted from a template and
// never used. A creation with the template's resources continues from one, in
// an instance that waits ready if there is one.
type goldens struct {
	s *Service

	mu    sync.Mutex
	ready map[string]engine.WarmSpec // by checkpoint; guarded by mu
	// begun are those that are being made, or could not be. Guarded by mu.
	begun map[string]bool
}

// goldenID names the golden checkpoint of a root and resources, made by this
// build of Cove.
func (s *Service) goldenID(root engine.Root, r sandbox.Resources) (string, error) {
	data, err := json.Marshal(struct {
		Build     string
		Root      engine.Root
		Resources sandbox.Resources
	}{s.cfg.Build, root, r})
	if err != nil {
		return "", fmt.Errorf("name a golden checkpoint: %w", err)
	}
	sum := sha256.Sum256(data)
	return goldenPrefix + hex.EncodeToString(sum[:16]), nil
}

// use returns the golden checkpoint to begin with, if there is one. It stays
// in place until it is released. If there is none, one is made for the next.
func (g *goldens) use(root engine.Root, r sandbox.Resources) (id string, release func(), ok bool) {
	if g.s.keeper == nil || g.s.cfg.Warm <= 0 {
		return "", nil, false
	}
	id, err := g.s.goldenID(root, r)
	if err != nil {
		return "", nil, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.ready[id]; ok {
		return id, g.s.use(id), true
	}
	g.begin(id, root, r)
	return "", nil, false
}

// begin makes a golden checkpoint in the background, once.
//
// Preconditions: g.mu is held.
func (g *goldens) begin(id string, root engine.Root, r sandbox.Resources) {
	if !g.claim(id) {
		return
	}
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if g.s.closed {
		return
	}
	g.s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(g.s.ctx, goldenTimeout)
		defer cancel()
		if err := g.make(ctx, id, root, r); err != nil && g.s.ctx.Err() == nil {
			g.s.log.Warn("make a golden checkpoint; creations boot afresh", "error", err)
		}
	})
}

// claim reports whether the caller is the first to want this checkpoint, and
// has to make it.
//
// Preconditions: g.mu is held.
func (g *goldens) claim(id string) bool {
	if g.begun[id] || len(g.begun) >= maxGoldens {
		return false
	}
	if g.begun == nil {
		g.begun, g.ready = map[string]bool{}, map[string]engine.WarmSpec{}
	}
	g.begun[id] = true
	return true
}

// make boots a sandbox that nobody uses, and keeps its state. The instance has
// no record: what a crash leaves of it is removed at the next start.
func (g *goldens) make(ctx context.Context, id string, root engine.Root, r sandbox.Resources) error {
	s := g.s
	defer s.use(id)()
	kept, err := s.keeper.Checkpoints(ctx)
	if err != nil {
		return err
	}
	for _, c := range kept {
		if c.ID == id && c.SizeBytes > 0 {
			return g.offer(id, root, r)
		}
	}
	spec := engine.Spec{ID: newID(idPrefix), Root: root, Resources: r, Hostname: "sandbox", WorkDir: "/"}
	if _, err := s.cfg.Engine.Create(ctx, spec); err != nil {
		return err
	}
	_, err = s.keeper.Checkpoint(ctx, spec.ID, id, engine.CheckpointOptions{Commit: func(engine.Checkpoint) error { return nil }})
	if err != nil {
		clean, cancel := teardown(ctx)
		defer cancel()
		if derr := s.cfg.Engine.Destroy(clean, spec.ID); derr != nil {
			s.log.Error("remove the instance of a golden checkpoint", "error", derr)
		}
		return err
	}
	return g.offer(id, root, r)
}

// offer has creations begin with a golden checkpoint.
func (g *goldens) offer(id string, root engine.Root, r sandbox.Resources) error {
	g.mu.Lock()
	g.ready[id] = engine.WarmSpec{Checkpoint: id, Root: root, Resources: r, Max: g.s.cfg.Warm}
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
	return !g.begun[c.ID] && time.Since(c.CreatedAt) > goldenAge
}

// Prepare makes a template ready to be used, and begins to make its golden
// checkpoint, so that its sandboxes are created in milliseconds from then on.
func (s *Service) Prepare(ctx context.Context, template string) error {
	root, r, err := s.defaults(ctx, template)
	if err != nil {
		return err
	}
	if _, release, ok := s.golden.use(root, r); ok {
		release()
	}
	return nil
}

// prepare makes the golden checkpoint of a template, if nobody else does.
func (s *Service) prepare(ctx context.Context, template string) error {
	root, r, err := s.defaults(ctx, template)
	if err != nil {
		return err
	}
	id, err := s.goldenID(root, r)
	if err != nil {
		return err
	}
	s.golden.mu.Lock()
	first := s.golden.claim(id)
	s.golden.mu.Unlock()
	if !first {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, goldenTimeout)
	defer cancel()
	return s.golden.make(ctx, id, root, r)
}

// defaults returns the root of a template and the resources of its sandboxes.
func (s *Service) defaults(ctx context.Context, template string) (engine.Root, sandbox.Resources, error) {
	root, t, err := s.cfg.Templates.Root(ctx, template)
	if err != nil {
		return root, sandbox.Resources{}, err
	}
	return root, s.newRecord(&sandbox.CreateRequest{}, &t, "").Resources, nil
}
