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
		Use: "microsandbox [flags]", Short: "Create a key for microsandbox clients",
		Long: "Create a key for microsandbox clients, on the server's machine. The key allows what those clients do\n" +
			"(MCP as microsandbox, and its JSON-RPC) in one namespace or in all. It cannot be revoked individually.\n" +
			"Keys of \"cove key create\" work there too. Only keys created with --images can build a template from an\n" +
			"image that the server has no template of.\n\n" +
			"The key is signed with " + microsandbox.KeyFile + " in the state directory, which is created if missing. To keep keys valid that\n" +
			"a microsandbox server created, put its server.key there.",
		Example: "  cove key microsandbox\n  cove key microsandbox --namespace research --expire 3mo",
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&expire, "expire", "24h", "How long the key is valid: a number and s, m, h, d, w, mo or y")
			f.StringVarP(&grant.Namespace, "namespace", "n", "*", "Namespace of the key; * means all")
			f.BoolVar(&grant.Images, "images", false, "Allow building templates from images; all teams of the server see them")
			f.BoolVar(&reset, "reset-key", false, "Invalidate all such keys created so far")
		},
		Do: action{here: true, run: func(_ context.Context, c *call) error { return c.makeMicrosandboxKey(grant, expire, reset) }},
	})
}

func (a *app) makeMicrosandboxKey(grant microsandbox.Grant, expire string, reset bool) error {
	if a.globals.URL != "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "the signing key is on the server's machine; run this command there, without --url")
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
