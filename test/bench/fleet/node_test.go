package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/fleet"
	"github.com/cove-sh/cove/internal/engine/remote"
	"github.com/cove-sh/cove/sandbox"
)

// simulated is the engine of a node whose instances are names only.
type simulated struct {
	mu        sync.Mutex
	instances map[string]bool // guarded by mu
}

func (e *simulated) Create(_ context.Context, spec engine.Spec) (engine.Instance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.instances[spec.ID] = true
	return instance(spec.ID), nil
}

func (e *simulated) Open(_ context.Context, id string) (engine.Instance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.instances[id] {
		return nil, engine.ErrNotFound
	}
	return instance(id), nil
}

func (e *simulated) List(context.Context) ([]engine.Status, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []engine.Status
	for id := range e.instances {
		all = append(all, engine.Status{ID: id, Running: true})
	}
	return all, nil
}

func (e *simulated) Destroy(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.instances, id)
	return nil
}

func (*simulated) Notify(func(engine.Status)) {}
func (*simulated) Close() error               { return nil }

type instance string

func (i instance) ID() string                                { return string(i) }
func (instance) Dial(context.Context) (net.Conn, error)      { return nil, errors.ErrUnsupported }
func (instance) Stats(context.Context) (engine.Stats, error) { return engine.Stats{}, nil }
func (instance) Unenforced() []string                        { return nil }
func (instance) SetLimits(context.Context, sandbox.Resources) ([]string, error) {
	return nil, nil
}

type roots struct{}

func (roots) Root(_ context.Context, digest string, _ []engine.Bind) (engine.Root, func(), error) {
	return engine.Root{Digest: digest, Dir: "/"}, func() {}, nil
}

// machine is a node.
type machine struct {
	name   string
	server *remote.Server
}

// newMachine makes a node with instances. Nodes have different room.
func newMachine(b *testing.B, n int, instances map[string]bool) *machine {
	return &machine{nodeName(n), remote.NewServer(remote.Config{
		Engine: &simulated{instances: instances}, Roots: roots{}, AsideDir: b.TempDir(), Log: slog.New(slog.DiscardHandler),
		Report: func() remote.Report {
			return remote.Report{
				Protocol: remote.Protocol, Capacity: sandbox.Resources{VCPUs: 16, MemoryMiB: 64 << 10, DiskMiB: 500 << 10},
				FreeMemory: int64(20+n%30) << 30, FreeDisk: 200 << 30, Disk: 500 << 30,
			}
		},
	})}
}

func nodeName(n int) string { return fmt.Sprintf("node-%03d", n) }

// attach connects a node over TCP.
func (m *machine) attach(ctx context.Context, f *fleet.Fleet, serving *sync.WaitGroup) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	near, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return err
	}
	far, err := l.Accept()
	if err != nil {
		return err
	}
	serving.Go(func() { _ = m.server.Serve(context.WithoutCancel(ctx), far) })
	return f.Attach(ctx, m.name, "id-of-"+m.name, "simulated", remote.New(near))
}
