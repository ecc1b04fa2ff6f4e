// Package volumefiles reaches the files of volumes for clients that do so without a sandbox
// of their own. A sandbox of the caller's does the work, as the files of a volume are shown
// to nothing else: policies, quotas, scopes and the audit record hold as for every other.
// It is made when it is first needed, has no network, and ends when it is not used.
package volumefiles

import (
	"context"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// Tag is the metadata of a sandbox that shows a volume's files; it holds the volume's
	// id. Doors do not list such sandboxes among the clients' own.
	Tag = "cove.volume-files"
	// root is where the volume is in the sandbox.
	root = "/volume"
	// idle is after how many seconds without a call the sandbox ends.
	idle = 60
	// maxEntries bounds a list.
	maxEntries = 10_000
	maxShown   = 128
)

// Opener opens volumes. It is safe for concurrent use.
type Opener struct {
	service sandbox.Service

	mu   sync.Mutex
	open map[string]*turn // by volume and caller; guarded by mu
}

// turn makes callers that open the same volume wait for each other, so that they share a
// sandbox.
type turn struct {
	sync.Mutex
	waiting int // guarded by Opener.mu
}

// New returns an opener.
func New(service sandbox.Service) *Opener {
	return &Opener{service: service, open: map[string]*turn{}}
}

// Files are the files of a volume. Paths begin at its top and do not lead out of it, except
// through symbolic links in the volume, which are resolved in the sandbox.
type Files struct {
	service sandbox.Service
	box     string
}

// Open returns the files of one of the caller's volumes, by its id or name.
func (o *Opener) Open(ctx context.Context, volume string) (*Files, error) {
	v, err := o.service.GetVolume(ctx, volume)
	if err != nil {
		return nil, err
	}
	caller, _ := sandbox.CallerOf(ctx)
	defer o.take(strings.Join([]string{v.ID, caller.Team, caller.Namespace}, "\n"))()
	found, err := o.sandboxes(ctx, v.ID, sandbox.StateRunning)
	if err != nil {
		return nil, err
	}
	for i := range found {
		f := &Files{o.service, found[i].ID}
		if _, err := f.Stat(ctx, "/"); err == nil { // this restarts its idle time
			return f, nil
		}
	}
	wait := int64(idle)
	box, err := o.service.Create(ctx, sandbox.CreateRequest{
		Metadata: map[string]string{Tag: v.ID}, IdleTimeoutSeconds: &wait, LifetimeSeconds: new(int64),
		Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}, Mounts: []sandbox.Mount{{Target: root, Volume: v.ID}},
	})
	if err != nil {
		return nil, err
	}
	return &Files{o.service, box.ID}, nil
}

// take waits for the turn under a key, until release is called.
func (o *Opener) take(key string) (release func()) {
	o.mu.Lock()
	t := o.open[key]
	if t == nil {
		t = &turn{}
		o.open[key] = t
	}
	t.waiting++
	o.mu.Unlock()
	t.Lock()
	return func() {
		t.Unlock()
		o.mu.Lock()
		defer o.mu.Unlock()
		if t.waiting--; t.waiting == 0 {
			delete(o.open, key)
		}
	}
}

// sandboxes are those of the caller's that show a volume's files.
func (o *Opener) sandboxes(ctx context.Context, volume string, states ...sandbox.State) ([]sandbox.Sandbox, error) {
	all, err := sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		return o.service.List(ctx, sandbox.ListRequest{Metadata: map[string]string{Tag: volume}, States: states, Page: p})
	})
	return slices.DeleteFunc(all, func(s sandbox.Sandbox) bool {
		return !slices.ContainsFunc(s.Mounts, func(m sandbox.Mount) bool { return m.Target == root && m.Volume == volume && !m.ReadOnly })
	}), err
}

// Close ends the sandboxes through which a volume's files were accessed, so that only the
// clients' own sandboxes keep the volume from being deleted. A volume belongs to the team,
// so the sandboxes may be in any of its namespaces.
func (o *Opener) Close(ctx context.Context, volume string) error {
	caller, _ := sandbox.CallerOf(ctx)
	caller.Namespace = ""
	ctx = sandbox.WithCaller(ctx, caller)
	found, err := o.sandboxes(ctx, volume, sandbox.StateRunning, sandbox.StatePaused)
	for i := range found {
		if _, kerr := o.service.Kill(ctx, found[i].ID); err == nil && sandbox.CodeOf(kerr) != sandbox.CodeNotFound {
			err = kerr
		}
	}
	return err
}

// at is where a path of the volume is in the sandbox.
func at(p string) string { return path.Join(root, path.Clean("/"+p)) }

