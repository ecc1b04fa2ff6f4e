// Package covetest starts the real program for tests: the built binary, a
// daemon of its own over a directory of its own, as this user or another.
package covetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// Binary returns the path of the program: COVE_BIN if that is set, and
// otherwise bin/cove of this tree, built first.
var Binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("COVE_BIN"); path != "" {
		return path, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("make", "-C", root, "build").CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build: %w\n%s", err, out)
	}
	return filepath.Join(root, "bin", "cove"), nil
})

// Patched requires that the program has the patched gVisor, by which children of forks
// load what they touch; see patches/gvisor.
func Patched(t testing.TB) {
	t.Helper()
	binary, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out, []byte("patched for forks")) {
		needs.NoError(t, fmt.Errorf("gVisor in %s has no patches; use that of \"make build\"", binary))
	}
}

// Root returns the directory of the module.
func Root() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// Options says how a daemon is started.
type Options struct {
	// UID runs the daemon as another user, if not 0; only root can do that.
	UID uint32
	// Container runs the daemon as in a container, as UID; only root can do that.
	Container bool
	// Binary is the program; empty is that of [Binary].
	Binary string
	// StateDir is used and left in place; empty is a new one that is removed.
	StateDir string
	// Args are added to the command line.
	Args []string
	// Env is added to the daemon's environment, as "NAME=value".
	Env []string
	// Dev serves TCP without keys.
	Dev bool
	// Fresh begins with nothing in any case, not even with the template host.
	Fresh bool
}

// Daemon is a running "cove serve".
type Daemon struct {
	Binary   string
	StateDir string
	// URL is where it serves TCP, unless Args say that it does not.
	URL string
	// Client talks to its socket.
	Client *client.Client

	opts   Options
	node   *node // that runs the sandboxes; nil if the daemon itself does
	cmd    *exec.Cmd
	output *lockedBuffer
	exited chan struct{}
}

// Start starts a daemon and ends it with the test, sandboxes included. What it
// logged is shown if the test failed.
func Start(t testing.TB, opts Options) *Daemon {
	t.Helper()
	d, err := Launch(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Shutdown(context.Background()); err != nil {
			t.Errorf("end daemon: %v", err)
		}
		if t.Failed() {
			t.Logf("the daemon said:\n%s", d.output)
		}
	})
	return d
}

// Launch starts a daemon. The caller calls [Daemon.Shutdown].
func Launch(ctx context.Context, opts Options) (*Daemon, error) {
	if os.Getenv("COVE_NO_SANDBOX") == "1" {
		return nil, errors.New(`"make check" starts no sandbox: a test outside test/ that does must have a name that begins with TestReal`)
	}
	binary, err := opts.Binary, error(nil)
	if binary == "" {
		binary, err = Binary()
	}
	if err != nil {
		return nil, err
	}
	d := &Daemon{Binary: binary, opts: opts, output: new(lockedBuffer), StateDir: opts.StateDir}
	if d.StateDir == "" {
		if d.StateDir, err = os.MkdirTemp("", "cove-test-"); err != nil {
			return nil, err
		}
		if opts.UID != 0 {
			if err := os.Chown(d.StateDir, int(opts.UID), int(opts.UID)); err != nil {
				return nil, err
			}
		}
	}
	planted, err := d.plant(ctx)
	if err != nil {
		return nil, err
	}
	if opts.UID != 0 && !planted {
		if d.Binary, err = copyFor(binary, d.StateDir, opts.UID); err != nil {
			return nil, err
		}
	}
	if d.Client, err = client.New(client.Config{UnixSocket: filepath.Join(d.StateDir, "cove.sock")}); err != nil {
		return nil, err
	}
	if !OnNode() {
		return d, d.Run(ctx)
	}
	if d.node, err = d.prepareNode(); err == nil {
		if err = d.Run(ctx); err == nil {
			err = d.joinNode(ctx)
		}
	}
	return d, err
}

// copyFor puts the program where another user can read it, as a further link
// to an earlier copy where there still is one.
func copyFor(binary, dir string, uid uint32) (string, error) {
	copies.Lock()
	defer copies.Unlock()
	path := filepath.Join(dir, "cove")
	if copies.of[uid] != "" && os.Link(copies.of[uid], path) == nil {
		copies.of[uid] = path
		return path, nil
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		return "", err
	}
	if err := os.Chown(path, int(uid), int(uid)); err != nil {
		return "", err
	}
	copies.of[uid] = path
	return path, nil
}

// copies are programs made by copyFor, by user.
var copies = struct {
	sync.Mutex
	of map[uint32]string
}{of: map[uint32]string{}}

