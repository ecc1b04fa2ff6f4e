package agent

import (
	"cmp"
	"os"
	"path/filepath"
)

// scratchRoot has the files of interpreters.
const scratchRoot = "/run/cove"

// scratch makes a directory that belongs to acc if write is set. Otherwise everybody can
// open files in it whose names they know, and only the agent can make them.
func (a *Agent) scratch(acc *account, write bool) (string, error) {
	root := ""
	if a.cfg.Init {
		root = filepath.Join(scratchRoot, "code")
		if err := os.MkdirAll(root, 0o755); err != nil {
			root = ""
		}
	}
	dir, err := os.MkdirTemp(root, "run-")
	if err != nil {
		return "", fileError("use", cmp.Or(root, os.TempDir()), err)
	}
	switch {
	case os.Geteuid() != 0:
	case write:
		err = os.Chown(dir, int(acc.uid), int(acc.gid))
	default:
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", fileError("use", dir, err)
	}
	return dir, nil
}

// leave writes a file that acc can read into a scratch directory.
func leave(dir, name string, data []byte, acc *account) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fileError("use", dir, err)
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fileError("write", filepath.Join(dir, name), err)
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return fileError("write", filepath.Join(dir, name), err)
	}
	if os.Geteuid() == 0 {
		if err := f.Chown(int(acc.uid), int(acc.gid)); err != nil {
			return fileError("write", filepath.Join(dir, name), err)
		}
	}
	return nil
}
