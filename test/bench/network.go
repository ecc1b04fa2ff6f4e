package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/testing/figures"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// transferBytes is the size of throughput measurements.
	transferBytes = 256 << 20
	insideLoad    = "/tmp/netload"
)

// network measures connections out of and into a sandbox, compared with the same without
// one: plain TCP on the host's loopback, and the host's own connections to the same
// servers.
func (b *bench) network(ctx context.Context) error {
	if err := b.rate(ctx, "TCP copy on the host's loopback, 256 MiB", "", min(b.n, 10), transferBytes, figures.Whole(loopbackCopy)); err != nil {
		return err
	}
	load, err := buildHelper(ctx, "netload")
	if err != nil {
		return err
	}
	defer os.Remove(load)
	return b.withSandbox(ctx, func(id string) error {
		// Measure the gateway, not the limits of a policy.
		open := sandbox.NetworkPolicy{ConnectionsPerSecond: sandbox.MaxConnectionsPerSecond, MaxConnections: sandbox.MaxMaxConnections}
		if _, err := b.d.Client.SetNetwork(ctx, id, open); err != nil {
			return err
		}
		for from, to := range map[string]string{load: insideLoad, b.net.CA: "/tmp/ca.pem"} {
			if err := b.upload(ctx, id, from, to); err != nil {
				return err
			}
		}
		if err := b.transfers(ctx, id); err != nil {
			return err
		}
		if err := b.latencies(ctx, load, id); err != nil {
			return err
		}
		if err := b.intercepted(ctx, id); err != nil {
			return err
		}
		return b.previews(ctx, id)
	})
}

func (b *bench) upload(ctx context.Context, id, from, to string) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = b.d.Client.WriteFile(ctx, id, sandbox.WriteFileRequest{Path: to, Mode: "0755"}, f)
	return err
}

// loopbackCopy moves bytes over a loopback connection of this machine.
func loopbackCopy(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	sent := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			sent <- err
			return
		}
		defer c.Close()
		block := make([]byte, 64<<10)
		for n := 0; n < transferBytes && err == nil; n += len(block) {
			_, err = c.Write(block)
		}
		sent <- err
	}()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	// Read as programs do, without the kernel's splice.
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 64<<10)); err != nil {
		return err
	}
	return <-sent
}

// curlTime runs curl inside, and returns the time that it reports.
func (b *bench) curlTime(ctx context.Context, id, line string) (time.Duration, error) {
	res, err := b.d.Exec(ctx, id, sandbox.ExecRequest{Shell: line})
	if err != nil {
		return 0, err
	}
	s, err := strconv.ParseFloat(strings.TrimSpace(res.Stdout), 64)
	if err != nil || res.Job.ExitCode != 0 {
		return 0, fmt.Errorf("%s: exit code %d, %q %q", line, res.Job.ExitCode, res.Stdout, res.Stderr)
	}
	return time.Duration(s * 1e9), nil
}

func (b *bench) transfers(ctx context.Context, id string) error {
	n := min(b.n, 10)
	for _, way := range []struct{ name, line string }{
		{"download into a sandbox", fmt.Sprintf("curl -fsS -o /dev/null -w '%%{time_total}' 'http://198.51.100.10/bytes?n=%d'", transferBytes)},
		{"upload from a sandbox", fmt.Sprintf("head -c %d /dev/zero | curl -fsS -o /dev/null -w '%%{time_total}' -T - http://198.51.100.10/sink", transferBytes)},
	} {
		err := b.rate(ctx, way.name+", 256 MiB", "", n, transferBytes, func(ctx context.Context) (time.Duration, error) { return b.curlTime(ctx, id, way.line) })
		if err != nil {
			return err
		}
	}
	return nil
}

// load runs netload in the sandbox, or here if id is empty, and adds a row.
func (b *bench) load(ctx context.Context, name, program, id string, args ...string) error {
	var out string
	if id == "" {
		data, err := exec.CommandContext(ctx, program, args...).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		out = string(data)
	} else {
		res, err := b.d.Exec(ctx, id, sandbox.ExecRequest{Command: append([]string{insideLoad}, args...)})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if res.Job.ExitCode != 0 {
			return fmt.Errorf("%s: exit code %d: %s", name, res.Job.ExitCode, res.Stderr)
		}
		out = res.Stdout
	}
	s := figures.Series{Name: name}
	for line := range strings.Lines(out) {
		n, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return fmt.Errorf("%s: netload said %q", name, out)
		}
		s.Values = append(s.Values, time.Duration(n))
	}
	b.rows = append(b.rows, s)
	return nil
}

