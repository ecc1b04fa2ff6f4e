// Package needs says what a test requires of the machine it runs on. Where it
// is missing, the test is skipped with a reason; in CI (environment CI=true, or
// COVE_NO_SKIP=1) it fails instead, so that nothing goes untested unnoticed. It
// also says how many of their cases tests take; see [Soak].
package needs

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/internal/machine/cgroup"
)

// missing ends the test: with a failure where skips are not allowed.
func missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" || os.Getenv("COVE_NO_SKIP") == "1" {
		t.Fatalf("missing here, and skips are not allowed: "+format, args...)
	}
	t.Skipf("missing here: "+format, args...)
}

// Soak reports whether tests go through all of the cases that they know, as
// "make soak" has them do (COVE_SOAK=1). Otherwise they take those that find most
// of what the others would. A test of which no case is taken is named TestSoak..., and
// says in its comment what stands for it.
func Soak() bool { return os.Getenv("COVE_SOAK") == "1" }

// More reports whether tests take more than the cases of "make test", which has each
// verb once: "make test-all" does (COVE_MORE=1), and so does "make soak". A test of which
// "make test" takes no case is named TestMore..., and says in its comment what stands for
// it there.
func More() bool { return os.Getenv("COVE_MORE") == "1" || Soak() }

// Root requires that the test runs as root.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "root")
	}
}

// UserNS requires that this user can make user namespaces.
func UserNS(t testing.TB) {
	t.Helper()
	if err := machine.UserNamespaces(); err != nil {
		missing(t, "user namespaces: %v", err)
	}
}

// GVisor requires a machine that can run gVisor sandboxes.
func GVisor(t testing.TB) {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		missing(t, "gVisor runs on Linux, amd64 and arm64")
	}
	if err := machine.UserNamespaces(); err != nil {
		missing(t, "namespaces for gVisor: %v", err)
	}
}

// Command requires programs on PATH.
func Command(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			missing(t, "the program %s", name)
		}
	}
}

// PostgreSQL requires PostgreSQL's server, and returns the directory of its
// programs: Debian's is on nobody's PATH.
func PostgreSQL(t testing.TB) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		t.Fatal(err)
	}
	if path, err := exec.LookPath("postgres"); err == nil && len(found) == 0 {
		found = append(found, path)
	}
	if len(found) == 0 {
		missing(t, "PostgreSQL's server")
	}
	return filepath.Dir(found[len(found)-1])
}

// Cgroups requires that this user can limit memory, processor time and
// processes.
func Cgroups(t testing.TB) {
	t.Helper()
	if s := cgroup.Available(); !s.Memory || !s.CPU || !s.PIDs {
		missing(t, "cgroup controllers: %v", s.Missing)
	}
}

// File requires that a path exists and can be read.
func File(t testing.TB, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		missing(t, "%v", err)
	}
	f.Close()
}

// NoError requires that finding out whether the machine can do something gave
// no error.
func NoError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		missing(t, "%v", err)
	}
}
