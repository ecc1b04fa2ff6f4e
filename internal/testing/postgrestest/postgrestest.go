// Package postgrestest runs PostgreSQL servers for tests: real ones, each with a
// directory, a socket and processes of its own, and none of them after its test.
package postgrestest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// Password is that of the server's user.
const Password = "s3cret/pass:word@?"

// userName is the server's user, port its port, which is part of the socket's name.
const userName, port = "cove", "5432"

// ready is in the line that a server writes when it answers.
const ready = "database system is ready to accept connections"

// Server is a PostgreSQL server that only those reach who have [Password].
type Server struct {
	bin, dir string
	as       *syscall.SysProcAttr
	process  *exec.Cmd
	logged   chan struct{} // closed when all that the process wrote was read
	schemas  atomic.Int32
}

// Start runs a new server until the end of the test. As root it runs as nobody,
// since PostgreSQL refuses root.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{bin: needs.PostgreSQL(t), as: &syscall.SysProcAttr{}}
	// Not that of the test, whose parents are root's.
	dir, err := os.MkdirTemp("", "cove-pg-")
	if err != nil {
		t.Fatal(err)
	}
	s.dir = dir
	t.Cleanup(func() {
		if err := errors.Join(s.end(syscall.SIGQUIT), os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	// Daemons of other users reach the socket; the data is in a directory of its own.
	if err := errors.Join(s.giveAway(), os.Chmod(dir, 0o755)); err != nil { //nolint:gosec // see above
		t.Fatal(err)
	}
	file := filepath.Join(dir, "password")
	if err := os.WriteFile(file, []byte(Password+"\n"), 0o644); err != nil { //nolint:gosec // of a test
		t.Fatal(err)
	}
	initdb := s.command(t.Context(), "initdb", "--pgdata="+s.data(), "--username="+userName, "--pwfile="+file,
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	s.Run(t)
	return s
}

// giveAway makes an unprivileged user the owner of the directory, if this is root.
func (s *Server) giveAway() error {
	if os.Geteuid() != 0 {
		return nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(nobody.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(nobody.Gid)
	if err != nil {
		return err
	}
	s.as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)} //nolint:gosec // ids
	return os.Chown(s.dir, uid, gid)
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, program), args...)
	cmd.Dir, cmd.SysProcAttr = s.dir, s.as
	cmd.Env = []string{"LC_ALL=C.UTF-8", "TZ=UTC"}
	return cmd
}

// Run runs the server again after [Server.Stop] or [Server.Crash], and returns when
// it answers.
func (s *Server) Run(t testing.TB) {
	t.Helper()
	// Its process outlives the test's context, and ends in the test's cleanup.
	cmd := s.command(context.WithoutCancel(t.Context()), "postgres", "-D", s.data(), "-k", s.dir, "-p", port, "-c", "listen_addresses=",
		"-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=60", "-c", "deadlock_timeout=50ms", "-c", "log_min_messages=log")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = w
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		t.Fatal(err)
	}
	s.process, s.logged = cmd, make(chan struct{})
	lines := bufio.NewReader(r)
	var said strings.Builder
	for !strings.Contains(said.String(), ready) {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		if err != nil {
			t.Fatalf("postgres ended as it started:\n%s", said.String())
		}
	}
	logged := s.logged
	go func() {
		defer close(logged)
		_, _ = io.Copy(io.Discard, lines)
		_ = r.Close()
	}()
}

// Stop ends the server and all connections, as a restart does.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.end(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
}

// Crash ends the server without it having written its data.
func (s *Server) Crash(t testing.TB) {
	t.Helper()
	if err := s.end(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
}

// end ends the server by a signal and waits for all of its processes.
func (s *Server) end(signal syscall.Signal) error {
	if s.process == nil {
		return nil
	}
	if err := s.process.Process.Signal(signal); err != nil {
		return fmt.Errorf("end postgres: %w", err)
	}
	// A server that was told to end may say by its status that it was in a hurry.
	var status *exec.ExitError
	if err := s.process.Wait(); err != nil && !errors.As(err, &status) {
		return fmt.Errorf("wait for postgres: %w", err)
	}
	<-s.logged // by the last process that has the pipe
	s.process = nil
	return nil
}

// NewSchema makes a schema that nobody has used and returns the address of the
// database with it, and its name.
func (s *Server) NewSchema(t testing.TB) (address sandbox.SecretValue, name string) {
	t.Helper()
	name = fmt.Sprintf("test_%d", s.schemas.Add(1))
	s.Exec(t, "CREATE SCHEMA "+name)
	return s.Address(url.Values{"options": {"-csearch_path=" + name}}), name
}

// Schema is NewSchema for tests that need not know the name.
func (s *Server) Schema(t testing.TB) sandbox.SecretValue {
	t.Helper()
	address, _ := s.NewSchema(t)
	return address
}

// Address returns the address of the database, with options of the connection.
func (s *Server) Address(options url.Values) sandbox.SecretValue {
	query := url.Values{"host": {s.dir}, "port": {port}}
	for name, values := range options {
		query[name] = values
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(userName, Password), Path: "/postgres", RawQuery: query.Encode()}
	return sandbox.NewSecretValue(u.String())
}

// Socket returns the path of the server's socket, for what forwards connections to it.
func (s *Server) Socket() string { return filepath.Join(s.dir, ".s.PGSQL."+port) }

// Program runs one of PostgreSQL's programs, such as pg_dump, with input, and returns
// its output.
func (s *Server) Program(t testing.TB, input []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := s.command(t.Context(), name, args...)
	cmd.Stdin = bytes.NewReader(input)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, said.String())
	}
	return out
}

// Exec runs a statement as the server's administrator.
func (s *Server) Exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.Address(nil).Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// CutConnections ends all connections to the server that are of a daemon, as a
// network may.
func (s *Server) CutConnections(t testing.TB) {
	t.Helper()
	s.Exec(t, "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'cove'")
}
