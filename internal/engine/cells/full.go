package cells

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/sandbox"
)

// spareBytes is how much gVisor writes when a sandbox starts. If less is free, the disk
// counts as full.
const spareBytes = 1 << 20

// isFull reports whether an error, possibly of another process, means that the disk is
// full.
func isFull(err error) bool {
	return err != nil && (errors.Is(err, unix.ENOSPC) || strings.Contains(detailed(err).Error(), unix.ENOSPC.Error()))
}

// lostFile is contained in gVisor's error if, in a directory of the host, it no longer
// finds a file that a program had open, and inRoot if that directory is the root.
const (
	lostFile = "vfs.CompleteRestore() failed"
	inRoot   = `:/"`
)

// explainStart returns a better error for a sandbox that could not be started, if a lost
// file or a full disk is the cause: gVisor dies without an error if there is no room for
// the files of its sandbox. checkpoint is the directory of the sandbox's checkpoint, or
// empty.
func (e *Engine) explainStart(err error, checkpoint string) error {
	if text := detailed(err).Error(); strings.Contains(text, lostFile) && !strings.Contains(text, inRoot) {
		return sandbox.Wrap(sandbox.CodeConflict, err, "a file or directory of a mount that programs had open was removed or replaced meanwhile, so they cannot go on; restart it from its files only (files_only)")
	}
	if !isFull(err) && (sandbox.CodeOf(err) != sandbox.CodeUnavailable || e.hasRoom(checkpoint)) {
		return err
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, err, "the server's disk is full, so the sandbox could not be started: delete snapshots or sandboxes and try again")
}

// hasRoom reports whether a sandbox that continues from a checkpoint fits on the disk. It
// returns true if it cannot tell.
func (e *Engine) hasRoom(checkpoint string) bool {
	need := int64(spareBytes)
	if checkpoint != "" {
		if n, err := runsc.WrittenBytes(checkpoint); err == nil {
			need += n
		}
	}
	return e.hasBytes(need)
}

// hasBytes reports whether need bytes are free on the disk. It returns true if it cannot
// tell.
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
