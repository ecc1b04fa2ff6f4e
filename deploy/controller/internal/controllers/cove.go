package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	agents "github.com/cove-sh/cove/deploy/controller/api/agents/v1beta1"
	"github.com/cove-sh/cove/deploy/controller/internal/plan"
	"github.com/cove-sh/cove/sandbox"
)

// Metadata of sandboxes of Cove that belong to an object.
const (
	uidKey  = "kubernetes.uid"
	nameKey = "kubernetes.name"
)

// errGone says that a sandbox has ended so long ago that Cove has no record of it.
var errGone = errors.New("cove has no record of the sandbox any more")

// errForeign says that the annotation of an object names the sandbox of another one.
var errForeign = &plan.Error{Problems: []string{"the annotation " + SandboxAnnotation + " names a sandbox that is not this object's; delete the object and make it again"}}

// coveName is the name in Cove of the sandbox of an object. Names are unique among living
// sandboxes, so that two attempts to make one cannot both succeed.
func coveName(sb *agents.Sandbox) string { return "k8s-" + string(sb.UID) }

// find returns the sandbox of an object, or nil if none was made.
func find(ctx context.Context, cove sandbox.Service, sb *agents.Sandbox) (*sandbox.Sandbox, error) {
	if id := sb.Annotations[SandboxAnnotation]; id != "" {
		found, err := cove.Get(ctx, id)
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			return nil, errGone
		}
		// Whoever may write the object can write the annotation, too.
		if err == nil && (found.Namespace != sb.Namespace || found.Metadata[uidKey] != string(sb.UID) || found.ForkedFrom != "") {
			return nil, errForeign
		}
		return found, err
	}
	return search(ctx, cove, sb)
}

// search returns the sandbox of an object by what it was made with, or nil if none was made.
func search(ctx context.Context, cove sandbox.Service, sb *agents.Sandbox) (*sandbox.Sandbox, error) {
	// Nobody has recorded the id, but one may have been made. Forks of it have its
	// metadata too.
	req := sandbox.ListRequest{
		Namespace: sb.Namespace, Metadata: map[string]string{uidKey: string(sb.UID)},
		States: []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused, sandbox.StateStopping, sandbox.StateKilled, sandbox.StateFailed},
	}
	for {
		list, err := cove.List(ctx, req)
		if err != nil {
			return nil, err
		}
		// One whose creation was cut off by a restart of Cove has ended without a start.
		i := slices.IndexFunc(list.Items, func(s sandbox.Sandbox) bool {
			return s.ForkedFrom == "" && s.Name == coveName(sb) && (s.StartedAt != nil || !s.State.Final())
		})
		if i >= 0 {
			return &list.Items[i], nil
		}
		if req.Cursor = list.NextCursor; req.Cursor == "" {
			return nil, nil
		}
	}
}

// create makes the sandbox of an object, which has none.
func create(ctx context.Context, cove sandbox.Service, sb *agents.Sandbox, p *plan.Plan, template string) (*sandbox.Sandbox, error) {
	for _, v := range p.Volumes {
		if _, err := cove.CreateVolume(ctx, v); err != nil && sandbox.CodeOf(err) != sandbox.CodeConflict {
			return nil, err
		}
	}
	req := p.Request
	req.Template, req.Name, req.Namespace = template, coveName(sb), sb.Namespace
	req.Metadata = map[string]string{uidKey: string(sb.UID), nameKey: sb.Name}
	return cove.Create(ctx, req)
}

// prepare does what a sandbox needs before its command starts. It can be repeated. The
// previews are by port.
func prepare(ctx context.Context, cove sandbox.Service, id string, rec *record) (previews map[string]string, notes []string, err error) {
	for _, dir := range rec.Dirs {
		if _, err := cove.MakeDir(ctx, id, sandbox.MakeDirRequest{Path: dir}); err != nil {
			return nil, nil, fmt.Errorf("make the empty volume %s: %w", dir, err)
		}
	}
	previews = map[string]string{}
	for _, port := range rec.Ports {
		p, err := cove.CreatePreview(ctx, id, sandbox.CreatePreviewRequest{Port: port})
		switch sandbox.CodeOf(err) {
		case "":
			previews[fmt.Sprint(port)] = p.URL
		case sandbox.CodeUnsupported, sandbox.CodeInvalid, sandbox.CodeForbidden:
			notes = append(notes, fmt.Sprintf("port %d has no preview: %s", port, sandbox.MessageOf(err)))
		default:
			return nil, nil, err
		}
	}
	return previews, notes, nil
}

// remove ends the sandbox of an object, and deletes its volumes.
func remove(ctx context.Context, cove sandbox.Service, sb *agents.Sandbox) error {
	found, err := find(ctx, cove, sb)
	if errors.Is(err, errForeign) {
		found, err = search(ctx, cove, sb)
	}
	switch {
	case errors.Is(err, errGone), err == nil && found == nil:
	case err != nil:
		return err
	case !found.State.Final():
		if _, err := cove.Kill(ctx, found.ID); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return err
		}
	}
	for _, t := range sb.Spec.VolumeClaimTemplates {
		if err := cove.DeleteVolume(ctx, plan.VolumeName(string(sb.UID), t.Name)); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return err
		}
	}
	return nil
}
