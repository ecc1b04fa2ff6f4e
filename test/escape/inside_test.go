package escape

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// Attack: code in a sandbox connects to services of the host: on loopback, on
// each address of the host, through the gateway's address, to cloud metadata,
// and to the daemon itself.
func TestNetworkOfTheHostIsOutOfReach(t *testing.T) {
	listeners := map[string]net.Listener{}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"127.0.0.1"}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil {
			hosts = append(hosts, ip.IP.String())
		}
	}
	var ports []string
	for _, host := range hosts {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			continue
		}
		t.Cleanup(func() { l.Close() })
		listeners[l.Addr().String()] = l
		go accept(t, l)
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ports = append(ports, port)
	}
	if len(listeners) == 0 {
		t.Fatal("nothing to attack")
	}
	abstract := fmt.Sprintf("@cove-escape-%d", os.Getpid())
	al, err := net.Listen("unix", abstract)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { al.Close() })
	go accept(t, al)

	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := arm(t, d)
		_, port, _ := net.SplitHostPort(strings.TrimPrefix(d.URL, "http://"))
		targets := []string{
			"unix!" + abstract, "unix!" + filepath.Join(d.StateDir, "cove.sock"), "unix!/run/docker.sock", "unix!/var/run/dbus/system_bus_socket",
			"tcp!169.254.169.254:80", "tcp!100.100.100.200:80", "tcp![fd00:ec2::254]:80", "tcp!10.0.0.1:80", "tcp!172.17.0.1:80", "tcp!192.168.0.1:80",
		}
		for l := range listeners {
			targets = append(targets, "tcp!"+l)
		}
		for _, host := range append(hosts, "169.254.77.1", "169.254.77.3", "0.0.0.0", "[::1]") {
			for _, port := range append([]string{port, "22", "80", "443", "2375", "5432", "6443", "7777", "8080"}, ports...) {
				targets = append(targets, "tcp!"+host+":"+port)
			}
		}
		for port := range 2048 {
			if port+1 != 53 { // the sandbox's resolver
				targets = append(targets, fmt.Sprintf("tcp!169.254.77.1:%d", port+1))
			}
		}
		for _, user := range users {
			out := attackText(t, d, id, user, append([]string{"dial"}, targets...)...)
			if strings.Contains(out, "connected to") || !strings.Contains(out, "tried ") {
				t.Errorf("as %s:\n%s", user, out)
			}
		}
	})
}

// accept reports whoever comes.
func accept(t *testing.T, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		c.Close()
		t.Errorf("a connection from %s reached %s", c.RemoteAddr(), l.Addr())
	}
}

// Attack: code in one sandbox uses the agent of another, which has the same
// address, or of its own, which runs commands as root; it forges the gateway's
// address; it stops, traces, changes or replaces the agent.
func TestAgentServesTheGatewayOnly(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := arm(t, d)
		for _, prefix := range [][]string{{}, {"userns"}} {
			for name, how := range attack(t, d, id, "user", append(prefix, "agent")...) {
				if how == "ok" || how == "" {
					t.Errorf("user %v could: %s: %s", prefix, name, how)
				}
			}
			got := attack(t, d, id, "user", append(prefix, "spoof")...)
			if len(got) != 3 {
				t.Errorf("user %v: %v", prefix, got)
			}
			for name, how := range got {
				if how != "EPERM" && how != "EADDRNOTAVAIL" {
					t.Errorf("user %v could: %s: %s", prefix, name, how)
				}
			}
		}
		for name, how := range attack(t, d, id, "root", "spoof") {
			if strings.HasSuffix(name, " socket") && how != "EPERM" {
				t.Errorf("root could open a %s: %s", name, how)
			}
		}
		// Root inside may harm its own agent, but not the file that all have.
		d.Sh(t, id, "true")
		res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{
			User: "root", Shell: "echo x >> /.cove/agent; rm -f /.cove/agent; mount -o remount,rw /.cove; echo x > /.cove/new; sha256sum < /.cove/agent",
		})
		if err != nil {
			t.Fatal(err)
		}
		other := arm(t, d)
		if sum := d.Sh(t, other, "sha256sum < /.cove/agent"); sum != res.Stdout {
			t.Errorf("the agent's file was changed: %s here, %s there: %s", res.Stdout, sum, res.Stderr)
		}
		if out := d.Sh(t, other, "ls /.cove"); out != "agent\n" {
			t.Errorf("/.cove of another sandbox holds %q", out)
		}
	})
}

