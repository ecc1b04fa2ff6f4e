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

// secret is a secret that is bound to a sandbox.
type secret struct {
	EnvKey  string `json:"env_key"`
	Name    string `json:"secret_name"`
	Revoked bool   `json:"revoked"`
}

// boundSecrets returns the secrets of a sandbox and whether they still exist.
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

// secretSummary is a secret in a list, without its value.
type secretSummary struct {
	Name     string   `json:"name"`
	AuthType string   `json:"authType"`
	Hosts    []string `json:"hosts"`
	Provider string   `json:"providerShortcut,omitempty"`
	LastUsed string   `json:"lastUsedAt,omitempty"`
}

func listSecrets(ctx context.Context, c *dialect.Call, _ struct{}) (*mcp.CallToolResult, error) {
	rows := []secretSummary{}
	for s, err := range sandbox.Each(ctx, c.Service.ListSecrets) {
		if err != nil {
			return nil, err
		}
		rows = append(rows, secretSummary{
			Name: s.Name, AuthType: authType(&s.Auth), Hosts: append([]string{}, s.Hosts...), Provider: s.Provider, LastUsed: dialect.StampOf(s.LastUsedAt),
		})
	}
	line := func(s secretSummary) string { return s.Name + "\t" + s.AuthType + "\t" + strings.Join(s.Hosts, ",") }
	return listing("secrets", rows, line, "(no secrets)"), nil
}

// authType is the product's name for how a secret is sent.
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
	inSandbox
	EnvKey string `json:"env_key"`
	Secret string `json:"secret_name"`
}

func attachSecret(ctx context.Context, c *dialect.Call, in attachArgs) (*mcp.CallToolResult, error) {
	s, err := c.Service.Resume(ctx, in.Sandbox, sandbox.ResumeRequest{})
	if err != nil {
		return nil, err
	}
	if s.Secrets[in.EnvKey] != in.Secret || in.Secret == "" { // else it is done
		if s, err = c.Service.AttachSecret(ctx, s.ID, in.Secret, in.EnvKey); err != nil {
			return nil, err
		}
	}
	return dialect.Text("bound secret "+in.Secret+" to "+in.EnvKey+" on "+s.ID, dialect.ObjectOf("sandbox_id", s.ID, "env_key", in.EnvKey, "secret_name", in.Secret)), nil
}

type detachArgs struct {
	inSandbox
	EnvKey string `json:"env_key"`
}

func detachSecret(ctx context.Context, c *dialect.Call, in detachArgs) (*mcp.CallToolResult, error) {
	s, err := c.Service.Resume(ctx, in.Sandbox, sandbox.ResumeRequest{})
	if err != nil {
		return nil, err
	}
	if _, has := s.Secrets[in.EnvKey]; has {
		_, err := c.Service.DetachSecret(ctx, s.ID, in.EnvKey)
		if err = explain(ctx, c, s.ID, err); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return nil, err
		}
	}
	return dialect.Text("unbound "+in.EnvKey+" from "+s.ID, dialect.ObjectOf("sandbox_id", s.ID, "env_key", in.EnvKey)), nil
}
