package cloud

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/doors/dialect/volumefiles"
	"github.com/cove-sh/cove/sandbox"
)

// Metadata keys of a sandbox that the door reserves for itself.
const (
	hiddenPrefix = "cove."
	tagPrefix    = hiddenPrefix + "microsandbox."
	tagName      = tagPrefix + "name"      // a name that Cove does not accept
	tagImage     = tagPrefix + "image"     // the image as the client named it
	tagShell     = tagPrefix + "shell"     // the shell of terminals
	tagRun       = tagPrefix + "run"       // entrypoint and command, as JSON
	tagEphemeral = tagPrefix + "ephemeral" // removed when it stops
	tagCreated   = tagPrefix + "created"   // never started
)

// The product's names of a sandbox's states.
const (
	statusCreated  = "created"
	statusStarting = "starting"
	statusRunning  = "running"
	statusStopping = "stopping"
	statusStopped  = "stopped"
	statusFailed   = "failed"
)

// statusOf returns the product's name of a sandbox's state. A paused sandbox is stopped.
func statusOf(s *sandbox.Sandbox) string {
	switch s.State {
	case sandbox.StateCreating:
		return statusStarting
	case sandbox.StateRunning:
		return statusRunning
	case sandbox.StatePaused:
		if s.Metadata[tagCreated] != "" {
			return statusCreated
		}
		return statusStopped
	case sandbox.StateStopping:
		return statusStopping
	case sandbox.StateFailed:
		return statusFailed
	}
	return statusStopped
}

// box is a sandbox as the product shows it.
type box struct {
	ID        string     `json:"id"`
	Org       string     `json:"org_id"`
	Name      string     `json:"name"`
	Slug      string     `json:"slug"`
	Status    string     `json:"status"`
	Ephemeral bool       `json:"ephemeral"`
	CreatedAt time.Time  `json:"created_at"`
	StartedAt *time.Time `json:"started_at"`
	StoppedAt *time.Time `json:"stopped_at"`
	Reason    *string    `json:"status_reason"`
	Failure   *string    `json:"last_failure_message"`
	Spec      *spec      `json:"spec"`
}

func view(s *sandbox.Sandbox) box {
	v := box{
		ID: s.ID, Org: s.Team, Name: nameOf(s), Slug: s.ID, Status: statusOf(s), Ephemeral: ephemeral(s),
		CreatedAt: s.CreatedAt, StartedAt: s.StartedAt, StoppedAt: s.PausedAt, Spec: specOf(s),
	}
	if s.EndedAt != nil {
		v.StoppedAt = s.EndedAt
	}
	if s.State == sandbox.StateFailed {
		v.Failure = &s.Reason
	}
	return v
}

func ephemeral(s *sandbox.Sandbox) bool { return s.Metadata[tagEphemeral] != "" }

// nameOf returns the name by which clients know a sandbox: its id if another door made it
// without a name.
func nameOf(s *sandbox.Sandbox) string {
	switch {
	case s.Name != "":
		return s.Name
	case s.Metadata[tagName] != "":
		return s.Metadata[tagName]
	}
	return s.ID
}

// labelsOf returns the labels of a sandbox: its metadata without the keys that doors
// reserve.
func labelsOf(s *sandbox.Sandbox) map[string]string {
	labels := map[string]string{}
	for key, value := range s.Metadata {
		if !strings.HasPrefix(key, hiddenPrefix) {
			labels[key] = value
		}
	}
	return labels
}

// find returns the sandbox with a name, which may be any text.
func (d *Door) find(ctx context.Context, name string) (*sandbox.Sandbox, error) {
	if sdkdoor.ValidID(name) || dialect.IsName(name) {
		return d.look(ctx, name)
	}
	req := sandbox.ListRequest{Metadata: map[string]string{tagName: name}}
	for s, err := range dialect.Sandboxes(ctx, d.cfg.Service, req) {
		if err != nil {
			return nil, err
		}
		return &s, nil
	}
	return nil, errNoSandbox(name)
}

// look returns a sandbox that exists for clients, by a reference that the service accepts.
func (d *Door) look(ctx context.Context, ref string) (*sandbox.Sandbox, error) {
	s, err := d.cfg.Service.Get(ctx, ref)
	code := sandbox.CodeOf(err)
	if code == sandbox.CodeNotFound || code == sandbox.CodeInvalid || err == nil && s.State == sandbox.StateKilled {
		return nil, errNoSandbox(ref)
	}
	return s, err
}

// serve serves a route about one sandbox.
type serve func(w http.ResponseWriter, r *http.Request, s *sandbox.Sandbox) error

func (d *Door) byName(h serve) handler {
	return func(w http.ResponseWriter, r *http.Request, args []string) error {
		s, err := d.find(r.Context(), args[0])
		if err != nil {
			return err
		}
		return h(w, r, s)
	}
}

