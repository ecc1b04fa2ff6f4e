package server_test

import (
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/daemon/server"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/sandbox"
)

// A state directory has its records in one place.
func TestStoreBesideRecords(t *testing.T) {
	_, err := start(t, func(c *config.Config) {
		c.Store = config.Secret{SecretValue: sandbox.NewSecretValue("postgres://cove:s3cret@127.0.0.1:1/cove")}
	})
	if sandbox.CodeOf(err) != sandbox.CodeConflict || !strings.Contains(err.Error(), "has records of its own in") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a state directory with a cove.db, and a database: %v", err)
	}
}

// A daemon whose records are in PostgreSQL works, and ends when another has taken
// the database.
func TestStoreInPostgres(t *testing.T) {
	postgres := postgrestest.Start(t)
	address, schema := postgres.NewSchema(t)
	dir := t.TempDir()
	r := mustStart(t, func(c *config.Config) { c.StateDir, c.Store = dir, config.Secret{SecretValue: address} })
	made, err := r.client(t).Create(t.Context(), sandbox.CreateRequest{Name: "kept"})
	if err != nil {
		t.Fatal(err)
	}
	if c := server.CheckStore(t.Context(), dir, address); c.Status != sandbox.CheckWarn || !strings.Contains(c.Detail, "; a daemon uses it; its fsync is off") {
		t.Errorf("the check says: %+v", c)
	}
	postgres.Exec(t, "UPDATE "+schema+".holder SET token = 'another'")
	postgres.CutConnections(t)
	_, _ = r.client(t).Get(t.Context(), made.ID) // it notices with its next call
	if err := <-r.done; err == nil || !strings.Contains(err.Error(), "another daemon has taken over this daemon's database") {
		t.Errorf("the daemon ended with %v", err)
	}
	close(r.done)
}

func TestCheckStore(t *testing.T) {
	if c := server.CheckStore(t.Context(), "/x", sandbox.SecretValue{}); c.Status != sandbox.CheckOK || c.Detail != "SQLite, in /x/cove.db" {
		t.Errorf("a file: %+v", c)
	}
	c := server.CheckStore(t.Context(), "/x", sandbox.NewSecretValue("postgres://cove:s3cret@127.0.0.1:1/cove"))
	if c.Status != sandbox.CheckFail || !strings.Contains(c.Detail, "is not responding") || c.Fix == "" || strings.Contains(c.Detail, "s3cret") {
		t.Errorf("a database that is away: %+v", c)
	}
}
