package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/engine"
)

// An import can go on after instances continue from the checkpoint. Then the node sends what
// they wait for while the server sends the file; when it has the file, it sends that it wants
// nothing more.

var _ engine.EarlyImporter = (*Engine)(nil)

const (
	// maxUnfinished bounds how many imports a node may say are to be finished.
	maxUnfinished = 1 << 12
	// maxWanted bounds how many parts are known to be waited for and not fetched yet. Further
	// ones come in their turn.
	maxWanted = 1 << 10
)

// finishRequest asks a node to go on with an import.
type finishRequest struct {
	token
	ID string
}

// want says what a node waits for of a file.
type want struct {
	Part *engine.Part `json:",omitempty"`
	// Unneeded says that nobody needs the rest of the file, and End that nothing else follows.
	Unneeded bool `json:",omitempty"`
	End      bool `json:",omitempty"`
}

// ImportEarly implements [engine.EarlyImporter].
func (e *Engine) ImportEarly(ctx context.Context, c engine.Checkpoint, description []byte, fetch engine.Fetch, usable func(engine.Checkpoint)) (engine.Checkpoint, error) {
	return e.importWith(ctx, c, description, fetch, usable)
}

// Unfinished implements [engine.EarlyImporter].
func (e *Engine) Unfinished(ctx context.Context) ([]string, error) {
	ids, err := call[[]string](ctx, e, "Unfinished", empty{})
	return ids[:min(len(ids), maxUnfinished)], err
}

// FinishImport implements [engine.EarlyImporter].
func (e *Engine) FinishImport(ctx context.Context, id string, fetch engine.Fetch) error {
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	_, err := talk[empty](ctx, e, "FinishImport", &finishRequest{ID: id}, answers{fetch: sendFiles(fetch, abort)})
	return err
}

// sendFiles sends the files that a node asks for during an import. abort ends the import, for
// a reason.
func sendFiles(fetch engine.Fetch, abort context.CancelCauseFunc) func(*exportedFile, *frames) (failed, err error) {
	fetches := 0
	return func(file *exportedFile, f *frames) (failed, err error) {
		if fetches++; fetches > maxFetches || file.Size < 0 || file.Size > maxExportFile {
			return nil, fmt.Errorf("%w: it asks for too much", errFrame)
		}
		to := io.WriterAt(&partWriter{f, file.Size, abort})
		var wants *wants
		if file.Early {
			wants = newWants(f)
			to = earlyWriter{to, wants}
			go wants.receive()
		}
		failed = fetch(engine.ExportFile{Name: file.Name, Size: file.Size, Shared: file.Shared}, to)
		end := value{End: true}
		if failed != nil {
			end = value{Failed: new(failureOf(failed))}
		}
		if err := f.send(end); err != nil || !file.Early {
			return failed, err
		}
		late := time.AfterFunc(partTimeout, func() { abort(errSlow) })
		defer late.Stop()
		return failed, wants.await()
	}
}

// wants is what a node waits for.
type wants struct {
	f        *frames
	parts    chan engine.Part
	unneeded chan struct{}
	ended    chan struct{} // closed after err is set
	err      error
}

func newWants(f *frames) *wants {
	return &wants{f: f, parts: make(chan engine.Part, maxWanted), unneeded: make(chan struct{}), ended: make(chan struct{})}
}

// receive receives what the node says until it says that this was all.
func (w *wants) receive() {
	defer close(w.ended)
	unneeded := sync.OnceFunc(func() { close(w.unneeded) })
	for {
		var next want
		if w.err = w.f.receive(&next); w.err != nil {
			unneeded() // there is nobody any more
			return
		}
		switch {
		case next.End:
			return
		case next.Unneeded:
			unneeded()
		case next.Part != nil:
			select {
			case w.parts <- *next.Part:
			default: // else neither Unneeded nor the end of the connection would be noticed
			}
		}
	}
}

// await waits for the end of receive.
func (w *wants) await() error {
	<-w.ended
	return w.err
}

// earlyWriter is an [engine.PartWriter] that sends what is written.
type earlyWriter struct {
	io.WriterAt
	wants *wants
}

func (w earlyWriter) Wanted() <-chan engine.Part { return w.wants.parts }
func (w earlyWriter) Unneeded() <-chan struct{}  { return w.wants.unneeded }

// unfinished returns what is to be finished.
func (n *session) unfinished(ctx context.Context, _ *empty) (*[]string, error) {
	e, ok := n.cfg.Engine.(engine.EarlyImporter)
	if !ok {
		return &[]string{}, nil
	}
	ids, err := e.Unfinished(ctx)
	return &ids, err
}

// finishImport goes on with an import.
func (n *session) finishImport(ctx context.Context, req *finishRequest, f *frames) error {
	e, ok := n.cfg.Engine.(engine.EarlyImporter)
	if !ok {
		return engine.ErrNotFound
	}
	if err := e.FinishImport(ctx, req.ID, askFiles[empty](f)); err != nil {
		return err
	}
	return f.send(step[empty]{Done: &empty{}})
}

// askFiles asks the server for files.
func askFiles[Res any](f *frames) engine.Fetch {
	return func(file engine.ExportFile, to io.WriterAt) error {
		w, early := to.(engine.PartWriter)
		if err := f.send(step[Res]{Fetch: &exportedFile{Name: file.Name, Size: file.Size, Shared: file.Shared, Early: early}}); err != nil {
			return err
		}
		if !early {
			return f.parts(file.Size, to)
		}
		received := make(chan struct{})
		said := make(chan error, 1)
		go func() { said <- f.sendWants(w, received) }()
		err := f.parts(file.Size, to)
		close(received)
		return errors.Join(err, <-said)
	}
}

// sendWants sends what somebody waits for of a file until the file is received.
func (f *frames) sendWants(w engine.PartWriter, received <-chan struct{}) error {
	unneeded := w.Unneeded()
	for {
		var next want
		select {
		case part := <-w.Wanted():
			next.Part = &part
		case <-unneeded:
			next.Unneeded, unneeded = true, nil
		case <-received:
			return f.send(want{End: true})
		}
		if err := f.send(next); err != nil {
			return err
		}
	}
}
