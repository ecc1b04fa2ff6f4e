package cell

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/machine"
)

const mib = 1 << 20

// free is a machine with n bytes of memory available, of 16 GiB.
func free(n int64) []machine.Memory {
	return []machine.Memory{{Total: 16 << 30, Available: n}}
}

// TestCopyRoom checks that a sandbox continues early only if its copies fit below its own
// limit and leave half of the free memory to others.
func TestCopyRoom(t *testing.T) {
	for name, tt := range map[string]struct {
		bounds       []machine.Memory
		limit, inUse int64
		want         int64
	}{
		"all":                    {free(32 << 30), 2048 * mib, 500 * mib, 1420 * mib},
		"no limit":               {free(3 << 30), 0, 500 * mib, 1024 * mib},
		"below its limit":        {free(8 << 30), 1024 * mib, 600 * mib, 296 * mib},
		"of a large limit":       {free(32 << 30), 8192 * mib, 6000 * mib, 2064 * mib},
		"at its limit":           {free(8 << 30), 1024 * mib, 900 * mib, 0},
		"above its limit":        {free(8 << 30), 1024 * mib, 1500 * mib, 0},
		"half of what is free":   {free(2 << 30), 4096 * mib, 1500 * mib, 512 * mib},
		"nothing is free":        {free(100 * mib), 4096 * mib, 1500 * mib, 0},
		"the smallest of bounds": {append(free(8<<30), machine.Memory{Group: "g", Total: 1024 * mib, Available: 328 * mib}), 0, 500 * mib, 100 * mib},
	} {
		if got := copyRoom(tt.bounds, tt.limit, tt.inUse); got != tt.want {
			t.Errorf("%s: %d MiB, want %d", name, got/mib, tt.want/mib)
		}
	}
}

// TestCopyDisk checks that files are written later only if the disk has room for their copies
// beside the checkpoint, and half of the rest stays free.
func TestCopyDisk(t *testing.T) {
	for name, tt := range map[string]struct{ free, size, want int64 }{
		"half of what is left": {10_000 * mib, 2000 * mib, 3872 * mib},
		"only the checkpoint":  {2256 * mib, 2000 * mib, 0},
		"not even that":        {1000 * mib, 2000 * mib, 0},
	} {
		if got := copyDisk(tt.free, tt.size); got != tt.want {
			t.Errorf("%s: %d MiB, want %d", name, got/mib, tt.want/mib)
		}
	}
}

// TestIsShort checks that a sandbox is halted before its agent would end a program, and
// before the machine's memory is used up.
func TestIsShort(t *testing.T) {
	for name, tt := range map[string]struct {
		bounds       []machine.Memory
		limit, inUse int64
		want         bool
	}{
		"room":             {free(8 << 30), 1024 * mib, 900 * mib, false},
		"near its limit":   {free(8 << 30), 1024 * mib, 1000 * mib, true},
		"of a large limit": {free(8 << 30), 8192 * mib, 8100 * mib, false},
		"no limit":         {free(8 << 30), 0, 1000 * mib, false},
		"machine is short": {free(400 * mib), 1024 * mib, 100 * mib, true},
		"not looked at":    {nil, 1024 * mib, 100 * mib, false},
	} {
		if got := isShort(tt.bounds, tt.limit, tt.inUse); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestDialWriter checks that a checkpoint without a socket is complete, and that one
// whose socket has no listener never will be, so that nothing continues from it. A caller
// that has gone learns neither.
func TestDialWriter(t *testing.T) {
	dir := t.TempDir()
	if conn, err := dialWriter(t.Context(), dir); conn != nil || err != nil {
		t.Errorf("a complete checkpoint: %v, %v", conn, err)
	}
	l, err := Listen(dir, PagesSocket)
	if err != nil {
		t.Fatal(err)
	}
	moved := filepath.Join(t.TempDir(), "committed")
	if err := os.Rename(dir, moved); err != nil {
		t.Fatal(err)
	}
	conn, err := dialWriter(t.Context(), moved)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if conn, err := dialWriter(gone, moved); conn != nil || errors.Is(err, runsc.ErrUnwritten) || !errors.Is(err, context.Canceled) {
		t.Errorf("the caller has gone: %v, %v", conn, err)
	}
	l.Close()
	if conn, err := dialWriter(t.Context(), moved); conn != nil || !errors.Is(err, runsc.ErrUnwritten) {
		t.Errorf("nobody writes: %v, %v", conn, err)
	}
	// A checkpoint of which nothing can be learned is not lost.
	if conn, err := dialWriter(t.Context(), filepath.Join(moved, PagesSocket)); conn != nil || err == nil || errors.Is(err, runsc.ErrUnwritten) {
		t.Errorf("where no checkpoint can be: %v, %v", conn, err)
	}
}

// TestAskersAreBounded checks that cells beyond the limit are turned away, and that
// others are served when one has gone.
func TestAskersAreBounded(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir, PagesSocket)
	if err != nil {
		t.Fatal(err)
	}
	var answers sync.WaitGroup
	begun := make(chan struct{})
	answers.Go(func() {
		AnswerEach(l, maxAskers, &answers, func(conn net.Conn) {
			begun <- struct{}{}
			_, _ = conn.Read(make([]byte, 1)) // until it ends
		})
	})
	dial := func() net.Conn {
		conn, err := dialWriter(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	var all []net.Conn
	for range maxAskers {
		all = append(all, dial())
		<-begun
	}
	if _, err := dial().Read(make([]byte, 1)); err == nil {
		t.Error("one too many is answered")
	}
	all[0].Close()
	for answered := false; !answered; { // its slot is released a moment after it ends
		conn := dial()
		refused := make(chan struct{})
		go func() {
			_, _ = conn.Read(make([]byte, 1))
			close(refused)
		}()
		select {
		case <-begun:
			answered = true
		case <-refused:
		}
		all = append(all, conn)
	}
	l.Close()
	for _, conn := range all {
		conn.Close()
	}
	answers.Wait()
}

// TestAcceptedBeforeCompletion checks that a cell that connects just before the checkpoint is
// complete is served too.
func TestAcceptedBeforeCompletion(t *testing.T) {
	dir := t.TempDir()
	l, err := Listen(dir, PagesSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const many = 20
	for range many {
		conn, err := Dial(t.Context(), dir, PagesSocket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	accepted := make(chan error, many)
	go func() {
		for range many {
			conn, err := l.Accept()
			accepted <- err
			if err == nil {
				defer conn.Close()
			}
		}
	}()
	awaitAccepted(l)
	l.Close()
	for range many {
		if err := <-accepted; err != nil {
			t.Fatal(err)
		}
	}
}
