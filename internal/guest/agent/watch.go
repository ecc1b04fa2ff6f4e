package agent

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// maxWatches bounds the directories that one call watches.
const maxWatches = 8192

// Watch implements [agentv1connect.AgentHandler]. It ends when the watched
// path itself is gone.
func (a *Agent) Watch(ctx context.Context, req *connect.Request[agentv1.WatchRequest], s *connect.ServerStream[agentv1.WatchEvent]) error {
	path, err := a.path(req.Msg.GetPath())
	if err != nil {
		return err
	}
	fw, err := fsnotify.NewWatcher()
	if err != nil {
		return fail(connect.CodeResourceExhausted, "the sandbox cannot watch more files (%v); end other watches first", err)
	}
	defer fw.Close()
	w := &watch{fs: fw, root: path, recursive: req.Msg.GetRecursive(), written: &a.written, dirs: map[string]struct{}{}}
	defer a.written.join(w)()
	if err := w.begin(); err != nil {
		return fileError("watch", path, err)
	}
	if err := s.Send(&agentv1.WatchEvent{Kind: agentv1.WatchEvent_KIND_READY}); err != nil {
		return err
	}
	return w.run(ctx, s)
}

// watch is one call's set of watched directories.
type watch struct {
	fs        *fsnotify.Watcher
	root      string
	file      bool // root is not a directory; the directory that has it is watched
	recursive bool
	written   *written
	dirs      map[string]struct{}
}

var errTooManyWatches = fail(connect.CodeResourceExhausted,
	"there are more than %d directories to watch; watch a smaller directory", maxWatches)

func (w *watch) begin() error {
	err := isDir(w.root)
	if errors.Is(err, unix.ENOTDIR) {
		// A file is often replaced rather than written, so its name is watched.
		if err := unix.Access(w.root, unix.F_OK); err != nil {
			return err
		}
		w.file = true
		return w.fs.Add(filepath.Dir(w.root))
	}
	if err != nil {
		return err
	}
	return w.add(w.root, func(string) error { return nil })
}

// add watches dir and, in a recursive watch, the directories below it. It calls found
// for every file and directory that it finds below dir.
func (w *watch) add(dir string, found func(path string) error) error {
	if !w.recursive {
		return w.addOne(dir)
	}
	top := dir
	if dir == w.root {
		top += "/." // follow a link at the root, and no other
	}
	return filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		path = filepath.Clean(path)
		switch {
		case err != nil && path == w.root:
			return err
		case err != nil:
			return nil // gone, or not readable
		case path != dir:
			if err := found(path); err != nil {
				return err
			}
		}
		if !d.IsDir() && path != dir {
			return nil
		}
		err = w.addOne(path)
		if path != w.root && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES)) {
			return nil
		}
		return err
	})
}

func (w *watch) addOne(dir string) error {
	if len(w.dirs) >= maxWatches {
		return errTooManyWatches
	}
	if err := w.fs.Add(dir); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return errTooManyWatches
		}
		return err
	}
	w.dirs[dir] = struct{}{}
	return nil
}

func (w *watch) run(ctx context.Context, s *connect.ServerStream[agentv1.WatchEvent]) error {
	for {
		select {
		case <-ctx.Done():
			return cancelled(ctx)
		case err, ok := <-w.fs.Errors:
			if !ok {
				return nil
			}
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return fileError("watch", w.root, err)
			}
			if err := s.Send(&agentv1.WatchEvent{Kind: agentv1.WatchEvent_KIND_OVERFLOW}); err != nil {
				return err
			}
		case ev, ok := <-w.fs.Events:
			if !ok {
				return nil
			}
			if err := w.report(ev, s); err != nil {
				return err
			}
			if ev.Name == w.root && ev.Has(fsnotify.Remove|fsnotify.Rename) && !w.file {
				return nil
			}
		}
	}
}

// report sends an event to the client.
func (w *watch) report(ev fsnotify.Event, s *connect.ServerStream[agentv1.WatchEvent]) error {
	if w.file && ev.Name != w.root || isTemp(filepath.Base(ev.Name)) {
		return nil
	}
	if ev.Has(fsnotify.Remove | fsnotify.Rename) {
		delete(w.dirs, ev.Name)
	}
	for _, k := range []struct {
		op   fsnotify.Op
		kind agentv1.WatchEvent_Kind
	}{
		{fsnotify.Create, agentv1.WatchEvent_KIND_CREATED},
		{fsnotify.Write, agentv1.WatchEvent_KIND_MODIFIED},
		{fsnotify.Rename, agentv1.WatchEvent_KIND_RENAMED},
		{fsnotify.Remove, agentv1.WatchEvent_KIND_DELETED},
		{fsnotify.Chmod, agentv1.WatchEvent_KIND_ATTRIBUTES},
	} {
		if ev.Has(k.op) {
			if k.op == fsnotify.Create {
				if own, err := w.reportOwn(ev.Name, s); own || err != nil {
					return err
				}
			}
			if err := sendChange(s, k.kind, ev.Name); err != nil {
				return err
			}
		}
	}
	if !w.recursive || !ev.Has(fsnotify.Create) {
		return nil
	}
	return w.descend(ev.Name, s)
}

// reportOwn sends the events of a file that the agent itself has written. It returns
// false if the agent has not.
func (w *watch) reportOwn(path string, s *connect.ServerStream[agentv1.WatchEvent]) (own bool, err error) {
	created, own := w.written.seen(w, path)
	if !own {
		return false, nil
	}
	if created {
		if err := sendChange(s, agentv1.WatchEvent_KIND_CREATED, path); err != nil {
			return true, err
		}
	}
	return true, sendChange(s, agentv1.WatchEvent_KIND_MODIFIED, path)
}

// descend watches a directory that has just appeared. It reports what was put into the
// directory before that was watched; such a file may be reported twice.
func (w *watch) descend(path string, s *connect.ServerStream[agentv1.WatchEvent]) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	err := w.add(path, func(p string) error {
		if own, err := w.reportOwn(p, s); own || err != nil {
			return err
		}
		return sendChange(s, agentv1.WatchEvent_KIND_CREATED, p)
	})
	if errors.Is(err, errTooManyWatches) {
		return s.Send(&agentv1.WatchEvent{Kind: agentv1.WatchEvent_KIND_OVERFLOW})
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

func sendChange(s *connect.ServerStream[agentv1.WatchEvent], kind agentv1.WatchEvent_Kind, path string) error {
	return s.Send(&agentv1.WatchEvent{Kind: kind, Path: strings.ToValidUTF8(path, "\uFFFD")})
}