func (d *Door) byID(h serve) handler {
	return func(w http.ResponseWriter, r *http.Request, args []string) error {
		if !sdkdoor.ValidID(args[0]) {
			return errNoSandbox(args[0])
		}
		s, err := d.look(r.Context(), args[0])
		if err != nil {
			return err
		}
		return h(w, r, s)
	}
}

func (d *Door) get(w http.ResponseWriter, _ *http.Request, s *sandbox.Sandbox) error {
	writeJSON(w, view(s))
	return nil
}

// The size of a page of sandboxes.
const (
	defaultPage = 20
	maxPage     = 100
)

// list serves a page of sandboxes. The cursor is the service's.
func (d *Door) list(w http.ResponseWriter, r *http.Request, _ []string) error {
	query := r.URL.Query()
	req := sandbox.ListRequest{}
	for name, values := range query {
		var err error
		switch {
		case len(values) > 1:
			return invalid("%.64q is given twice; give it once", name)
		case name == "limit":
			req.Limit, err = strconv.Atoi(values[0])
			if err != nil || req.Limit < 1 || req.Limit > maxPage {
				return invalid("limit is %.20q; give 1 to %d", values[0], maxPage)
			}
		case name == "cursor":
			raw, err := base64.RawURLEncoding.DecodeString(values[0])
			if err != nil {
				return invalid("the cursor is not one of this server's; leave it out")
			}
			req.Cursor = string(raw)
		case name == "labels":
			if json.Unmarshal([]byte(values[0]), &req.Metadata) != nil {
				return invalid("labels is not an object of texts")
			}
			if err := checkLabels(req.Metadata); err != nil {
				return err
			}
		default:
			return invalid("%.64q: Cove does not know this parameter of microsandbox's; leave it out", name)
		}
	}
	if req.Limit == 0 {
		req.Limit = defaultPage
	}
	page, err := d.cfg.Service.List(r.Context(), req)
	if err != nil {
		return err
	}
	rows := []box{}
	for i := range page.Items {
		if page.Items[i].Metadata[volumefiles.Tag] == "" { // a helper sandbox, not a client's
			rows = append(rows, view(&page.Items[i]))
		}
	}
	var next *string
	if page.NextCursor != "" {
		cursor := base64.RawURLEncoding.EncodeToString([]byte(page.NextCursor))
		next = &cursor
	}
	writeJSON(w, map[string]any{"data": rows, "has_more": next != nil, "next_cursor": next})
	return nil
}

// remove ends a sandbox, whether it is running or not.
func (d *Door) remove(w http.ResponseWriter, r *http.Request, s *sandbox.Sandbox) error {
	if _, err := d.cfg.Service.Kill(r.Context(), s.ID); err != nil {
		return err
	}
	writeJSON(w, map[string]string{"message": "sandbox removed"})
	return nil
}

// emptyBody checks that a request's body is empty or an empty object.
func emptyBody(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	return decode(w, r, &struct{}{})
}

// start resumes a stopped sandbox. It answers when the sandbox is running, so that clients
// need not wait.
func (d *Door) start(w http.ResponseWriter, r *http.Request, s *sandbox.Sandbox) error {
	if err := emptyBody(w, r); err != nil {
		return err
	}
	if s.State.Final() || s.State == sandbox.StateStopping {
		return sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox is %s and cannot be started; remove it", statusOf(s))
	}
	s, err := d.cfg.Service.Resume(r.Context(), s.ID, sandbox.ResumeRequest{})
	if err == nil && s.Metadata[tagCreated] != "" {
		tags := maps.Clone(s.Metadata)
		delete(tags, tagCreated)
		s, err = d.cfg.Service.Update(r.Context(), s.ID, sandbox.UpdateRequest{Metadata: tags})
	}
	if err != nil {
		return err
	}
	writeJSON(w, view(s))
	return nil
}

// stop pauses a sandbox, or ends an ephemeral one. First it ends the connections to it, and
// what clients run over them.
func (d *Door) stop(w http.ResponseWriter, r *http.Request, s *sandbox.Sandbox) error {
	if err := emptyBody(w, r); err != nil {
		return err
	}
	// Only a caller who may stop the sandbox may end what runs in it.
	if s.State == sandbox.StateRunning && mayWrite(r.Context()) {
		d.endConnections(r.Context(), s.ID)
	}
	var err error
	switch {
	case s.State.Final() || s.State == sandbox.StatePaused:
	case ephemeral(s):
		s, err = d.cfg.Service.Kill(r.Context(), s.ID)
	default:
		s, err = d.cfg.Service.Pause(r.Context(), s.ID)
	}
	if err != nil {
		return err
	}
	writeJSON(w, view(s))
	return nil
}

func mayWrite(ctx context.Context) bool {
	caller, _ := sandbox.CallerOf(ctx)
	return caller.Has(sandbox.ScopeSandboxesWrite)
}
