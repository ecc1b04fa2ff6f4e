package server_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/daemon/service/secrets"
	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/daemon/vault"
	"github.com/cove-sh/cove/sandbox"
)

// sealed returns the one secret in a store.
func sealed(t *testing.T, dir string) store.SecretRecord {
	t.Helper()
	var list []store.SecretRecord
	withStore(t, dir, func(db *sqlite.Store) (err error) {
		list, _, err = db.ListSecrets(t.Context(), "", sandbox.Page{Limit: 10})
		return err
	})
	if len(list) != 1 {
		t.Fatalf("%d secrets", len(list))
	}
	return list[0]
}

func TestRotateSecretsKey(t *testing.T) {
	if _, err := server.RotateSecretsKey(t.Context(), t.TempDir(), sandbox.SecretValue{}, ""); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("in an empty directory: %v", err)
	}
	r := mustStart(t, nil)
	dir := r.cfg.StateDir
	const value = "the-value-of-the-secret"
	_, err := r.client(t).CreateSecret(t.Context(), sandbox.CreateSecretRequest{Name: "one", Value: sandbox.NewSecretValue(value), Hosts: []string{"api.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.RotateSecretsKey(t.Context(), dir, sandbox.SecretValue{}, ""); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("while a server runs: %v", err)
	}
	if done, err := r.client(t).RotateSecretsKey(t.Context()); err != nil || done.Values != 1 {
		t.Errorf("by the server: %+v, %v", done, err)
	}
	r.end(t)
	before, oldKey := sealed(t, dir), keyFile(t, dir)

	done, err := server.RotateSecretsKey(t.Context(), dir, sandbox.SecretValue{}, "")
	if err != nil || done.Values != 1 || len(done.Lost) != 0 {
		t.Fatalf("%+v, %v", done, err)
	}
	after := sealed(t, dir)
	if bytes.Equal(before.Sealed, after.Sealed) || bytes.Equal(oldKey, keyFile(t, dir)) || after.Version != before.Version {
		t.Error("nothing has changed, or too much")
	}
	if got := opened(t, dir, after); got != value {
		t.Errorf("the value is %q", got)
	}

	// Without its key, a value is lost, and named.
	if err := os.Remove(filepath.Join(dir, vault.KeyFile)); err != nil {
		t.Fatal(err)
	}
	done, err = server.RotateSecretsKey(t.Context(), dir, sandbox.SecretValue{}, "")
	if err != nil || done.Values != 0 || len(done.Lost) != 1 || done.Lost[0] != "one" {
		t.Errorf("%+v, %v", done, err)
	}
}

func keyFile(t *testing.T, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, vault.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func opened(t *testing.T, dir string, r store.SecretRecord) (value string) {
	t.Helper()
	v, err := vault.Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	err = v.Open(vault.Ref{Secret: r.ID, Version: r.Version}, r.Sealed, func(b []byte) error { value = string(b); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// TestRotateObjectKey checks that the key of an object store survives the keys that it is
// sealed with, and that a rotation that cannot open it changes nothing.
func TestRotateObjectKey(t *testing.T) {
	r := mustStart(t, nil)
	dir := r.cfg.StateDir
	r.end(t)
	v, err := vault.Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	const key = "the-key-of-the-object-store"
	before, err := v.Seal(secrets.ObjectKeyRef, []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	withStore(t, dir, func(db *sqlite.Store) error { return db.SetObjectKey(t.Context(), nil, before) })

	if _, err := server.RotateSecretsKey(t.Context(), dir, sandbox.SecretValue{}, ""); err != nil {
		t.Fatal(err)
	}
	after := objectKey(t, dir)
	if bytes.Equal(before, after) {
		t.Error("the key is sealed as before")
	}
	if v, err = vault.Load(dir, ""); err != nil {
		t.Fatal(err)
	}
	err = v.Open(secrets.ObjectKeyRef, after, func(b []byte) error {
		if string(b) != key {
			t.Errorf("the key is %q", b)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	if err := os.Remove(filepath.Join(dir, vault.KeyFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.RotateSecretsKey(t.Context(), dir, sandbox.SecretValue{}, ""); err == nil || !strings.Contains(err.Error(), "key of the object store") {
		t.Errorf("without the file of keys: %v", err)
	}
	if !bytes.Equal(after, objectKey(t, dir)) {
		t.Error("a rotation that failed has changed the key")
	}
}

func withStore(t *testing.T, dir string, do func(db *sqlite.Store) error) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(dir, "cove.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := do(db); err != nil {
		t.Fatal(err)
	}
}

// objectKey returns the sealed key of the object store.
func objectKey(t *testing.T, dir string) (key []byte) {
	t.Helper()
	withStore(t, dir, func(db *sqlite.Store) (err error) {
		key, err = db.ObjectKey(t.Context())
		return err
	})
	return key
}
