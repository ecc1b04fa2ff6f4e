package secrets

import (
	"context"
	"errors"
	"fmt"

	"github.com/cove-sh/cove/internal/daemon/service/call"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/sandbox"
)

// RotateSecretsKey implements [sandbox.Secrets].
func (s *Secrets) RotateSecretsKey(ctx context.Context) (*sandbox.Resealed, error) {
	return call.Do(ctx, s.cfg.Gate, call.Audited(sandbox.ScopeAdmin, "secret.rotate_key"), func(c *call.Call) (*sandbox.Resealed, error) {
		if s.cfg.Vault == nil {
			return nil, ErrNone
		}
		// Waits for values that are still being sealed with the old key, so that they
		// are found and sealed again.
		settled := func() {
			s.sealing.Lock()
			defer s.sealing.Unlock()
		}
		r, err := RotateKey(c.Ctx, s.cfg.Store, s.cfg.Vault, settled)
		if r != nil {
			c.Detail = fmt.Sprintf("%d values", r.Values)
		}
		return r, err
	})
}

// RotateKey makes a new key, seals with it everything that is sealed in a store, and
// deletes the older keys. It calls settled once the new key is in use; settled returns
// when no value that was sealed with an older key is still to be stored. If RotateKey
// is interrupted, all keys stay, and another call finishes the work.
func RotateKey(ctx context.Context, st store.Store, v *vault.Vault, settled func()) (*sandbox.Resealed, error) {
	r := &sandbox.Resealed{}
	err := v.Rotate(ctx, func(ctx context.Context, reseal func(vault.Ref, []byte) ([]byte, error)) error {
		settled()
		if err := resealSecrets(ctx, st, reseal, r); err != nil {
			return err
		}
		if err := resealWebhooks(ctx, st, reseal); err != nil {
			return err
		}
		if err := resealFiles(ctx, st, reseal); err != nil {
			return err
		}
		return resealObjectKey(ctx, st, reseal)
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// toldLost bounds the secrets without a key that the log names at the start.
const toldLost = 10

// LogLostKeys logs which secrets are sealed with a missing key. A lost key file is
// replaced by a new one, so otherwise nobody would know before such a secret is used.
func (s *Secrets) LogLostKeys(ctx context.Context) error {
	if s.cfg.Vault == nil {
		return nil
	}
	var lost []string
	var why error
	for r, err := range store.All(ctx, s.cfg.Store.ListSecrets, "") {
		if err != nil {
			return err
		}
		if err := s.cfg.Vault.Missing(r.Sealed); err != nil {
			lost, why = append(lost, r.Team+"/"+r.Name), err
		}
	}
	if len(lost) > 0 {
		s.cfg.Log.Error("secrets cannot be opened: their key is lost", "secrets", len(lost), "first", lost[:min(len(lost), toldLost)], "error", why)
	}
	return nil
}

type resealer func(vault.Ref, []byte) ([]byte, error)

// resealSecrets seals the values of all teams' secrets again.
func resealSecrets(ctx context.Context, st store.Store, reseal resealer, r *sandbox.Resealed) error {
	for secret, err := range store.All(ctx, st.ListSecrets, "") {
		if err != nil {
			return err
		}
		_, err := st.UpdateSecret(ctx, secret.ID, func(s *store.SecretRecord) (err error) {
			s.Sealed, err = reseal(vault.Ref{Secret: s.ID, Version: s.Version}, s.Sealed)
			return err
		})
		switch {
		case unsealable(err):
			r.Lost = append(r.Lost, secret.Name)
		case sandbox.CodeOf(err) == sandbox.CodeNotFound: // deleted meanwhile
		case err != nil:
			return fmt.Errorf("secret %s: %w", secret.ID, err)
		default:
			r.Values++
		}
	}
	return nil
}

// resealWebhooks seals again the secrets of webhooks that are not delivered yet.
func resealWebhooks(ctx context.Context, st store.Store, reseal resealer) error {
	for d, err := range store.All(ctx, st.ListDeliveries, store.DeliveryFilter{Open: true}) {
		if err != nil {
			return err
		}
		if d.Sealed == nil {
			continue
		}
		sealed, err := reseal(vault.Ref{Secret: d.ID}, d.Sealed)
		if unsealable(err) {
			continue // the delivery itself will fail
		}
		if err == nil {
			err = st.ResealDelivery(ctx, d.ID, sealed)
		}
		if err != nil {
			return fmt.Errorf("webhook %s: %w", d.ID, err)
		}
	}
	return nil
}

// ObjectKeyRef is what the key of the object store is sealed for.
var ObjectKeyRef = vault.Ref{Secret: "object-store"}

// resealObjectKey seals the key of the object store again. If it cannot be opened, the
// rotation fails: without the key that sealed it, everything in the object store is lost.
func resealObjectKey(ctx context.Context, st store.Store, reseal resealer) error {
	old, err := st.ObjectKey(ctx)
	if err != nil || old == nil {
		return err
	}
	sealed, err := reseal(ObjectKeyRef, old)
	if err != nil {
		return fmt.Errorf("key of the object store: %w", err)
	}
	return st.SetObjectKey(ctx, old, sealed)
}

// SealedFiles begins the names of files in the store that are sealed.
const SealedFiles = "sealed/"

// FileRef is what a file in the store is sealed for.
func FileRef(name string) vault.Ref { return vault.Ref{Secret: "file " + name} }

// resealFiles seals files again. One that cannot be opened fails the rotation, as the key of
// the object store does: nodes do not know a server with another authority.
func resealFiles(ctx context.Context, st store.Files, reseal resealer) error {
	all, err := st.Files(ctx, SealedFiles)
	for name, old := range all {
		var sealed []byte
		if sealed, err = reseal(FileRef(name), old); err == nil {
			err = st.ReplaceFile(ctx, name, old, sealed)
		}
		if err != nil {
			return fmt.Errorf("file %s: %w", name, err)
		}
	}
	return err
}

// unsealable reports whether an error says that no key opens a value.
func unsealable(err error) bool {
	return errors.Is(err, vault.ErrKeyMissing) || errors.Is(err, vault.ErrDamaged)
}
