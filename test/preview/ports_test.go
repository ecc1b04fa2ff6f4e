package preview

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

func TestPortForward(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Name: "work"})
		d.Sh(t, s.ID, "mkdir -p /tmp/site && echo home > /tmp/site/index.html")
		background(t, d, s.ID, "exec python3 -m http.server -d /tmp/site 8000")
		cmd := d.Command(t.Context(), "port-forward", "work", "0:8000", ":9")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		address := func(port int) string {
			t.Helper()
			if !lines.Scan() {
				t.Fatalf("no address: %s", said.String())
			}
			m := regexp.MustCompile(`^Forwarding (127\.0\.0\.1:\d+) to port ` + fmt.Sprint(port) + ` of work$`).FindStringSubmatch(lines.Text())
			if m == nil {
				t.Fatalf("said %q", lines.Text())
			}
			return m[1]
		}
		web, nothing := address(8000), address(9)
		if !covetest.Eventually(patience, func() bool { return get("http://"+web) == nil }) {
			t.Fatal(get("http://" + web))
		}
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := get("http://" + web); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		conn, err := net.Dial("tcp", nothing)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if data, _ := io.ReadAll(conn); len(data) != 0 {
			t.Errorf("a port without a program said %q", data)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("interrupted: %v: %s", err, said.String())
		}
		// Port 8000 is named too if its server was not there yet.
		if !strings.HasSuffix(said.String(), "\n") || !strings.Contains(said.String(), "cove: port 9: nothing listens") || strings.Contains(said.String(), "interrupted") {
			t.Errorf("said %q", said.String())
		}
		if conn, err := net.Dial("tcp", web); err == nil {
			_ = conn.Close()
			t.Error("it still listens")
		}
	})
}

func get(url string) error {
	req, err := http.NewRequestWithContext(context.Background(), "GET", url, nil)
	if err != nil {
		return err
	}
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "home\n" {
		return fmt.Errorf("%q, %v", body, err)
	}
	return nil
}

func TestPublishedPorts(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		out, err := d.Command(t.Context(), "create", "--name", "web", "--publish", "0:8000").Output()
		if err != nil {
			t.Fatal(err)
		}
		id := strings.TrimSpace(string(out))
		d.Sh(t, id, "mkdir -p /tmp/site && echo home > /tmp/site/index.html")
		background(t, d, id, "exec python3 -m http.server -d /tmp/site 8000")
		s, err := d.Client.Get(t.Context(), id)
		if err != nil || len(s.Ports) != 1 || s.Ports[0].Guest != 8000 || s.Ports[0].Host == 0 {
			t.Fatalf("ports %+v, %v", s, err)
		}
		address := fmt.Sprintf("127.0.0.1:%d", s.Ports[0].Host)
		if !covetest.Eventually(patience, func() bool { return get("http://"+address) == nil }) {
			t.Fatal(get("http://" + address))
		}
		if _, err := d.Client.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			t.Error("the port of a killed sandbox is open")
		}
	})
}
