package nodes

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/sandbox"
)

// TestLife does with sandboxes on nodes what can be done with any.
func TestLife(t *testing.T) {
	oneUser(t, func(t *testing.T, s *server, a, b *node) {
		ctx := t.Context()
		var parent *sandbox.Sandbox
		for n, sb := range s.onEach(t) {
			if got := strings.TrimSpace(s.Sh(t, sb.ID, "id -un; pwd")); got != "user\n/workspace" {
				t.Errorf("on node %s it says %q", n.name, got)
			}
			parent = sb
		}
		home := s.nodeOf(t, parent.ID)
		if _, err := s.Client.WriteFile(ctx, parent.ID, sandbox.WriteFileRequest{Path: "/workspace/file"}, strings.NewReader(strings.Repeat("0123456789abcdef", 1<<16))); err != nil {
			t.Fatal(err)
		}
		s.Shows(t, parent.ID, "wc -c < file", "1048576")
		code, err := s.Client.RunCode(ctx, parent.ID, sandbox.RunCodeRequest{Language: "python", Code: "x = 6*7\nprint(x)"}, nil)
		if err != nil || strings.TrimSpace(code.Stdout) != "42" {
			t.Errorf("RunCode: %+v, %v", code, err)
		}

		forks, err := s.Client.Fork(ctx, parent.ID, sandbox.ForkRequest{Count: 2})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range forks.Items {
			if s.nodeOf(t, f.ID) != home {
				t.Errorf("fork %s is not on its parent's node", f.ID)
			}
			s.Sh(t, f.ID, "echo "+f.ID+" > mine")
		}
		code, err = s.Client.RunCode(ctx, forks.Items[0].ID, sandbox.RunCodeRequest{Language: "python", Code: "print(x+1)"}, nil)
		if err != nil || strings.TrimSpace(code.Stdout) != "43" {
			t.Errorf("RunCode in a fork: %+v, %v", code, err)
		}
		if _, err := s.Client.Merge(ctx, parent.ID, sandbox.MergeRequest{Winner: forks.Items[0].ID, Kind: "files"}); err != nil {
			t.Fatalf("merge of files: %v", err)
		}
		s.Shows(t, parent.ID, "cat mine", forks.Items[0].ID)
		if _, err := s.Client.Merge(ctx, parent.ID, sandbox.MergeRequest{Winner: forks.Items[1].ID}); err != nil {
			t.Fatalf("merge: %v", err)
		}
		s.Shows(t, parent.ID, "cat mine", forks.Items[1].ID)

		if _, err := s.Client.Pause(ctx, parent.ID); err != nil {
			t.Fatal(err)
		}
		if s.nodeOf(t, parent.ID) != home {
			t.Error("the paused sandbox is elsewhere")
		}
		s.Shows(t, parent.ID, "cat mine", forks.Items[1].ID) // which resumes it
		snapshot, err := s.Client.CreateSnapshot(ctx, parent.ID, sandbox.CreateSnapshotRequest{})
		if err != nil {
			t.Fatal(err)
		}
		s.Sh(t, parent.ID, "echo later > mine")
		if _, err := s.Client.RestoreSnapshot(ctx, parent.ID, sandbox.RestoreRequest{Snapshot: snapshot.ID}); err != nil {
			t.Fatal(err)
		}
		s.Shows(t, parent.ID, "cat mine", forks.Items[1].ID)
		diff, err := s.Client.Diff(ctx, parent.ID, sandbox.DiffRequest{})
		if err != nil || len(diff.Changes) == 0 {
			t.Errorf("Diff: %+v, %v", diff, err)
		}

		testPreview(t, s, parent.ID)

		if got := s.cli(t, "node", "ls"); !strings.Contains(got, "ready") || !strings.Contains(got, home.name) {
			t.Errorf("cove node ls says %s", got)
		}
		if got := s.cli(t, "get", parent.ID); !strings.Contains(got, "node") {
			t.Errorf("cove get says %s", got)
		}
		if err := s.KillAll(ctx); err != nil {
			t.Fatal(err)
		}
		for _, n := range []*node{a, b} {
			if !covetest.Eventually(covetest.DetectionLimit, func() bool { return len(n.Cells()) == 0 }) {
				t.Errorf("node %s still runs %v", n.name, n.Cells())
			}
		}
	})
}

// cli runs a command of the server's.
func (s *server) cli(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Command(t.Context(), args...).Output()
	if err != nil {
		e, _ := err.(*exec.ExitError)
		t.Fatalf("cove %v: %v %s", args, err, e.Stderr)
	}
	return string(out)
}

