package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) keyCommand() *cobra.Command {
	return group("key", "Manage API keys",
		a.keyCreateCommand(),
		a.make(command{
			Use: "ls", Short: "List API keys",
			Example: "  cove key ls",
			Do:      list(keyTable, all(sandbox.Service.ListKeys)),
		}),
		a.make(command{
			Use: "revoke KEY", Short: "Revoke an API key permanently",
			Example: "  cove key revoke ci\n  cove key revoke key-x3k9",
			Do:      show(only(func(k *sandbox.Key) string { return k.ID }), byName(sandbox.Service.RevokeKey)),
		}),
		a.keyMicrosandboxCommand())
}

var keyTable = table([]string{"ID", "NAME", "TEAM", "SECRET", "STATE", "AGE", "EXPIRES", "SCOPES"}, func(k *sandbox.Key) []any {
	scopes := strings.Trim(fmt.Sprint(k.Scopes), "[]")
	return []any{k.ID, k.Name, k.Team, k.Hint + "…", keyState(k), age(k.CreatedAt), until(k.ExpiresAt), scopes}
})

func keyState(k *sandbox.Key) string {
	switch {
	case k.RevokedAt != nil:
		return "revoked"
	case k.ExpiresAt != nil && time.Now().After(*k.ExpiresAt):
		return "expired"
	}
	return "valid"
}

// The forms in which a key is printed.
const (
	formatCove = "cove"
	formatE2B  = "e2b"
)

func (a *app) keyCreateCommand() *cobra.Command {
	var req sandbox.CreateKeyRequest
	var scopes []string
	var expires time.Duration
	var format string
	return a.make(command{
		Use: "create NAME", Short: "Create an API key and print its secret once",
		Example: "  cove key create ci --scope sandboxes:read,sandboxes:write,files:write --expires 720h\n" +
			"  cove key create laptop > key",
		Flags: func(f *pflag.FlagSet) {
			names := strings.Trim(strings.ReplaceAll(fmt.Sprint(sandbox.Scopes()), " ", ", "), "[]")
			f.StringVar(&req.Team, "team", "", "Team of the key (default yours)")
			f.StringSliceVar(&scopes, "scope", nil, "Scopes (default all but admin): "+names)
			f.StringVar(&format, "format", formatCove, "Format of the secret: "+formatCove+", or "+formatE2B+" for E2B's SDKs; both are the same key")
			f.DurationVar(&expires, "expires", 0, "How long the key is valid, such as 720h; 0 means forever")
		},
		Do: show(printNewKey, func(ctx context.Context, c *call) (*sandbox.NewKey, error) {
			if expires%time.Second != 0 {
				return nil, sandbox.Errorf(sandbox.CodeInvalid, "--expires must be a whole number of seconds, such as 720h")
			}
			if format != formatCove && format != formatE2B {
				return nil, sandbox.Errorf(sandbox.CodeInvalid, "--format %q is not valid; use %s or %s", format, formatCove, formatE2B)
			}
			req.Name, req.ExpiresInSeconds = c.args[0], int64(expires/time.Second)
			for _, s := range scopes {
				req.Scopes = append(req.Scopes, sandbox.Scope(s))
			}
			key, err := c.client.CreateKey(ctx, req)
			if err == nil && format == formatE2B {
				key.Secret = access.FormatKey(key.Secret)
			}
			return key, err
		}),
	})
}

func printNewKey(c *call, key *sandbox.NewKey) error {
	c.say("created key %s of team %s; its secret is shown only once:", key.ID, clean(key.Team))
	return c.print(key.Secret + "\n")
}
