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

// Where the file system can share extents, a checkpoint does not copy what the
// sandbox has written: this process gives gVisor the checkpoint's files, and
// clones what is on the same file system instead of copying it. gVisor's way of
// writing them itself is as good for little, and elsewhere.

// shareBytes is how much must have been written for it.
const shareBytes = 16 << 20

// sharesWrites reports whether a checkpoint in dir can share what the sandbox
// has written.
func (s *Sandbox) sharesWrites(dir string) bool {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.filestore.Fd()), &st); err != nil || st.Blocks*512 < shareBytes {
		return false
	}
	d, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer d.Close()
	return clones(int(d.Fd()), s.filestore)
}

// sharesPages reports whether the sandbox can share what a checkpoint holds.
func (s *Sandbox) sharesPages(dir string) bool {
	table, err := readBounded(filepath.Join(dir, FilesTable))
	if err != nil {
		return false
	}
	if _, total, err := parseTable(table, 0); err != nil || total < shareBytes {
		return false
	}
	f, err := os.Open(filepath.Join(dir, checkpointfiles.PagesFileName))
	if err != nil {
		return false
	}
	defer f.Close()
	return clones(int(s.writesDir.Fd()), f)
}

// Settle writes what the sandbox has written out to the disk, if a checkpoint in
// dir can share it: the file system does so before it shares a range, and until
// then the sandbox would stand still.
func (s *Sandbox) Settle(dir string) error {
	if !s.sharesWrites(dir) {
		return nil
	}
	if err := unix.Fdatasync(int(s.filestore.Fd())); err != nil {
		return fmt.Errorf("write out a sandbox's files: %w", err)
	}
	return nil
}

// WrittenBytes returns how much of a checkpoint is files that the sandbox had
// written, which a sandbox that continues from it needs on its disk again.
func WrittenBytes(dir string) (int64, error) {
	table, err := readBounded(filepath.Join(dir, FilesTable))
	if err != nil {
		return 0, err
	}
	_, total, err := parseTable(table, 0)
	return total, err
}

// OwnPages returns how much of a checkpoint's file of pages, from its start, is
// nobody else's: all of it, unless what the sandbox had written is shared.
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
	_, start, err := readTable(dir)
	if err != nil {
		return 0, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	if info.Size()-start < shareBytes || !clones(int(d.Fd()), f) {
		return info.Size(), nil
	}
	return start, nil
}

// checkpointShared is [Sandbox.Checkpoint] by way of this process.
func (s *Sandbox) checkpointShared(dir string) error {
	theirs, err := serveDir(&checkpointDir{path: dir})
	if err != nil {
		return err
	}
	defer theirs.Close()
	conn, err := client.ConnectTo(s.c.Sandbox.GetControlSocketPath())
	if err != nil {
		return err
	}
	defer conn.Close()
	opts := control.SaveOpts{
		Metadata:           statefile.CompressionLevelNone.ToMetadata(),
		Resume:             true,
		HavePagesFile:      true,
		UseCheckpointGofer: true,
	}
	opts.Files = []*os.File{theirs}
	if err := conn.Call(boot.ContMgrCheckpoint, &opts, nil); err != nil {
		return err
	}
	s.c.Sandbox.Checkpointed = true
	return nil
}

// restoreServed is [Sandbox.Restore]: this process gives gVisor the pages, also
// those that follow in the background. Left to itself, gVisor would ask for so
// many at a time that those which a program waits for come late.
//
// gVisor's client prepares the network and keeps the container's records; only
// how it names the files has to differ. So it talks to a relay here.
func (s *Sandbox) restoreServed(dir string) error {
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
	files := &checkpointDir{path: dir, shares: s.sharesPages(dir), damaged: s.damaged}
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

// containerManager relays what a restore asks of the sandbox. The name is that
// of gVisor's own.
type containerManager struct {
	conn  *urpc.Client
	files *checkpointDir
}

// SetNetworkArgs passes the sandbox's network on.
func (m *containerManager) SetNetworkArgs(args *boot.CreateLinksAndRoutesArgs, _ *struct{}) error {
	return m.conn.Call(boot.ContMgrSetNetworkArgs, args, nil)
}

// Restore replaces the checkpoint's files by a connection to this process.
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

// serveDir serves the files of a checkpoint on a connection, until its other
// end, which it returns, is closed everywhere.
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
		_ = srv.Handle(ours) // its end is always an error
		srv.Stop(0)
	}()
	return os.NewFile(uintptr(fd), "checkpoint"), nil
}
