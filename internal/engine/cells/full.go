package cells

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/sandbox"
)

// spareBytes is what a sandbox writes as it starts, before anything of its own:
// with less the disk is as good as full.
const spareBytes = 1 << 20

// isFull reports whether an error, perhaps of another process, says that there
// is no room.
func isFull(err error) bool {
	if err == nil {
		return false
	}
	return errors.Is(err, unix.ENOSPC) || strings.Contains(detailed(err).Error(), unix.ENOSPC.Error())
}

// lostFile is how gVisor says that it does not find again, in a directory of the
// host, what a program had open, and inRoot that this is the root.
const (
	lostFile = "vfs.CompleteRestore() failed"
	inRoot   = `:/"`
)

// explainStart says of a sandbox that could not be started that the disk is
// full, if that is why: gVisor dies without a word when it finds no room for
// the files of its sandbox. Checkpoint, if not empty, is the directory of what
// the sandbox was to continue from.
func (e *Engine) explainStart(err error, checkpoint string) error {
	if text := detailed(err).Error(); strings.Contains(text, lostFile) && !strings.Contains(text, inRoot) {
		return sandbox.Wrap(sandbox.CodeConflict, err, "a file or directory of a mount that programs had open was removed or replaced meanwhile, so they cannot go on; restart it from its files only (files_only)")
	}
	if !isFull(err) && (sandbox.CodeOf(err) != sandbox.CodeUnavailable || e.hasRoom(checkpoint)) {
		return err
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, err, "the server's disk is full, so the sandbox could not be started: delete snapshots or sandboxes and try again")
}

// hasRoom reports whether a sandbox that continues from a checkpoint fits on
// the disk, as far as can be told.
func (e *Engine) hasRoom(checkpoint string) bool {
	need := int64(spareBytes)
	if checkpoint != "" {
		if n, err := runsc.WrittenBytes(checkpoint); err == nil {
			need += n
		}
	}
	return e.hasBytes(need)
}

// hasBytes reports whether so many bytes are free on the disk, as far as can be
// told.
func (e *Engine) hasBytes(need int64) bool {
	var st unix.Statfs_t
	if unix.Statfs(e.cfg.Dir, &st) != nil {
		return true
	}
	free := st.Bavail
	if unix.Geteuid() == 0 {
		free = st.Bfree
	}
	return int64(free)*st.Bsize >= need && (st.Files == 0 || st.Ffree > 0)
}
