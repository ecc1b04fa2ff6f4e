package cloud

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud/wire"
	"github.com/cove-sh/cove/sandbox"
)

// toolTag marks the commands by which the door works on files. They appear in no log.
const toolTag = "cove.microsandbox.files"

// tool runs a program in the sandbox, and returns its output.
func (s *fsSession) tool(ctx context.Context, command ...string) (string, error) {
	return dialect.RunTool(ctx, s.c.d.cfg.Service, s.c.sandbox, toolTag, command...)
}

// setAttrs changes attributes of a file.
func (s *fsSession) setAttrs(ctx context.Context, name string, follow bool, a *wire.Attrs) error {
	f, err := s.stat(ctx, name, follow)
	if err != nil {
		return err
	}
	link := f.Kind == wire.KindSymlink
	var commands [][]string
	if a.Size != nil {
		if f.Kind != wire.KindFile {
			return invalid("%s is no file that has a size", clip.Text(name, maxShown))
		}
		commands = append(commands, []string{"truncate", "-s", strconv.FormatUint(*a.Size, 10), "--", name})
	}
	if a.UID != nil || a.GID != nil {
		uid, gid := f.UID, f.GID
		if a.UID != nil {
			uid = *a.UID
		}
		if a.GID != nil {
			gid = *a.GID
		}
		commands = append(commands, []string{"chown", "-h", "--", fmt.Sprintf("%d:%d", uid, gid), name})
		if !link {
			commands[len(commands)-1] = []string{"chown", "--", fmt.Sprintf("%d:%d", uid, gid), name}
		}
	}
	if a.Mode != nil && !link { // a symbolic link has no mode
		commands = append(commands, []string{"chmod", "--", fmt.Sprintf("%04o", *a.Mode&0o7777), name})
	}
	for _, t := range []struct {
		flag string
		at   *int64
	}{{"-a", a.Atime}, {"-m", a.Mtime}} {
		if t.at == nil {
			continue
		}
		command := []string{"touch", "-c", t.flag, "-d", "@" + strconv.FormatInt(*t.at, 10), "--", name}
		if link {
			command = append([]string{"touch", "-h"}, command[1:]...)
		}
		commands = append(commands, command)
	}
	for _, command := range commands {
		if _, err := s.tool(ctx, command...); err != nil {
			return err
		}
	}
	return nil
}

// open opens a file, and makes or truncates it if requested, so that errors are known at
// once.
func (s *fsSession) open(ctx context.Context, op *wire.OpenOp) (uint64, error) {
	o := op.Options
	writes := o.Write || o.Append
	h := &handle{path: op.Path, options: o}
	f, err := s.stat(ctx, op.Path, true)
	missing := sandbox.CodeOf(err) == sandbox.CodeNotFound
	switch {
	case err != nil && !missing:
		return 0, err
	case missing && !(writes && (o.Create || o.CreateNew)):
		return 0, err
	case !missing && o.CreateNew:
		return 0, sandbox.Errorf(sandbox.CodeConflict, "%s is there already", clip.Text(op.Path, maxShown))
	case !missing && f.Kind == wire.KindDir:
		return 0, invalid("%s is a directory", clip.Text(op.Path, maxShown))
	case missing || writes && o.Truncate && f.Size > 0:
		req := sandbox.WriteFileRequest{Path: op.Path, Mode: modeText(o.Mode), Exclusive: o.CreateNew}
		if !missing {
			req.Mode = "" // keep the existing file's mode
		}
		if _, err := s.c.d.cfg.Service.WriteFile(ctx, s.c.sandbox, req, bytes.NewReader(nil)); err != nil {
			return 0, err
		}
	default:
		h.end = f.Size
	}
	return s.c.keep(h)
}

// counted counts the bytes read.
type counted struct {
	io.Reader
	n uint64
}

// Read implements [io.Reader].
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += uint64(n)
	return n, err
}

// write writes a client's data at the end of a file. Cove can write a whole file or append
// to it, but not write into the middle.
func (s *fsSession) write(ctx context.Context, op *wire.HandleOp, data io.Reader) error {
	h, err := s.c.handle(op.Handle, false)
	switch {
	case err != nil:
		return err
	case h.dir || !h.options.Write && !h.options.Append:
		return invalid("the handle %d is not open for writing", op.Handle)
	}
	s.c.mu.Lock()
	busy, end := h.busy, h.end
	h.busy = true
	s.c.mu.Unlock()
	if busy {
		return sandbox.Errorf(sandbox.CodeConflict, "a write of this handle is under way; wait for it")
	}
	defer func() {
		s.c.mu.Lock()
		h.busy = false
		s.c.mu.Unlock()
	}()
	if !h.options.Append && op.Offset != end {
		return sandbox.Errorf(sandbox.CodeUnsupported, "Cove writes files from the beginning or at their end, which is at %d, and not at %d; write the whole file, or use a command", end, op.Offset)
	}
	in := &counted{Reader: data}
	req := sandbox.WriteFileRequest{Path: h.path, Append: end > 0 || h.options.Append}
	_, err = s.c.d.cfg.Service.WriteFile(ctx, s.c.sandbox, req, in)
	if err == nil && op.Len != nil && *op.Len != in.n {
		err = invalid("%d bytes were sent where %d were announced", in.n, *op.Len)
	}
	s.c.mu.Lock()
	h.end = end + in.n
	s.c.mu.Unlock()
	return err
}
