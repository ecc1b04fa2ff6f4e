package network

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/sandbox"
)

// What a developer expects of a machine on a network: names, HTTP, HTTPS, TCP, UDP, and
// a ping of the gateway.
func TestOpen(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, sandbox.NetworkPolicy{})
		r := asked(t, works(t, d, id, curl("http://example.com/x?y=1")))
		if r.Host != "example.com" || r.Path != "/x" || r.Query != "y=1" || r.Address != "198.51.100.10:80" {
			t.Errorf("the server was asked %+v", r)
		}
		r = asked(t, works(t, d, id, curl("https://api.example.com/", "-k", "--http2")))
		if r.TLSName != "api.example.com" || r.Proto != "HTTP/2.0" || r.Address != "198.51.100.11:443" {
			t.Errorf("the server was asked %+v", r)
		}
		works(t, d, id, curl("http://198.51.100.12:8080/"))
		if got := works(t, d, id, "getent ahostsv4 example.com | head -1"); !strings.HasPrefix(got, "198.51.100.10") {
			t.Errorf("example.com is %q", got)
		}
		fails(t, d, id, "getent hosts nothing.test")
		if got := works(t, d, id, python(`
s = socket.create_connection(("203.0.113.10", 7), 10); s.sendall(b"hello"); print(s.recv(10).decode())
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(10); u.sendto(b"there", ("203.0.113.10", 7)); print(u.recv(10).decode())
`)); got != "hello\nthere" {
			t.Errorf("echoes: %q", got)
		}
		if got := works(t, d, id, "cat /etc/resolv.conf"); got != "nameserver 169.254.77.1" {
			t.Errorf("resolver: %s", got)
		}
		for _, addr := range []string{"169.254.77.1", "198.51.100.10"} {
			works(t, d, id, ping(addr))
		}
		// What does not listen is refused, and not silent.
		if got := fails(t, d, id, python(`socket.create_connection(("203.0.113.10", 4444), 10)`)); !strings.Contains(got, "refused") {
			t.Errorf("a closed port: %s", got)
		}
	})
}

// ping is a command line that sends an echo request and waits for the answer.
// The host's ping is often not in its template, or not allowed to send any.
func ping(addr string) string {
	return python(`
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); s.settimeout(5)
s.sendto(b"\x08\0\0\0\0\0\0\1" + b"payload!", ("` + addr + `", 0))
data, source = s.recvfrom(100)
assert source[0] == "` + addr + `" and data[0] == 0 and data.endswith(b"payload!"), (source, data)`)
}

// python is a command line that runs a program.
func python(program string) string {
	return "python3 - <<'END'\nimport socket, ssl, sys, time, threading\n" + program + "\nEND"
}

func TestNone(t *testing.T) {
	n := internet.Here(t)
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, sandbox.NetworkPolicy{Preset: sandbox.NetworkNone})
		fails(t, d, id, curl("http://example.com/"))
		fails(t, d, id, curl("http://198.51.100.12/"))
		fails(t, d, id, "getent hosts none-"+id+".example.com")
		fails(t, d, id, python(`u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(2); u.sendto(b"x", ("203.0.113.10", 7)); u.recv(10)`))
		if names := n.Asked("none-" + id + ".example.com"); len(names) > 0 {
			t.Errorf("the name went out: %v", names)
		}
	})
}

// What else a developer takes for granted: the machine's own name, names of loopback, that
// questions for IPv6 get an empty answer instead of none, and the link. In "make test",
// TestOpen, and TestResolverAnswers and TestPing of package egress, stand for it.
func TestMoreSurroundings(t *testing.T) {
	internet.Here(t).SetName("six.test", netip.MustParseAddr("2001:db8::10"), internet.Public[0])
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		s := d.Create(t, sandbox.CreateRequest{Name: "dev-box", Network: &sandbox.NetworkPolicy{
			DenyOut: []string{"0.0.0.0/0"}, AllowOut: []string{"example.com", "six.test", "203.0.113.10"},
		}})
		ownName(t, d, s.ID, "dev-box")
		forks, err := d.Client.Fork(t.Context(), s.ID, sandbox.ForkRequest{Name: "dev-fork"})
		if err != nil {
			t.Fatal(err)
		}
		ownName(t, d, forks.Items[0].ID, "dev-fork")
		if got := works(t, d, s.ID, "cat /etc/resolv.conf"); got != "nameserver 169.254.77.1" {
			t.Errorf("resolver: %s", got)
		}
		works(t, d, s.ID, ping("169.254.77.1"))
		fails(t, d, s.ID, ping("203.0.113.11"))
		if got := works(t, d, s.ID, python(asking+`
import fcntl, struct
for name, kind in [("example.com", 1), ("example.com", 28), ("six.test", 28), ("nothing.test", 28), ("nothing.test", 1), ("app.localhost", 1), ("app.localhost", 28)]:
    print(name, kind, *ask(name, kind))
try: socket.getaddrinfo("example.com", 80, socket.AF_INET6); print("it has one")
except socket.gaierror: print("no IPv6")
s = socket.create_connection(("six.test", 80), 10); print(s.getpeername()[0], s.getsockname()[0])
print("eth0", struct.unpack("16si", fcntl.ioctl(s, 0x8921, struct.pack("16s16x", b"eth0"))[:20])[1])
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(10); u.connect(("203.0.113.10", 7)); u.send(b"x" * 30000); print(len(u.recv(60000)))
`)); got != surroundings {
			t.Errorf("got\n%s\nwant\n%s", got, surroundings)
		}
	})
}

// surroundings are, of each question, the code and the number of answers over UDP
// and TCP; the addresses of a connection; the size of packets; and that a datagram
// of many fragments comes back.
const surroundings = `example.com 1 0/1 0/1
example.com 28 0/0 0/0
six.test 28 0/0 0/0
nothing.test 28 3/0 3/0
nothing.test 1 3/0 3/0
app.localhost 1 0/1 0/1
app.localhost 28 0/1 0/1
no IPv6
198.51.100.10 169.254.77.2
eth0 65520
30000`

// asking defines ask, which asks the gateway for a name over UDP and TCP.
const asking = `
def ask(name, kind):
    q = b"\x12\x34\1\0\0\1\0\0\0\0\0\0" + b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + bytes([0, 0, kind, 0, 1])
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(10); u.sendto(q, ("169.254.77.1", 53)); over_udp = u.recv(4096)
    s = socket.create_connection(("169.254.77.1", 53), 10); s.sendall(len(q).to_bytes(2, "big") + q); over_tcp = s.recv(4096)[2:]
    return [f"{m[3] & 15}/{m[7]}" for m in (over_udp, over_tcp)]
`

// ownName checks that a sandbox can resolve its own name.
func ownName(t *testing.T, d *covetest.Daemon, id, name string) {
	t.Helper()
	got := works(t, d, id, "hostname; uname -n; cat /proc/sys/kernel/hostname; getent ahostsv4 "+name+" | awk '{print $1; exit}'; getent ahostsv4 localhost | awk '{print $1; exit}'; cat /etc/hosts")
	const hosts = "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 "
	if want := strings.Repeat(name+"\n", 3) + "127.0.1.1\n127.0.0.1\n" + hosts + name; got != want {
		t.Errorf("%s calls itself\n%s\nwant\n%s", name, got, want)
	}
	works(t, d, id, "cd /workspace && { python3 -m http.server 8123 --bind 127.0.0.1 >/dev/null 2>&1 & } && for i in $(seq 50); do curl -fsS http://localhost:8123/ >/dev/null 2>&1 && exit; sleep 0.2; done; exit 1")
}
