package escape

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// neighbour is another user of the machine.
const neighbour = 12345

// sharedDir makes a directory in which every user can write, like /tmp but without the
// sticky bit: with it, the kernel may refuse to follow other users' links, and these
// attacks would test the kernel.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cove-shared-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// own gives a file, not what it leads to, to a user.
func own(t *testing.T, uid int, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if err := os.Lchown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
}

// asNeighbour runs a function on a thread that is the other user's to the
// kernel, which ends with it.
func asNeighbour(t *testing.T, do func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, neighbour, neighbour, neighbour); errno != 0 {
			done <- errno
			return
		}
		done <- do()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// refused runs a command line of the ordinary user's, with the text on its
// standard input and in an environment, and returns its output, which must be of
// a failure.
func refused(t *testing.T, d *covetest.Daemon, stdin, env string, args ...string) string {
	t.Helper()
	// A command that is not refused may continue for ever.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := d.Command(ctx, args...)
	cmd.Stdin, cmd.Env = strings.NewReader(stdin), append(cmd.Env, env)
	out, err := cmd.CombinedOutput()
	if _, failed := errors.AsType[*exec.ExitError](err); !failed || ctx.Err() != nil {
		t.Errorf("%v with %s was not refused: %v\n%s", args, env, err, out)
	}
	return string(out)
}

// Attack: another user makes the state directory before its user does, or puts
// something into it while everybody may: links at the names of files that are
// written, which lead to the user's own.
func TestStateDirectoryOfANeighbour(t *testing.T) {
	needs.Root(t) // to be two users
	d := covetest.Borrow(t, covetest.Options{UID: covetest.OrdinaryUID})
	shared := sharedDir(t)
	home := filepath.Join(shared, "home")
	precious := filepath.Join(home, "precious")
	if err := errors.Join(os.Mkdir(home, 0o755), os.WriteFile(precious, []byte("mine\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	own(t, covetest.OrdinaryUID, home, precious)
	plant := func(dir string, names ...string) {
		for _, name := range names {
			path := filepath.Join(dir, name)
			if err := os.Symlink(precious, path); err != nil {
				t.Fatal(err)
			}
			own(t, neighbour, path)
		}
	}
	for name, make := range map[string]func(dir string){
		"made": func(dir string) {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			own(t, neighbour, dir)
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			plant(dir, "start.lock", "serve.log", "serve.lock", "cove.db")
		},
		"linked": func(dir string) {
			if err := os.Symlink(home, dir); err != nil {
				t.Fatal(err)
			}
			own(t, neighbour, dir)
		},
		"opened": func(dir string) {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			own(t, covetest.OrdinaryUID, dir)
			plant(dir, "serve.log")
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		},
	} {
		dir := filepath.Join(shared, name)
		make(dir)
		for _, args := range [][]string{{"ls"}, {"serve", "--listen", "127.0.0.1:0"}, {"key", "microsandbox"}} {
			if out := refused(t, d, "", "COVE_STATE_DIR="+dir, args...); !strings.Contains(out, "belongs to another user") {
				t.Errorf("%s, %v: %s", name, args, out)
			}
		}
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "mine\n" {
		t.Errorf("the user's file holds %q, %v", text, err)
	}
	info, err := os.Stat(home)
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the user's directory is %v, %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) != 1 {
		t.Errorf("the user's directory holds %v, %v", entries, err)
	}
}

// Attack: another user listens where a command line expects its daemon, to get what it
// sends.
func TestSocketOfANeighbour(t *testing.T) {
	needs.Root(t)
	d := covetest.Borrow(t, covetest.Options{UID: covetest.OrdinaryUID})
	path := filepath.Join(sharedDir(t), "cove.sock")
	var l *net.UnixListener
	asNeighbour(t, func() (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		return err
	})
	defer l.Close()
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	heard := make(chan string, 10)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				close(heard)
				return
			}
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			b := make([]byte, 1000)
			n, _ := c.Read(b)
			heard <- string(b[:n])
			c.Close()
		}
	}()
	create := []string{"secret", "create", "token", "--host", "api.example.com"}
	if out := refused(t, d, "c0ve-value-of-a-user", "COVE_SOCKET="+path, create...); !strings.Contains(out, "served by another user (12345)") {
		t.Errorf("the command says %s", out)
	}
	if out := refused(t, d, "", "COVE_SOCKET="+path, "ls"); !strings.Contains(out, "served by another user") {
		t.Errorf("the command says %s", out)
	}
	l.Close()
	for text := range heard {
		if text != "" {
			t.Errorf("the other user heard %q", text)
		}
	}
}

// Attack: another user connects to the daemon, by its socket where its
// directory and mode do not keep them out, and by TCP, without a key.
func TestDaemonOfANeighbour(t *testing.T) {
	needs.Root(t)
	d := covetest.Borrow(t, covetest.Options{UID: covetest.OrdinaryUID})
	path := filepath.Join(d.StateDir, "cove.sock")
	for name, mode := range map[string][2]os.FileMode{d.StateDir: {0o711, 0o700}, path: {0o666, 0o600}} {
		if err := os.Chmod(name, mode[0]); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(name, mode[1]) //nolint:errcheck // it goes with the daemon
	}
	ask := func(network, addr string) (answer string) {
		asNeighbour(t, func() error {
			c, err := net.Dial(network, addr)
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(30 * time.Second))
			_, _ = io.WriteString(c, "GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
			b, err := io.ReadAll(c)
			if answer = string(b); errors.Is(err, syscall.ECONNRESET) {
				return nil
			}
			return err
		})
		return answer
	}
	if got := ask("unix", path); got != "" {
		t.Errorf("by the socket, another user was answered %q", got)
	}
	want := "HTTP/1.1 " + strconv.Itoa(http.StatusUnauthorized)
	if got := ask("tcp", strings.TrimPrefix(d.URL, "http://")); !strings.HasPrefix(got, want) {
		t.Errorf("by TCP, another user was answered %q", got)
	}
}

// Attack: another user's lock names a process of the user's as the daemon, so
// that a command which stops the daemon ends that process.
func TestLockOfANeighbour(t *testing.T) {
	needs.Root(t)
	d := covetest.Borrow(t, covetest.Options{UID: covetest.OrdinaryUID})
	victim := exec.CommandContext(t.Context(), "sleep", "600")
	victim.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: covetest.OrdinaryUID, Gid: covetest.OrdinaryUID}}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- victim.Wait() }()
	defer func() { _ = victim.Process.Kill(); <-ended }()
	dir := sharedDir(t)
	f, err := os.Create(filepath.Join(dir, "serve.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(strconv.Itoa(victim.Process.Pid) + " on-demand\n"); err != nil {
		t.Fatal(err)
	}
	own(t, neighbour, dir, f.Name())
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"stop", "restart"} {
		if out := refused(t, d, "", "COVE_STATE_DIR="+dir, "daemon", verb); !strings.Contains(out, "belongs to another user") {
			t.Errorf("daemon %s says %s", verb, out)
		}
	}
	select {
	case err := <-ended:
		ended <- err
		t.Errorf("a process of the user's was ended: %v", err)
	default:
	}
}
