package superserve

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// secret is one that is bound to a sandbox.
type secret struct {
	EnvKey  string `json:"env_key"`
	Name    string `json:"secret_name"`
	Revoked bool   `json:"revoked"`
}

// boundSecrets tells which secrets a sandbox has, and whether they are still
// worth something.
func boundSecrets(ctx context.Context, c *dialect.Call, names map[string]string) ([]secret, error) {
	var out []secret
	for _, env := range slices.Sorted(maps.Keys(names)) {
		_, err := c.Service.GetSecret(ctx, names[env])
		gone := sandbox.CodeOf(err) == sandbox.CodeNotFound
		if err != nil && !gone {
			return nil, err
		}
		out = append(out, secret{EnvKey: env, Name: names[env], Revoked: gone})
	}
	return out, nil
}

// secretSummary is a secret in a list. It never has the value.
type secretSummary struct {
	Name     string   `json:"name"`
	AuthType string   `json:"authType"`
	Hosts    []string `json:"hosts"`
	Provider string   `json:"providerShortcut,omitempty"`
	LastUsed string   `json:"lastUsedAt,omitempty"`
}

type secretsListed struct {
	Secrets []secretSummary `json:"secrets"`
}

func listSecrets(ctx context.Context, c *dialect.Call, _ struct{}) (*mcp.CallToolResult, error) {
	out := secretsListed{Secrets: []secretSummary{}}
	var lines []string
	for s, err := range sandbox.Each(ctx, c.Service.ListSecrets) {
		if err != nil {
			return nil, err
		}
		v := secretSummary{Name: s.Name, AuthType: authType(&s.Auth), Hosts: append([]string{}, s.Hosts...), Provider: s.Provider, LastUsed: dialect.StampOf(s.LastUsedAt)}
		out.Secrets = append(out.Secrets, v)
		lines = append(lines, v.Name+"\t"+v.AuthType+"\t"+strings.Join(v.Hosts, ","))
	}
	return dialect.Text(cmp.Or(strings.Join(lines, "\n"), "(no secrets)"), out), nil
}

// authType is how a secret travels, in the product's words.
func authType(a *sandbox.SecretAuth) string {
	switch {
	case a.Type == "basic":
		return "basic"
	case a.Type != "header":
		return "custom"
	case strings.EqualFold(cmp.Or(a.Name, "Authorization"), "Authorization") && strings.EqualFold(strings.TrimSpace(a.Prefix), "Bearer"):
		return "bearer"
	}
	return "api-key"
}

type attachArgs struct {
	Sandbox string `json:"sandbox_id"`
	EnvKey  string `json:"env_key"`
	Secret  string `json:"secret_name"`
}

// bound says which secret is in which variable of a sandbox.
type bound struct {
	Sandbox string `json:"sandbox_id"`
	EnvKey  string `json:"env_key"`
	Secret  string `json:"secret_name"`
}

// awake resumes a sandbox that is paused and returns its record.
func awake(ctx context.Context, c *dialect.Call, id string) (*sandbox.Sandbox, error) {
	s, err := c.Service.Resume(ctx, id, sandbox.ResumeRequest{})
	if err != nil {
		return nil, about(ctx, c, id, err)
	}
	return s, nil
}

func attachSecret(ctx context.Context, c *dialect.Call, in attachArgs) (*mcp.CallToolResult, error) {
	s, err := awake(ctx, c, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if s.Secrets[in.EnvKey] != in.Secret || in.Secret == "" { // else it is done
		if s, err = c.Service.AttachSecret(ctx, s.ID, in.Secret, in.EnvKey); err != nil {
			return nil, about(ctx, c, in.Sandbox, err)
		}
	}
	return dialect.Text("bound secret "+in.Secret+" to "+in.EnvKey+" on "+s.ID, bound{s.ID, in.EnvKey, in.Secret}), nil
}

type detachArgs struct {
	Sandbox string `json:"sandbox_id"`
	EnvKey  string `json:"env_key"`
}

// unbound says which variable of a sandbox has no secret any more.
type unbound struct {
	Sandbox string `json:"sandbox_id"`
	EnvKey  string `json:"env_key"`
}

func detachSecret(ctx context.Context, c *dialect.Call, in detachArgs) (*mcp.CallToolResult, error) {
	s, err := awake(ctx, c, in.Sandbox)
	if err != nil {
		return nil, err
	}
	if _, has := s.Secrets[in.EnvKey]; has {
		_, err := c.Service.DetachSecret(ctx, s.ID, in.EnvKey)
		if err = about(ctx, c, s.ID, err); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return nil, err
		}
	}
	return dialect.Text("unbound "+in.EnvKey+" from "+s.ID, unbound{s.ID, in.EnvKey}), nil
}
