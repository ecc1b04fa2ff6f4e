package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/daemon/store/storetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/internal/testing/postgrestest"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openAt opens the store at an address until the end of the test.
func openAt(t testing.TB, address sandbox.SecretValue) *Store {
	t.Helper()
	s, err := Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// impatient opens the store with calls that wait for no database that is away.
func impatient(t testing.TB, address sandbox.SecretValue) (*Store, error) {
	t.Helper()
	s, err := open(t.Context(), address, NewClaim("", 0), time.Millisecond)
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return s, err
}

func running(id string) store.Record {
	return store.Record{Sandbox: sandbox.Sandbox{ID: id, Team: "red", Namespace: "default", State: sandbox.StateRunning}}
}

func add(t *testing.T, s *Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := s.CreateSandbox(t.Context(), running(id), store.Quota{}); err != nil {
			t.Fatal(err)
		}
	}
}

func wantCode(t *testing.T, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Fatalf("error %v has code %q, want %q", err, got, want)
	}
}

func TestStore(t *testing.T) {
	server := postgrestest.Start(t)
	storetest.Run(t, func(t *testing.T) storetest.Opener {
		address := server.Schema(t)
		return func(t *testing.T) store.Store { return openAt(t, address) }
	})
}

// Tests that leave their server as it was have one together. "make test" leaves out CutOff,
// for which TestFence, TestServerAwayWithStandby and TakenOver stand.
func TestDatabase(t *testing.T) {
	server := postgrestest.Start(t)
	for _, c := range []struct {
		name string
		run  func(*testing.T, *postgrestest.Server)
	}{
		{"SchemaIsSQLites", testSchemaIsSQLites},
		{"NewerSchemaIsRefused", testNewerSchemaIsRefused},
		{"UnsuitableDatabases", testUnsuitableDatabases},
		{"PasswordIsNotShown", testPasswordIsNotShown},
		{"TextThatIsNone", testTextThatIsNone},
		{"CancelledContext", testCancelledContext},
		{"Dump", testDump},
		{"CutConnections", testCutConnections},
		{"ConnectionLostAtCommit", testConnectionLostAtCommit},
		{"Deadlock", testDeadlock},
		{"ConflictThatLasts", testConflictThatLasts},
		{"OneDaemon", testOneDaemon},
		{"TakenOver", testTakenOver},
		{"Handover", testHandover},
		{"CutOff", testCutOff},
		{"ImpatientHandover", testImpatientHandover},
	} {
		if c.name == "CutOff" && !needs.More() {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.run(t, server) })
	}
}

// The schema has the tables and columns of SQLite's, at the same number.
func testSchemaIsSQLites(t *testing.T, server *postgrestest.Server) {
	s := openAt(t, server.Schema(t))
	path := filepath.Join(t.TempDir(), "cove.db")
	other, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	file, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	columns := func(db *sql.DB, query string) (all []string) {
		t.Helper()
		rows, err := db.QueryContext(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var table, column string
			if err := rows.Scan(&table, &column); err != nil {
				t.Fatal(err)
			}
			if table != "holder" && !strings.HasPrefix(table, "sqlite_") && !strings.HasPrefix(table, "goose_") {
				all = append(all, table+"."+column)
			}
		}
		if rows.Err() != nil {
			t.Fatal(rows.Err())
		}
		slices.Sort(all)
		return all
	}
	want := columns(file, "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'")
	got := columns(s.db.pool, "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("columns differ (-SQLite +PostgreSQL):\n%s", diff)
	}
	newest := func(db *sql.DB) (n int) {
		if err := db.QueryRowContext(t.Context(), "SELECT max(version_id) FROM goose_db_version").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if got, want := newest(s.db.pool), newest(file); got != want {
		t.Errorf("the schema is at %d, SQLite's at %d: each change is made for both", got, want)
	}
}

func testNewerSchemaIsRefused(t *testing.T, server *postgrestest.Server) {
	address := server.Schema(t)
	s := openAt(t, address)
	if _, err := s.db.pool.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, true)"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), address); err == nil || !strings.Contains(err.Error(), "schema 99999, newer than") {
		t.Errorf("Open of a newer schema: %v", err)
	}
}

