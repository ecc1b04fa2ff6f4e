package cell

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/cell/netstack"
	"github.com/cove-sh/cove/internal/cell/runsc"
)

// sandboxName is gVisor's name for the sandbox, and its host name until the agent sets
// another. It is the same in every cell, since the sandbox's id may not be known yet. It
// is not visible anywhere else.
const sandboxName = "sandbox"

// makeStandby does everything that can be done before the sandbox is known.
func (c *cell) makeStandby(ctx context.Context) error {
	began := time.Now()
	scratch, err := c.setUp()
	if err != nil {
		return err
	}
	if c.standby.PinCPUs {
		if err := pinCPUs(c.cpus, c.standby.Resources.VCPUs); err != nil {
			c.unenforced("the processor limit: " + err.Error())
		}
	}
	mounted := time.Now()
	endCapture, err := c.captureOutput()
	if err != nil {
		return err
	}
	runsc.SetLog(os.Stderr)
	conf := c.runscConfig(scratch)
	if c.standby.FilesFrom != "" {
		conf.FilesDir, err = c.prepareFiles()
	}
	if err == nil {
		c.sb, err = runsc.Create(conf)
	}
	endCapture()
	err = errors.Join(err, os.RemoveAll(conf.FilesDir))
	if err != nil {
		return err
	}
	c.preferInOOM()
	go c.watchGofer()
	c.log.Info("standby made", "mounts", mounted.Sub(began), "create", time.Since(mounted))
	if c.standby.Restore == "" {
		return nil
	}
	if err := c.restore(c.standby.Restore); err != nil {
		return err
	}
	if err := c.awaitAgent(ctx); err != nil {
		return err
	}
	c.watchLoading(false)
	c.log.Info("standby restored", "took", time.Since(began))
	c.running = true
	return nil
}

// setUp mounts the sandbox's root and mounts, for a user namespace of the sandbox or, if
// that is impossible, for the cell's.
func (c *cell) setUp() (scratch, error) {
	if c.standby.UserIDs == nil {
		return setUpScratch(c.standby, nil)
	}
	u, err := newUserNS(*c.standby.UserIDs)
	var s scratch
	if err == nil {
		if s, err = setUpScratch(c.standby, u); err != nil {
			u.close()
		}
	}
	if why, ok := errors.AsType[noUserNS](err); ok {
		c.unenforced("a user namespace: gVisor's processes have the server's user id, 0, on the host (" + why.Error() + ")")
		return setUpScratch(c.standby, nil)
	}
	if err != nil {
		return s, err
	}
	c.userNS = u
	// Otherwise gVisor's processes would inherit the groups of the daemon's user.
	return s, syscall.Setgroups(nil)
}

// prepareFiles makes a directory with the files to start with. It is removed once gVisor
// has opened them. If the checkpoint's files are compressed, they need their full size on
// disk.
func (c *cell) prepareFiles() (string, error) {
	dir := filepath.Join(c.standby.Dir, "files")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	return dir, runsc.PrepareFiles(c.standby.FilesFrom, dir)
}

// start starts or restores the sandbox, and configures its agent. The agent's answer
// proves that the sandbox runs.
func (c *cell) start() error {
	began := time.Now()
	switch {
	case c.running:
	case c.spec.RestoreFrom != "":
		if err := c.restore(c.spec.RestoreFrom); err != nil {
			return err
		}
	default:
		if err := c.sb.Start(); err != nil {
			return err
		}
		go c.watchForEnd()
	}
	started := time.Now()
	if err := c.configureAgent(c.ctx); err != nil {
		return err
	}
	if c.spec.RestoreFrom != "" {
		c.watchLoading(c.spec.Fork != nil && c.spec.Fork.Count > 1)
	}
	c.log.Info("sandbox started", "start", started.Sub(began), "agent", time.Since(started))
	return nil
}

// restore continues from a checkpoint. Its memory may still be incomplete.
func (c *cell) restore(dir string) error {
	began := time.Now()
	rest, err := restOf(c.ctx, dir)
	if err != nil {
		return err
	}
	if err := c.sb.Restore(dir, rest); err != nil {
		return err
	}
	go c.watchForEnd()
	c.log.Info("sandbox restored", "took", time.Since(began))
	return nil
}