func testPreview(t *testing.T, s *server, id string) {
	t.Helper()
	p, err := s.Client.CreatePreview(t.Context(), id, sandbox.CreatePreviewRequest{Port: 8000})
	if err != nil {
		t.Fatal(err)
	}
	s.Sh(t, id, "mkdir -p /tmp/site; echo home > /tmp/site/index.html")
	if _, err := s.Client.Exec(t.Context(), id, sandbox.ExecRequest{Shell: "exec python3 -m http.server -d /tmp/site 8000", Background: true}, nil); err != nil {
		t.Fatal(err)
	}
	host := strings.TrimPrefix(p.URL, "http://")
	var body string
	if !covetest.Eventually(time.Minute, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header.Set("Cove-Preview-Key", p.Key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		body = string(data)
		return err == nil && body == "home\n"
	}) {
		t.Errorf("the preview shows %q", body)
	}
}

// TestSecret checks that a value reaches its host through the node's gateway, and no file.
func TestSecret(t *testing.T) {
	n := internet.Here(t)
	oneUser(t, func(t *testing.T, s *server, a, b *node) {
		const value = "value-of-the-secret-0123456789"
		if _, err := s.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{
			Name: "api", Value: sandbox.NewSecretValue(value), Hosts: []string{"api.example.com"}, Auth: &sandbox.SecretAuth{Type: "header", Prefix: "Bearer "},
		}); err != nil {
			t.Fatal(err)
		}
		sb := s.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Secrets = map[string]string{"TOKEN": "api"} }))
		path := "/" + sb.ID
		out := s.Sh(t, sb.ID, `curl -fsS --max-time 30 -H "Authorization: Bearer $TOKEN" https://api.example.com`+path)
		var told internet.Request
		if err := json.Unmarshal([]byte(out), &told); err != nil || strings.Contains(out, value) {
			t.Errorf("the sandbox was told %q", out)
		}
		if got := n.Request(path).Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+value {
			t.Errorf("the host got %q", got)
		}
		for _, m := range []*node{a, b} {
			if found := contains(t, m.StateDir, value); len(found) > 0 {
				t.Errorf("node %s has the value in %v", m.name, found)
			}
		}
		log, err := s.Client.NetworkLog(t.Context(), sb.ID, sandbox.NetworkLogRequest{})
		if err != nil || len(log.Items) == 0 {
			t.Errorf("network log: %+v, %v", log, err)
		}
	})
}

// TestMoreWaitsNodeDies kills a node's process. Back within the lease, it has its sandboxes; back
// later, it ends them. In "make test", TestServerDies and the tests of package fleet stand for
// it.
func TestMoreWaitsNodeDies(t *testing.T) {
	oneUser(t, func(t *testing.T, s *server, a, b *node) {
		on := s.onEach(t)
		s.Sh(t, on[a].ID, "echo kept > /tmp/kept")
		a.kill()
		s.waitState(t, a, sandbox.NodeUnreachable)
		if _, err := s.Exec(t.Context(), on[a].ID, sandbox.ExecRequest{Shell: "true"}); !strings.Contains(sandbox.MessageOf(err), "node a, which has the sandbox, cannot be reached") {
			t.Errorf("a command on a node that is away: %v", err)
		}
		s.Shows(t, on[b].ID, "echo here", "here")
		s.start(t, a)
		s.waitState(t, a, sandbox.NodeReady)
		s.Shows(t, on[a].ID, "cat /tmp/kept", "kept")

		a.kill()
		var got *sandbox.Sandbox
		if !covetest.Eventually(lease+time.Minute, func() (ok bool) {
			var err error
			got, err = s.Client.Get(t.Context(), on[a].ID)
			return err == nil && got.State == sandbox.StateFailed
		}) {
			t.Fatalf("the sandbox of a dead node is %s", got.State)
		}
		if !strings.Contains(got.Reason, "node a could not be reached") {
			t.Errorf("the reason is %q", got.Reason)
		}
		if st := s.node(t, "a").State; st != sandbox.NodeLost {
			t.Errorf("the node is %s", st)
		}
		if len(a.Cells()) == 0 {
			t.Error("the cell died with the node's process") // then the rest tests nothing
		}
		for range 2 { // only b is left
			if sb := s.Create(t, covetest.Small()); s.nodeOf(t, sb.ID) != b {
				t.Error("a lost node got a sandbox")
			}
		}
		s.start(t, a)
		s.waitState(t, a, sandbox.NodeReady)
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { return len(a.Cells()) == 0 }) {
			t.Errorf("the node still runs %v", a.Cells())
		}
	})
}

