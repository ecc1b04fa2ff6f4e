package remote

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxExports is how many exports of a node are open at once.
	maxExports = 64
	// maxExportFiles bounds the files of an export, maxExportFile the size of one in bytes,
	// and maxDescription a description.
	maxExportFiles = 256
	maxExportFile  = 1 << 42
	maxDescription = 8 << 20
	// maxFetches bounds how often a node may ask for a file in one import.
	maxFetches = 2 * maxExportFiles
	// exportTimeout bounds the wait for a node to begin an export, importTimeout an import
	// without the time that its bytes take, and partTimeout the wait for a node to take what
	// is written to it at once.
	exportTimeout = 5 * time.Minute
	importTimeout = 10 * time.Minute
	partTimeout   = time.Minute
	// slowest is how many bytes a node must move in a second.
	slowest = 1 << 20
)

// errSlow means that a node keeps others waiting.
var errSlow = sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox's node is too slow or does not answer; see the node's log, and try again")

// patience returns how long a node may take for something with so many bytes.
func patience(least time.Duration, bytes int64) time.Duration {
	return least + time.Duration(cleanSize(bytes)/slowest)*time.Second
}

type exportRequest struct {
	// Export identifies the export within the connection, for readRequest.
	Export int64
	ID     string
}

type exported struct {
	Checkpoint  engine.Checkpoint
	Description []byte
	Files       []exportedFile
}

type exportedFile struct {
	Name   string
	Size   int64
	Shared string `json:",omitempty"`
	// Early asks for a file that is in use while it is sent; see [want].
	Early bool `json:",omitempty"`
}

// readRequest asks for the content of a file, by its index. Each can be read once.
type readRequest struct {
	Export int64
	File   int
}

type importRequest struct {
	token
	Checkpoint  engine.Checkpoint // without Root
	Root        root
	Description []byte
	// Early says that the node may say that the checkpoint is usable before it is complete.
	Early bool `json:",omitempty"`
}

// Export implements [engine.Portable]. Nothing in the result is trusted.
func (e *Engine) Export(ctx context.Context, id string) (*engine.Export, error) {
	token := e.calls.Add(1)
	var head exported
	begin, cancel := context.WithTimeoutCause(ctx, exportTimeout, errSlow)
	defer cancel()
	_, end, err := e.startTo(begin, "Export", exportRequest{token, id}, &head)
	if err != nil {
		return nil, err
	}
	if err := head.check(id); err != nil {
		end()
		return nil, e.explain(ctx, err)
	}
	out := &engine.Export{Checkpoint: cleanCheckpoint(head.Checkpoint), Description: head.Description}
	for i, f := range head.Files {
		out.Files = append(out.Files, engine.ExportFile{Name: f.Name, Size: f.Size, Shared: f.Shared, ReadCloser: &exportReader{e: e, ctx: ctx, req: readRequest{token, i}, left: f.Size, patience: patience(time.Minute, f.Size)}})
	}
	return holdOpen(out, end), nil
}

// holdOpen calls end when all files of an export have been closed.
func holdOpen(out *engine.Export, end func()) *engine.Export {
	var open sync.WaitGroup
	for i := range out.Files {
		open.Add(1)
		out.Files[i].ReadCloser = &closing{out.Files[i].ReadCloser, sync.OnceFunc(open.Done)}
	}
	go func() {
		open.Wait()
		end()
	}()
	return out
}

type closing struct {
	io.ReadCloser
	closed func()
}

func (c *closing) Close() error {
	defer c.closed()
	return c.ReadCloser.Close()
}

func (h *exported) check(id string) error {
	switch {
	case h.Checkpoint.ID != id:
		return fmt.Errorf("%w: not the checkpoint that was asked for", errFrame)
	case len(h.Description) > maxDescription:
		return fmt.Errorf("%w: a description of %d bytes", errFrame, len(h.Description))
	case len(h.Files) == 0 || len(h.Files) > maxExportFiles:
		return fmt.Errorf("%w: a checkpoint of %d files", errFrame, len(h.Files))
	}
	for _, f := range h.Files {
		if f.Size < 0 || f.Size > maxExportFile || len(f.Name) > 256 || len(f.Shared) > 256 {
			return fmt.Errorf("%w: a file of %d bytes, named %.80q", errFrame, f.Size, f.Name)
		}
	}
	return nil
}

