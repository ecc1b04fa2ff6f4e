package control

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

// DefaultTimeout is the default lifetime of a sandbox, in seconds.
const DefaultTimeout = 300

// timeoutV1 is the default of the deprecated routes.
const timeoutV1 = 15

// createBody describes a sandbox.
type createBody struct {
	TemplateID      string            `json:"templateID"`
	Timeout         *int64            `json:"timeout"`
	AutoPause       bool              `json:"autoPause"`
	AutoPauseMemory *bool             `json:"autoPauseMemory"`
	AutoResume      *autoResume       `json:"autoResume"`
	Internet        *bool             `json:"allow_internet_access"`
	Metadata        map[string]string `json:"metadata"`
	EnvVars         map[string]string `json:"envVars"`
	Network         *egress           `json:"network"`
	VolumeMounts    []volumeMount     `json:"volumeMounts"`
	// Secure is sent by older clients; sandboxes are always secure.
	Secure bool `json:"secure"`
	// These are refused.
	MCP json.RawMessage `json:"mcp"`
	IAM *struct {
		Tokens json.RawMessage `json:"tokens"`
	} `json:"iam"`
}

type autoResume struct {
	Enabled bool `json:"enabled"`
}

// check refuses fields that would have no effect.
func (b *createBody) check() error {
	switch {
	case b.TemplateID == "":
		return invalid("validation error: templateID is missing; name a template")
	case len(b.MCP) > 0:
		return refused("mcp")
	case b.IAM != nil && len(b.IAM.Tokens) > 0:
		return refused("iam.tokens")
	case b.AutoPauseMemory != nil && !*b.AutoPauseMemory:
		return refused("autoPauseMemory")
	}
	for key := range b.Metadata {
		if strings.HasPrefix(key, access.TagPrefix) {
			return invalid("metadata: keys that begin with %s are Cove's own; choose another for %.80q", access.TagPrefix, key)
		}
	}
	if b.Network != nil {
		return b.Network.check("network.")
	}
	return nil
}

// createV1 and createV2 differ in the default lifetime.
func (p *plane) createV1(r *http.Request, _ []string, body *createBody) (*response, error) {
	return p.create(r, body, timeoutV1)
}

func (p *plane) createV2(r *http.Request, _ []string, body *createBody) (*response, error) {
	return p.create(r, body, DefaultTimeout)
}

func (p *plane) create(r *http.Request, body *createBody, defaultTimeout int64) (*response, error) {
	if err := body.check(); err != nil {
		return nil, err
	}
	timeout, err := timeoutOr(body.Timeout, defaultTimeout)
	if err != nil {
		return nil, err
	}
	req, err := p.request(r.Context(), body, timeout)
	if err != nil {
		return nil, err
	}
	box, err := p.cfg.Service.Create(r.Context(), *req)
	if err != nil {
		return nil, err
	}
	return &response{http.StatusCreated, p.created(r.Context(), box)}, nil
}

// timeoutOr checks a timeout in seconds; nil is the default.
func timeoutOr(given *int64, def int64) (int64, error) {
	if given == nil {
		return def, nil
	}
	return *given, checkTimeout(*given)
}

func checkTimeout(seconds int64) error {
	if seconds <= 0 {
		return invalid("Timeout must be greater than 0")
	}
	if seconds > int64(sandbox.MaxLifetime/time.Second) {
		return invalid("Timeout cannot be greater than %d hours", sandbox.MaxLifetime/time.Hour)
	}
	return nil
}

// request translates a client's request for a sandbox into Cove's.
func (p *plane) request(ctx context.Context, body *createBody, timeout int64) (*sandbox.CreateRequest, error) {
	req := &sandbox.CreateRequest{LifetimeSeconds: &timeout, IdleTimeoutSeconds: new(int64), Env: body.EnvVars, Metadata: map[string]string{}}
	if err := p.chooseTemplate(ctx, body.TemplateID, req); err != nil {
		return nil, err
	}
	maps.Copy(req.Metadata, body.Metadata)
	if body.AutoPause {
		req.OnTimeout = sandbox.ActionPause
	}
	if body.AutoResume != nil && body.AutoResume.Enabled {
		req.Metadata[access.TagAutoResume] = "on"
	}
	net := body.Network
	if net == nil || net.AllowPublicTraffic == nil || *net.AllowPublicTraffic {
		caller, _ := sandbox.CallerOf(ctx)
		req.Metadata[access.TagPorts] = caller.KeyID
	}
	if net != nil && len(net.AllowOut)+len(net.DenyOut)+len(net.Rules) > 0 || body.Internet != nil && !*body.Internet {
		if net == nil {
			net = &egress{}
		}
		if err := p.findSecrets(ctx, net.Rules); err != nil {
			return nil, err
		}
		req.Network = policyOf(nil, net, body.Internet)
	}
	for _, m := range body.VolumeMounts {
		req.Mounts = append(req.Mounts, sandbox.Mount{Target: m.Path, Volume: m.Name})
	}
	return req, nil
}

// noSandbox is the error for a sandbox that does not exist or is not the caller's.
func noSandbox(id string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "Sandbox %.80q doesn't exist or you don't have access to it", id)
}

// about words an error of a call on a sandbox as the product does.
func about(id string, err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return noSandbox(id)
	}
	return err
}

// living returns a sandbox of the caller's that has not ended.
func (p *plane) living(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	ours, ok := access.FromE2B(id)
	if !ok {
		return nil, invalid("Invalid sandbox ID")
	}
	box, err := p.cfg.Service.Get(ctx, ours)
	if err != nil {
		return nil, about(id, err)
	}
	if box.State.Final() || box.State == sandbox.StateStopping {
		return nil, noSandbox(id)
	}
	return box, nil
}

// running returns a sandbox of the caller's that runs.
func (p *plane) running(ctx context.Context, id string) (*sandbox.Sandbox, error) {
	box, err := p.living(ctx, id)
	if err == nil && box.State != sandbox.StateRunning {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "Sandbox %.80q is %s; connect to it first", id, box.State)
	}
	return box, err
}

func (p *plane) get(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	d := p.detail(r.Context(), box)
	p.nameVolumes(r.Context(), &d.listed)
	return &response{http.StatusOK, d}, nil
}

func (p *plane) kill(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	box, err := p.living(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	if _, err := p.cfg.Service.Kill(r.Context(), box.ID); err != nil {
		return nil, about(args[0], err)
	}
	return noContent, nil
}
