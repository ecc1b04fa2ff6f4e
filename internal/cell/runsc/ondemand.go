package runsc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/urpc"
)

// Patched reports whether gVisor in this program has the patches of patches/gvisor that
// load memory on demand.
func Patched() bool { return patchVersion() >= 1 }

// Freezes reports whether gVisor in this program has the patches of patches/gvisor that
// let a sandbox continue before its memory and files are written to a checkpoint.
func Freezes() bool { return patchVersion() >= 5 }

func patchVersion() int {
	if p, ok := any(&stateipc.OpenResponse{}).(interface{ ForkPatch() int }); ok {
		return p.ForkPatch()
	}
	return 0
}

// BackgroundReads tells a patched gVisor to load pages only as they are touched, until
// [Sandbox.LoadInBackground] changes that.
func (r *pageReader) BackgroundReads() (int, bool) { return 0, true }

const (
	// waitedReads is the number of concurrent reads that load memory for a waiting caller.
	waitedReads = 4
	// loadPoll is the interval at which the amount left is checked.
	loadPoll = 5 * time.Millisecond
)

// ErrUnread means that a part of the checkpoint from which a sandbox continues could not
// be read or stored. The sandbox goes on, and may try again.
var ErrUnread = errors.New("a part of the checkpoint that the sandbox continues from cannot be loaded")

// Unloaded is what a restored sandbox has not loaded yet, in bytes.
type Unloaded struct {
	Memory, Files int64
}

// Total is the sum of all that is not loaded.
func (u Unloaded) Total() int64 { return u.Memory + u.Files }

// loading is the state of loading a sandbox's memory.
type loading struct {
	mu         sync.Mutex
	background int // concurrent reads that no caller waits for; guarded by mu
	waited     int // calls of Load; guarded by mu
}

// LoadInBackground makes a restored sandbox load what has not been requested yet, with
// the given number of concurrent reads. They end when one fails. It does nothing where
// gVisor is not patched: there gVisor loads everything as fast as it can. It may be
// called at any time.
func (s *Sandbox) LoadInBackground(reads int) error {
	s.loading.mu.Lock()
	defer s.loading.mu.Unlock()
	s.loading.background = reads
	if s.loading.waited > 0 {
		return nil // Load sets it when it returns
	}
	_, err := s.load(loadArgs{Reads: reads})
	return err
}

// Unloaded returns what is not loaded yet, or zeros where gVisor is not patched. It may
// be called at any time.
func (s *Sandbox) Unloaded() (Unloaded, error) {
	left, err := s.load(loadArgs{Reads: -1})
	return left.unloaded(), err
}

// Load loads everything that is left, or only the files that the sandbox has written, and
// returns when it is loaded. The sandbox runs meanwhile. After an error it goes on, and
// the rest is loaded as it is touched, as before. Load calls room repeatedly to ask
// whether there is enough memory for what is left, and ends with its error. It ends with
// [ErrUnread] if a part cannot be read.
func (s *Sandbox) Load(ctx context.Context, filesOnly bool, room func(left Unloaded) error) error {
	if !Patched() {
		return nil
	}
	conn, err := s.loader()
	if err != nil {
		return err
	}
	defer conn.Close()
	args := loadArgs{Reads: -1, FilesOnly: filesOnly}
	first, err := callLoad(conn, args)
	if err != nil || args.left(first) == 0 {
		return err
	}
	s.loading.begin()
	defer s.loadAsBefore()
	tick := time.NewTicker(loadPoll)
	defer tick.Stop()
	for args.Reads = waitedReads; ; args.Reads = -1 {
		at, err := callLoad(conn, args)
		switch {
		case err != nil:
			return err
		case args.left(at) == 0:
			return nil
		case at.Failures > first.Failures:
			return ErrUnread
		}
		if err := room(at.unloaded()); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *loading) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waited++
}

// loadAsBefore ends a call of Load and restores the background reads.
func (s *Sandbox) loadAsBefore() {
	s.loading.mu.Lock()
	defer s.loading.mu.Unlock()
	if s.loading.waited--; s.loading.waited == 0 {
		_, _ = s.load(loadArgs{Reads: s.loading.background}) // the next caller gets the error
	}
}

// loadArgs and loadResult belong to the patched gVisor's method.
type loadArgs struct {
	Reads     int  `json:"reads"`
	FilesOnly bool `json:"files_only"`
}

type loadResult struct {
	LeftBytes   uint64 `json:"left_bytes"`
	MemoryBytes uint64 `json:"memory_bytes"`
	Failures    uint64 `json:"failures"`
}

func (r loadResult) unloaded() Unloaded {
	return Unloaded{Memory: int64(r.MemoryBytes), Files: int64(r.LeftBytes - r.MemoryBytes)}
}

// left returns how much is left of what the call loads.
func (a loadArgs) left(r loadResult) int64 {
	if a.FilesOnly {
		return r.unloaded().Files
	}
	return r.unloaded().Total()
}

func (s *Sandbox) load(args loadArgs) (loadResult, error) {
	if !Patched() {
		return loadResult{}, nil
	}
	conn, err := s.loader()
	if err != nil {
		return loadResult{}, err
	}
	defer conn.Close()
	return callLoad(conn, args)
}

// loader connects to gVisor, for callLoad.
func (s *Sandbox) loader() (*urpc.Client, error) {
	conn, err := client.ConnectTo(s.c.Sandbox.GetControlSocketPath())
	if err != nil {
		return nil, fmt.Errorf("load the rest of the memory: %w", err)
	}
	return conn, nil
}

func callLoad(conn *urpc.Client, args loadArgs) (res loadResult, err error) {
	if err := conn.Call("State.LoadInBackground", &args, &res); err != nil {
		return res, fmt.Errorf("load the rest of the memory: %w", err)
	}
	return res, nil
}
