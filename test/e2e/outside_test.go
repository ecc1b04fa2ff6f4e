package e2e

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// reach is a program that says whether an address answers.
const reach = `python3 -c '
import socket
try:
    socket.create_connection(("198.51.100.7", 80), 3)
    print("reached")
except Exception as err:
    print("not reached")'`

// createNetwork shows that a policy denies, and that a wrong one is refused. What
// policies allow is in package network, which has a world to reach.
func createNetwork(t *testing.T, d *covetest.Daemon) {
	s := with(t, d, func(r *sandbox.CreateRequest) { r.Network = &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone} })
	d.Shows(t, s.ID, reach, "not reached")
	var list *sandbox.List[sandbox.NetworkEvent]
	var err error
	blocked := func() bool {
		if list, err = d.Client.NetworkLog(t.Context(), s.ID, sandbox.NetworkLogRequest{}); err != nil {
			return false
		}
		for _, e := range list.Items {
			if e.Address == "198.51.100.7" && e.Port == 80 && e.Verdict == sandbox.NetworkBlocked {
				return true
			}
		}
		return false
	}
	if !covetest.Eventually(covetest.DetectionLimit, blocked) {
		t.Errorf("the network log tells of no blocked connection: %+v, %v", list, err)
	}
	_, err = d.Client.Create(t.Context(), covetest.Small(func(r *sandbox.CreateRequest) { r.Network = &sandbox.NetworkPolicy{DenyOut: []string{"example.com"}} }))
	covetest.WantCode(t, err, sandbox.CodeInvalid)
}

// createSecrets shows that a sandbox gets a placeholder and not the value.
func createSecrets(t *testing.T, d *covetest.Daemon) {
	const value = "the-value-of-the-secret"
	if _, err := d.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{
		Name: "token", Value: sandbox.NewSecretValue(value), Hosts: []string{"api.example.com"},
	}); err != nil {
		t.Fatal(err)
	}
	s := with(t, d, func(r *sandbox.CreateRequest) { r.Secrets = map[string]string{"TOKEN": "token"} })
	if got := strings.TrimSpace(d.Sh(t, s.ID, "echo $TOKEN")); got == "" || strings.Contains(got, value) {
		t.Errorf("TOKEN is %q in the sandbox, want a placeholder", got)
	}
	_, err := d.Client.Create(t.Context(), covetest.Small(func(r *sandbox.CreateRequest) { r.Secrets = map[string]string{"TOKEN": "none-such"} }))
	if code := sandbox.CodeOf(err); code != sandbox.CodeNotFound && code != sandbox.CodeInvalid {
		t.Errorf("a secret that is not there: %v", err)
	}
}

// createPorts shows that a port of the host leads to the sandbox.
func createPorts(t *testing.T, d *covetest.Daemon) {
	s := with(t, d, func(r *sandbox.CreateRequest) { r.Ports = []sandbox.PublishedPort{{Guest: 9000}} })
	if len(s.Ports) != 1 || s.Ports[0].Host == 0 {
		t.Fatalf("published ports: %+v", s.Ports)
	}
	_, err := d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{
		Command: []string{"perl", "-MIO::Socket::INET", "-e", `my $l = IO::Socket::INET->new(LocalPort => 9000, Listen => 5, ReuseAddr => 1) or die; while (my $c = $l->accept) { print $c "from inside"; close $c }`}, Background: true,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Ports[0].Host))
	var got string
	answered := func() bool {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		defer conn.Close()
		text, err := io.ReadAll(conn)
		got = fmt.Sprint(string(text), err)
		return string(text) == "from inside"
	}
	if !covetest.Eventually(covetest.DetectionLimit, answered) {
		t.Errorf("port %s answers %q", address, got)
	}
}

// execWebhook checks that a webhook to an internal address is refused. Delivery is
// tested where the server may send to the test.
func execWebhook(t *testing.T, d *covetest.Daemon) {
	s := with(t, d)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = d.Client.Exec(t.Context(), s.ID, sandbox.ExecRequest{
		Command: []string{"true"}, Background: true, Webhook: &sandbox.Webhook{URL: "http://" + l.Addr().String()},
	}, nil)
	covetest.WantCode(t, err, sandbox.CodeInvalid)
}
