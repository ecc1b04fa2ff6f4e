package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// FileQuery names a file in a sandbox.
type FileQuery struct {
	Path string `query:"path" doc:"Relative paths start at the sandbox's working directory."`
}

type statInput struct {
	SandboxPath
	FileQuery
}

type listFilesInput struct {
	SandboxPath
	FileQuery
	Depth int `query:"depth" doc:"1, which is the default, is the directory's own entries."`
	PageQuery
}

type editInput struct {
	SandboxPath
	Body sandbox.EditFileRequest
}

type mkdirInput struct {
	SandboxPath
	Body struct {
		Path string `json:"path"`
		Mode string `json:"mode,omitempty" doc:"Permission bits in octal; 0755 when absent."`
	}
}

type symlinkInput struct {
	SandboxPath
	Body sandbox.MakeSymlinkRequest
}

type moveInput struct {
	SandboxPath
	Body sandbox.MoveFileRequest
}

type deleteInput struct {
	SandboxPath
	FileQuery
	Recursive bool `query:"recursive" doc:"Delete a directory with all that is in it."`
}

type watchInput struct {
	SandboxPath
	FileQuery
	Recursive bool `query:"recursive" doc:"Also changes in directories below it."`
}

func (h *handlers) registerFiles(a huma.API) {
	const base = "/v1/sandboxes/{sandbox}/files"
	huma.Register(a, op(http.MethodGet, base, "list-files", "files", "List a directory, by name"),
		func(ctx context.Context, in *listFilesInput) (*Reply[sandbox.List[sandbox.FileInfo]], error) {
			v, err := h.svc.ListFiles(ctx, in.Sandbox, sandbox.ListFilesRequest{Path: in.Path, Depth: in.Depth, Page: in.page()})
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, base+"/stat", "stat-file", "files", "Describe a file"),
		func(ctx context.Context, in *statInput) (*Reply[sandbox.FileInfo], error) {
			v, err := h.svc.StatFile(ctx, in.Sandbox, in.Path)
			return reply(ctx, h, v, err)
		})
	edit := op(http.MethodPost, base+"/edit", "edit-file", "files", "Replace text in a file")
	edit.MaxBodyBytes = maxEditBody
	huma.Register(a, edit, func(ctx context.Context, in *editInput) (*Reply[sandbox.EditFileResult], error) {
		v, err := h.svc.EditFile(ctx, in.Sandbox, in.Body)
		return reply(ctx, h, v, err)
	})
	huma.Register(a, op(http.MethodPost, base+"/mkdir", "make-dir", "files", "Make a directory and its parents"),
		func(ctx context.Context, in *mkdirInput) (*Reply[sandbox.FileInfo], error) {
			v, err := h.svc.MakeDir(ctx, in.Sandbox, in.Body.Path, in.Body.Mode)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, base+"/symlink", "make-symlink", "files", "Make a symbolic link"),
		func(ctx context.Context, in *symlinkInput) (*Reply[sandbox.FileInfo], error) {
			v, err := h.svc.MakeSymlink(ctx, in.Sandbox, in.Body)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, base+"/move", "move-file", "files", "Rename a file or directory"),
		func(ctx context.Context, in *moveInput) (*Reply[sandbox.FileInfo], error) {
			v, err := h.svc.MoveFile(ctx, in.Sandbox, in.Body)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodDelete, base, "delete-file", "files", "Delete a file, or a directory with recursive"),
		func(ctx context.Context, in *deleteInput) (*struct{}, error) {
			return done(ctx, h, h.svc.DeleteFile(ctx, in.Sandbox, in.Path, in.Recursive))
		})
	watch := op(http.MethodGet, base+"/watch", "watch-files", "files", "Stream changes below a directory")
	watch.Description = "The first event is `ready`: changes from then on are reported. The stream ends with the sandbox or when the client goes."
	huma.Register(a, streams[WatchLine](a, watch), h.watch)
}

func (h *handlers) watch(_ context.Context, in *watchInput) (*huma.StreamResponse, error) {
	return h.stream(func(ctx context.Context, out *lines) error {
		req := sandbox.WatchRequest{Path: in.Path, Recursive: in.Recursive}
		err := h.svc.WatchFiles(ctx, in.Sandbox, req, func(ev sandbox.WatchEvent) error {
			return out.send(WatchLine{WatchEvent: ev})
		})
		if err != nil {
			return err
		}
		return out.send(WatchLine{Final: true})
	}, failedWatch), nil
}