// Attack: code in a sandbox searches everything that it can read for traces of the
// host: files, environments, command lines, paths.
func TestNothingOfTheHostShows(t *testing.T) {
	const secret = "c0ve-esc4pe-secret"
	t.Setenv("COVE_API_KEY", secret)
	t.Setenv("HOST_SECRET", secret)
	for _, dir := range []string{os.TempDir(), "/var/tmp", "/dev/shm", os.Getenv("HOME"), "/run"} {
		f, err := os.CreateTemp(dir, secret+"-*")
		if err != nil {
			continue
		}
		t.Cleanup(func() { os.Remove(f.Name()) })
		if _, err := f.WriteString(secret); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	covetest.SharedEachUser(t, func(t *testing.T, d *covetest.Daemon) {
		id := arm(t, d)
		neighbour := d.Create(t, sandbox.CreateRequest{Env: map[string]string{"TOKEN": secret}})
		d.Sh(t, neighbour.ID, "echo $TOKEN > /workspace/f; sleep 600 > /dev/null 2>&1 &")
		for _, user := range users {
			out := attackText(t, d, id, user, "hunt", secret, d.StateDir, "cove serve")
			if strings.Contains(out, "found ") || !strings.Contains(out, "looked at ") {
				t.Errorf("as %s:\n%s", user, out)
			}
			res, err := d.Exec(t.Context(), id, sandbox.ExecRequest{User: user, Shell: "env; cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n'"})
			if err != nil || strings.Contains(res.Stdout, "COVE") || strings.Contains(res.Stdout, secret) {
				t.Errorf("environment as %s: %v\n%s", user, err, res.Stdout)
			}
		}
	})
}

// Attack: code in a sandbox asks the kernel for what would reach the host's:
// modules, kexec, clocks, devices by number, mounts of the host's disks.
func TestKernelOfTheHostIsOutOfReach(t *testing.T) {
	refusals := map[string]bool{"EPERM": true, "ENOSYS": true, "ENODEV": true, "ENXIO": true, "ENOTSUP": true, "EINVAL": true, "EACCES": true}
	covetest.SharedEachUser(t, func(t *testing.T, d *covetest.Daemon) {
		id := arm(t, d)
		for _, user := range users {
			for _, prefix := range [][]string{{}, {"userns"}} {
				got := attack(t, d, id, user, append(prefix, "syscalls")...)
				if len(got) < 20 {
					t.Errorf("as %s %v: only %v", user, prefix, got)
				}
				for name, how := range got {
					if !refusals[how] && name != "syslog" { // the sandbox's own log
						t.Errorf("as %s %v: %s: %s", user, prefix, name, how)
					}
				}
			}
		}
	})
}

// Attack: root in a sandbox writes to the system's directories, plants
// programs of root and hopes that they show up on the host, in the template or
// in another sandbox.
func TestWritesStayInTheSandbox(t *testing.T) {
	const name = "cove-escape-planted"
	const dirs = "/usr/bin /usr/lib /etc /root /home /var /opt /srv /mnt /workspace /tmp / /dev/shm"
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		first, second := arm(t, d), arm(t, d)
		plant := "for dir in " + dirs + "; do " +
			"cp /bin/true $dir/" + name + " && chmod 6755 $dir/" + name + "; done; " +
			"echo 'root::0:0::/:/bin/sh' > /etc/passwd; ln -sf /etc/shadow /usr/lib/" + name + "-link; rm -rf /usr/share/doc; " +
			"mv /usr/bin/env /usr/bin/env2; sethostname() { hostname planted; }; sethostname; ls /usr/bin/" + name
		res, err := d.Exec(t.Context(), first, sandbox.ExecRequest{User: "root", Shell: plant})
		if err != nil || !strings.Contains(res.Stdout, name) {
			t.Fatalf("plant: %v %s %s", err, res.Stdout, res.Stderr)
		}
		third := arm(t, d)
		for _, id := range []string{second, third} {
			look := "find " + dirs + " -maxdepth 1 -name '" + name + "*' 2>/dev/null; grep -c . /etc/passwd; test -x /usr/bin/env; hostname"
			out := strings.Fields(d.Sh(t, id, look))
			if len(out) != 2 || out[0] == "1" || out[1] == "planted" {
				t.Errorf("another sandbox shows %q", out)
			}
		}
		for _, dir := range []string{"/usr/bin", "/usr/lib", "/etc", "/root", "/home", "/var", "/opt", "/srv", "/mnt", "/tmp", "/", "/dev/shm"} {
			if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
				t.Errorf("%s is on the host, in %s", name, dir)
			}
		}
		if host, _ := os.Hostname(); host == "planted" {
			t.Error("the host has another name")
		}
		_ = filepath.WalkDir(d.StateDir, func(path string, _ os.DirEntry, err error) error {
			if err == nil && strings.Contains(path, name) {
				t.Errorf("the state directory holds %s", path)
			}
			return nil
		})
	})
}

// Attack: code in a sandbox fills the disk of the host through the first
// process's output, which goes into a log on the host.
func TestLogIsBounded(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		id := arm(t, d)
		out := attackText(t, d, id, "root", "flood")
		if !strings.Contains(out, "wrote 17825792 to /proc/1/fd/1") {
			t.Errorf("the flood was held up: %s", out)
		}
		if d.Sh(t, id, "echo alive") != "alive\n" {
			t.Error("the sandbox does not work after the flood")
		}
		dir := filepath.Join(d.StateDir, "engine", "cells", id)
		for _, name := range []string{"cell.log", "gvisor-panic.log"} {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil || info.Size() > 2<<20 {
				t.Errorf("%s: %v, %v; want at most 2 MiB", name, info, err)
			}
		}
	})
}
