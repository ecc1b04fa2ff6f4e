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

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) secretCommand() *cobra.Command {
	cmd := group("secret", "Let sandboxes use credentials without seeing them",
		a.secretCreateCommand(), a.secretLsCommand(), a.secretGetCommand(), a.secretRotateCommand(), a.secretRmCommand(),
		a.secretAttachCommand(), a.secretDetachCommand(), a.secretProvidersCommand(), a.secretRotateKeyCommand())
	cmd.Long = "Let sandboxes use credentials without seeing them. A sandbox that a secret is attached to has a\n" +
		"placeholder in an environment variable; on its way to the hosts that the secret is for, and only\n" +
		"there, the placeholder is replaced by the value. Nobody can read a value again."
	cmd.Example = "  cove secret create anthropic --provider anthropic < key.txt\n" +
		"  cove run --secret anthropic -- python3 agent.py"
	return cmd
}

type secretCreateOptions struct {
	jsonOption
	Provider string
	Hosts    []string
	Header   string
	Prefix   string
	Basic    string
	Query    string
	Body     bool
}

func (o *secretCreateOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.StringVarP(&o.Provider, "provider", "p", "", "preset of hosts and the way the secret travels; see: cove secret providers")
	f.StringSliceVar(&o.Hosts, "host", nil, "host that it may go to, or *.domain; with commas or repeated")
	f.StringVar(&o.Header, "header", "", "header that it travels in (default Authorization)")
	f.StringVar(&o.Prefix, "prefix", "", "what stands before it in the header, such as \"Bearer \"")
	f.StringVar(&o.Basic, "basic", "", "it is the password of this user, in basic authentication")
	f.StringVar(&o.Query, "query", "", "query parameter that it travels in")
	f.BoolVar(&o.Body, "body", false, "replace the placeholder in bodies of requests too")
}

// auth returns how the secret travels, nil if that is the provider's matter.
func (o *secretCreateOptions) auth() (*sandbox.SecretAuth, error) {
	ways := 0
	auth := sandbox.SecretAuth{Type: "header", Name: o.Header, Prefix: o.Prefix, Body: o.Body}
	if o.Header != "" || o.Prefix != "" {
		ways++
	}
	if o.Basic != "" {
		ways++
		auth = sandbox.SecretAuth{Type: "basic", User: o.Basic, Body: o.Body}
	}
	if o.Query != "" {
		ways++
		auth = sandbox.SecretAuth{Type: "query", Name: o.Query, Body: o.Body}
	}
	switch {
	case ways > 1:
		return nil, errors.New("secret create: a secret travels in one way; give one of --header, --basic and --query")
	case o.Provider == "" && len(o.Hosts) == 0:
		return nil, errors.New("secret create: say where the secret may go, with --provider or --host")
	case o.Provider != "" && ways == 0 && !o.Body:
		return nil, nil
	}
	return &auth, nil
}

func (a *app) secretCreateCommand() *cobra.Command {
	var opts secretCreateOptions
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Keep a credential; its value comes from standard input",
		Long: "Keep a credential. Its value is asked for on a terminal, without showing it, or else read from\n" +
			"standard input, where one line end at the end is left out. It is never an argument: those are\n" +
			"seen by every process of the machine.",
		Example: "  cove secret create anthropic --provider anthropic\n" +
			"  printenv GITHUB_TOKEN | cove secret create github -p github\n" +
			"  cove secret create billing --host api.billing.example --header X-Api-Key < key.txt",
		Args: argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			auth, err := opts.auth()
			if err != nil {
				return usageError(cmd, err)
			}
			return a.runSecretCreate(cmd.Context(), opts, auth, args)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSecretCreate(ctx context.Context, opts secretCreateOptions, auth *sandbox.SecretAuth, args []string) error {
	value, err := a.readSecret(args[0])
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	secret, err := c.CreateSecret(ctx, sandbox.CreateSecretRequest{Name: args[0], Value: value, Provider: opts.Provider, Hosts: opts.Hosts, Auth: auth})
	if err != nil {
		return err
	}
	return a.printSecret(secret, opts.jsonOption)
}

// readSecret takes a value from the terminal, where it does not show, or from
// standard input.
func (a *app) readSecret(name string) (sandbox.SecretValue, error) {
	keepMemory()
	console, ok := a.Stdin.(*os.File)
	if !ok || !isTerminal(a.Stdin) {
		return secretFrom(a.Stdin)
	}
	fmt.Fprintf(a.Stderr, "Value of %s (does not show): ", clean(name))
	data, err := term.ReadPassword(int(console.Fd()))
	fmt.Fprintln(a.Stderr)
	return secretOf(data, err)
}

// secretFrom reads a value, without the end of a last line.
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
		return sandbox.SecretValue{}, sandbox.Errorf(sandbox.CodeInvalid, "the value is empty; give it on standard input, such as with < file")
	case len(data) > sandbox.MaxSecretBytes:
		return sandbox.SecretValue{}, sandbox.Errorf(sandbox.CodeTooLarge, "the value is over %s; that is no credential", bytesText(sandbox.MaxSecretBytes))
	}
	return sandbox.NewSecretValue(string(data)), nil
}

