package cells

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/cgroup"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// origin is what a cell was made from. It is in the cell's directory, for
// checkpoints of it and for its end.
type origin struct {
	// Group is the name of the cell's cgroup.
	Group string `json:"group"`
	// Program is the file of [Engine.programsDir] that it runs.
	Program   string            `json:"program"`
	Cell      int               `json:"cell,omitempty"` // what Program expects
	AgentDir  string            `json:"agent_dir"`
	Root      engine.Root       `json:"root"`
	Resources sandbox.Resources `json:"resources"`
}

const originFile = "origin.json"

// labelFile, in a cell's directory, is the label of its instance.
const labelFile = "label.json"

// maxLabel bounds what is read of it.
const maxLabel = 4 << 20

// labelOf returns the label of an instance, or nil.
func (e *Engine) labelOf(id string) json.RawMessage {
	label := readPart(filepath.Join(e.cellDir(id), labelFile), maxLabel, false)
	if !json.Valid(label) {
		return nil
	}
	return label
}

func readOrigin(dir string) (origin, error) {
	var o origin
	data, err := os.ReadFile(filepath.Join(dir, originFile))
	if err != nil {
		return o, fmt.Errorf("read what the cell was made from: %w", err)
	}
	if err := json.Unmarshal(data, &o); err != nil {
		return o, fmt.Errorf("read what the cell was made from: %w", err)
	}
	return o, nil
}

// groupName returns the name of the cgroup of the cell in dir.
func groupName(dir string) string {
	if o, err := readOrigin(dir); err == nil && o.Group != "" {
		return o.Group
	}
	return filepath.Base(dir)
}

// shellSpec says what a shell is prepared for. Shells of equal specs are
// interchangeable.
type shellSpec struct {
	Root      engine.Root
	Resources sandbox.Resources
	Program   string // a file of [Engine.programsDir]
	Cell      int    // what Program expects; see [cell.Protocol]
	AgentDir  string
	// Mounts are of one sandbox: no shell with some waits for another.
	Mounts []engine.Mount `json:",omitempty"`
	// FilesFrom is a checkpoint's directory, for one sandbox only.
	FilesFrom string
	// Restore is a checkpoint's directory; the shell then holds a running
	// sandbox that waits to be taken.
	Restore string
}

// key identifies equal specs.
func (s *shellSpec) key() string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // it has no field that cannot be encoded
	}
	return string(data)
}

// shell is a cell in its cgroup that waits for its specification.
type shell struct {
	*process
	spec       shellSpec
	dir        string
	unenforced []string
	made       bool      // it has said so
	since      time.Time // when it began to wait
}

func (e *Engine) shellsDir() string { return filepath.Join(e.cfg.Dir, "shells") }

// blankSpec is what a shell for a fresh boot is prepared for.
func (e *Engine) blankSpec(root engine.Root, r sandbox.Resources) shellSpec {
	return shellSpec{Root: root, Resources: r, Program: filepath.Base(e.program), Cell: cell.Protocol, AgentDir: e.agentDir()}
}

// errSpareLost says that a process which was started ahead of need has ended.
var errSpareLost = errors.New("the process that waited has ended")

// startShell starts a shell. It returns before the shell is ready.
func (e *Engine) startShell(spec shellSpec) (*shell, error) {
	sh, err := e.tryShell(spec)
	if errors.Is(err, errSpareLost) {
		return e.tryShell(spec)
	}
	return sh, err
}

// tryShell is startShell with a process that may have ended while it waited.
func (e *Engine) tryShell(spec shellSpec) (_ *shell, err error) {
	name := "shell-" + strings.ToLower(rand.Text())
	dir := filepath.Join(e.shellsDir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the shell's directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeCell(context.Background(), dir))
		}
	}()
	o := origin{Group: name, Program: spec.Program, Cell: spec.Cell, AgentDir: spec.AgentDir, Root: spec.Root, Resources: spec.Resources}
	data, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("encode what the cell is made from: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, originFile), data, 0o600); err != nil {
		return nil, fmt.Errorf("write what the cell is made from: %w", err)
	}
	group, err := cgroup.Create(name, groupLimits(spec.Resources))
	if err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	input, err := json.Marshal(cell.Shell{
		Dir: dir, Root: spec.Root, Resources: spec.Resources, AgentDir: spec.AgentDir,
		UserIDs: e.userIDs(), PinCPUs: !e.cgroups.CPU, Mounts: spec.Mounts, FilesFrom: spec.FilesFrom, Restore: spec.Restore,
	})
	if err != nil {
		return nil, fmt.Errorf("encode the cell's shell: %w", err)
	}
	p, err := e.processOf(spec.Program, spec.Cell)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && p.ahead {
			err = errors.Join(errSpareLost, err)
		}
	}()
	// From here on the process is known by its file, and removeCell ends it.
	if err := recordProcess(dir, p.cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, p.cmd.Process.Kill())
	}
	// Nothing of the sandbox ever runs outside its limits.
	if err := group.Enter(p.cmd.Process.Pid); err != nil {
		return nil, errors.Join(fmt.Errorf("enter cgroup: %w", err), p.cmd.Process.Kill())
	}
	if _, err := p.stdin.Write(input); err != nil {
		return nil, notStarted(fmt.Errorf("hand the shell to the cell: %w", err))
	}
	return &shell{process: p, spec: spec, dir: dir, unenforced: unenforced(group.Missing())}, nil
}

