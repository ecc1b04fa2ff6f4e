package runsc

import (
	"context"
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/urpc"
)

// Patched reports whether gVisor in this program has the patches of
// patches/gvisor, by which memory is loaded on demand.
func Patched() bool {
	p, ok := any(&stateipc.OpenResponse{}).(interface{ ForkPatch() int })
	return ok && p.ForkPatch() >= 1
}

// BackgroundReads tells a patched gVisor that pages are loaded as they are
// touched, until [Sandbox.LoadInBackground] says otherwise.
func (r *pageReader) BackgroundReads() (int, bool) { return 0, true }

// loadRest is how many reads at a time load what is left of a sandbox's memory
// while somebody waits for all of it.
const loadRest = 4

// loadRestPoll is how often it is asked how much is left.
const loadRestPoll = 2 * time.Millisecond

// LoadInBackground lets a sandbox that was restored load what nobody has asked
// for yet, with so many reads at a time. It does nothing where gVisor is not
// patched, which loads all of it as fast as it can.
func (s *Sandbox) LoadInBackground(reads int) error {
	_, err := s.load(reads)
	return err
}

// LeftToLoad returns how many bytes of a restored sandbox's memory and files are
// not loaded yet; 0 where gVisor is not patched.
func (s *Sandbox) LeftToLoad() (int64, error) { return s.load(-1) }

func (s *Sandbox) load(reads int) (left int64, err error) {
	if !Patched() {
		return 0, nil
	}
	conn, err := client.ConnectTo(s.c.Sandbox.GetControlSocketPath())
	if err != nil {
		return 0, fmt.Errorf("load the rest of the memory: %w", err)
	}
	defer conn.Close()
	return loadInBackground(conn, reads)
}

// LoadRest loads all of a restored sandbox's memory and returns when it is there.
// A checkpoint would do so while the sandbox stands still.
func (s *Sandbox) LoadRest(ctx context.Context) error {
	if !Patched() {
		return nil
	}
	conn, err := client.ConnectTo(s.c.Sandbox.GetControlSocketPath())
	if err != nil {
		return fmt.Errorf("load the rest of the memory: %w", err)
	}
	defer conn.Close()
	tick := time.NewTicker(loadRestPoll)
	defer tick.Stop()
	for {
		left, err := loadInBackground(conn, loadRest)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// loadInBackground returns how many bytes are left to load.
func loadInBackground(conn *urpc.Client, reads int) (int64, error) {
	args := struct {
		Reads int `json:"reads"`
	}{reads}
	var res struct {
		LeftBytes int64 `json:"left_bytes"`
	}
	if err := conn.Call("State.LoadInBackground", &args, &res); err != nil {
		return 0, fmt.Errorf("load the rest of the memory: %w", err)
	}
	return res.LeftBytes, nil
}
