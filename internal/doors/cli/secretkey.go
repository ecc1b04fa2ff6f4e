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
	return a.make(command{
		Use: "rotate-key", Short: "Replace the key that seals the values of secrets",
		Long: "Create a new key for the values of all teams' secrets, seal the values again with it, and delete the old\n" +
			"key. Copies of " + vault.KeyFile + " then no longer work, so make a new copy. The values do not change.\n" +
			"A running server stays up. The API key needs the scope admin.\n\n" +
			"If the keys are set in the environment (" + vault.EnvKey + "), put the new key first, then run this command: the first key seals.",
		Example: "  cove secret rotate-key",
		Do: action{run: func(ctx context.Context, c *call) error {
			done, err := c.rotateSecretsKey(ctx)
			if err != nil {
				return err
			}
			if len(done.Lost) > 0 {
				c.say("no key opens the values of %s; replace them with cove secret rotate", clean(strings.Join(done.Lost, ", ")))
			}
			return c.print(fmt.Sprintf("values sealed with the new key: %d\n", done.Values))
		}},
	})
}

// rotateSecretsKey rotates the key through the server, or directly if none runs.
func (c *call) rotateSecretsKey(ctx context.Context) (*sandbox.Resealed, error) {
	keepMemory()
	if c.globals.URL == "" {
		dir, err := c.stateDir()
		if err != nil {
			return nil, err
		}
		store, err := c.store()
		if err != nil {
			return nil, err
		}
		done, err := server.RotateSecretsKey(ctx, dir, store, c.Env(vault.EnvKey))
		if sandbox.CodeOf(err) != sandbox.CodeConflict {
			return done, err
		}
	}
	return c.client.RotateSecretsKey(ctx)
}
