package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) secretCommand() *cobra.Command {
	cmd := group("secret", "Let sandboxes use credentials without seeing them",
		a.secretCreateCommand(),
		a.make(command{
			Use: "ls", Short: "List secrets, without values",
			Example: "  cove secret ls",
			Do:      list(secretTable, all(sandbox.Service.ListSecrets)),
		}),
		a.make(command{
			Use: "get NAME", Short: "Show a secret, without its value",
			Example: "  cove secret get anthropic",
			Do:      show(secretDetails, byName(sandbox.Service.GetSecret)),
		}),
		a.make(command{
			Use: "rotate NAME", Short: "Replace a secret's value, also in running sandboxes",
			Long:    "Replace a secret's value, which takes effect at once, also in running sandboxes. The value is read as in\ncove secret create.",
			Example: "  cove secret rotate anthropic < new-key.txt",
			Do:      show(secretDetails, rotateSecret),
		}),
		a.make(command{
			Use: "rm NAME...", Short: "Delete secrets and end their use at once",
			Example: "  cove secret rm anthropic",
			Do:      remove(sandbox.Service.DeleteSecret),
		}),
		a.make(command{
			Use: "attach SANDBOX [ENV=]NAME", Short: "Let a sandbox use a secret",
			Long: "Let a sandbox use a secret. Commands started from now on get a placeholder in the environment variable\n" +
				"ENV. The default is the variable that clients of the secret's provider read.",
			Example: "  cove secret attach work anthropic\n  cove secret attach work BILLING_KEY=billing",
			Do:      show(secretsOfSandbox, attachSecret),
		}),
		a.make(command{
			Use: "detach SANDBOX ENV", Short: "Stop a sandbox from using a secret",
			Long:    "Stop a sandbox from using a secret, named by its environment variable. The placeholder stops working at\nonce.",
			Example: "  cove secret detach work ANTHROPIC_API_KEY",
			Do: show(secretsOfSandbox, func(ctx context.Context, c *call) (*sandbox.Sandbox, error) {
				return c.client.DetachSecret(ctx, c.args[0], c.args[1])
			}),
		}),
		a.make(command{
			Use: "providers", Short: "List presets for well-known services",
			Example: "  cove secret providers",
			Do: list(providerTable, func(ctx context.Context, c *call) ([]sandbox.Provider, error) {
				return itemsOf(c.client.ListProviders(ctx))
			}),
		}),
		a.secretRotateKeyCommand())
	cmd.Long = "Let sandboxes use credentials without seeing them. A sandbox gets a placeholder in an environment\n" +
		"variable. In requests to the hosts the secret is for, and only there, Cove replaces the placeholder\n" +
		"with the value. Nobody can read a value back."
	cmd.Example = "  cove secret create anthropic --provider anthropic < key.txt\n" +
		"  cove run --secret anthropic -- python3 agent.py"
	return cmd
}

var secretTable = table([]string{"NAME", "PROVIDER", "HOSTS", "AUTH", "VERSION", "AGE", "LAST USED"}, func(s *sandbox.Secret) []any {
	used := ""
	if s.LastUsedAt != nil {
		used = age(*s.LastUsedAt)
	}
	return []any{s.Name, s.Provider, s.Hosts, authText(s.Auth), s.Version, age(s.CreatedAt), used}
})

var secretDetails = details(func(s *sandbox.Secret) []any {
	return []any{
		"id", s.ID, "name", s.Name, "team", s.Team, "provider", s.Provider, "hosts", s.Hosts, "sent as", authText(s.Auth), "metadata", pairText(s.Metadata), "version", s.Version,
		"created", stamp(&s.CreatedAt), "rotated", stamp(s.RotatedAt), "last used", stamp(s.LastUsedAt),
	}
})

var secretsOfSandbox = details(func(sb *sandbox.Sandbox) []any {
	return []any{"id", sb.ID, "name", sb.Name, "secrets", pairText(sb.Secrets)}
})

var providerTable = table([]string{"NAME", "SERVICE", "VARIABLE", "HOSTS", "AUTH"}, func(p *sandbox.Provider) []any {
	return []any{p.Name, p.Title, p.Env, p.Hosts, authText(p.Auth)}
})

// authText describes how a secret is sent.
func authText(auth sandbox.SecretAuth) string {
	name := auth.Name
	var text string
	switch auth.Type {
	case "basic":
		text = strings.TrimSpace("password of " + auth.User)
		if auth.User == "" {
			text = "password"
		}
	case "query":
		text = "query " + name
	default:
		if name == "" {
			name = "Authorization"
		}
		text = strings.TrimSpace("header " + name + ": " + auth.Prefix)
		text = strings.TrimSuffix(text, ":")
	}
	if auth.Body {
		text += ", also in bodies"
	}
	return text
}

type secretCreateOptions struct {
	Provider              string
	Hosts                 []string
	Header, Prefix        string
	BasicUser, QueryParam string
	Body                  bool
	Metadata              map[string]string
}

