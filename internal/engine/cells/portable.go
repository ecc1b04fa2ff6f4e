package cells

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/cell/runsc"
	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/checkpoint"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

var _ engine.Portable = (*Engine)(nil)

// Names of an export's files beside those of the checkpoint.
const (
	exportedProgram = "program"
	exportedAgent   = "agent"
)

// description is the description of an export.
type description struct {
	Manifest checkpoint.Manifest `json:"manifest"`
	// Program and Agent are the SHA-256 sums of the checkpoint's program and agent, unless
	// the checkpoint has only files.
	Program      string `json:"program,omitempty"`
	Agent        string `json:"agent,omitempty"`
	ProgramBytes int64  `json:"program_bytes,omitempty"`
	AgentBytes   int64  `json:"agent_bytes,omitempty"`
	// Root says that the daemon ran as root: then files have owners of their own.
	Root bool `json:"root"`
}

// SharedProgram and SharedAgent return the names under which exports share a program and an
// agent, from their SHA-256 sums in hexadecimal; see [engine.ExportFile].
func SharedProgram(sum string) string { return exportedProgram + sum }

// SharedAgent is described at [SharedProgram].
func SharedAgent(sum string) string { return exportedAgent + sum }

var validSum = lazyregexp.New(`^[0-9a-f]{64}$`)

// maxProgramBytes limits a program that is fetched.
const maxProgramBytes = 4 << 30

// Export implements [engine.Portable].
func (e *Engine) Export(ctx context.Context, id string) (_ *engine.Export, err error) {
	m, err := e.manifest(id, "copied")
	if err != nil {
		return nil, err
	}
	if err := e.awaitFiles(ctx, id); err != nil {
		return nil, err
	}
	out := &engine.Export{Checkpoint: m.Checkpoint}
	defer func() {
		if err != nil {
			out.Close()
		}
	}()
	for _, f := range m.Files {
		if _, err := addFile(out, f.Name, filepath.Join(e.checkpoints.Path(id), f.Name), ""); err != nil {
			return nil, err
		}
	}
	d := description{Manifest: m, Root: os.Geteuid() == 0}
	if !m.FilesOnly {
		program := filepath.Join(e.programsDir(), m.Program)
		if err := intact(program); err != nil {
			return nil, err
		}
		if d.Program, d.ProgramBytes, err = e.addShared(out, exportedProgram, program); err != nil {
			return nil, err
		}
		agent := filepath.Join(e.standbyFor(&m, m.Root, m.Resources).AgentDir, "agent")
		if d.Agent, d.AgentBytes, err = e.addShared(out, exportedAgent, agent); err != nil {
			return nil, err
		}
	}
	out.Description, err = json.Marshal(d)
	return out, err
}

// addFile adds a file to an export, and returns its size.
func addFile(out *engine.Export, name, path, shared string) (int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	out.Files = append(out.Files, engine.ExportFile{Name: name, Shared: shared, ReadCloser: f})
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	out.Files[len(out.Files)-1].Size = info.Size()
	return info.Size(), nil
}

// addShared adds a file that other checkpoints need too, and returns its sum and size.
func (e *Engine) addShared(out *engine.Export, name, path string) (sum string, size int64, err error) {
	if sum, err = e.sumOf(path); err != nil {
		return "", 0, err
	}
	size, err = addFile(out, name, path, name+sum)
	return sum, size, err
}

