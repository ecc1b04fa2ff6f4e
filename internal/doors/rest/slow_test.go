package rest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// paced serves a harness again, with a pace that is soon missed and little memory.
func paced(t *testing.T, svc sandbox.Service, pace limits.MinBodyRate, memory *limits.MemoryBudgetConfig) string {
	t.Helper()
	srv := httptest.NewServer(pace.Handler(asLocal(rest.New(rest.Config{Service: svc, Memory: memory})), nil))
	t.Cleanup(srv.Close)
	return srv.URL
}

// begin sends the beginning of a request, and leaves the connection open.
func begin(t *testing.T, base, method, path, contentType string, length int, some string) net.Conn {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	// A server that gives up closes the connection, perhaps in the middle of this
	// write; its answer can still be read.
	_, _ = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", method, path, u.Host, contentType, length, some)
	return conn
}

// keeper is a service that keeps archives only while they come.
type keeper struct {
	sandbox.Service
	dir string
}

func (k keeper) UploadArchive(_ context.Context, content io.Reader) (*sandbox.ArchiveUpload, error) {
	f, err := os.CreateTemp(k.dir, "")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	n, err := io.Copy(f, content)
	return &sandbox.ArchiveUpload{SizeBytes: n}, err
}

// Attack: bodies that begin and stall.
func TestStalledBodiesEnd(t *testing.T) {
	dir := t.TempDir()
	w := newHarness(t, nil)
	if _, err := w.WriteFile(w.ctx, w.name, sandbox.WriteFileRequest{Path: "dir/there", MakeParents: true}, strings.NewReader("as it was")); err != nil {
		t.Fatal(err)
	}
	base := paced(t, keeper{w.Service, dir}, limits.MinBodyRate{Bytes: 1 << 30, Per: 100 * time.Millisecond}, nil)
	box := "/v1/sandboxes/" + w.name
	for name, c := range map[string]struct{ method, path, kind, some string }{
		"a file":      {"PUT", box + "/files/content?path=dir/new", "application/octet-stream", "half"},
		"an old file": {"PUT", box + "/files/content?path=dir/there", "application/octet-stream", "half"},
		"append":      {"PUT", box + "/files/content?path=dir/there&append=true", "application/octet-stream", strings.Repeat("x", 1<<20)},
		"an archive":  {"POST", "/v1/template-archives", "application/octet-stream", strings.Repeat("x", 1<<20)},
		"JSON":        {"POST", box + "/exec", "application/json", `{"command":["true"],`},
		"large JSON":  {"POST", box + "/files/edit", "application/json", `{"path":"` + strings.Repeat("x", 1<<20)},
		"input":       {"POST", box + "/jobs/x/stdin", "application/octet-stream", "half"},
		"no route":    {"POST", "/v1/nothing", "application/json", ""},
	} {
		t.Run(name, func(t *testing.T) {
			conn := begin(t, base, c.method, c.path, c.kind, 4<<20, c.some)
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			body, err := io.ReadAll(res.Body)
			if err != nil {
				t.Error(err)
			}
			if name == "no route" {
				if res.StatusCode != http.StatusNotFound {
					t.Errorf("%s: %s", res.Status, body)
				}
			} else if res.StatusCode != http.StatusRequestTimeout || res.Header.Get("Content-Type") != "application/problem+json" ||
				!strings.Contains(string(body), `"code":"timeout"`) || !strings.Contains(string(body), limits.StalledMessage) {
				t.Errorf("%s: %s", res.Status, body)
			}
			if n, err := conn.Read(make([]byte, 1)); n != 0 || os.IsTimeout(err) {
				t.Errorf("the connection goes on: %d, %v", n, err)
			}
		})
	}
	// Nothing is left of these uploads, except of the appended one, which is a stream.
	// The agent removes what it has when it learns that the upload has ended.
	if !covetest.Eventually(covetest.DetectionLimit, func() bool {
		files, err := w.ListFiles(w.ctx, w.name, sandbox.ListFilesRequest{Path: "dir"})
		return err == nil && len(files.Items) == 1
	}) {
		t.Error("something is left in the sandbox")
	}
	f, err := w.ReadFile(w.ctx, w.name, sandbox.ReadFileRequest{Path: "dir/there"})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if data, err := io.ReadAll(f); err != nil || strings.TrimRight(string(data), "x") != "as it was" {
		t.Errorf("the file is %d bytes, %.20q, %v", len(data), data, err)
	}
	if !covetest.Eventually(covetest.DetectionLimit, func() bool { left, err := os.ReadDir(dir); return err == nil && len(left) == 0 }) {
		t.Error("something is left of the archive")
	}
}

