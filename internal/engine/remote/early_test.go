package remote_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
)

// earlyNode is a node whose checkpoints are usable before they are complete.
type earlyNode struct {
	exporter
	unfinished []string
}

func (e *earlyNode) ImportEarly(_ context.Context, c engine.Checkpoint, _ []byte, fetch engine.Fetch, usable func(engine.Checkpoint)) (engine.Checkpoint, error) {
	usable(c)
	return c, e.imports(fetch)
}

func (e *earlyNode) Unfinished(context.Context) ([]string, error) { return e.unfinished, nil }

func (e *earlyNode) FinishImport(_ context.Context, id string, fetch engine.Fetch) error {
	if !slices.Contains(e.unfinished, id) {
		return engine.ErrNotFound
	}
	return e.imports(fetch)
}

// early is a file that is in use while it is written.
type early struct {
	sparse
	wanted   chan engine.Part
	unneeded chan struct{}
}

func newEarly() *early {
	return &early{wanted: make(chan engine.Part), unneeded: make(chan struct{})}
}

func (e *early) Wanted() <-chan engine.Part { return e.wanted }
func (e *early) Unneeded() <-chan struct{}  { return e.unneeded }

// newEarlyNode returns a node, and its engine.
func newEarlyNode(t *testing.T) (*node, *earlyNode) {
	t.Helper()
	s, _ := newState(t)
	x := &earlyNode{exporter: exporter{Keeper: memory.NewKeeper(s)}}
	return newNode(t, x, engine.Root{Dir: "/"}), x
}

// TestImportEarly checks that a node says that a checkpoint is usable before it has the file,
// that the server learns what it waits for while it sends the file, and that the same
// connection serves what the node asks for after that.
func TestImportEarly(t *testing.T) {
	n, x := newEarlyNode(t)
	content := strings.Repeat("0123456789", 20_000)
	steps := make(chan string, 10)
	x.imports = func(fetch engine.Fetch) error {
		f := newEarly()
		go func() {
			f.wanted <- engine.Part{Offset: 5, Size: 2}
			f.wanted <- engine.Part{Offset: 100_000, Size: 1}
		}()
		if err := fetch(engine.ExportFile{Name: "f", Size: int64(len(content))}, f); err != nil || string(f.sparse) != content {
			t.Errorf("the node gets %d bytes, %v", len(f.sparse), err)
		}
		steps <- "has f"
		return fetch(engine.ExportFile{Name: "g", Size: 3}, new(sparse))
	}
	serve := func(f engine.ExportFile, to io.WriterAt) error {
		w, is := to.(engine.PartWriter)
		if is != (f.Name == "f") {
			t.Errorf("%s is sent to a %T", f.Name, to)
		}
		if !is {
			steps <- "g"
			_, err := to.WriteAt([]byte("abc"), 0)
			return err
		}
		for _, want := range []engine.Part{{Offset: 5, Size: 2}, {Offset: 100_000, Size: 1}} {
			if got := <-w.Wanted(); got != want {
				t.Errorf("the node waits for %+v, want %+v", got, want)
			}
		}
		steps <- "f"
		_, err := to.WriteAt([]byte(content), 0)
		return err
	}
	want := engine.Checkpoint{ID: "ckp", Owner: "red", Root: engine.Root{Digest: "d"}}
	c, err := n.settle(t).ImportEarly(t.Context(), want, nil, serve, func(c engine.Checkpoint) {
		if c.Owner != "red" || c.Root.Digest != "d" {
			t.Errorf("usable is %+v", c)
		}
		steps <- "usable"
	})
	if err != nil || c.Owner != "red" || c.Root.Digest != "d" {
		t.Errorf("ImportEarly: %+v, %v", c, err)
	}
	close(steps)
	if got := slices.Collect(receive(steps)); !slices.Equal(got, []string{"usable", "f", "has f", "g"}) {
		t.Errorf("the steps were %q", got)
	}
}

func receive(c <-chan string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for s := range c {
			if !yield(s) {
				return
			}
		}
	}
}

// TestFinishImport checks that what was cut off is found and finished, with the errors of both
// ends: a content that is lost, a rest that nobody needs, a checkpoint that is not there.
func TestFinishImport(t *testing.T) {
	n, x := newEarlyNode(t)
	x.unfinished = []string{"ckp"}
	e := n.settle(t)
	if ids, err := e.Unfinished(t.Context()); err != nil || !slices.Equal(ids, x.unfinished) {
		t.Errorf("unfinished are %q, %v", ids, err)
	}
	if err := e.FinishImport(t.Context(), "other", nil); !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("FinishImport of nothing: %v", err)
	}
	x.imports = func(fetch engine.Fetch) error {
		return fetch(engine.ExportFile{Name: "f", Size: 3}, newEarly())
	}
	err := e.FinishImport(t.Context(), "ckp", func(_ engine.ExportFile, to io.WriterAt) error {
		_, err := to.WriteAt([]byte("abc"), 0)
		return err
	})
	if err != nil {
		t.Errorf("FinishImport: %v", err)
	}
	var there error
	x.imports = func(fetch engine.Fetch) error {
		there = fetch(engine.ExportFile{Name: "f", Size: 3}, newEarly())
		return there
	}
	err = e.FinishImport(t.Context(), "ckp", func(engine.ExportFile, io.WriterAt) error { return engine.ErrLost })
	if !errors.Is(err, engine.ErrLost) || !errors.Is(there, engine.ErrLost) {
		t.Errorf("FinishImport of what is lost: %v, at the node %v", err, there)
	}
	x.imports = func(fetch engine.Fetch) error {
		f := newEarly()
		close(f.unneeded)
		return errors.Join(fetch(engine.ExportFile{Name: "f", Size: 3}, f), engine.ErrUnneeded)
	}
	err = e.FinishImport(t.Context(), "ckp", func(_ engine.ExportFile, to io.WriterAt) error {
		<-to.(engine.PartWriter).Unneeded()
		return engine.ErrUnneeded
	})
	if !errors.Is(err, engine.ErrUnneeded) {
		t.Errorf("FinishImport of what nobody needs: %v", err)
	}
}

// TestImportEarlyCutOff checks that both ends notice that the other one is gone while a file
// is sent.
func TestImportEarlyCutOff(t *testing.T) {
	n, x := newEarlyNode(t)
	there := make(chan error, 1)
	x.imports = func(fetch engine.Fetch) error {
		err := fetch(engine.ExportFile{Name: "f", Size: 3}, newEarly())
		there <- err
		return err
	}
	e := n.settle(t)
	_, err := e.ImportEarly(t.Context(), engine.Checkpoint{ID: "ckp"}, nil, func(_ engine.ExportFile, to io.WriterAt) error {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		<-to.(engine.PartWriter).Unneeded()
		return errors.New("nobody is there")
	}, func(engine.Checkpoint) {})
	if err == nil || errors.Is(err, engine.ErrLost) {
		t.Errorf("ImportEarly without a connection: %v", err)
	}
	if err := <-there; err == nil || errors.Is(err, engine.ErrLost) || errors.Is(err, engine.ErrUnneeded) {
		t.Errorf("the node learns %v", err)
	}
}
