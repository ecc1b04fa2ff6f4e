package cell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/cell/netstack"
	"github.com/cove-sh/cove/internal/cell/runsc"
)

// insideName is gVisor's name for the sandbox, and the host name until the
// agent is told another. It is the same in every cell, which may get its
// sandbox's own id much later; nobody else sees it.
const insideName = "sandbox"

// makeStandby does as much as can be done before the sandbox is known.
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
	out, err := c.captureOutput()
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
	out.Close()
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
	c.log.Info("standby restored", "took", time.Since(began))
	c.running = true
	return nil
}

// setUp mounts what the sandbox is shown: in a user namespace of its own, or
// where that cannot be, in the cell's.
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
	// Groups of the daemon's user would stay with gVisor's processes.
	return s, syscall.Setgroups(nil)
}

// prepareFiles makes a directory with the files to start with. It takes as
// much disk as they do, if they are compressed, and is removed once gVisor has
// opened them.
func (c *cell) prepareFiles() (string, error) {
	dir := filepath.Join(c.standby.Dir, "files")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	return dir, runsc.PrepareFiles(c.standby.FilesFrom, dir)
}

// start starts the sandbox, or restores it, and tells the agent what it is: that
// it answers to that proves that it runs.
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
	c.log.Info("sandbox started", "start", started.Sub(began), "agent", time.Since(started))
	return nil
}

// restore continues from a checkpoint.
func (c *cell) restore(dir string) error {
	began := time.Now()
	if err := c.sb.Restore(dir); err != nil {
		return err
	}
	go c.watchForEnd()
	c.log.Info("sandbox restored", "took", time.Since(began))
	return nil
}

func (c *cell) runscConfig(s scratch) runsc.Config {
	r := c.standby.Resources
	memory := r.MemoryMiB << 20
	return runsc.Config{
		ID:          insideName,
		StateDir:    s.state,
		BundleDir:   s.bundle,
		RootDir:     s.root,
		WritesDir:   s.writes,
		WritesBytes: r.DiskMiB << 20,
		TmpBytes:    memory / 2,
		Hostname:    insideName,
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
