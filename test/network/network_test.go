// Package network tests what sandboxes can reach, on a small Internet of its own; see
// package internet. Tests of attacks describe the attack first.
package network

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { os.Exit(internet.Main(m, covetest.Main)) }

// own is [covetest.Own] on the test's Internet.
func own(t *testing.T, test func(t *testing.T, d *covetest.Daemon)) {
	t.Helper()
	covetest.Own(t, test, internet.Here(t).Args()...)
}

// shared is [covetest.Shared] on the test's Internet.
func shared(t *testing.T, test func(t *testing.T, d *covetest.Daemon)) {
	t.Helper()
	covetest.Shared(t, test, internet.Here(t).Args()...)
}

// create makes a sandbox with a policy.
func create(t *testing.T, d *covetest.Daemon, p sandbox.NetworkPolicy) string {
	t.Helper()
	return d.Create(t, sandbox.CreateRequest{Network: &p}).ID
}

// try runs a shell line and returns its output, without spaces at the ends, and
// exit code.
func try(t *testing.T, d *covetest.Daemon, id, line string) (string, int) {
	t.Helper()
	res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line, TimeoutMS: 600_000})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return strings.TrimSpace(res.Stdout + res.Stderr), res.Job.ExitCode
}

// works fails the test unless the line succeeds, and returns its output.
func works(t *testing.T, d *covetest.Daemon, id, line string) string {
	t.Helper()
	out, code := try(t, d, id, line)
	if code != 0 {
		t.Errorf("%s: exit code %d\n%s", line, code, out)
	}
	return out
}

// fails fails the test if the line succeeds.
func fails(t *testing.T, d *covetest.Daemon, id, line string) string {
	t.Helper()
	out, code := try(t, d, id, line)
	if code == 0 {
		t.Errorf("%s: it worked\n%s", line, out)
	}
	return out
}

// allFail fails the test if one of the lines succeeds. Several run at once, since
// most of them wait for what must not come.
func allFail(t *testing.T, d *covetest.Daemon, id string, lines ...string) {
	t.Helper()
	var wg sync.WaitGroup
	places := make(chan struct{}, 8)
	for _, line := range lines {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line, TimeoutMS: 600_000})
			switch {
			case err != nil:
				t.Errorf("%s: %v", line, err)
			case res.Job.ExitCode == 0:
				t.Errorf("%s: it worked\n%s%s", line, res.Stdout, res.Stderr)
			}
		})
	}
	wg.Wait()
}

// asked is a request as a server has seen it.
func asked(t *testing.T, out string) internet.Request {
	t.Helper()
	var r internet.Request
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Errorf("a server answered %q: %v", out, err)
	}
	return r
}

// curl is a command line that asks for a URL.
func curl(url string, more ...string) string {
	return fmt.Sprintf("curl -fsS --max-time 15 %s '%s'", strings.Join(more, " "), url)
}