// Command returns a command line of the program that works with this daemon,
// as its user.
func (d *Daemon) Command(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{d.Binary}, args...)
	if d.opts.Container {
		args = inContainer(d.opts.UID, args)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "COVE_STATE_DIR="+d.StateDir, "HOME="+d.StateDir)
	if d.opts.UID != 0 && !d.opts.Container {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: d.opts.UID, Gid: d.opts.UID}}
	}
	return cmd
}

// Run starts the daemon again after [Daemon.Kill] and waits until it answers.
func (d *Daemon) Run(ctx context.Context) error {
	args := append([]string{"serve", "--state-dir", d.StateDir, "--listen", "127.0.0.1:0"}, d.opts.Args...)
	if d.opts.Dev {
		args = append(args, "--dev")
	}
	if d.node != nil {
		args = append(args, d.node.args()...)
	}
	fmt.Fprintln(d.output, startMark)
	for tries := 0; ; tries++ {
		d.cmd = d.Command(context.WithoutCancel(ctx), args...)
		d.cmd.Env = append(d.cmd.Env, d.opts.Env...)
		d.cmd.Stdout, d.cmd.Stderr = d.output, d.output
		err := d.cmd.Start()
		if err == nil {
			break
		}
		// A process that was being started while the program was copied has it
		// open for writing, for a moment: golang.org/issue/22315.
		if !errors.Is(err, syscall.ETXTBSY) || tries == 100 {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	d.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(d.cmd, d.exited)
	if err := d.waitReady(ctx); err != nil || d.node == nil || d.node.cmd == nil {
		return err
	}
	return d.awaitNode(ctx)
}

// startMark is where the output of one run begins.
const startMark = "--- a daemon starts"

// said returns what the present run has written.
func (d *Daemon) said() string {
	all := d.output.String()
	return all[strings.LastIndex(all, startMark)+1:]
}

// address is what a daemon says of where it serves TCP: its own line, not those
// of dialects.
var address = regexp.MustCompile(`listening on (https?://\S+) \(MCP: `)

// listens reports whether the present run has said where it listens, and notes
// the address.
func (d *Daemon) listens() bool {
	said := d.said()
	if i := slices.Index(d.opts.Args, "--listen"); i >= 0 && d.opts.Args[i+1] == "off" {
		d.URL = ""
		return strings.Contains(said, "listening on ")
	}
	found := address.FindStringSubmatch(said)
	if found == nil {
		return false
	}
	d.URL = found[1]
	return true
}

func (d *Daemon) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := errors.New("it does not listen")
		// An earlier daemon may answer on the socket until this one takes over.
		if d.listens() {
			if err = d.Client.Ping(ctx); err == nil {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-d.exited:
			return fmt.Errorf("the daemon ended at its start:\n%s", d.output)
		case <-ctx.Done():
			return fmt.Errorf("the daemon does not answer: %w\n%s", err, d.output)
		}
	}
}

// PID returns the daemon's process id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Kill ends the daemon with SIGKILL; its sandboxes live on.
func (d *Daemon) Kill() {
	_ = d.cmd.Process.Kill()
	<-d.exited
}

// Stop ends the daemon with SIGTERM; its sandboxes live on.
func (d *Daemon) Stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.exited:
		return nil
	case <-time.After(30 * time.Second):
		d.Kill()
		return fmt.Errorf("the daemon did not end within 30 s of SIGTERM:\n%s", d.output)
	}
}

// Output returns what the daemon has written so far.
func (d *Daemon) Output() string { return d.output.String() }

// Shutdown ends all sandboxes and the daemon and removes its directory.
func (d *Daemon) Shutdown(ctx context.Context) error {
	if err := d.end(ctx); err != nil || d.opts.StateDir != "" {
		return err
	}
	return os.RemoveAll(d.StateDir)
}

// end ends all sandboxes and the daemon.
func (d *Daemon) end(ctx context.Context) error {
	if d.Client.Ping(ctx) != nil {
		if err := d.Run(ctx); err != nil {
			return err
		}
	}
	if err := d.KillAll(ctx); err != nil {
		return err
	}
	// Those of other teams cannot be asked for here. The daemon cleans up.
	for _, pid := range d.Cells() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if !Eventually(time.Minute, func() bool { return len(d.CellDirs()) == 0 }) {
		return fmt.Errorf("sandboxes are left: %v", d.CellDirs())
	}
	if d.node != nil {
		if err := d.node.stop(); err != nil {
			return err
		}
	}
	d.Client.Close()
	return d.Stop()
}

// lockedBuffer keeps the last part of what is written to it.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len() > 1<<20 {
		b.buf.Next(b.buf.Len() / 2)
	}
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
