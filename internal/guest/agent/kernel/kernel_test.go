package kernel

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/sandbox"
)

// lateProcess is an interpreter that is ready, closes its connection, and ends
// when it is killed: with an exit code of its own if it was about to end.
type lateProcess struct {
	code int
	done chan struct{}
}

func (p *lateProcess) PID() int              { return 1 }
func (p *lateProcess) Interrupt()            {}
func (p *lateProcess) Kill()                 { close(p.done) }
func (p *lateProcess) Done() <-chan struct{} { return p.done }
func (p *lateProcess) End() End              { return End{Code: p.code, Reason: "its own"} }

// TestKilledWhileItEnds kills a kernel that is slow to end: the reported reason is its own
// exit, not its closed connection.
func TestKilledWhileItEnds(t *testing.T) {
	for code, want := range map[int]string{3: "its own", exitKilled: disconnected} {
		var connection []*os.File
		spawn := func(_, _ []string, files []*os.File) (Process, error) {
			for _, f := range []*os.File{files[0], files[3]} {
				fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
				if err != nil {
					return nil, err
				}
				connection = append(connection, os.NewFile(uintptr(fd), "connection"))
			}
			_, err := connection[1].WriteString("ready\x00")
			return &lateProcess{code: code, done: make(chan struct{})}, err
		}
		k, err := Start(t.Context(), Config{Language: sandbox.Bash, Spawn: spawn, EndGrace: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		closeAll(connection)
		if end := k.End(); end.Code != code || end.Reason != want {
			t.Errorf("killed while it ends with %d: %+v, want %q", code, end, want)
		}
		k.Quiet()
	}
}

// TestLateReader reads, after the deadline, what was written before it.
func TestLateReader(t *testing.T) {
	own, other, err := Pipe(0)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll([]*os.File{own, other})
	if _, err := other.WriteString("its last word"); err != nil {
		t.Fatal(err)
	}
	if err := own.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(&lateReader{file: own}); string(got) != "its last word" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %q, %v", got, err)
	}
}