// sumOf returns the SHA-256 sum of a program or an agent, neither of which changes.
func (e *Engine) sumOf(path string) (string, error) {
	e.mu.Lock()
	sum := e.sums[path]
	e.mu.Unlock()
	if sum != "" {
		return sum, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	sum = hex.EncodeToString(h.Sum(nil))
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sums[path] = sum
	return sum, nil
}

// Import implements [engine.Portable].
func (e *Engine) Import(ctx context.Context, c engine.Checkpoint, data []byte, fetch engine.Fetch) (engine.Checkpoint, error) {
	return e.importWith(ctx, c, data, fetch, nil)
}

// importWith makes a checkpoint again, and calls usable, unless that is nil, if it can be used
// before all of it was fetched.
func (e *Engine) importWith(_ context.Context, c engine.Checkpoint, data []byte, fetch engine.Fetch, usable func(engine.Checkpoint)) (_ engine.Checkpoint, err error) {
	var none engine.Checkpoint
	var d description
	if err := json.Unmarshal(data, &d); err != nil {
		return none, fmt.Errorf("read the description of a checkpoint: %w", err)
	}
	m := d.Manifest
	if err := m.Check(); err != nil {
		return none, damagedError(err)
	}
	if m.ID != c.ID {
		return none, damagedError(fmt.Errorf("it is the checkpoint %s", m.ID))
	}
	m.Root, m.Resources, m.Label, m.Owner = c.Root, c.Resources, c.Label, c.Owner
	if d.Root != (os.Geteuid() == 0) {
		return none, sandbox.Errorf(sandbox.CodeUnsupported, "its state was kept by a server that ran as %s, and this one does not; run the server as that user", userOf(d.Root))
	}
	if !m.FilesOnly {
		if err := e.importProgram(&m, &d, fetch); err != nil {
			return none, err
		}
		if err := e.importAgent(&m, &d, fetch); err != nil {
			return none, err
		}
	}
	draft, err := e.checkpoints.Begin(m.ID)
	if err != nil {
		return none, err
	}
	defer func() { err = errors.Join(err, draft.Discard()) }()
	for _, f := range m.Files {
		if f.Name == runsc.PagesFile {
			continue
		}
		if err := fill(filepath.Join(draft.Dir(), f.Name), f.Name, f.Size, fetch); err != nil {
			return none, err
		}
	}
	if !m.FilesOnly {
		e.keepProgram(m.Program)
	}
	if usable != nil && m.SizeBytes <= c.SizeBytes && e.canBeEarly(&m, draft.Dir()) {
		return m.Checkpoint, e.importPages(draft, m, fetch, usable)
	}
	if f := m.File(runsc.PagesFile); f != nil {
		if err := fill(filepath.Join(draft.Dir(), f.Name), f.Name, f.Size, fetch); err != nil {
			return none, err
		}
	}
	return m.Checkpoint, draft.Copy(m)
}

func userOf(root bool) string {
	if root {
		return "root"
	}
	return "an ordinary user"
}

// fill makes a file and has it fetched.
func fill(path, name string, size int64, fetch engine.Fetch) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(size)
	if err == nil {
		err = fetch(engine.ExportFile{Name: name, Size: size}, f)
	}
	return errors.Join(err, f.Close())
}

// importProgram makes sure that the program of a checkpoint is there, and names it in the
// manifest: this one if it is the same, or else a copy under a name that no file of the
// user can have.
func (e *Engine) importProgram(m *checkpoint.Manifest, d *description, fetch engine.Fetch) error {
	if !validSum.MatchString(d.Program) || d.ProgramBytes < 0 || d.ProgramBytes > maxProgramBytes {
		return damagedError(errors.New("it does not say which program made it"))
	}
	own, err := e.sumOf(e.program)
	if err != nil {
		return err
	}
	if own == d.Program {
		m.Program = filepath.Base(e.program)
		return nil
	}
	m.Program = "cove-sha256-" + d.Program
	return e.importFile(filepath.Join(e.programsDir(), m.Program), exportedProgram, d.Program, d.ProgramBytes, fetch)
}

// importAgent makes sure that the agent of a checkpoint is there.
func (e *Engine) importAgent(m *checkpoint.Manifest, d *description, fetch engine.Fetch) error {
	digest := filepath.Base(m.AgentDir)
	if !validSum.MatchString(d.Agent) || d.AgentBytes < 0 || d.AgentBytes > maxProgramBytes || !validAgent.MatchString(digest) {
		return damagedError(errors.New("it does not say which agent it has"))
	}
	m.AgentDir = filepath.Join(e.cfg.Dir, "agent", digest)
	// The sandbox's users must be able to read the directory.
	if err := os.MkdirAll(m.AgentDir, 0o755); err != nil {
		return err
	}
	return e.importFile(filepath.Join(m.AgentDir, "agent"), exportedAgent, d.Agent, d.AgentBytes, fetch)
}

// validAgent matches digests of agents, which are names of directories.
var validAgent = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

// importFile makes a program's file, unless it is there with its content.
func (e *Engine) importFile(path, name, sum string, size int64, fetch engine.Fetch) error {
	have, err := e.sumOf(path)
	switch {
	case err == nil && have == sum:
		return nil
	case err == nil:
		return fmt.Errorf("%s is not the %s that the checkpoint needs", path, name)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return writeProgram(path, func(f *os.File) error {
		if err := f.Truncate(size); err != nil {
			return err
		}
		if err := fetch(engine.ExportFile{Name: name, Size: size, Shared: name + sum}, f); err != nil {
			return err
		}
		h := sha256.New()
		if _, err := io.Copy(h, io.NewSectionReader(f, 0, size)); err != nil {
			return err
		}
		if hex.EncodeToString(h.Sum(nil)) != sum {
			return damagedError(fmt.Errorf("its %s has other content", name))
		}
		return nil
	})
}
