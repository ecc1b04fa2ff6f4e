package hopx

import (
	"context"
	"net/url"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// regionTag is the tag of a sandbox that was requested in a region.
	regionTag = "hopx.region"
	// localRegion is the region of all others.
	localRegion = "local"
	// nodeID is the name of the only machine.
	nodeID = "local"
	// tokenLife is the lifetime that answers state for a token.
	tokenLife = 24 * time.Hour
	// isolatedLife is the lifetime of a sandbox for one run of code, in seconds.
	isolatedLife = 600
)

// size is a sandbox's resources in the product's terms.
type size struct {
	VCPU     int   `json:"vcpu"`
	MemoryMB int64 `json:"memory_mb"`
	DiskMB   int64 `json:"disk_mb"`
}

// record is a sandbox as v0.1 shows it.
type record struct {
	ID             string  `json:"id"`
	Object         string  `json:"object"`
	Status         string  `json:"status"`
	TemplateID     string  `json:"template_id"`
	TemplateName   string  `json:"template_name"`
	OrganizationID int     `json:"organization_id"`
	NodeID         string  `json:"node_id"`
	Region         string  `json:"region"`
	DirectURL      string  `json:"direct_url"`
	PublicHost     string  `json:"public_host"`
	StartedAt      *string `json:"started_at,omitempty"` // REST API only
	Resources      size    `json:"resources"`
	InternetAccess bool    `json:"internet_access"`
	LiveMode       bool    `json:"live_mode"`
	TimeoutSeconds *int64  `json:"timeout_seconds"`
	CreatedAt      string  `json:"created_at"`
	ExpiresAt      *string `json:"expires_at"`
	AuthToken      string  `json:"auth_token,omitempty"`
	TokenExpiresAt string  `json:"token_expires_at,omitempty"`
}

func recordOf(ctx context.Context, s *sandbox.Sandbox) record {
	at, rest := placeOf(ctx)
	r := record{
		ID: s.ID, Object: "sandbox", Status: status(s.State), TemplateID: templateID(s.Template), TemplateName: s.Template,
		NodeID: nodeID, Region: regionOf(s), DirectURL: at.URL(s.ID), PublicHost: at.URL(s.ID),
		Resources:      size{s.Resources.VCPUs, s.Resources.MemoryMiB, s.Resources.DiskMiB},
		InternetAccess: s.Network == nil || s.Network.Preset != sandbox.NetworkNone, LiveMode: true,
		CreatedAt: dialect.Stamp(s.CreatedAt),
	}
	if s.LifetimeSeconds > 0 {
		r.TimeoutSeconds = &s.LifetimeSeconds
	}
	r.ExpiresAt = stampOrNull(s.ExpiresAt)
	if rest {
		r.StartedAt = stampOrNull(s.StartedAt)
	}
	return r
}

// withToken returns the record of a sandbox with its token.
func withToken(ctx context.Context, s *sandbox.Sandbox) record {
	at, _ := placeOf(ctx)
	r := recordOf(ctx, s)
	r.AuthToken, r.TokenExpiresAt = at.Token(s.ID), dialect.Stamp(time.Now().Add(tokenLife))
	return r
}

// status returns the product's name of a state.
func status(s sandbox.State) string {
	switch s {
	case sandbox.StateStopping:
		return "stopped"
	case sandbox.StateKilled:
		return "deleted"
	case sandbox.StateFailed:
		return "error"
	}
	return string(s) // creating, running and paused
}

// states maps a status to the states that it selects.
var states = map[string]sandbox.State{
	"running": sandbox.StateRunning, "paused": sandbox.StatePaused, "creating": sandbox.StateCreating, "stopped": sandbox.StateStopping,
}

func regionOf(s *sandbox.Sandbox) string {
	if r := s.Metadata[regionTag]; r != "" {
		return r
	}
	return localRegion
}

type listArgs struct {
	Limit  int64   `json:"limit"`
	Status *string `json:"status"`
	Region *string `json:"region"`
	Cursor string  `json:"cursor"` // call_api only
}

const sandboxesPath = "/v1/sandboxes"

func sandboxPath(id string) string {
	return sandboxesPath + "/" + url.PathEscape(clip.Text(id, maxShown))
}