// userIDs are the ids for sandboxes, or nil: an ordinary user has none to give.
func (e *Engine) userIDs() *cell.UserIDs {
	if os.Geteuid() != 0 || e.cfg.UserIDs < cell.IDsPerSandbox {
		return nil
	}
	return &cell.UserIDs{
		First: uint32(e.cfg.FirstUserID), Slots: int(e.cfg.UserIDs / cell.IDsPerSandbox),
		LockFile: filepath.Join(e.cfg.Dir, "user-ids.lock"),
	}
}

// processOf returns a cell that runs the given program.
func (e *Engine) processOf(program string, protocol int) (*process, error) {
	if program == filepath.Base(e.program) {
		return e.takeProcess()
	}
	return e.startProcess(filepath.Join(e.programsDir(), program), protocol)
}

// become makes a shell the cell of a sandbox, and waits until that is ready.
// On an error what is left is in the shell's or the sandbox's directory.
func (e *Engine) become(ctx context.Context, sh *shell, spec engine.Spec, restoreFrom string) (*instance, error) {
	dir := e.cellDir(spec.ID)
	told := cell.Spec{
		Spec: spec, Dir: dir, RestoreFrom: restoreFrom,
		Fresh: spec.Fresh || spec.Checkpoint == "", Unenforced: sh.unenforced,
	}
	switch {
	case sh.spec.Cell >= 1:
		told.Way, told.AwaitValues = e.way(), spec.Network != nil && len(spec.Network.Bindings) > 0
	case spec.Network != nil:
		told.Unenforced = append(told.Unenforced, "network: the memory was kept by an older version of cove, in which sandboxes have none (restart it from its files only)")
	}
	input, err := json.Marshal(told)
	if err != nil {
		return nil, fmt.Errorf("encode the cell's specification: %w", err)
	}
	// It uses its directory by name until it is made.
	if !sh.made {
		if err := sh.awaitShell(ctx); err != nil {
			return nil, err
		}
	}
	if err := os.Rename(sh.dir, dir); err != nil {
		return nil, fmt.Errorf("name the cell's directory: %w", err)
	}
	sh.dir = dir
	if spec.Label != nil {
		if err := os.WriteFile(filepath.Join(dir, labelFile), spec.Label, 0o600); err != nil {
			return nil, fmt.Errorf("label the cell: %w", err)
		}
	}
	if err := sh.handOver(input); err != nil {
		return nil, err
	}
	if told.AwaitValues {
		if err := e.deliver(ctx, dir, sh.exited, spec.Network); err != nil && !sh.hasExited() { // otherwise it tells why
			return nil, err
		}
	}
	if err := sh.awaitReady(ctx); err != nil {
		return nil, err
	}
	inst, err := e.attach(ctx, spec.ID, sh.exited)
	if err != nil {
		return nil, notStarted(err)
	}
	return inst, nil
}

// abandon ends a shell that is not taken, or could not become a sandbox.
func (e *Engine) abandon(sh *shell) {
	sh.dismiss()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := removeCell(ctx, sh.dir); err != nil {
		e.cfg.Log.Error("remove a shell", "dir", sh.dir, "err", err)
	}
}

// removeShells removes what shells of an engine that was killed have left.
func (e *Engine) removeShells() error {
	if err := os.MkdirAll(e.shellsDir(), 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(e.shellsDir())
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		errs = append(errs, removeCell(context.Background(), filepath.Join(e.shellsDir(), entry.Name())))
	}
	return errors.Join(errs...)
}
