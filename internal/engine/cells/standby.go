package cells

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/cell"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/machine/cgroup"
	"github.com/cove-sh/cove/sandbox"
)

// origin describes what a cell was made from. It is stored in the cell's directory, for
// its checkpoints and its removal.
type origin struct {
	// Group is the name of the cell's cgroup.
	Group string `json:"group"`
	// Program is the file in [Engine.programsDir] that it runs.
	Program   string            `json:"program"`
	Cell      int               `json:"cell,omitempty"` // the protocol of Program
	AgentDir  string            `json:"agent_dir"`
	Root      engine.Root       `json:"root"`
	Resources sandbox.Resources `json:"resources"`
}

// Files in a cell's directory.
const (
	originFile = "origin.json"
	labelFile  = "label.json" // the label of its instance
)

// maxLabel limits what is read of a label.
const maxLabel = 4 << 20

// labelOf returns the label of an instance, or nil if it has none. An error says that it is
// not known.
func (e *Engine) labelOf(id string) (json.RawMessage, error) {
	f, err := os.Open(filepath.Join(e.cellDir(id), labelFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	label, err := io.ReadAll(io.LimitReader(f, maxLabel))
	if err != nil {
		return nil, err
	}
	if !json.Valid(label) {
		return nil, nil
	}
	return label, nil
}

func readOrigin(dir string) (origin, error) {
	var o origin
	data, err := os.ReadFile(filepath.Join(dir, originFile))
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil {
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

// standbySpec is what a standby is prepared for. Standbys of equal specs are
// interchangeable.
type standbySpec struct {
	Root      engine.Root
	Resources sandbox.Resources
	Program   string // a file in [Engine.programsDir]
	Cell      int    // the protocol of Program; see [cell.Protocol]
	AgentDir  string
	// Mounts belong to one sandbox: a standby with mounts never waits in a pool.
	Mounts []engine.Mount `json:",omitempty"`
	// FilesFrom is a checkpoint's directory, for one sandbox only.
	FilesFrom string
	// Restore is the directory of a checkpoint from which a sandbox in the standby continues
	// before the standby is taken.
	Restore string
}

// key identifies equal specs.
func (s *standbySpec) key() string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // all its fields can be encoded
	}
	return string(data)
}

// standby is a cell in its cgroup that waits to become a sandbox: blank, with a gVisor
// that has started nothing, or warm, with a restored sandbox.
type standby struct {
	*process
	spec       standbySpec
	dir        string
	client     *cell.Client
	unenforced []string
	prepared   chan struct{} // closed when the cell is prepared, or has failed
	failure    error         // why it has failed; set before prepared is closed
	since      time.Time     // when it started to wait
}

// await waits until the standby is prepared.
func (s *standby) await(ctx context.Context) error {
	select {
	case <-s.prepared:
		return s.failure
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *Engine) standbyDir() string { return filepath.Join(e.cfg.Dir, "standby") }

// blankSpec returns the spec of a standby for a boot.
func (e *Engine) blankSpec(root engine.Root, r sandbox.Resources) standbySpec {
	return standbySpec{Root: root, Resources: r, Program: filepath.Base(e.program), Cell: cell.Protocol, AgentDir: e.agentDir()}
}

// errSpareLost means that the spare process has ended.
var errSpareLost = errors.New("the spare process has ended")

// startStandby starts a standby. It returns before the standby is prepared.
func (e *Engine) startStandby(spec standbySpec) (*standby, error) {
	sb, err := e.tryStandby(spec)
	if errors.Is(err, errSpareLost) {
		return e.tryStandby(spec)
	}
	return sb, err
}

// tryStandby is startStandby, but fails if the spare process has ended while it waited.
func (e *Engine) tryStandby(spec standbySpec) (sb *standby, err error) {
	name := "standby-" + strings.ToLower(rand.Text())
	dir := filepath.Join(e.standbyDir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the standby's directory: %w", err)
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
	p, err := e.processOf(spec.Program, spec.Cell)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil && p.ahead {
			err = errors.Join(errSpareLost, err)
		}
	}()
	// From here on the directory names the process, so that removeCell ends it.
	if err := recordProcess(dir, p.cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, p.cmd.Process.Kill())
	}
	e.mu.Lock()
	p.named = true
	e.mu.Unlock()
	// Nothing of the sandbox ever runs outside its limits.
	if err := group.Enter(p.cmd.Process.Pid); err != nil {
		return nil, errors.Join(fmt.Errorf("enter cgroup: %w", err), p.cmd.Process.Kill())
	}
	sb = &standby{
		process: p, spec: spec, dir: dir, client: cell.NewClient(dir, p.protocol, p.conn),
		unenforced: unenforced(group.Missing()), prepared: make(chan struct{}),
	}
	go func() {
		defer close(sb.prepared)
		err := sb.client.Prepare(context.Background(), &cell.Standby{ // the call ends with the process
			Dir: dir, Root: spec.Root, Resources: spec.Resources, AgentDir: spec.AgentDir,
			UserIDs: e.userIDs(), PinCPUs: !e.cgroups.CPU, Mounts: spec.Mounts, FilesFrom: spec.FilesFrom, Restore: spec.Restore,
		})
		if err != nil {
			sb.failure = startFailure(err)
		}
	}()
	return sb, nil
}

// userIDs returns the ids for sandboxes, or nil if there are none, as for an ordinary user.
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

// become makes a standby the cell of a sandbox, and waits until the sandbox is ready.
// After an error, what is left is in the standby's or the sandbox's directory.
func (e *Engine) become(ctx context.Context, sb *standby, spec engine.Spec, restoreFrom string) (*instance, error) {
	dir := e.cellDir(spec.ID)
	cellSpec := cell.Spec{
		Spec: spec, Dir: dir, RestoreFrom: restoreFrom,
		Fresh: spec.Fresh || spec.Checkpoint == "", Unenforced: sb.unenforced,
	}
	switch {
	case sb.protocol >= 1:
		cellSpec.Gateway, cellSpec.AwaitValues = e.gatewayConfig(), spec.Network != nil && spec.Network.Intercepts()
		if sb.protocol < 3 && spec.Network != nil && len(spec.Network.Headers) > 0 {
			cellSpec.Unenforced = append(cellSpec.Unenforced, "network.headers: the memory was kept by an older version of cove, which sets none (restart it from its files only)")
		}
	case spec.Network != nil:
		cellSpec.Unenforced = append(cellSpec.Unenforced, "network: the memory was kept by an older version of cove, in which sandboxes have none (restart it from its files only)")
	}
	// The cell uses the directory's path until it is prepared.
	if err := sb.await(ctx); err != nil {
		return nil, err
	}
	if err := e.noteSource(sb.dir, restoreFrom); err != nil {
		return nil, err
	}
	if err := os.Rename(sb.dir, dir); err != nil {
		return nil, fmt.Errorf("name the cell's directory: %w", err)
	}
	sb.dir, sb.client.Dir = dir, dir
	if spec.Label != nil {
		if err := os.WriteFile(filepath.Join(dir, labelFile), spec.Label, 0o600); err != nil {
			return nil, fmt.Errorf("label the cell: %w", err)
		}
	}
	return e.attach(ctx, spec.ID, sb.client, sb.exited, func(streamCtx context.Context) (cell.Statuses, cell.Status, error) {
		var issuer []byte // delivery to a cell of an earlier version is retried until the cell listens
		defer func() { clear(issuer) }()
		var undelivered error
		all, first, err := sb.client.Start(streamCtx, &cellSpec, func() error {
			if issuer == nil {
				if issuer, undelivered = e.authority.NewIssuer(); undelivered != nil {
					return undelivered
				}
			}
			undelivered = deliver(ctx, dir, issuer, spec.Network)
			return undelivered
		})
		switch {
		case err == nil:
		case undelivered == nil || !errors.Is(err, undelivered): // it is the cell's error
			err = startFailure(err)
		case sb.ends():
			err = notStarted(errors.Join(errCellEnded, err))
		}
		return all, first, err
	})
}

// ends reports whether the cell has ended, or ends within a moment.
func (sb *standby) ends() bool {
	select {
	case <-sb.exited:
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

// abandon ends a standby that was not taken, or could not become a sandbox.
func (e *Engine) abandon(sb *standby) {
	sb.dismiss()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := removeCell(ctx, sb.dir); err != nil {
		e.cfg.Log.Error("remove a standby sandbox", "dir", sb.dir, "error", err)
	}
}

// removeStandbys removes the standbys that a killed engine left behind, including those
// of an earlier version, which used another directory.
func (e *Engine) removeStandbys() error {
	if err := os.MkdirAll(e.standbyDir(), 0o700); err != nil {
		return err
	}
	var errs []error
	for _, parent := range []string{e.standbyDir(), filepath.Join(e.cfg.Dir, "shells")} {
		entries, err := os.ReadDir(parent)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			errs = append(errs, removeCell(context.Background(), filepath.Join(parent, entry.Name())))
		}
	}
	return errors.Join(errs...)
}