// latencies measures requests and connections from the host and from inside.
func (b *bench) latencies(ctx context.Context, program, id string) error {
	n := strconv.Itoa(10 * b.n)
	for _, at := range []struct{ where, id string }{{"on the host", ""}, {"from a sandbox", id}} {
		ca := "/tmp/ca.pem"
		if at.id == "" {
			ca = b.net.CA
		}
		for _, row := range []struct {
			name string
			args []string
		}{
			{"HTTP request, kept connection", []string{"requests", n, "http://198.51.100.10/"}},
			{"HTTP request, new connection", []string{"connections", n, "http://198.51.100.10/"}},
			{"HTTPS request, kept connection", []string{"requests", n, "https://198.51.100.10/", ca}},
			{"HTTPS request, new connection", []string{"connections", n, "https://198.51.100.10/", ca}},
			{"TCP connection and one byte", []string{"connect", n, "198.51.100.10:7"}},
		} {
			if err := b.load(ctx, row.name+", "+at.where, program, at.id, row.args...); err != nil {
				return err
			}
		}
		const connections, atOnce = 2000, 32
		name := fmt.Sprintf("%d TCP connections, %d at a time, %s", connections, atOnce, at.where)
		if err := b.load(ctx, name, program, at.id, "flood", strconv.Itoa(connections), strconv.Itoa(atOnce), "198.51.100.10:7"); err != nil {
			return err
		}
		took := b.rows[len(b.rows)-1].Values[0]
		b.note("new connections, "+at.where, "", "%.0f a second", connections/took.Seconds())
	}
	return nil
}

// intercepted measures the same requests by name, and then with a secret attached, so that
// the gateway terminates and inspects their TLS.
func (b *bench) intercepted(ctx context.Context, id string) error {
	n := strconv.Itoa(10 * b.n)
	if err := b.load(ctx, "HTTPS request by name, kept connection, passed through", "", id, "requests", n, "https://example.com/", "/tmp/ca.pem"); err != nil {
		return err
	}
	if err := b.load(ctx, "HTTPS request by name, new connection, passed through", "", id, "connections", n, "https://example.com/", "/tmp/ca.pem"); err != nil {
		return err
	}
	if err := b.attachSecret(ctx, id); err != nil {
		return err
	}
	for _, kind := range []string{"requests", "connections"} {
		name := map[string]string{"requests": "kept", "connections": "new"}[kind]
		if err := b.load(ctx, "HTTPS request by name, "+name+" connection, secret put in", "", id, kind, n, "https://example.com/"); err != nil {
			return err
		}
	}
	return b.detachSecret(ctx, id)
}

// attachSecret gives a sandbox a secret for example.com, in its environment as
// BENCH_TOKEN.
func (b *bench) attachSecret(ctx context.Context, id string) error {
	secret, err := b.d.Client.CreateSecret(ctx, sandbox.CreateSecretRequest{
		Name: "BENCH", Value: sandbox.NewSecretValue("value-of-the-bench"), Hosts: []string{"example.com"}, Auth: &sandbox.SecretAuth{Type: "header", Prefix: "Bearer "},
	})
	if err != nil {
		return err
	}
	_, err = b.d.Client.AttachSecret(ctx, id, secret.Name, "BENCH_TOKEN")
	return err
}

// detachSecret undoes attachSecret, so that another part can attach it.
func (b *bench) detachSecret(ctx context.Context, id string) error {
	if _, err := b.d.Client.DetachSecret(ctx, id, "BENCH_TOKEN"); err != nil {
		return err
	}
	return b.d.Client.DeleteSecret(ctx, "BENCH")
}

// previews measures a request from outside to a server in the sandbox.
func (b *bench) previews(ctx context.Context, id string) error {
	if _, err := b.d.Client.Exec(ctx, id, sandbox.ExecRequest{Command: []string{insideLoad, "serve", "0.0.0.0:8000"}, Background: true}, nil); err != nil {
		return err
	}
	p, err := b.d.Client.CreatePreview(ctx, id, sandbox.CreatePreviewRequest{Port: 8000, Access: sandbox.PreviewPublic})
	if err != nil {
		return err
	}
	addr := strings.TrimPrefix(b.d.URL, "http://")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", addr)
	}}}
	ask := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", p.URL, res.Status)
		}
		return nil
	}
	for limit := time.Now().Add(10 * time.Second); ask(ctx) != nil && time.Now().Before(limit); {
		time.Sleep(20 * time.Millisecond)
	}
	return b.time(ctx, "request through a preview", "", 10*b.n, figures.Whole(ask))
}
