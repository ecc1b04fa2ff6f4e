package agent

import (
	"cmp"
	"os"
	"path/filepath"
)

// scratchRoot is where files for interpreters are.
const scratchRoot = "/run/cove"

// scratch makes a directory whose files everybody can reach who knows their
// names; if it is for acc to write, it belongs to it.
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

// leave writes a file for acc to read into a scratch directory.
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
