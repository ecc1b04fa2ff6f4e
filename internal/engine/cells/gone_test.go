package cells

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// TestLimitsOfEndingCell checks that, if a cell ends while its limits are changed and
// resets the connection, the caller is told that the sandbox does not answer.
func TestLimitsOfEndingCell(t *testing.T) {
	dir := t.TempDir()
	l, err := cell.Listen(dir, cell.ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			// Unread data makes the end a reset.
			one := make([]byte, 1)
			_, _ = conn.Read(one)
			_ = conn.Close()
		}
	}()
	i := &instance{control: cell.NewClient(dir, cell.Protocol, nil)}
	defer i.control.Close()
	if _, err := i.SetLimits(t.Context(), sandbox.Resources{MemoryMiB: 320}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("%v, want that the sandbox does not answer", err)
	}
}

// writingCell makes the directory of a cell that says that it writes a checkpoint for others.
func writingCell(t *testing.T, e *Engine, id string) (dir string) {
	t.Helper()
	dir = e.cellDir(id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, originFile), []byte(fmt.Sprintf(`{"cell": %d}`, cell.Protocol)), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := cell.Listen(dir, cell.ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	asked := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"writing": %t}`, filepath.Base(r.URL.Path) == "Stop")
	})}
	t.Cleanup(func() { asked.Close() })
	go func() { _ = asked.Serve(l) }()
	return dir
}

// TestStopWithoutConnection checks that stop reports that a cell may still write a
// checkpoint for others, if its sandbox has ended or an earlier engine has stopped it.
func TestStopWithoutConnection(t *testing.T) {
	e := &Engine{cfg: Config{Dir: t.TempDir()}}
	if _, err := e.stop(t.Context(), "sbx-one"); err == nil {
		t.Error("a cell that does not exist was stopped")
	}
	writingCell(t, e, "sbx-one")
	if writing, err := e.stop(t.Context(), "sbx-one"); err != nil || !writing {
		t.Errorf("writing is %v, %v", writing, err)
	}
}

// TestDestroyByLostCaller checks that a cell that writes for others lives on if the caller of
// Destroy is gone: a node loses its server at any moment, and the children need the memory.
func TestDestroyByLostCaller(t *testing.T) {
	e := &Engine{cfg: Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}, admissions: newAdmissions()}
	dir := writingCell(t, e, "sbx-one")
	process := exec.Command("sleep", "300")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	lock, err := os.Create(filepath.Join(dir, cell.LockFile))
	if err == nil {
		err = errors.Join(unix.Flock(int(lock.Fd()), unix.LOCK_EX), recordProcess(dir, process.Process.Pid))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := e.Destroy(ctx, "sbx-one"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("destroyed by a caller that is gone: %v", err)
	}
	select {
	case err := <-ended:
		t.Fatalf("the cell's process has ended: %v", err)
	default:
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	if err := process.Process.Kill(); err != nil {
		t.Error(err)
	}
	<-ended
	lock.Close()
	if err := e.Destroy(t.Context(), "sbx-one"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is left: %v", err)
	}
}

// TestScarceDescriptors checks that a cell does not pass for one that has ended when the
// daemon has no file descriptor left to look at it: what has ended is destroyed.
func TestScarceDescriptors(t *testing.T) {
	e := &Engine{cfg: Config{Dir: t.TempDir()}}
	dir := e.cellDir("sbx-one")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if e.alive("sbx-one") {
		t.Error("a cell without a lock is alive")
	}
	lock, err := os.Create(filepath.Join(dir, cell.LockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if e.alive("sbx-one") {
		t.Error("a cell that holds no lock is alive")
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, originFile), []byte(fmt.Sprintf(`{"cell": %d}`, cell.Protocol)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := recordProcess(dir, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if pid, err := cellProcess(dir); pid != os.Getpid() || err != nil {
		t.Fatalf("the process is %d, %v", pid, err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 3
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	alive := e.alive("sbx-one")
	pid, processErr := cellProcess(dir)
	_, openErr := e.Open(t.Context(), "sbx-one")
	killErr := killCell(t.Context(), dir)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !alive {
		t.Error("the cell passes for one that has ended")
	}
	if !errors.Is(processErr, unix.EMFILE) || pid != 0 {
		t.Errorf("its process is %d, %v", pid, processErr)
	}
	if !errors.Is(openErr, unix.EMFILE) || errors.Is(openErr, engine.ErrNotFound) {
		t.Errorf("opening it says %v", openErr)
	}
	if !errors.Is(killErr, unix.EMFILE) {
		t.Errorf("killing it says %v", killErr)
	}
}