// inVolume returns a file with its path in the volume.
func inVolume(info *sandbox.FileInfo) *sandbox.FileInfo {
	out := *info
	if out.Path = strings.TrimPrefix(out.Path, root); out.Path == "" {
		out.Path, out.Name = "/", "/"
	}
	return &out
}

// about words an error with the path that the client has given.
func about(p string, err error) error {
	if err == nil {
		return nil
	}
	code := sandbox.CodeOf(err)
	if code == sandbox.CodeNotFound {
		return sandbox.Wrap(code, err, "the volume has no "+clip.Text(p, maxShown))
	}
	return err
}

// Stat describes a file, which may be a link.
func (f *Files) Stat(ctx context.Context, p string) (*sandbox.FileInfo, error) {
	info, err := f.service.StatFile(ctx, f.box, at(p))
	if err != nil {
		return nil, about(p, err)
	}
	return inVolume(info), nil
}

// List returns the entries of a directory and of those below it, so deep.
func (f *Files) List(ctx context.Context, p string, depth int) ([]sandbox.FileInfo, error) {
	var out []sandbox.FileInfo
	for info, err := range sandbox.Each(ctx, func(ctx context.Context, page sandbox.Page) (*sandbox.List[sandbox.FileInfo], error) {
		return f.service.ListFiles(ctx, f.box, sandbox.ListFilesRequest{Path: at(p), Depth: depth, Page: page})
	}) {
		if err != nil {
			return nil, about(p, err)
		}
		if len(out) == maxEntries {
			return nil, sandbox.Errorf(sandbox.CodeTooLarge, "there are more than %d files; list the directories below one by one", maxEntries)
		}
		out = append(out, *inVolume(&info))
	}
	return out, nil
}

// Read opens a file.
func (f *Files) Read(ctx context.Context, p string) (*sandbox.FileReader, error) {
	r, err := f.service.ReadFile(ctx, f.box, sandbox.ReadFileRequest{Path: at(p)})
	return r, about(p, err)
}

// Write writes a file as a request says, whose path is one of the volume.
func (f *Files) Write(ctx context.Context, req sandbox.WriteFileRequest, content io.Reader) (*sandbox.FileInfo, error) {
	p := req.Path
	req.Path = at(p)
	info, err := f.service.WriteFile(ctx, f.box, req, content)
	if err != nil {
		return nil, about(p, err)
	}
	return inVolume(info), nil
}

// MakeDir makes a directory as a request says, whose path is one of the volume.
func (f *Files) MakeDir(ctx context.Context, req sandbox.MakeDirRequest) (*sandbox.FileInfo, error) {
	p := req.Path
	req.Path = at(p)
	info, err := f.service.MakeDir(ctx, f.box, req)
	if err != nil {
		return nil, about(p, err)
	}
	return inVolume(info), nil
}

// Delete removes a file, or a directory with all that is in it if it is recursive.
func (f *Files) Delete(ctx context.Context, p string, recursive bool) error {
	if at(p) == root {
		return sandbox.Errorf(sandbox.CodeInvalid, "the top of a volume cannot be removed; delete the volume")
	}
	return about(p, f.service.DeleteFile(ctx, f.box, at(p), recursive))
}

// Move renames a file.
func (f *Files) Move(ctx context.Context, from, to string) error {
	_, err := f.service.MoveFile(ctx, f.box, sandbox.MoveFileRequest{From: at(from), To: at(to), Overwrite: true})
	return about(from, err)
}

// Copy copies a file, or a directory with all that is in it.
func (f *Files) Copy(ctx context.Context, from, to string) error {
	return f.tool(ctx, "cp", "-aT", "--", at(from), at(to))
}

// Change gives a file another mode, in octal, or owner, as UID:GID; empty leaves it.
func (f *Files) Change(ctx context.Context, p, mode, owner string) error {
	if mode != "" {
		if err := f.tool(ctx, "chmod", mode, "--", at(p)); err != nil {
			return err
		}
	}
	if owner == "" {
		return nil
	}
	return f.tool(ctx, "chown", "-h", owner, "--", at(p))
}

// tool runs a program in the sandbox. Its errors name files by their paths in the volume.
func (f *Files) tool(ctx context.Context, command ...string) error {
	_, err := dialect.RunTool(ctx, f.service, f.box, Tag, command...)
	if sandbox.CodeOf(err) == sandbox.CodeInvalid {
		return sandbox.Wrap(sandbox.CodeInvalid, err, clip.Text(strings.ReplaceAll(sandbox.MessageOf(err), root+"/", "/"), maxShown))
	}
	return err
}