// restOf returns what the checkpoint in dir lacks, or nil if it is complete.
func restOf(ctx context.Context, dir string) (runsc.Rest, error) {
	if _, err := os.Lstat(filepath.Join(dir, FetchSocket)); err == nil && !runsc.IsFetched(dir) {
		pages, err := os.Open(filepath.Join(dir, runsc.PagesFile))
		if err != nil {
			return nil, err
		}
		return runsc.Unfetched(pages, func(ctx context.Context) (net.Conn, error) { return dialFetcher(ctx, dir) }), nil
	}
	writer, err := dialWriter(ctx, dir)
	if writer == nil || err != nil {
		return nil, err
	}
	return runsc.Unwritten(writer), nil
}

// dialFetcher connects to the engine that is still fetching the checkpoint in dir. It returns
// nil if the checkpoint is complete, or was removed.
func dialFetcher(ctx context.Context, dir string) (net.Conn, error) {
	conn, err := Dial(ctx, dir, FetchSocket)
	if errors.Is(err, fs.ErrNotExist) || err != nil && runsc.IsFetched(dir) {
		return nil, nil
	}
	return conn, err
}

// dialWriter connects to the cell that is still writing the checkpoint in dir. It returns
// nil if the checkpoint is complete, and [runsc.ErrUnwritten] if it will never be. That
// nobody waits any more says nothing of the checkpoint.
func dialWriter(ctx context.Context, dir string) (net.Conn, error) {
	conn, err := Dial(ctx, dir, PagesSocket)
	if errors.Is(err, syscall.ECONNREFUSED) {
		// It may have been completed just now; then the socket is gone.
		conn, err = Dial(ctx, dir, PagesSocket)
	}
	switch {
	case err == nil:
		return conn, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, errors.Join(runsc.ErrUnwritten, err)
	}
	return nil, err // which says nothing of the checkpoint
}

// AwaitWritten waits until the checkpoint in dir is complete: a cell may still be writing it
// for others, see [CheckpointRequest.Early], or this engine fetching it. Its error is
// [runsc.ErrUnwritten] or [runsc.ErrUnfetched] if it will never be complete.
func AwaitWritten(ctx context.Context, dir string) error {
	if err := awaitFetched(ctx, dir); err != nil {
		return err
	}
	conn, err := dialWriter(ctx, dir)
	if conn == nil {
		return err
	}
	return runsc.AwaitWritten(ctx, conn)
}

// redialPause is the pause before awaitFetched connects again.
const redialPause = 10 * time.Millisecond

// awaitFetched waits until nobody fetches the checkpoint in dir any more.
func awaitFetched(ctx context.Context, dir string) error {
	for {
		conn, err := dialFetcher(ctx, dir)
		if conn == nil || err != nil {
			return err
		}
		// A connection that has not been accepted may end just when all has been fetched.
		if err := runsc.AwaitWritten(ctx, conn); !errors.Is(err, runsc.ErrUnwritten) {
			return err
		}
		select {
		case <-time.After(redialPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (c *cell) runscConfig(s scratch) runsc.Config {
	r := c.standby.Resources
	memory := r.MemoryMiB << 20
	return runsc.Config{
		ID:          sandboxName,
		StateDir:    s.state,
		BundleDir:   s.bundle,
		RootDir:     s.root,
		WritesDir:   s.writes,
		WritesBytes: r.DiskMiB << 20,
		TmpBytes:    memory / 2,
		Hostname:    sandboxName,
		Limits:      runsc.Limits{MemoryBytes: memory, CPUs: r.VCPUs},
		MaxFiles:    maxFiles,
		Args: []string{
			"/.cove/agent",
			"-listen", fmt.Sprintf("%s:%d", netstack.SandboxAddr, AgentPort),
			"-allow", netstack.GatewayAddr.String(),
		},
		Env:      []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Binds:    []runsc.Bind{{Source: s.agent, Target: "/.cove"}},
		Mounts:   s.mounts,
		NetNS:    c.link.nsPath(),
		IDMap:    c.userNS.idMap(),
		PanicLog: filepath.Join(c.standby.Dir, PanicFile),
	}
}
