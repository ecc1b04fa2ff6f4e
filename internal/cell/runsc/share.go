package runsc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateipc"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
)

// On a file system that can share extents, a checkpoint does not copy what the sandbox
// has written: this process serves the checkpoint's files to gVisor, and clones ranges
// instead of copying them. On other file systems, and for little data, gVisor writes the
// files itself.

// shareBytes is the least amount of written data that is shared.
const shareBytes = 16 << 20

// sharesWrites reports whether a checkpoint in dir can share what the sandbox has written.
func (s *Sandbox) sharesWrites(dir string) bool {
	return s.writtenBytes() >= shareBytes && clones(unix.AT_FDCWD, dir, s.filestore)
}

// sharesPages reports whether the sandbox can share the pages of a checkpoint.
func (s *Sandbox) sharesPages(dir string) bool {
	if total, err := WrittenBytes(dir); err != nil || total < shareBytes {
		return false
	}
	f, err := os.Open(filepath.Join(dir, checkpointfiles.PagesFileName))
	if err != nil {
		return false
	}
	defer f.Close()
	return clones(int(s.writesDir.Fd()), ".", f)
}

// Settle syncs what the sandbox has written to the disk, if a checkpoint in dir can share
// it. Otherwise the file system would do this before it shares a range, while the sandbox
// is paused.
func (s *Sandbox) Settle(dir string) error {
	if !s.sharesWrites(dir) {
		return nil
	}
	if err := unix.Fdatasync(int(s.filestore.Fd())); err != nil {
		return fmt.Errorf("write out a sandbox's files: %w", err)
	}
	return nil
}

// WrittenBytes returns the size of the written files in a checkpoint. A sandbox that
// continues from it needs as much disk space.
func WrittenBytes(dir string) (int64, error) {
	_, total, err := readFilesTable(dir)
	return total, err
}

// OwnPages returns how many bytes of a checkpoint's file of pages, from its start, are
// not shared with other files: all of them, unless what the sandbox had written is
// shared.
func OwnPages(dir string) (int64, error) {
	path := filepath.Join(dir, checkpointfiles.PagesFileName)
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	table, err := readTable(dir)
	if err != nil {
		return 0, err
	}
	if info.Size()-table.start < shareBytes || !clones(unix.AT_FDCWD, dir, f) {
		return info.Size(), nil
	}
	return table.start, nil
}

// checkpointServed is [Sandbox.Checkpoint] with files that this process serves. If later
// is not nil, what it adds to that backlog is left out.
func (s *Sandbox) checkpointServed(dir string, later *backlog) error {
	theirs, err := serveDir(&checkpointDir{path: dir, later: later})
	if err != nil {
		return err
	}
	defer theirs.Close()
	opts := control.SaveOpts{
		Metadata:           statefile.CompressionLevelNone.ToMetadata(),
		Resume:             true,
		HavePagesFile:      true,
		UseCheckpointGofer: true,
	}
	opts.Files = []*os.File{theirs}
	if err := s.control(boot.ContMgrCheckpoint, &opts, nil); err != nil {
		return err
	}
	s.c.Sandbox.Checkpointed = true
	return nil
}

// restoreServed is [Sandbox.Restore] with pages that this process serves, including those
// that are loaded in the background. gVisor itself would read so many at a time that
// pages for which a program waits would be late.
//
// gVisor's client prepares the network and keeps the container's records, and only the
// files that it passes must be different. It is therefore connected to a relay in this
// process.
func (s *Sandbox) restoreServed(dir string, rest Rest) error {
	control := s.c.Sandbox.GetControlSocketPath()
	conn, err := client.ConnectTo(control)
	if err != nil {
		return err
	}
	defer conn.Close()
	path := filepath.Join(s.conf.RootDir, "relay.sock")
	l, err := unet.BindAndListen(path, false)
	if err != nil {
		return err
	}
	files := &checkpointDir{path: dir, shares: s.sharesPages(dir), damaged: s.damaged, reads: s.pages.Store, rest: rest}
	if !files.shares {
		if files.reserve, err = s.reservation(dir); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	if files.sums, err = readSums(dir); err != nil {
		return errors.Join(err, l.Close())
	}
	relay := urpc.NewServer()
	relay.Register(&containerManager{conn: conn, files: files})
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		if sock, err := l.Accept(); err == nil {
			relay.StartHandling(sock)
		}
	}()
	s.c.Sandbox.ControlSocketPath = path
	err = s.c.Restore(s.conf, dir, false, true, nil)
	s.c.Sandbox.ControlSocketPath = control
	err = errors.Join(err, l.Close(), os.Remove(path))
	<-accepted
	relay.Stop(0)
	return err
}

// containerManager relays the calls of a restore. gVisor's own type has the same name.
type containerManager struct {
	conn  *urpc.Client
	files *checkpointDir
}

// SetNetworkArgs forwards the sandbox's network.
func (m *containerManager) SetNetworkArgs(args *boot.CreateLinksAndRoutesArgs, _ *struct{}) error {
	return m.conn.Call(boot.ContMgrSetNetworkArgs, args, nil)
}

// Restore replaces the checkpoint's files with a connection to this process.
func (m *containerManager) Restore(asked *boot.RestoreOpts, _ *struct{}) error {
	theirs, err := serveDir(m.files)
	if err != nil {
		return err
	}
	defer theirs.Close()
	opts := boot.RestoreOpts{
		HaveDeviceFile:     asked.HaveDeviceFile,
		Background:         asked.Background,
		UseCheckpointGofer: true,
	}
	opts.Files = []*os.File{theirs}
	if asked.HaveDeviceFile {
		opts.Files = append(opts.Files, asked.Files[len(asked.Files)-1])
	}
	return m.conn.Call(boot.ContMgrRestore, &opts, nil)
}

// serveDir serves the files of a checkpoint on a connection. It returns the connection's
// other end, and serves until all copies of that end are closed.
func serveDir(dir *checkpointDir) (*os.File, error) {
	files, err := stateipc.NewAsyncFileServer(dir)
	if err != nil {
		return nil, fmt.Errorf("serve a checkpoint: %w", err)
	}
	ours, theirs, err := unet.SocketPair(false)
	if err != nil {
		files.Stop()
		return nil, fmt.Errorf("serve a checkpoint: %w", err)
	}
	fd, err := theirs.Release()
	if err != nil {
		files.Stop()
		return nil, errors.Join(err, ours.Close(), theirs.Close())
	}
	srv := urpc.NewServer()
	srv.Register(files)
	go func() {
		_ = srv.Handle(ours) // always returns an error
		srv.Stop(0)
	}()
	return os.NewFile(uintptr(fd), "checkpoint"), nil
}
