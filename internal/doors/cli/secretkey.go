package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/sandbox"
)

func (a *app) secretRotateKeyCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rotate-key", Short: "Make a new key for the values of secrets, and seal them with it",
		Long: "Make a new key for the values of all teams' secrets, seal all of them with it, and throw the\n" +
			"old key away: copies of " + vault.KeyFile + " are worth nothing then, so make a new one. The values stay what they\n" +
			"are. A server that runs does it while it goes on. The key needs the scope admin.\n\n" +
			"With keys from the environment (" + vault.EnvKey + "), put a new one in front, and run this: the first seals.",
		Example: "  cove secret rotate-key",
		Args:    argsBetween(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runSecretRotateKey(cmd.Context()) },
	}
}

func (a *app) runSecretRotateKey(ctx context.Context) error {
	done, err := a.rotateSecretsKey(ctx)
	if err != nil {
		return err
	}
	if len(done.Lost) > 0 {
		fmt.Fprintf(a.Stderr, "cove: no key opens the values of %s: rotate them with new ones\n", clean(strings.Join(done.Lost, ", ")))
	}
	fmt.Fprintf(a.Stdout, "values sealed with the new key: %d\n", done.Values)
	return nil
}

// rotateSecretsKey has the server do it, or does it where none runs.
func (a *app) rotateSecretsKey(ctx context.Context) (*sandbox.Resealed, error) {
	keepMemory()
	if a.globals.URL == "" {
		dir, err := a.stateDir()
		if err != nil {
			return nil, err
		}
		done, err := server.RotateSecretsKey(ctx, dir, a.Env(vault.EnvKey))
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return done, err
		}
	}
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	defer closeQuietly(c)
	return c.RotateSecretsKey(ctx)
}
