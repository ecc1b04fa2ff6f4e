package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/sandbox"
)

// RotateSecretsKey makes a new key for the values of secrets in a state
// directory, or in its database of PostgreSQL, if there is an address of one, seals
// all of them with it, and throws the old keys away. If the
// keys come from the environment, in which environ is what [vault.EnvKey]
// holds, no key is made, and the first one seals.
//
// No daemon may run there, which would do it by itself; one that was started on
// demand is ended. If it is interrupted, both keys stay, and another call finishes
// the work.
func RotateSecretsKey(ctx context.Context, dir string, address sandbox.SecretValue, environ string) (_ *sandbox.Resealed, err error) {
	if _, err := os.Stat(filepath.Join(dir, databaseFile)); err != nil && address.Reveal() == "" {
		return nil, sandbox.Wrap(sandbox.CodeNotFound, err, fmt.Sprintf("there are no secrets in %s; choose the server's directory with --state-dir, and its database with COVE_STORE if it has one", dir))
	}
	unlock, err := lockState(ctx, dir, 0, false)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	r, err := openStore(ctx, dir, address)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.store.Close()) }()
	v, err := vault.Load(dir, environ)
	if err != nil {
		return nil, fmt.Errorf("open the vault: %w", err)
	}
	return secrets.RotateKey(ctx, r.store, v, func() {})
}
