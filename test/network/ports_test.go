package network

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// serves starts a server in a sandbox whose index page is a word.
func serves(t *testing.T, d *covetest.Daemon, id string, port int, word string) {
	t.Helper()
	works(t, d, id, fmt.Sprintf("mkdir -p /tmp/w && cd /tmp/w && echo -n %s > index.html && (setsid python3 -m http.server %d >/dev/null 2>&1 &) && "+
		"for i in $(seq 100); do python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", %d), 1)' 2>/dev/null && exit 0; sleep 0.1; done; exit 1", word, port, port))
}

// fetch gets a page over a new connection.
func fetch(t *testing.T, address, host, header string) (int, string, error) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\nHost: %s\r\n%s\r\n", host, header); err != nil {
		return 0, "", err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return 0, "", err
	}
	head, body, _ := strings.Cut(string(answer), "\r\n\r\n")
	fields := strings.Fields(head)
	if len(fields) < 2 {
		return 0, "", fmt.Errorf("the answer is %q", answer)
	}
	code, err := strconv.Atoi(fields[1])
	return code, body, err
}

// A published port leads to the sandbox through restarts of the daemon and
// pauses, follows it through a merge, and is free when it has ended.
func TestPublishedPorts(t *testing.T) {
	own(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Ports: []sandbox.PublishedPort{{Guest: 8000}}})
		address := net.JoinHostPort(s.Ports[0].Address, strconv.Itoa(s.Ports[0].Host))
		expect := func(after, want string) {
			t.Helper()
			if code, body, err := fetch(t, address, "x", ""); err != nil || code != 200 || body != want {
				t.Errorf("after %s: %d %q, %v; want %q", after, code, body, err, want)
			}
		}
		serves(t, d, s.ID, 8000, "one")
		expect("create", "one")
		if _, err := d.Client.Create(t.Context(), sandbox.CreateRequest{Ports: s.Ports}); sandbox.CodeOf(err) != sandbox.CodeConflict {
			t.Errorf("the same port again: %v", err)
		}
		d.Kill()
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect("a crash of the daemon", "one")
		if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		expect("a pause", "one")
		forks, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{})
		if err != nil {
			t.Fatal(err)
		}
		works(t, d, forks.Items[0].ID, "echo -n two > /tmp/w/index.html")
		expect("a fork", "one")
		if _, err := d.Client.Merge(t.Context(), s.ID, sandbox.MergeRequest{Winner: forks.Items[0].ID}); err != nil {
			t.Fatal(err)
		}
		expect("a merge", "two")
		if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			t.Error("the port of a killed sandbox is open")
		}
	})
}

// A preview opens only for admitted visitors, and only its own sandbox.
func TestPreviewsOfRealSandboxes(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{})
		serves(t, d, s.ID, 3000, "shown")
		address := strings.TrimPrefix(d.URL, "http://")
		made, err := d.Client.CreatePreview(t.Context(), s.ID, sandbox.CreatePreviewRequest{Port: 3000, Wake: true})
		if err != nil {
			t.Fatal(err)
		}
		host := strings.TrimPrefix(made.URL, "http://")
		key := sandbox.PreviewKeyHeader + ": " + made.Key + "\r\n"
		expect := func(what, host, header string, want int, page string) {
			t.Helper()
			code, body, err := fetch(t, address, host, header)
			if err != nil || code != want || page != "" && body != page || page == "" && strings.Contains(body, "shown") {
				t.Errorf("%s: %d %.200q, %v; want %d %q", what, code, body, err, want, page)
			}
		}
		expect("no key", host, "", http.StatusUnauthorized, "")
		expect("a wrong key", host, sandbox.PreviewKeyHeader+": wrong\r\n", http.StatusForbidden, "")
		expect("the key", host, key, 200, "shown")
		expect("another port", strings.Replace(host, "3000-", "3001-", 1), key, http.StatusNotFound, "")
		expect("the agent's port", strings.Replace(host, "3000-", "7007-", 1), key, http.StatusNotFound, "")
		if _, err := d.Client.Pause(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
		expect("no key to a paused one", host, "", http.StatusUnauthorized, "")
		if got, err := d.Client.Get(t.Context(), s.ID); err != nil || got.State != sandbox.StatePaused {
			t.Errorf("after a stranger's visit it is %v, %v", got, err)
		}
		expect("the key to a paused one", host, key, 200, "shown")
		if err := d.Client.DeletePreview(t.Context(), s.ID, 3000); err != nil {
			t.Fatal(err)
		}
		expect("deleted", host, key, http.StatusNotFound, "")
	})
}

// A sandbox reaches another of its team at NAME.sandbox only if a rule allows it. A
// paused one is resumed.
func TestPeers(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		to := d.Create(t, sandbox.CreateRequest{Name: "backend"})
		serves(t, d, to.ID, 9000, "peer")
		from := create(t, d, sandbox.NetworkPolicy{Rules: []sandbox.NetworkRule{
			{Action: sandbox.NetworkAllow, To: "sandbox:backend", Ports: []string{"9000", "9002"}},
		}})
		other := create(t, d, sandbox.NetworkPolicy{})
		ask := "curl -fsS --max-time 30 http://backend.sandbox:%d/"
		if got := works(t, d, from, fmt.Sprintf(ask, 9000)); got != "peer" {
			t.Errorf("the peer answers %q", got)
		}
		fails(t, d, from, fmt.Sprintf(ask, 9001))
		fails(t, d, other, fmt.Sprintf(ask, 9000))
		// What listens on the loopback device is for its own sandbox and for its
		// owner's previews, not for neighbours.
		d.Sh(t, to.ID, "cd /tmp; nohup python3 -m http.server -b 127.0.0.1 9002 >/dev/null 2>&1 & disown; while ! curl -sf http://127.0.0.1:9002/ >/dev/null; do sleep 0.05; done")
		fails(t, d, from, fmt.Sprintf(ask, 9002))
		if _, err := d.Client.Pause(t.Context(), to.ID); err != nil {
			t.Fatal(err)
		}
		fails(t, d, other, fmt.Sprintf(ask, 9000))
		if got, err := d.Client.Get(t.Context(), to.ID); err != nil || got.State != sandbox.StatePaused {
			t.Errorf("after a question that is not allowed it is %v, %v", got, err)
		}
		if got := works(t, d, from, fmt.Sprintf(ask, 9000)); got != "peer" {
			t.Errorf("the peer that was paused answers %q", got)
		}
		if _, err := d.Client.SetNetwork(t.Context(), from, sandbox.NetworkPolicy{}); err != nil {
			t.Fatal(err)
		}
		fails(t, d, from, fmt.Sprintf(ask, 9000))
	})
}