func (a *app) printSecret(s *sandbox.Secret, opts jsonOption) error {
	if opts.JSON {
		return a.printJSON(s)
	}
	return a.fields(
		"id", s.ID, "name", s.Name, "team", s.Team, "provider", s.Provider, "hosts", strings.Join(s.Hosts, " "),
		"travels as", authText(s.Auth), "version", fmt.Sprint(s.Version),
		"created", stamp(&s.CreatedAt), "rotated", stamp(s.RotatedAt), "last used", stamp(s.LastUsedAt),
	)
}

// authText tells how a secret travels.
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
		text += ", in bodies too"
	}
	return text
}

func (a *app) secretLsCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List secrets, without values",
		Example: "  cove secret ls",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runSecretLs(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSecretLs(ctx context.Context, opts jsonOption) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	secrets, err := sandbox.All(ctx, c.ListSecrets)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Secret]{secrets})
	}
	rows := make([][]string, 0, len(secrets))
	for _, s := range secrets {
		used := ""
		if s.LastUsedAt != nil {
			used = age(*s.LastUsedAt)
		}
		rows = append(rows, []string{s.Name, s.Provider, strings.Join(s.Hosts, " "), authText(s.Auth), fmt.Sprint(s.Version), age(s.CreatedAt), used})
	}
	return a.printTable([]string{"NAME", "PROVIDER", "HOSTS", "AUTH", "VERSION", "AGE", "USED"}, rows)
}

func (a *app) secretGetCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show a secret, without its value",
		Example: "  cove secret get anthropic",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSecretGet(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSecretGet(ctx context.Context, opts jsonOption, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	secret, err := c.GetSecret(ctx, args[0])
	if err != nil {
		return err
	}
	return a.printSecret(secret, opts)
}

func (a *app) secretRotateCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "rotate NAME", Short: "Replace a secret's value, at once in running sandboxes too",
		Long:    "Replace a secret's value, at once in running sandboxes too. The value is read as create reads it.",
		Example: "  cove secret rotate anthropic < new-key.txt",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSecretRotate(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSecretRotate(ctx context.Context, opts jsonOption, args []string) error {
	value, err := a.readSecret(args[0])
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	secret, err := c.RotateSecret(ctx, args[0], sandbox.RotateSecretRequest{Value: value})
	if err != nil {
		return err
	}
	return a.printSecret(secret, opts)
}

// named is a thing of which only the name is left.
type named struct {
	Name string `json:"name"`
}

func (a *app) secretRmCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "rm NAME...", Aliases: []string{"delete"}, Short: "Delete secrets, which ends their use everywhere at once",
		Example: "  cove secret rm anthropic",
		Args:    argsBetween(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(a, opts, args, func(n *named) string { return n.Name }, func(c *client.Client, name string) (*named, error) {
				return &named{name}, c.DeleteSecret(cmd.Context(), name)
			})
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) secretAttachCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "attach SANDBOX [ENV=]NAME", Short: "Let a sandbox use a secret",
		Long: "Let a sandbox use a secret. Commands started from then on have a placeholder in the environment\n" +
			"variable ENV: without one that is given, in the one that clients of the secret's provider read.",
		Example: "  cove secret attach work anthropic\n  cove secret attach work BILLING_KEY=billing",
		Args:    argsBetween(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			use, err := parseSecretUse(args[1])
			if err != nil {
				return usageError(cmd, fmt.Errorf("secret attach: %w", err))
			}
			return a.runSecretAttach(cmd.Context(), opts, args[0], use)
		},
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSecretAttach(ctx context.Context, opts jsonOption, name string, use secretUse) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	env, err := use.variable(ctx, c)
	if err != nil {
		return err
	}
	sb, err := c.AttachSecret(ctx, name, use.name, env)
	if err != nil {
		return err
	}
	return a.printSecretsOf(sb, opts)
}

// printSecretsOf prints which secrets a sandbox has.
func (a *app) printSecretsOf(sb *sandbox.Sandbox, opts jsonOption) error {
	if opts.JSON {
		return a.printJSON(sb)
	}
	return a.fields("id", sb.ID, "name", sb.Name, "secrets", secretsText(sb.Secrets))
}

func (a *app) secretDetachCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "detach SANDBOX ENV", Short: "Take a secret from a sandbox, by its environment variable",
		Long:    "Take a secret from a sandbox, by its environment variable. The placeholder is worth nothing from\nthen on.",
		Example: "  cove secret detach work ANTHROPIC_API_KEY",
		Args:    argsBetween(2, 2),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSecretDetach(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSecretDetach(ctx context.Context, opts jsonOption, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	sb, err := c.DetachSecret(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	return a.printSecretsOf(sb, opts)
}

func (a *app) secretProvidersCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "providers", Short: "List presets for the secrets of well-known services",
		Example: "  cove secret providers",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runSecretProviders(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runSecretProviders(ctx context.Context, opts jsonOption) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	providers, err := c.ListProviders(ctx)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Provider]{providers.Items})
	}
	rows := make([][]string, 0, len(providers.Items))
	for _, p := range providers.Items {
		rows = append(rows, []string{p.Name, p.Title, p.Env, strings.Join(p.Hosts, " "), authText(p.Auth)})
	}
	return a.printTable([]string{"NAME", "SERVICE", "VARIABLE", "HOSTS", "AUTH"}, rows)
}
