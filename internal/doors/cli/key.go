package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/sandbox"
)

func (a *app) keyCommand() *cobra.Command {
	return group("key", "Manage API keys", a.keyCreateCommand(), a.keyLsCommand(), a.keyRevokeCommand(), a.keyMicrosandboxCommand())
}

type keyCreateOptions struct {
	jsonOption
	Team    string
	Scopes  []string
	Expires time.Duration
}

func (o *keyCreateOptions) AddFlags(f *pflag.FlagSet) {
	o.jsonOption.AddFlags(f)
	f.StringVar(&o.Team, "team", "", "team that the key acts for (default yours)")
	f.StringSliceVar(&o.Scopes, "scope", nil, "what it may do (default all but admin): "+scopeNames())
	f.DurationVar(&o.Expires, "expires", 0, "how long it is valid, such as 720h; 0 is for ever")
}

func scopeNames() string {
	var names []string
	for _, s := range sandbox.Scopes() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

func (a *app) keyCreateCommand() *cobra.Command {
	var opts keyCreateOptions
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an API key and print its secret, this once",
		Example: "  cove key create ci --scope sandboxes:read,sandboxes:write,files:write --expires 720h\n" +
			"  cove key create laptop > key",
		Args: argsBetween(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.runKeyCreate(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runKeyCreate(ctx context.Context, opts keyCreateOptions, args []string) error {
	if opts.Expires%time.Second != 0 {
		return sandbox.Errorf(sandbox.CodeInvalid, "--expires is no whole number of seconds; write 720h")
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	req := sandbox.CreateKeyRequest{Name: args[0], Team: opts.Team, ExpiresInSeconds: int64(opts.Expires / time.Second)}
	for _, s := range opts.Scopes {
		req.Scopes = append(req.Scopes, sandbox.Scope(s))
	}
	key, err := c.CreateKey(ctx, req)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(key)
	}
	a.say("key %s of team %s; its secret is not shown again:", key.ID, clean(key.Team))
	return a.print(key.Secret + "\n")
}

func (a *app) keyLsCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List API keys",
		Example: "  cove key ls",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runKeyLs(cmd.Context(), opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runKeyLs(ctx context.Context, opts jsonOption) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	keys, err := sandbox.All(ctx, c.ListKeys)
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(itemList[sandbox.Key]{keys})
	}
	rows := make([][]string, 0, len(keys))
	for _, k := range keys {
		rows = append(rows, []string{k.ID, k.Name, k.Team, k.Hint + "…", keyState(&k), age(k.CreatedAt), until(k.ExpiresAt), joinScopes(k.Scopes)})
	}
	return a.printTable([]string{"ID", "NAME", "TEAM", "SECRET", "STATE", "AGE", "EXPIRES", "SCOPES"}, rows)
}

func keyState(k *sandbox.Key) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case k.ExpiresAt != nil && time.Now().After(*k.ExpiresAt):
		return "expired"
	}
	return "valid"
}

func joinScopes(scopes []sandbox.Scope) string {
	return strings.Trim(fmt.Sprint(scopes), "[]")
}

func (a *app) keyRevokeCommand() *cobra.Command {
	var opts jsonOption
	cmd := &cobra.Command{
		Use: "revoke KEY", Short: "Revoke an API key, by its id or name, at once and for good",
		Example: "  cove key revoke ci\n  cove key revoke key-x3k9",
		Args:    argsBetween(1, 1),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runKeyRevoke(cmd.Context(), opts, args) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runKeyRevoke(ctx context.Context, opts jsonOption, args []string) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	key, err := c.RevokeKey(ctx, args[0])
	if err != nil {
		return err
	}
	if opts.JSON {
		return a.printJSON(key)
	}
	return a.print(key.ID + "\n")
}
