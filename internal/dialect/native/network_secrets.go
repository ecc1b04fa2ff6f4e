package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Secrets are made, rotated and deleted by people, not by models: there are no
// tools for it, and no tool has a value.

// secretView is a secret in a result.
type secretView struct {
	Name     string   `json:"name"`
	Provider string   `json:"provider,omitempty"`
	Hosts    []string `json:"hosts"`
	// Env is the variable that clients of the provider read.
	Env string `json:"env,omitempty"`
}

type secretPage struct {
	Secrets    []secretView `json:"secrets"`
	NextCursor string       `json:"next_cursor,omitempty"`
}

type pageOnly struct {
	Limit  int    `json:"limit"`
	Cursor string `json:"cursor"`
}

func secretList() dialect.Tool {
	return dialect.New(toolsetSecrets, &mcp.Tool{
		Name:  "secret_list",
		Title: "List secrets",
		Description: "List the credentials that sandboxes may use without seeing them, newest first: names, the hosts that they work for, the usual variable. Values are never shown. " +
			"Use secret_attach, or secrets of sandbox_create. New ones are made by people: cove secret create.",
		Annotations: annotations("List secrets", true, false, true, false),
		InputSchema: input(pageArgs(200)...),
		OutputSchema: output(
			req("secrets", array("", object("",
				req("name", text("")), opt("provider", text("")), req("hosts", array("Where it works.", text(""), 0, 0)),
				opt("env", text("The environment variable that clients of the provider read."))), 0, 0)),
			opt("next_cursor", text("Give it as cursor to get the next page; absent on the last.")),
		),
	}, runSecretList)
}

func runSecretList(ctx context.Context, c *dialect.Call, in pageOnly) (*mcp.CallToolResult, error) {
	providers, err := c.Service.ListProviders(ctx)
	if err != nil {
		return nil, err
	}
	env := make(map[string]string)
	for _, p := range providers.Items {
		env[p.Name] = p.Env
	}
	var out secretPage
	err = fitPage(in.Limit, func(limit int) (any, error) {
		list, err := c.Service.ListSecrets(ctx, sandbox.Page{Limit: limit, Cursor: in.Cursor})
		if err != nil {
			return nil, err
		}
		out = secretPage{Secrets: make([]secretView, 0, len(list.Items)), NextCursor: list.NextCursor}
		for _, s := range list.Items {
			v := secretView{Name: s.Name, Provider: s.Provider, Hosts: s.Hosts, Env: env[s.Provider]}
			if v.Hosts == nil {
				v.Hosts = []string{}
			}
			out.Secrets = append(out.Secrets, v)
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	return dialect.Text(out.text(), out), nil
}

func (p secretPage) text() string {
	if len(p.Secrets) == 0 {
		return "No secrets. Ask a person to make one: cove secret create NAME --provider PROVIDER."
	}
	var b strings.Builder
	for _, s := range p.Secrets {
		fmt.Fprintf(&b, "%s for %s", s.Name, oneLine(strings.Join(s.Hosts, " ")))
		if s.Env != "" {
			fmt.Fprintf(&b, ", usually in %s", s.Env)
		}
		b.WriteByte('\n')
	}
	if p.NextCursor != "" {
		fmt.Fprintf(&b, "More: call again with cursor %s\n", p.NextCursor)
	}
	return b.String()
}

func envArg(description string) prop { return req("env", bounded(description, 1, 256)) }

type secretAttachArgs struct {
	Sandbox string `json:"sandbox"`
	Secret  string `json:"secret"`
	Env     string `json:"env"`
}

func secretAttach() dialect.Tool {
	return dialect.New(toolsetSecrets, &mcp.Tool{
		Name:  "secret_attach",
		Title: "Let a sandbox use a secret",
		Description: "Give a sandbox a placeholder for a secret in an environment variable, which commands started from then on see. " +
			"In requests to the secret's hosts, and only there, the placeholder is replaced by the value on its way out: use it as if it were the value.",
		Annotations: annotations("Let a sandbox use a secret", false, false, true, false),
		InputSchema: input(
			sandboxArg(),
			req("secret", bounded("Name of the secret, from secret_list.", 1, 128)),
			envArg("Environment variable for the placeholder, such as ANTHROPIC_API_KEY."),
		),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in secretAttachArgs) (*mcp.CallToolResult, error) {
		sb, err := c.Service.AttachSecret(ctx, in.Sandbox, in.Secret, in.Env)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Attached secret "+in.Secret+" as "+in.Env+" to sandbox "+describe(sb), view(sb)), nil
	})
}

type secretDetachArgs struct {
	Sandbox string `json:"sandbox"`
	Env     string `json:"env"`
}

func secretDetach() dialect.Tool {
	return dialect.New(toolsetSecrets, &mcp.Tool{
		Name:         "secret_detach",
		Title:        "Take a secret from a sandbox",
		Description:  "Take a secret from a sandbox, by its environment variable: the placeholder is worth nothing from then on. The secret itself stays.",
		Annotations:  annotations("Take a secret from a sandbox", false, true, true, false),
		InputSchema:  input(sandboxArg(), envArg("Environment variable that has the placeholder.")),
		OutputSchema: sandboxOutput(),
	}, func(ctx context.Context, c *dialect.Call, in secretDetachArgs) (*mcp.CallToolResult, error) {
		sb, err := c.Service.DetachSecret(ctx, in.Sandbox, in.Env)
		if err != nil {
			return nil, err
		}
		return dialect.Text("Took "+in.Env+" from sandbox "+describe(sb), view(sb)), nil
	})
}
