package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/sandbox"
)

// A daemon has its records in PostgreSQL: sandboxes live on over the ends of the daemon and of
// the database, and what works on the records without a daemon says where they are. In "make
// test", the tests of package store/postgres and TestStoreInPostgres of package server stand
// for it.
func TestMorePostgres(t *testing.T) {
	needs.GVisor(t)
	covetest.ForUsers(t, needs.Soak(), func(t *testing.T, uid uint32) {
		server := postgrestest.Start(t)
		address, schema := server.NewSchema(t)
		store := "COVE_STORE=" + address.Reveal()
		d := covetest.Start(t, covetest.Options{UID: uid, Fresh: true, Env: []string{store}})
		s := d.Create(t, sandbox.CreateRequest{Name: "kept"})
		d.Sh(t, s.ID, "echo it is here > /workspace/file")

		run := func(args ...string) (string, error) {
			t.Helper()
			cmd := d.Command(t.Context(), args...)
			cmd.Env = append(cmd.Env, store)
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := run("doctor"); err != nil || !strings.Contains(out, "; a daemon uses it") {
			t.Errorf("doctor: %v\n%s", err, out)
		}
		other := filepath.Join(d.StateDir, "other")
		for want, args := range map[string][]string{
			"another daemon uses the database":          {"serve", "--state-dir", other, "--listen", "off"},
			"keep the state directory and what pg_dump": {"backup", filepath.Join(d.StateDir, "backup.tar.zst")},
			"the database with pg_restore":              {"restore", filepath.Join(d.StateDir, "backup.tar.zst")},
		} {
			if out, err := run(args...); err == nil || !strings.Contains(out, want) {
				t.Errorf("%s: %v; want %q in\n%s", args[0], err, want, out)
			}
		}

		server.Stop(t)
		if out, err := run("doctor"); err == nil || !strings.Contains(out, "is not responding") {
			t.Errorf("doctor without the database: %v\n%s", err, out)
		}
		_, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Name: "refused"})
		covetest.WantCode(t, err, sandbox.CodeUnavailable)
		server.Run(t)
		d.Shows(t, s.ID, "cat /workspace/file", "it is here")

		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := d.Client.Get(t.Context(), "kept")
		if err != nil || got.State != sandbox.StateRunning {
			t.Fatalf("after the restart: %v, %v; want running", got, err)
		}
		d.Shows(t, s.ID, "cat /workspace/file", "it is here")

		// Cut off, and with another daemon's token in the database, it ends.
		server.Exec(t, "UPDATE "+schema+".holder SET token = 'another'")
		server.CutConnections(t)
		ended := func() bool {
			_, err := d.Client.Get(t.Context(), "kept")
			return err != nil && strings.Contains(d.Output(), "another daemon has taken over this daemon's database")
		}
		if !covetest.Eventually(time.Minute, ended) {
			t.Error("the daemon goes on though its database is another's")
		}
		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.Shows(t, s.ID, "cat /workspace/file", "it is here")
		if strings.Contains(d.Output(), "s3cret") {
			t.Error("the password is in the daemon's log")
		}
	})
}