// exportReader reads a file of an export. It asks the node when it is first read.
type exportReader struct {
	e    *Engine
	ctx  context.Context // of the export
	req  readRequest
	left int64
	from *conn
	stop func() bool // ends the watch over ctx
	// patience is how long the node may still be waited for.
	patience time.Duration
}

// Read implements [io.Reader]. A file that is longer or shorter than was announced is an
// error, and so is a node that lets itself be waited for too long, in all.
func (r *exportReader) Read(p []byte) (int, error) {
	began := time.Now()
	defer func() { r.patience -= time.Since(began) }()
	if r.from == nil {
		begin, cancel := context.WithTimeoutCause(r.ctx, r.patience, errSlow)
		defer cancel()
		f, end, err := r.e.start(begin, "ReadExport", r.req)
		if err != nil {
			return 0, err
		}
		from := newConn(f, end)
		r.from, r.stop = from, context.AfterFunc(r.ctx, func() { from.Close() })
	}
	_ = r.from.SetReadDeadline(began.Add(r.patience))
	n, err := r.from.Read(p)
	r.left -= int64(n)
	switch {
	case err != nil && r.ctx.Err() != nil:
		return 0, context.Cause(r.ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, errSlow
	case r.left < 0:
		return 0, r.e.explain(r.ctx, fmt.Errorf("%w: a file is longer than it was", errFrame))
	case errors.Is(err, io.EOF) && r.left > 0:
		return n, io.ErrUnexpectedEOF
	}
	return n, err
}

func (r *exportReader) Close() error {
	if r.from == nil {
		return nil
	}
	r.stop()
	return r.from.Close()
}

// Import implements [engine.Portable]. A node that is too slow does not get the checkpoint.
func (e *Engine) Import(ctx context.Context, c engine.Checkpoint, description []byte, fetch engine.Fetch) (engine.Checkpoint, error) {
	return e.importWith(ctx, c, description, fetch, nil)
}

// importWith makes a checkpoint on the node. usable is nil, or called if the checkpoint can
// be used before it is complete.
func (e *Engine) importWith(ctx context.Context, c engine.Checkpoint, description []byte, fetch engine.Fetch, usable func(engine.Checkpoint)) (engine.Checkpoint, error) {
	req := importRequest{Checkpoint: c, Root: rootOf(&c.Root), Description: description, Early: usable != nil}
	req.Checkpoint.Root = engine.Root{}
	ctx, stop := context.WithTimeoutCause(ctx, patience(importTimeout, c.SizeBytes), errSlow)
	defer stop()
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	as := func(made engine.Checkpoint) engine.Checkpoint {
		c.SizeBytes = cleanSize(made.SizeBytes)
		return c
	}
	a := answers{fetch: sendFiles(fetch, abort)}
	if usable != nil {
		a.usable = func(made engine.Checkpoint) { usable(as(made)) }
	}
	made, err := talk[engine.Checkpoint](ctx, e, "Import", &req, a)
	if err != nil {
		return engine.Checkpoint{}, err
	}
	return as(made), nil
}

// partWriter sends what is written, in parts of any order.
type partWriter struct {
	f    *frames
	size int64
	// abort ends the import, for a reason.
	abort context.CancelCauseFunc
}

// partHead is what precedes the bytes of a part: their offset.
const partHead = 8

// WriteAt implements [io.WriterAt].
func (w *partWriter) WriteAt(p []byte, at int64) (n int, err error) {
	if at < 0 || int64(len(p)) > w.size-at {
		return 0, io.ErrShortWrite
	}
	late := time.AfterFunc(partTimeout, func() { w.abort(errSlow) })
	defer late.Stop()
	buf := make([]byte, 0, maxData)
	for n < len(p) {
		part := p[n:min(len(p), n+maxData-partHead)]
		buf = append(binary.BigEndian.AppendUint64(buf[:0], uint64(at)+uint64(n)), part...) //nolint:gosec // neither is negative
		if err := w.f.write(framePart, buf); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// parts receives what a partWriter sends, until the other end says that this was all.
func (f *frames) parts(size int64, to io.WriterAt) error {
	for {
		kind, n, err := f.next()
		if err != nil {
			return whole(err)
		}
		if kind != framePart && kind != frameMessage {
			return fmt.Errorf("%w: frame %q among parts of a file", errFrame, kind)
		}
		data, err := f.body(n)
		if err != nil {
			return err
		}
		if kind == frameMessage {
			var v value
			if err := json.Unmarshal(data, &v); err != nil {
				return fmt.Errorf("%w: %w", errFrame, err)
			}
			if v.Failed != nil {
				return v.Failed.error()
			}
			return nil
		}
		if len(data) < partHead {
			return fmt.Errorf("%w: a part of %d bytes", errFrame, len(data))
		}
		at := int64(binary.BigEndian.Uint64(data)) //nolint:gosec // checked next
		if data = data[partHead:]; at < 0 || int64(len(data)) > size-at {
			return fmt.Errorf("%w: a part is outside its file", errFrame)
		}
		if _, err := to.WriteAt(data, at); err != nil {
			return err
		}
	}
}

func (n *session) portable() (engine.Portable, error) {
	if p, ok := n.cfg.Engine.(engine.Portable); ok {
		return p, nil
	}
	return nil, unsupported("copy the state of sandboxes")
}

// export keeps an export open until the daemon ends the call.
func (n *session) export(ctx context.Context, req *exportRequest, f *frames) error {
	p, err := n.portable()
	if err != nil {
		return err
	}
	out, err := p.Export(ctx, req.ID)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := n.exports.add(req.Export, out); err != nil {
		return err
	}
	defer n.exports.remove(req.Export)
	head := exported{Checkpoint: abroad(out.Checkpoint), Description: out.Description}
	for _, file := range out.Files {
		head.Files = append(head.Files, exportedFile{Name: file.Name, Size: file.Size, Shared: file.Shared})
	}
	if err := f.send(head); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (n *session) readExport(_ context.Context, req *readRequest, f *frames) error {
	file, err := n.exports.file(req)
	if err != nil {
		return err
	}
	if err := f.send(empty{}); err != nil {
		return err
	}
	out := newConn(f, func() {})
	if _, err := io.CopyBuffer(struct{ io.Writer }{out}, struct{ io.Reader }{file}, make([]byte, maxData)); err != nil {
		return fmt.Errorf("read a file of a checkpoint: %w", err)
	}
	return out.CloseWrite()
}

// exports are the exports of a connection that are open.
type exports struct {
	mu   sync.Mutex
	open map[int64]*engine.Export // guarded by mu
}

func (x *exports) add(id int64, out *engine.Export) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.open) >= maxExports || x.open[id] != nil {
		return errors.New("too many exports are open")
	}
	if x.open == nil {
		x.open = map[int64]*engine.Export{}
	}
	x.open[id] = out
	return nil
}

func (x *exports) remove(id int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.open, id)
}

func (x *exports) file(req *readRequest) (io.Reader, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.open[req.Export]
	if out == nil || req.File < 0 || req.File >= len(out.Files) {
		return nil, engine.ErrNotFound
	}
	return out.Files[req.File], nil
}

// importCheckpoint makes a checkpoint again, with this machine's own root.
func (n *session) importCheckpoint(ctx context.Context, req *importRequest, f *frames) error {
	p, err := n.portable()
	if err != nil {
		return err
	}
	c := req.Checkpoint
	own, release, err := n.cfg.Roots.Root(ctx, req.Root.Digest, req.Root.Bound)
	if err != nil {
		return err
	}
	defer release()
	c.Root, c.Owner = own, ""
	if c.Label, err = wrapLabel(req.Root.Digest, own.Digest, c.Label); err != nil {
		return err
	}
	var made engine.Checkpoint
	fetch := askFiles[engine.Checkpoint](f)
	if early, ok := p.(engine.EarlyImporter); ok && req.Early {
		made, err = early.ImportEarly(ctx, c, req.Description, fetch, func(c engine.Checkpoint) {
			c = abroad(c)
			_ = f.send(step[engine.Checkpoint]{Usable: &c}) // the fetch fails, too
		})
	} else {
		made, err = p.Import(ctx, c, req.Description, fetch)
	}
	if err != nil {
		return err
	}
	made = abroad(made)
	return f.send(step[engine.Checkpoint]{Done: &made})
}
