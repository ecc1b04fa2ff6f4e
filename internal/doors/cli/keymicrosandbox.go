package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox"
	"github.com/cove-sh/cove/sandbox"
)

type keyMicrosandboxOptions struct {
	Expire    string
	Namespace string
	Images    bool
	Reset     bool
}

func (o *keyMicrosandboxOptions) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.Expire, "expire", "24h", "how long it is good for: a number and s, m, h, d, w, mo or y")
	f.StringVarP(&o.Namespace, "namespace", "n", "*", "namespace that it is for; * is all")
	f.BoolVar(&o.Images, "images", false, "let the key build templates of images, which all teams of the server see")
	f.BoolVar(&o.Reset, "reset-key", false, "end all such keys made so far")
}

func (a *app) keyMicrosandboxCommand() *cobra.Command {
	var opts keyMicrosandboxOptions
	cmd := &cobra.Command{
		Use:   "microsandbox [flags]",
		Short: "Make a key for clients of microsandbox, good for a namespace",
		Long: "Make a key for clients of microsandbox, on the server's machine. It is good for what that product's\n" +
			"clients do (MCP as microsandbox, and its JSON-RPC), in one namespace or in all, and cannot be revoked\n" +
			"alone. Keys of \"cove key create\" are good there too. An image that the server has no template of is built\n" +
			"for keys made with --images only.\n\n" +
			"It is signed with the key in " + microsandbox.KeyFile + " in the state directory, which is made if missing. Put the\n" +
			"product's server.key in its place, and the keys that its server has made go on.",
		Example: "  cove key microsandbox\n  cove key microsandbox --namespace research --expire 3mo",
		Args:    argsBetween(0, 0),
		RunE:    func(*cobra.Command, []string) error { return a.runKeyMicrosandbox(opts) },
	}
	opts.AddFlags(cmd.Flags())
	return cmd
}

func (a *app) runKeyMicrosandbox(opts keyMicrosandboxOptions) error {
	if a.globals.URL != "" {
		return sandbox.Errorf(sandbox.CodeInvalid, "the key that signs is on the server's machine; run this there, without --url")
	}
	lifetime, err := microsandbox.ParseExpiry(opts.Expire)
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
	signing, err := microsandbox.MakeServerKey(dir, opts.Reset)
	if err != nil {
		return err
	}
	now := time.Now()
	expires := now.Add(lifetime)
	key, err := microsandbox.NewKey(signing, microsandbox.Grant{Namespace: opts.Namespace, Images: opts.Images}, now, expires)
	if err != nil {
		return err
	}
	return a.print(fmt.Sprintf("Token: %s\nToken expires: %s\nNamespace: %s\n", key, expires.UTC().Format(time.RFC3339), opts.Namespace))
}
