package superserve

import (
	"context"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

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
			Name: s.Name, AuthType: terms.AuthType(&s.Auth), Hosts: append([]string{}, s.Hosts...), Provider: s.Provider, LastUsed: dialect.StampOf(s.LastUsedAt),
		})
	}
	line := func(s secretSummary) string { return s.Name + "\t" + s.AuthType + "\t" + strings.Join(s.Hosts, ",") }
	return listing("secrets", rows, line, "(no secrets)"), nil
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
	if s.Secrets[in.EnvKey] != in.Secret || in.Secret == "" { // otherwise it is already bound
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