// TestServerDies kills the server: sandboxes live on, and the next server has them.
func TestServerDies(t *testing.T) {
	oneUser(t, func(t *testing.T, s *server, a, b *node) {
		on := s.onEach(t)
		for _, sb := range on {
			s.Sh(t, sb.ID, "echo kept > /tmp/kept")
		}
		s.Kill()
		if err := s.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		for n, sb := range on {
			s.waitState(t, n, sandbox.NodeReady)
			if s.nodeOf(t, sb.ID) != n {
				t.Errorf("sandbox %s is not on node %s", sb.ID, n.name)
			}
			s.Shows(t, sb.ID, "cat /tmp/kept", "kept")
		}
	})
}

// TestMoreWaitsNetworkCut cuts the network between a node and the server, shorter and longer than
// the lease. Neither end is told. In "make test", TestServerDies and the tests of package fleet
// stand for it.
func TestMoreWaitsNetworkCut(t *testing.T) {
	oneUser(t, func(t *testing.T, s *server, a, b *node) {
		on := s.onEach(t)
		s.Sh(t, on[a].ID, "echo kept > /tmp/kept")
		a.link.stop()
		s.waitState(t, a, sandbox.NodeUnreachable)
		a.link.restore()
		s.waitState(t, a, sandbox.NodeReady)
		s.Shows(t, on[a].ID, "cat /tmp/kept", "kept")

		a.link.stop()
		s.waitState(t, a, sandbox.NodeLost)
		if !covetest.Eventually(covetest.DetectionLimit, func() bool {
			got, err := s.Client.Get(t.Context(), on[a].ID)
			return err == nil && got.State == sandbox.StateFailed
		}) {
			t.Error("the sandbox of a lost node has not failed")
		}
		if len(a.Cells()) == 0 {
			t.Error("the cell ended although its node was only cut off")
		}
		a.link.restore()
		s.waitState(t, a, sandbox.NodeReady)
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { return len(a.Cells()) == 0 }) {
			t.Errorf("the node still runs %v", a.Cells())
		}
		s.Shows(t, on[b].ID, "echo here", "here")
	})
}

// TestDrainAndRemove checks that a draining node takes no sandboxes, and that a removed one
// stays out.
func TestDrainAndRemove(t *testing.T) {
	oneUser(t, func(t *testing.T, s *server, a, b *node) {
		on := s.onEach(t)
		s.cli(t, "node", "drain", "a")
		text := s.metrics(t)
		for _, line := range []string{
			`(?m)^cove_nodes{state="ready"} [12]$`, `(?m)^cove_nodes{state="draining"} 1$`, `(?m)^cove_node_sandboxes{node="b"} 1$`,
			`(?m)^cove_node_memory_used_ratio{node="b"} 0\.\d+$`, `(?m)^cove_node_disk_used_ratio{node="a"} 0\.\d+$`,
		} {
			if !regexp.MustCompile(line).MatchString(text) {
				t.Errorf("the metrics have no line %s:\n%s", line, text)
			}
		}
		for range 2 {
			if sb := s.Create(t, covetest.Small()); s.nodeOf(t, sb.ID) != b {
				t.Error("a draining node got a sandbox")
			}
		}
		s.Shows(t, on[a].ID, "echo here", "here")
		covetest.WantCode(t, s.Client.RemoveNode(t.Context(), "a"), sandbox.CodeConflict)
		if _, err := s.Client.Kill(t.Context(), on[a].ID); err != nil {
			t.Fatal(err)
		}
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { return s.node(t, "a").Sandboxes == 0 }) {
			t.Fatal("sandboxes are left on the drained node")
		}
		s.cli(t, "node", "rm", "a")
		if got := s.node(t, "a"); got.Name != "" {
			t.Errorf("the removed node is %+v", got)
		}
		if !covetest.Eventually(time.Minute, func() bool { return strings.Contains(s.Output(), "a node was refused") }) {
			t.Error("the removed node was not refused")
		}
	})
}

// metrics returns what the server tells Prometheus.
func (s *server) metrics(t *testing.T) string {
	t.Helper()
	near := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(s.StateDir, "cove.sock"))
	}}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://cove/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := near.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("metrics: %s, %v", res.Status, err)
	}
	return string(data)
}
