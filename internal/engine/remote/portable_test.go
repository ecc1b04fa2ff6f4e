package remote_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/sandbox"
)

// exporter is a node that exports whatever a test wants.
type exporter struct {
	*memory.Keeper
	export *engine.Export
	// imports is called in place of Import.
	imports func(fetch engine.Fetch) error
}

func (e *exporter) Export(context.Context, string) (*engine.Export, error) { return e.export, nil }

func (e *exporter) Import(_ context.Context, c engine.Checkpoint, _ []byte, fetch engine.Fetch) (engine.Checkpoint, error) {
	return c, e.imports(fetch)
}

func file(name, content string, size int64) engine.ExportFile {
	return engine.ExportFile{Name: name, Size: size, ReadCloser: io.NopCloser(strings.NewReader(content))}
}

// TestHostileExport checks that a node can send neither more nor less than it says, nor say
// that there is more than there may be.
func TestHostileExport(t *testing.T) {
	s, _ := newState(t)
	x := &exporter{Keeper: memory.NewKeeper(s)}
	e := newNode(t, x, engine.Root{Dir: "/"}).settle(t)
	good := engine.Checkpoint{ID: "ckp", Owner: "of its own"}
	many := make([]engine.ExportFile, 1000)
	for i := range many {
		many[i] = file("f", "", 0)
	}
	for name, head := range map[string]*engine.Export{
		"another checkpoint": {Checkpoint: engine.Checkpoint{ID: "other"}, Files: []engine.ExportFile{file("f", "x", 1)}},
		"no file":            {Checkpoint: good},
		"too many files":     {Checkpoint: good, Files: many},
		"a huge file":        {Checkpoint: good, Files: []engine.ExportFile{file("f", "x", 1<<60)}},
		"less than nothing":  {Checkpoint: good, Files: []engine.ExportFile{file("f", "x", -1)}},
		"a long description": {Checkpoint: good, Description: make([]byte, 10<<20), Files: []engine.ExportFile{file("f", "x", 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newNode(t, &exporter{Keeper: x.Keeper, export: head}, engine.Root{Dir: "/"}).settle(t)
			if out, err := e.Export(t.Context(), "ckp"); err == nil {
				out.Close()
				t.Error("it was taken")
			}
		})
	}
	x.export = &engine.Export{Checkpoint: good, Files: []engine.ExportFile{file("long", "0123456789", 5), file("short", "01", 5), file("good", "01234", 5)}}
	out, err := e.Export(t.Context(), "ckp")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if out.Owner != "" {
		t.Errorf("the node says that it belongs to %q", out.Owner)
	}
	if got, err := io.ReadAll(out.Files[2]); err != nil || string(got) != "01234" {
		t.Errorf("a good file: %q, %v", got, err)
	}
	if got, err := io.ReadAll(out.Files[1]); err == nil {
		t.Errorf("a file that is too short: %q", got)
	}
	if got, err := io.ReadAll(out.Files[0]); err == nil || len(got) > 5 {
		t.Errorf("a file that is too long: %q, %v", got, err)
	}
}

// TestSilentExport checks that a node that does not send ends with the context of the
// export, and that the size of its checkpoint is bounded.
func TestSilentExport(t *testing.T) {
	s, _ := newState(t)
	r, w := io.Pipe()
	defer w.Close()
	silent := engine.ExportFile{Name: "f", Size: 5, ReadCloser: r}
	x := &exporter{Keeper: memory.NewKeeper(s), export: &engine.Export{Checkpoint: engine.Checkpoint{ID: "ckp", SizeBytes: 1 << 62}, Files: []engine.ExportFile{silent}}}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out, err := newNode(t, x, engine.Root{Dir: "/"}).settle(t).Export(ctx, "ckp")
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if out.SizeBytes > 1<<42 {
		t.Errorf("the node says that it has %d bytes", out.SizeBytes)
	}
	removed := errors.New("removed")
	go cancel(removed)
	if _, err := io.ReadAll(out.Files[0]); !errors.Is(err, removed) {
		t.Errorf("a file that does not come: %v", err)
	}
}

// TestHostileImport checks that a node cannot ask for more than there is, and gets what it
// asks for whole or not at all.
func TestHostileImport(t *testing.T) {
	s, _ := newState(t)
	x := &exporter{Keeper: memory.NewKeeper(s)}
	n := newNode(t, x, engine.Root{Dir: "/"})
	want := engine.Checkpoint{ID: "ckp", Owner: "red", Root: engine.Root{Digest: "d"}}
	content := strings.Repeat("0123456789", 50_000)
	served := 0
	serve := func(f engine.ExportFile, to io.WriterAt) error {
		served++
		if f.Name == "missing" {
			return sandbox.Errorf(sandbox.CodeNotFound, "there is no such file")
		}
		if f.Name == "small" {
			_, err := to.WriteAt([]byte("0123456789"), 0)
			return err
		}
		if _, err := to.WriteAt([]byte("beyond"), f.Size-1); err == nil {
			t.Error("more than the file was written")
		}
		_, err := to.WriteAt([]byte(content), 0)
		return err
	}
	x.imports = func(fetch engine.Fetch) error {
		var got sparse
		if err := fetch(engine.ExportFile{Name: "f", Size: int64(len(content))}, &got); err != nil || string(got) != content {
			t.Errorf("the node gets %d bytes, %v", len(got), err)
		}
		return nil
	}
	if c, err := n.settle(t).Import(t.Context(), want, nil, serve); err != nil || c.Owner != "red" || c.Root.Digest != "d" {
		t.Errorf("Import: %+v, %v", c, err)
	}
	x.imports = func(fetch engine.Fetch) error { return fetch(engine.ExportFile{Name: "missing", Size: 1}, new(sparse)) }
	if _, err := n.settle(t).Import(t.Context(), want, nil, serve); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("Import of what is missing: %v", err)
	}
	x.imports = func(fetch engine.Fetch) error { return fetch(engine.ExportFile{Name: "f", Size: 1 << 62}, new(sparse)) }
	if _, err := n.settle(t).Import(t.Context(), want, nil, serve); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("Import of a huge file: %v", err)
	}
	served = 0
	x.imports = func(fetch engine.Fetch) error {
		var err error
		for err == nil {
			err = fetch(engine.ExportFile{Name: "small", Size: 10}, new(sparse))
		}
		return err
	}
	if _, err := n.settle(t).Import(t.Context(), want, nil, serve); err == nil || served > 1000 {
		t.Errorf("a node that asks for ever got %d files, %v", served, err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	x.imports = func(fetch engine.Fetch) error {
		cancel()
		return errors.New("undone")
	}
	if _, err := n.settle(t).Import(canceled, want, nil, serve); err == nil {
		t.Error("a cancelled import succeeded")
	}
}

// sparse is a file in memory.
type sparse []byte

func (s *sparse) WriteAt(p []byte, at int64) (int, error) {
	if end := int(at) + len(p); end > len(*s) {
		*s = append(*s, make([]byte, end-len(*s))...)
	}
	return copy((*s)[at:], p), nil
}