func (o *secretCreateOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVarP(&o.Provider, "provider", "p", "", "Use a service's preset of hosts and authentication (see cove secret providers)")
	f.StringSliceVar(&o.Hosts, "host", nil, "Host the secret may be sent to, or *.domain (comma-separated or repeatable); '*' alone is only for headers of network policies")
	f.StringVar(&o.Header, "header", "", "Header that carries the secret (default Authorization)")
	f.StringVar(&o.Prefix, "prefix", "", "Prefix of the value in the header, such as \"Bearer \"")
	f.StringVar(&o.BasicUser, "basic", "", "Send the secret as the password of this user, with basic authentication")
	f.StringVar(&o.QueryParam, "query", "", "Query parameter that carries the secret")
	f.BoolVar(&o.Body, "body", false, "Replace the placeholder in request bodies too")
	f.VarP(pairsFlag(&o.Metadata), "metadata", "m", "Metadata that the team sees (repeatable)")
}

// auth returns how the secret is sent, nil if the provider decides.
func (o *secretCreateOptions) auth() (*sandbox.SecretAuth, error) {
	kinds := 0
	auth := sandbox.SecretAuth{Type: "header", Name: o.Header, Prefix: o.Prefix, Body: o.Body}
	if o.Header != "" || o.Prefix != "" {
		kinds++
	}
	if o.BasicUser != "" {
		kinds++
		auth = sandbox.SecretAuth{Type: "basic", User: o.BasicUser, Body: o.Body}
	}
	if o.QueryParam != "" {
		kinds++
		auth = sandbox.SecretAuth{Type: "query", Name: o.QueryParam, Body: o.Body}
	}
	switch {
	case kinds > 1:
		return nil, errors.New("secret create: a secret is sent in one place; use only one of --header, --basic and --query")
	case o.Provider == "" && len(o.Hosts) == 0:
		return nil, errors.New("secret create: missing hosts; name the hosts the secret may be sent to with --provider or --host")
	case o.Provider != "" && kinds == 0 && !o.Body:
		return nil, nil
	}
	return &auth, nil
}

func (a *app) secretCreateCommand() *cobra.Command {
	var opts secretCreateOptions
	return a.make(command{
		Use: "create NAME", Short: "Store a credential",
		Long: "Store a credential. On a terminal, cove asks for its value without showing it; otherwise it reads the\n" +
			"value from standard input, without the final newline. The value is never an argument, because every\n" +
			"process on the machine can read arguments.",
		Example: "  cove secret create anthropic --provider anthropic\n" +
			"  printenv GITHUB_TOKEN | cove secret create github -p github\n" +
			"  cove secret create billing --host api.billing.example --header X-Api-Key < key.txt",
		Flags: opts.AddFlags,
		Do: show(secretDetails, func(ctx context.Context, c *call) (*sandbox.Secret, error) {
			auth, err := opts.auth()
			if err != nil {
				return nil, c.misuse("%w", err)
			}
			value, err := c.readSecret(c.args[0])
			if err != nil {
				return nil, err
			}
			return c.client.CreateSecret(ctx, sandbox.CreateSecretRequest{Name: c.args[0], Value: value, Provider: opts.Provider, Hosts: opts.Hosts, Auth: auth, Metadata: opts.Metadata})
		}),
	})
}

func rotateSecret(ctx context.Context, c *call) (*sandbox.Secret, error) {
	value, err := c.readSecret(c.args[0])
	if err != nil {
		return nil, err
	}
	return c.client.RotateSecret(ctx, c.args[0], sandbox.RotateSecretRequest{Value: value})
}

func attachSecret(ctx context.Context, c *call) (*sandbox.Sandbox, error) {
	use, err := parseSecretUse(c.args[1])
	if err != nil {
		return nil, c.misuse("secret attach: %w", err)
	}
	env, err := use.variable(ctx, c.client)
	if err != nil {
		return nil, err
	}
	return c.client.AttachSecret(ctx, c.args[0], use.name, env)
}

// readSecret reads a value from the terminal, without echo, or from standard input.
func (a *app) readSecret(name string) (sandbox.SecretValue, error) {
	keepMemory()
	console, ok := a.Stdin.(*os.File)
	if !ok || !isTerminal(a.Stdin) {
		return secretFrom(a.Stdin)
	}
	fmt.Fprintf(a.Stderr, "Value of %s (not shown): ", clean(name))
	data, err := term.ReadPassword(int(console.Fd()))
	fmt.Fprintln(a.Stderr)
	return secretOf(data, err)
}

// secretFrom reads a value, without a final newline.
func secretFrom(r io.Reader) (sandbox.SecretValue, error) {
	data, err := io.ReadAll(io.LimitReader(r, sandbox.MaxSecretBytes+3))
	return secretOf(bytes.TrimSuffix(bytes.TrimSuffix(data, []byte("\n")), []byte("\r")), err)
}

func secretOf(data []byte, err error) (sandbox.SecretValue, error) {
	defer clear(data)
	switch {
	case err != nil:
		return sandbox.SecretValue{}, fmt.Errorf("read the value: %w", err)
	case len(data) == 0:
		return sandbox.SecretValue{}, sandbox.Errorf(sandbox.CodeInvalid, "the value is empty; pass it on standard input, for example with < file")
	case len(data) > sandbox.MaxSecretBytes:
		return sandbox.SecretValue{}, sandbox.Errorf(sandbox.CodeTooLarge, "the value is larger than %s, which is too large for a credential; check the input", bytesText(sandbox.MaxSecretBytes))
	}
	return sandbox.NewSecretValue(string(data)), nil
}
