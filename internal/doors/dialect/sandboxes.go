package dialect

import (
	"context"
	"io"
	"iter"
	"maps"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// Sandboxes returns all sandboxes of a listing. An error is the last pair.
func Sandboxes(ctx context.Context, svc sandbox.Service, req sandbox.ListRequest) iter.Seq2[sandbox.Sandbox, error] {
	return sandbox.Each(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		req.Page = p
		return svc.List(ctx, req)
	})
}

// IsName reports whether the service accepts a name for a sandbox or snapshot: 1 to 63
// of a-z, 0-9, "_", "." and "-", that do not look like an id.
func IsName(name string) bool {
	return name != "" && len(name) <= sandbox.MaxNameLength && strings.Trim(name, "_.-") == name &&
		!strings.HasPrefix(name, "sbx-") && !strings.HasPrefix(name, "snap-") &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_.-") == ""
}

// CreateNamed makes a sandbox with a name in a product where names are any text and
// several sandboxes can have the same. It becomes the sandbox's name if the service
// accepts it and no other sandbox has it, and otherwise the metadata under tag. An
// empty name is none.
func CreateNamed(ctx context.Context, svc sandbox.Service, name, tag string, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	if name == "" {
		return svc.Create(ctx, req)
	}
	if IsName(name) {
		req.Name = name
		s, err := svc.Create(ctx, req)
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return s, err
		}
		if _, getErr := svc.Get(ctx, name); getErr != nil { // it was no other's name
			return nil, err
		}
		req.Name = ""
	}
	req.Metadata = maps.Clone(req.Metadata)
	if req.Metadata == nil {
		req.Metadata = make(map[string]string)
	}
	req.Metadata[tag] = name
	return svc.Create(ctx, req)
}

// Gone reports whether a call on a sandbox has failed because the sandbox does not
// exist, or no longer exists. The sandbox is nil if nothing is known about it.
func Gone(ctx context.Context, svc sandbox.Service, id string, err error) (s *sandbox.Sandbox, gone bool) {
	if code := sandbox.CodeOf(err); code != sandbox.CodeNotFound && code != sandbox.CodeNotRunning {
		return nil, false
	}
	s, getErr := svc.Get(ctx, id)
	if getErr != nil {
		return nil, sandbox.CodeOf(getErr) == sandbox.CodeNotFound
	}
	return s, s.State == sandbox.StateKilled || s.State == sandbox.StateStopping
}

// PublicURL makes a public preview of a port and returns its URL. It does not change an
// existing preview: for a private one it returns a signed link.
func PublicURL(ctx context.Context, svc sandbox.Service, id string, port int) (string, error) {
	there, err := sandbox.All(ctx, sandbox.Of(id, svc.ListPreviews))
	if err != nil {
		return "", err
	}
	for _, p := range there {
		switch {
		case p.Port != port:
		case p.Access == sandbox.PreviewPublic:
			return p.URL, nil
		default:
			link, err := svc.LinkPreview(ctx, id, port, sandbox.PreviewLinkRequest{})
			if err != nil {
				return "", err
			}
			return link.URL, nil
		}
	}
	made, err := svc.CreatePreview(ctx, id, sandbox.CreatePreviewRequest{Port: port, Access: sandbox.PreviewPublic})
	if err != nil {
		return "", err
	}
	return made.URL, nil
}

// ReadFile returns the first bytes of a file, at most limit, and its path.
func ReadFile(ctx context.Context, svc sandbox.Service, id, path string, limit int64) (data []byte, at string, err error) {
	r, err := svc.ReadFile(ctx, id, sandbox.ReadFileRequest{Path: path, Limit: limit})
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	data, err = io.ReadAll(io.LimitReader(r, limit))
	return data, r.Info.Path, err
}
