package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) keyMicrosandboxCommand() *cobra.Command {
	var grant microsandbox.Grant
	var expire string
	var reset bool
	return a.make(command{
		Use: "microsandbox [flags]", Short: "Make a key for clients of microsandbox, good for a namespace",
		Long: "Make a key for clients of microsandbox, on the server's machine. It is good for what that product's\n" +
			"clients do (MCP as microsandbox, and its JSON-RPC), in one namespace or in all, and cannot be revoked\n" +
			"alone. Keys of \"cove key create\" are good there too. An image that the server has no template of is built\n" +
			"for keys made with --images only.\n\n" +
			"It is signed with the key in " + microsandbox.KeyFile + " in the state directory, which is made if missing. Put the\n" +
			"product's server.key in its place, and the keys that its server has made go on.",
		Example: "  cove key microsandbox\n  cove key microsandbox --namespace research --expire 3mo",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&expire, "expire", "24h", "how long it is good for: a number and s, m, h, d, w, mo or y")
			f.StringVarP(&grant.Namespace, "namespace", "n", "*", "namespace that it is for; * is all")
			f.BoolVar(&grant.Images, "images", false, "let the key build templates of images, which all teams of the server see")
			f.BoolVar(&reset, "reset-key", false, "end all such keys made so far")
		},
		Do: action{here: true, run: func(_ context.Context, c *call) error { return c.makeMicrosandboxKey(grant, expire, reset) }},
	})
}

func (a *app) makeMicrosandboxKey(grant microsandbox.Grant, expire string, reset bool) error {
	if a.globals.URL != "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "the key that signs is on the server's machine; run this there, without --url")
	}
	lifetime, err := microsandbox.ParseExpiry(expire)
	if err != nil {
		return err
	}
	dir, err := a.stateDir()
	if err != nil {
		return err
	}
	if err := server.PrepareStateDir(dir); err != nil {
		return err
	}
	signing, err := microsandbox.MakeServerKey(dir, reset)
	if err != nil {
		return err
	}
	now := time.Now()
	expires := now.Add(lifetime)
	key, err := microsandbox.NewKey(signing, grant, now, expires)
	if err != nil {
		return err
	}
	return a.print(fmt.Sprintf("Token: %s\nToken expires: %s\nNamespace: %s\n", key, expires.UTC().Format(time.RFC3339), grant.Namespace))
}