func testUnsuitableDatabases(t *testing.T, server *postgrestest.Server) {
	server.Exec(t, "CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
	for options, want := range map[string]string{
		"dbname=ascii":     "encoding is SQL_ASCII; make one with: createdb --encoding=UTF8",
		"search_path=none": "make one with: CREATE SCHEMA",
		"dbname=none":      `database "none" does not exist`,
		"user=nobody":      "the database refuses the server",
	} {
		query, err := url.ParseQuery(options)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := impatient(t, server.Address(query)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", options, err, want)
		}
		if _, _, err := Check(t.Context(), server.Address(query)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("check of %s: %v; want %q", options, err, want)
		}
	}
}

// No error has a password in it, whatever is wrong with its address.
func testPasswordIsNotShown(t *testing.T, server *postgrestest.Server) {
	for _, password := range []string{"wrong-one", "wr/ong:-one@", "wrong-one%zz", "wrong-one x", "wr?ong:-one", "wr#ong:-one", "wr/ong:-one"} {
		for _, address := range []string{
			strings.Replace(server.Address(nil).Reveal(), url.UserPassword("", postgrestest.Password).String()[1:], password, 1),
			"postgres://cove:" + password + "@127.0.0.1:1/db",
			"postgres://cove:" + password + "@127.0.0.1:port/db",
			"postgres://cove@127.0.0.1:1/db?password=" + password + "&sslmode=perhaps",
			"host=/tmp password=" + password,
		} {
			_, err := impatient(t, sandbox.NewSecretValue(address))
			_, _, checked := Check(t.Context(), sandbox.NewSecretValue(address))
			for _, err := range []error{err, checked} {
				if err == nil {
					t.Fatalf("%q was taken", address)
				}
				said := fmt.Sprintf("%v %+v", err, err)
				if e, ok := errors.AsType[*sandbox.Error](err); ok {
					said += e.Detail()
				}
				if strings.Contains(said, "wrong") || strings.Contains(said, "ong:-one") {
					t.Errorf("%q is in: %s", password, said)
				}
			}
		}
	}
}

func TestCheck(t *testing.T) {
	server := postgrestest.Start(t)
	address := server.Schema(t)
	about, warning, err := Check(t.Context(), address)
	if err != nil || !strings.Contains(about, "; no daemon uses it") || !strings.Contains(warning, "fsync is off") {
		t.Fatalf("before: %q, %q, %v", about, warning, err)
	}
	openAt(t, address)
	if about, _, err := Check(t.Context(), address); err != nil || !strings.Contains(about, "; a daemon uses it") {
		t.Errorf("while a daemon uses it: %q, %v", about, err)
	}
	server.Stop(t)
	_, _, err = Check(t.Context(), address)
	wantCode(t, err, sandbox.CodeUnavailable)
}

// Commits wait for the disk, whatever the database's user is set to.
func TestCommitsAreDurable(t *testing.T) {
	server := postgrestest.Start(t)
	server.Exec(t, "ALTER ROLE cove SET synchronous_commit = off")
	address := server.Schema(t)
	s := openAt(t, address)
	var got string
	if err := s.db.Change(t.Context(), func(tx *sql.Tx) error {
		return tx.QueryRowContext(t.Context(), "SHOW synchronous_commit").Scan(&got)
	}); err != nil || got != "on" {
		t.Errorf("synchronous_commit is %q, %v", got, err)
	}
	add(t, s, "a")
	server.Crash(t)
	server.Run(t)
	if _, err := s.Sandbox(t.Context(), "a"); err != nil {
		t.Errorf("after a crash of the server: %v", err)
	}
}

// Text that PostgreSQL does not take, such as what a program has written, is kept
// without what makes it so.
func testTextThatIsNone(t *testing.T, server *postgrestest.Server) {
	s := openAt(t, server.Schema(t))
	r := running("a")
	r.Reason = "exit \x00 and \xff"
	if err := s.CreateSandbox(t.Context(), r, store.Quota{}); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Sandbox(t.Context(), "a"); err != nil || got.Reason != "exit \uFFFD and \uFFFD" {
		t.Errorf("the reason is %q, %v", got.Reason, err)
	}
	if _, err := s.Sandbox(t.Context(), "a\x00"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("an id with a NUL: %v", err)
	}
}

func testCancelledContext(t *testing.T, server *postgrestest.Server) {
	s := openAt(t, server.Schema(t))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Sandbox(ctx, "a")
	wantCode(t, err, sandbox.CodeCancelled)
	wantCode(t, s.CreateSandbox(ctx, running("a"), store.Quota{}), sandbox.CodeCancelled)
	// A caller who goes away while it waits leaves nothing locked.
	add(t, s, "a")
	ctx, cancel = context.WithCancel(t.Context())
	_, err = s.UpdateSandbox(t.Context(), "a", store.Change{Apply: func(r *store.Record) error {
		waiting := make(chan error)
		go func() {
			_, err := s.UpdateSandbox(ctx, "a", store.Change{Apply: func(*store.Record) error { return nil }})
			waiting <- err
		}()
		cancel()
		if err := <-waiting; sandbox.CodeOf(err) != sandbox.CodeCancelled {
			t.Errorf("the one who waits: %v", err)
		}
		r.Reason = "changed"
		return nil
	}})
	if got, gerr := s.Sandbox(t.Context(), "a"); err != nil || gerr != nil || got.Reason != "changed" {
		t.Errorf("the one who was first: %v, %q, %v", err, got.Reason, gerr)
	}
}

// What pg_dump has written is restored by pg_restore, as docs/postgres.md says.
func testDump(t *testing.T, server *postgrestest.Server) {
	address := server.Schema(t)
	s := openAt(t, address)
	add(t, s, "a")
	dump := server.Program(t, nil, "pg_dump", "--format=custom", address.Reveal())
	id, _, err := s.Installation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	add(t, s, "b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	server.Program(t, dump, "pg_restore", "--clean", "--if-exists", "--dbname="+address.Reveal())
	s = openAt(t, address)
	if got, _, err := s.Installation(t.Context()); err != nil || got != id {
		t.Errorf("the installation is %q, %v; want %q", got, err, id)
	}
	if _, err := s.Sandbox(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if _, err := s.Sandbox(t.Context(), "b"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("one that is newer than the dump: %v", err)
	}
}

// Creating a record is the part of "create" that waits for the store.
func BenchmarkCreateSandbox(b *testing.B) {
	storetest.BenchmarkCreate(b, openAt(b, postgrestest.Start(b).Schema(b)))
}

func BenchmarkSandboxByID(b *testing.B) {
	s := openAt(b, postgrestest.Start(b).Schema(b))
	if err := s.CreateSandbox(b.Context(), running("a"), store.Quota{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Sandbox(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
	}
}
