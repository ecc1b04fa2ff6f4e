package agent

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cove-sh/cove/internal/wire/agentv1"
)

// The paths in which a sandbox finds what is its own. Comparisons of file
// systems leave them out.
const (
	runDir        = "/run/cove"
	forkFile      = "fork.json"
	machineIDFile = "/etc/machine-id"
)

// makeOwn gives the sandbox what must not be shared with others that began as
// the same: a machine id for a fresh one, and its place for a fork.
func (a *Agent) makeOwn(m *agentv1.ConfigureRequest) {
	if !a.cfg.Init {
		return
	}
	if m.GetFresh() {
		if err := renewMachineID(machineIDFile); err != nil {
			a.log.Warn("renew the machine id", "error", err)
		}
	}
	if f := m.GetFork(); f != nil {
		if err := writeFork(runDir, f); err != nil {
			a.log.Warn("tell a fork its place", "error", err)
		}
	}
}

// renewMachineID replaces the id in a file that is there.
func renewMachineID(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var id [16]byte
	_, _ = rand.Read(id[:])
	return replaceFile(path, []byte(hex.EncodeToString(id[:])+"\n"), 0o444)
}

// replaceFile puts a new file in the place of one, whatever that is.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".cove-")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Chmod(mode), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return os.Rename(f.Name(), path)
}

// forkEnv returns nothing for a sandbox that is no fork.
func forkEnv(f *agentv1.Fork) map[string]string {
	if f.Count == 0 {
		return nil
	}
	return map[string]string{
		"COVE_FORK_INDEX":  strconv.Itoa(int(f.Index)),
		"COVE_FORK_COUNT":  strconv.Itoa(int(f.Count)),
		"COVE_FORK_PARENT": f.ParentId,
	}
}

// writeFork writes the file that processes which went through the fork read to
// find out which child they are in.
func writeFork(dir string, f *agentv1.Fork) error {
	if f.Count == 0 {
		err := os.Remove(filepath.Join(dir, forkFile))
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	data, err := json.Marshal(struct {
		Index   int32  `json:"index"`
		Count   int32  `json:"count"`
		Sandbox string `json:"sandbox_id"`
		Parent  string `json:"parent_id"`
	}{f.Index, f.Count, f.SandboxId, f.ParentId})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return replaceFile(filepath.Join(dir, forkFile), append(data, '\n'), 0o444)
}