// Connections that must stay open stay open: a terminal whose client sends nothing, a
// stream of events, a download that is read late.
func TestPaceLeavesStreamsAlone(t *testing.T) {
	w := newHarness(t, nil)
	const pace = 50 * time.Millisecond
	base := paced(t, w.Service, limits.MinBodyRate{Bytes: 1 << 30, Per: pace}, nil)
	box := base + "/v1/sandboxes/" + w.name
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	terminal, _, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(box, "http")+"/terminal", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.CloseNow()
	if err := terminal.Write(ctx, websocket.MessageText, []byte(`{"command":["cat"],"open_stdin":true}`)); err != nil {
		t.Fatal(err)
	}
	events := begin(t, base, "POST", "/v1/sandboxes/"+w.name+"/exec", "application/json", 35, `{"command":["sh","-c","sleep 1000"]`)
	_, _ = io.WriteString(events, "}") // one byte late
	// The command's timeout is over when the pace is long over.
	watched, err := http.NewRequestWithContext(ctx, http.MethodPost, box+"/exec", strings.NewReader(`{"command":["sh","-c","sleep 0.5; echo late"],"timeout_ms":60000}`))
	if err != nil {
		t.Fatal(err)
	}
	watched.Header.Set("Content-Type", "application/json")
	watched.Header.Set("Accept", "application/x-ndjson")
	res, err := http.DefaultClient.Do(watched)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(data), `"final":true`) {
		t.Errorf("a command that lasts: %q, %v", data, err)
	}
	if err := terminal.Write(ctx, websocket.MessageBinary, []byte("late\n")); err != nil {
		t.Fatal(err)
	}
	for {
		kind, data, err := terminal.Read(ctx)
		if err != nil {
			t.Fatalf("the terminal: %v", err)
		}
		if kind == websocket.MessageBinary && strings.HasSuffix(string(data), "late\n") {
			break
		}
	}
}

// Attack: a client never reads what it has requested. It holds nothing that others
// need: the sandbox can be used, paused and ended.
func TestUnreadAnswersHoldNoLocks(t *testing.T) {
	w := newHarness(t, nil)
	if _, err := w.WriteFile(w.ctx, w.name, sandbox.WriteFileRequest{Path: "big"}, io.LimitReader(zeros{}, 16<<20)); err != nil {
		t.Fatal(err)
	}
	base := paced(t, w.Service, limits.DefaultMinBodyRate, nil)
	box := "/v1/sandboxes/" + w.name
	job, err := w.Exec(w.ctx, w.name, sandbox.ExecRequest{Shell: "head -c 30000000 /dev/zero", Background: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{box + "/files/content?path=big", box + "/files/archive?path=.", box + "/jobs/" + job.ID + "/attach", box + "/files/watch?path=."} {
		conn := begin(t, base, "GET", path, "text/plain", 0, "")
		if _, err := io.ReadFull(conn, make([]byte, 64)); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	if _, err := w.WriteFile(w.ctx, w.name, sandbox.WriteFileRequest{Path: "big"}, strings.NewReader("new")); err != nil {
		t.Error(err)
	}
	if got, err := w.Exec(w.ctx, w.name, sandbox.ExecRequest{Shell: "true"}, func(sandbox.JobEvent) error { return nil }); err != nil || got.ExitCode != 0 {
		t.Errorf("a command: %+v, %v", got, err)
	}
	if _, err := w.Update(w.ctx, w.name, sandbox.UpdateRequest{}); err != nil && sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Error(err)
	}
	if _, err := w.CreateSnapshot(w.ctx, w.name, sandbox.CreateSnapshotRequest{}); err != nil && sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Error(err)
	}
	if _, err := w.Kill(w.ctx, w.name); err != nil {
		t.Error(err)
	}
}

// Attack: many large requests at once. Those for which there is no memory get an error;
// there is room for small ones.
func TestMemoryOfBodies(t *testing.T) {
	w := newHarness(t, nil)
	base := paced(t, w.Service, limits.DefaultMinBodyRate, &limits.MemoryBudgetConfig{
		Total: 1 << 20, PerCaller: 1 << 20, MaxBody: 1 << 20, Wait: 20 * time.Millisecond, ReadTimeout: time.Minute,
	})
	box := "/v1/sandboxes/" + w.name
	const body = `{"command":["true"]}`
	busy := 0
	for i := range 20 {
		// The request has its memory once its first byte is read.
		u, _ := url.Parse(base)
		conn, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := fmt.Fprintf(conn, "POST %s/exec HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", box, u.Host, 256<<10); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case res.StatusCode == http.StatusContinue && i < 4:
		case res.StatusCode == http.StatusServiceUnavailable && i >= 4 && res.Header.Get("Retry-After") != "":
			busy++
		default:
			t.Errorf("request %d: %s", i, res.Status)
		}
	}
	if busy != 16 {
		t.Errorf("%d of 20 were refused", busy)
	}
	if res, answer := fetch(t, http.MethodPost, base+box+"/exec", "application/json", body); res.StatusCode != http.StatusOK {
		t.Errorf("a small one: %s %s", res.Status, answer)
	}
}
