package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// People create, rotate and delete secrets, not models: there are no tools for that,
// and no tool returns a value.

// secretView is a secret in a result.
type secretView struct {
	Name     string   `json:"name"`
	Provider string   `json:"provider,omitempty"`
	Hosts    []string `json:"hosts"`
	// Env is the variable that clients of the provider read.
	Env string `json:"env,omitempty"`
}

type secretPage struct {
	Secrets []secretView `json:"secrets"`
	nextPage
}

func listSecrets(ctx context.Context, c *dialect.Call, in sandbox.Page) (*reply[secretPage], error) {
	providers, err := c.Service.ListProviders(ctx)
	if err != nil {
		return nil, err
	}
	env := make(map[string]string)
	for _, p := range providers.Items {
		env[p.Name] = p.Env
	}
	var out secretPage
	return fitPage(in.Limit, &out, func(limit int) error {
		in.Limit = limit
		list, err := c.Service.ListSecrets(ctx, in)
		out.Secrets, out.nextPage = views(list, func(s *sandbox.Secret) secretView {
			v := project[secretView](s)
			v.Hosts, v.Env = append([]string{}, s.Hosts...), env[s.Provider]
			return v
		})
		return err
	})
}

func (p secretPage) text() string {
	var b strings.Builder
	for _, s := range p.Secrets {
		fmt.Fprintf(&b, "%s for %s", s.Name, oneLine(strings.Join(s.Hosts, " ")))
		field(&b, ", usually in %s", s.Env)
		b.WriteByte('\n')
	}
	return p.list(b.String(), "No secrets. Ask a person to make one: cove secret create NAME --provider PROVIDER.")
}

type secretAttachArgs struct {
	sandboxRef
	Secret string `json:"secret"`
	Env    string `json:"env"`
}

func attachSecret(ctx context.Context, c *dialect.Call, in secretAttachArgs) (*reply[sandboxView], error) {
	sb, err := c.Service.AttachSecret(ctx, in.Sandbox, in.Secret, in.Env)
	return described("Attached secret "+in.Secret+" as "+in.Env+" to", sb, err)
}

type secretDetachArgs struct {
	sandboxRef
	Env string `json:"env"`
}

func detachSecret(ctx context.Context, c *dialect.Call, in secretDetachArgs) (*reply[sandboxView], error) {
	sb, err := c.Service.DetachSecret(ctx, in.Sandbox, in.Env)
	return described("Took "+in.Env+" from", sb, err)
}