// find returns a page of sandboxes and the cursor of the next page.
func (in *listArgs) find(ctx context.Context, c *dialect.Call) ([]sandbox.Sandbox, string, error) {
	if in.Limit < 1 {
		return nil, "", dialect.Invalid("limit is %d; give 1 to %d", in.Limit, sandbox.MaxPageSize)
	}
	req := sandbox.ListRequest{Page: sandbox.Page{Limit: int(min(in.Limit, sandbox.MaxPageSize)), Cursor: in.Cursor}}
	if in.Status != nil && *in.Status != "" {
		state, ok := states[*in.Status]
		if !ok {
			return nil, "", dialect.Invalid("status %q is not known; use running, stopped, paused or creating", clip.Text(*in.Status, maxShown))
		}
		req.States = []sandbox.State{state}
	}
	if in.Region != nil && *in.Region == localRegion {
		return findLocal(ctx, c, req)
	}
	if in.Region != nil && *in.Region != "" {
		req.Metadata = map[string]string{regionTag: *in.Region}
	}
	page, err := c.Service.List(ctx, req)
	if err != nil {
		return nil, "", err
	}
	return page.Items, page.NextCursor, nil
}

// findLocal lists the sandboxes without a region. A page may have fewer than its limit.
func findLocal(ctx context.Context, c *dialect.Call, req sandbox.ListRequest) ([]sandbox.Sandbox, string, error) {
	var found []sandbox.Sandbox
	for {
		page, err := c.Service.List(ctx, req)
		if err != nil {
			return nil, "", err
		}
		found = append(found, slices.DeleteFunc(page.Items, func(s sandbox.Sandbox) bool { return regionOf(&s) != localRegion })...)
		req.Cursor = page.NextCursor
		if req.Cursor == "" || len(found) > 0 {
			return found, req.Cursor, nil
		}
	}
}

func listSandboxes(ctx context.Context, c *dialect.Call, in listArgs) (any, error) {
	found, next, err := in.find(ctx, c)
	if err != nil {
		return nil, control(sandboxesPath, "sandbox", err)
	}
	data := make([]record, 0, len(found))
	for i := range found {
		data = append(data, recordOf(ctx, &found[i]))
	}
	out := object(pair{"object", "list"}, pair{"data", data}, pair{"has_more", next != ""})
	if next != "" {
		out = append(out, pair{"next_cursor", next})
	}
	return append(out, pair{"url", sandboxesPath}), nil
}

type createArgs struct {
	TemplateID string            `json:"template_id"`
	VCPU       *int64            `json:"vcpu"`
	MemoryMB   *int64            `json:"memory_mb"`
	DiskGB     *int64            `json:"disk_gb"`
	Region     *string           `json:"region"`
	Timeout    *int64            `json:"timeout_seconds"`
	Internet   *bool             `json:"internet_access"`
	Env        map[string]string `json:"env_vars"`
}

func (in *createArgs) request() (sandbox.CreateRequest, error) {
	req := sandbox.CreateRequest{User: "root", WorkDir: home, Env: in.Env}
	if in.Timeout != nil {
		if err := checkLifetime(*in.Timeout); err != nil {
			return req, err
		}
	}
	for _, n := range []struct {
		name  string
		value *int64
	}{{"vcpu", in.VCPU}, {"memory_mb", in.MemoryMB}, {"disk_gb", in.DiskGB}} {
		if n.value != nil && (*n.value < 1 || *n.value > 1<<40) {
			return req, dialect.Invalid("%s is %d; give a positive number that makes sense, or leave it out", n.name, *n.value)
		}
	}
	if in.VCPU != nil {
		req.Resources.VCPUs = int(*in.VCPU)
	}
	if in.MemoryMB != nil {
		req.Resources.MemoryMiB = *in.MemoryMB
	}
	if in.DiskGB != nil {
		req.Resources.DiskMiB = *in.DiskGB << 10
	}
	req.LifetimeSeconds = in.Timeout
	if in.Region != nil && *in.Region != "" && *in.Region != localRegion {
		req.Metadata = map[string]string{regionTag: *in.Region}
	}
	if in.Internet != nil {
		req.Network = &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}
		if *in.Internet {
			req.Network.Preset = sandbox.NetworkOpen
		}
	}
	return req, nil
}

func checkLifetime(s int64) error {
	if most := int64(sandbox.MaxLifetime.Seconds()); s < 1 || s > most {
		return dialect.Invalid("timeout_seconds is %d; give 1 to %d", s, most)
	}
	return nil
}

