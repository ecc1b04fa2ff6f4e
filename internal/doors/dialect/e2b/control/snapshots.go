package control

import (
	"context"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

type snapshotBody struct {
	Name string `json:"name"`
}

// snapshot is a snapshot, whose id can be used as a template's.
type snapshot struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func viewSnapshot(s *sandbox.Snapshot) snapshot {
	v := snapshot{SnapshotID: s.ID, Names: []string{}}
	if s.Name != "" {
		v.Names = append(v.Names, s.Name)
	}
	return v
}

func (p *plane) createSnapshot(r *http.Request, args []string, body *snapshotBody) (*response, error) {
	name := ""
	if body.Name != "" {
		var tag string
		var err error
		if name, tag, err = p.reference(r.Context(), body.Name); err != nil {
			return nil, err
		}
		if tag != defaultTag {
			return nil, invalid("name: Cove's snapshots have no tags; give %q another name instead of the tag %q", name, tag)
		}
	}
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	s, err := p.cfg.Service.CreateSnapshot(r.Context(), box.ID, sandbox.CreateSnapshotRequest{Name: name})
	if err != nil {
		return nil, about(args[0], err)
	}
	return &response{http.StatusCreated, viewSnapshot(s)}, nil
}

func (p *plane) listSnapshots(w http.ResponseWriter, r *http.Request, _ []string) (*response, error) {
	values := r.URL.Query()
	limit, err := readLimit(values)
	if err != nil {
		return nil, err
	}
	req := sandbox.ListSnapshotsRequest{Page: sandbox.Page{Limit: limit, Cursor: values.Get("nextToken")}}
	if id := values.Get("sandboxID"); id != "" {
		ours, ok := access.FromE2B(id)
		if !ok {
			return nil, invalid("Invalid sandbox ID")
		}
		req.Sandbox = ours
	}
	var found *sandbox.List[sandbox.Snapshot]
	if ref := values.Get("name"); ref != "" {
		found, err = p.snapshotsNamed(r.Context(), ref, req.Sandbox)
	} else {
		found, err = p.cfg.Service.ListSnapshots(r.Context(), req)
	}
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		found = &sandbox.List[sandbox.Snapshot]{}
	case sandbox.CodeOf(err) == sandbox.CodeInvalid && req.Cursor != "":
		return nil, errToken
	case err != nil:
		return nil, err
	}
	if found.NextCursor != "" {
		w.Header().Set(headerNext, found.NextCursor)
	}
	exposeHeaders(w)
	out := make([]snapshot, len(found.Items))
	for i := range found.Items {
		out[i] = viewSnapshot(&found.Items[i])
	}
	return &response{http.StatusOK, out}, nil
}

// snapshotsNamed returns the one snapshot that has a name, or none.
func (p *plane) snapshotsNamed(ctx context.Context, ref, of string) (*sandbox.List[sandbox.Snapshot], error) {
	name, tag, err := p.reference(ctx, ref)
	if err != nil {
		return nil, err
	}
	s, err := p.cfg.Service.GetSnapshot(ctx, name)
	if err != nil {
		return nil, err
	}
	if tag != defaultTag || of != "" && s.SandboxID != of {
		return &sandbox.List[sandbox.Snapshot]{}, nil
	}
	return &sandbox.List[sandbox.Snapshot]{Items: []sandbox.Snapshot{*s}}, nil
}