// make makes a sandbox. note says so if the template is not the requested one.
func (in *createArgs) make(ctx context.Context, c *dialect.Call) (s *sandbox.Sandbox, note string, err error) {
	c.Status("creating a sandbox")
	req, err := in.request()
	if err != nil {
		return nil, "", control(sandboxesPath, "sandbox", err)
	}
	if req.Template, note, err = templateFor(ctx, c, in.TemplateID); err != nil {
		return nil, "", control(sandboxesPath, "template", err)
	}
	if s, err = c.Service.Create(ctx, req); err != nil {
		return nil, "", control(sandboxesPath, "template", err)
	}
	return s, note, nil
}

// created is a new sandbox.
type created struct {
	record
	Note string `json:"_note,omitempty"`
}

func createSandbox(ctx context.Context, c *dialect.Call, in createArgs) (any, error) {
	s, note, err := in.make(ctx, c)
	if err != nil {
		return nil, err
	}
	return created{withToken(ctx, s), note}, nil
}

type idArgs struct {
	ID string `json:"id"`
}

// living returns a sandbox that has not ended, including failed ones.
func living(ctx context.Context, c *dialect.Call, id string) (*sandbox.Sandbox, error) {
	s, err := c.Service.Get(ctx, sandboxOf(id))
	if err == nil && (s.State == sandbox.StateKilled || s.State == sandbox.StateStopping) {
		err = sandbox.Errorf(sandbox.CodeNotFound, "sandbox %s does not exist any more; list_sandboxes shows yours", s.ID)
	}
	if err != nil {
		return nil, aboutSandbox(sandboxPath(id), id, err)
	}
	return s, nil
}

// aboutSandbox returns a control plane failure about a sandbox. Tools of the control plane
// name the sandbox by the argument id.
func aboutSandbox(path, id string, err error) error {
	f := failed(false, path, err)
	if f.code == "not_found" {
		f.code = "sandbox_not_found"
	}
	f.sandbox, f.key = id, "id"
	return f
}

func getSandbox(ctx context.Context, c *dialect.Call, in idArgs) (any, error) {
	s, err := living(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	return recordOf(ctx, s), nil
}

func deleteSandbox(ctx context.Context, c *dialect.Call, in idArgs) (any, error) {
	s, err := living(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	if _, err := c.Service.Kill(ctx, s.ID); err != nil {
		return nil, aboutSandbox(sandboxPath(in.ID), in.ID, err)
	}
	return object(pair{"id", s.ID}, pair{"status", "deleted"}), nil
}

type timeoutArgs struct {
	ID      string `json:"id"`
	Timeout int64  `json:"timeout_seconds"`
}

// set sets a sandbox's remaining lifetime.
func (in *timeoutArgs) set(ctx context.Context, c *dialect.Call) (*sandbox.Sandbox, error) {
	path := sandboxPath(in.ID) + "/timeout"
	if err := checkLifetime(in.Timeout); err != nil {
		return nil, aboutSandbox(path, in.ID, err)
	}
	s, err := living(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	if s, err = c.Service.Update(ctx, s.ID, sandbox.UpdateRequest{LifetimeSeconds: &in.Timeout}); err != nil {
		return nil, aboutSandbox(path, in.ID, err)
	}
	return s, nil
}

func updateTimeout(ctx context.Context, c *dialect.Call, in timeoutArgs) (any, error) {
	s, err := in.set(ctx, c)
	if err != nil {
		return nil, err
	}
	return object(pair{"id", s.ID}, pair{"timeout_seconds", s.LifetimeSeconds}, pair{"expires_at", stampOrNull(s.ExpiresAt)}), nil
}

// resumed resumes a paused sandbox.
func resumed(ctx context.Context, c *dialect.Call, id string) (*sandbox.Sandbox, error) {
	s, err := living(ctx, c, id)
	if err != nil {
		return nil, err
	}
	c.Status("resuming")
	if s, err = c.Service.Resume(ctx, s.ID, sandbox.ResumeRequest{}); err != nil {
		return nil, aboutSandbox(sandboxPath(id)+"/resume", id, err)
	}
	return s, nil
}

func resumeSandbox(ctx context.Context, c *dialect.Call, in idArgs) (any, error) {
	s, err := resumed(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	return object(pair{"id", s.ID}, pair{"status", status(s.State)}), nil
}

// seconds converts milliseconds to seconds.
func seconds(ms int64) float64 { return float64(ms) / 1000 }

// stampOrNull returns a time in a result, null for none.
func stampOrNull(t *time.Time) *string {
	if t == nil {
		return nil
	}
	return new(dialect.Stamp(*t))
}

// uptime returns a duration as the product writes it, such as 2h34m12s.
func uptime(since time.Time) string { return time.Since(since).Round(time.Second).String() }
