// Package internet is a small Internet for tests, which never leave the machine
// for it: the test runs again in a network namespace of its own, the "host",
// whose only route leads to a second one, in which this package serves.
//
// The addresses are those that the world has: documentation ranges, which count
// as public, two well-known resolvers, and some that must not be reached from a
// sandbox although the host can. It works for root and for an ordinary user.
package internet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses of this Internet.
var (
	// Host is the address of the machine on which sandboxes run.
	Host = netip.MustParseAddr("192.0.2.2")
	// Router is the only neighbour of it.
	Router = netip.MustParseAddr("192.0.2.1")
	// Resolver answers for all names.
	Resolver = netip.MustParseAddr("198.51.100.53")
	// Public are servers that everybody may reach.
	Public = []netip.Addr{
		netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("198.51.100.11"), netip.MustParseAddr("198.51.100.12"),
		netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("203.0.113.66"),
		// Well-known resolvers.
		netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("8.8.8.8"),
	}
	// Private are servers at internal addresses.
	Private = []netip.Addr{
		netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("172.16.0.5"), netip.MustParseAddr("192.168.1.5"),
		netip.MustParseAddr("100.64.0.5"), netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("100.100.100.200"),
	}
)

// marker tells a program that it runs in the namespace already.
const marker = "COVE_TEST_INTERNET"

// Internet is what the host can reach. Its methods are safe for concurrent use.
type Internet struct {
	// CA is the path of a file with the authority of all servers, in PEM.
	CA string

	do  chan func() // runs in the Internet's namespace
	dir string
	dns dnsServer
	ca  *authority

	mu     sync.Mutex
	visits map[string]int          // connections and datagrams by "tcp 198.51.100.10:443"; guarded by mu
	asked  map[string]Request      // by path; guarded by mu
	sites  map[string]http.Handler // by host name; guarded by mu
	wg     sync.WaitGroup
	close  []func()
}

var current *Internet

// Main runs a package's tests with run on an Internet; a TestMain passes its
// result to [os.Exit].
func Main(m *testing.M, run func(*testing.M) int) int {
	n, code, err := Enter()
	if err != nil {
		fmt.Fprintln(os.Stderr, "internet:", err)
		return 1
	}
	if n == nil {
		return code
	}
	defer n.Close()
	current = n
	return run(m)
}

// Here returns the Internet of a package whose TestMain is [Main].
func Here(t testing.TB) *Internet {
	t.Helper()
	if current == nil {
		t.Fatal("the package's TestMain does not run internet.Main")
	}
	return current
}

// Args are what a daemon is started with to be part of it.
func (n *Internet) Args() []string {
	return []string{"--resolvers", netip.AddrPortFrom(Resolver, 53).String(), "--extra-ca", n.CA}
}

// Enter runs this program again beside an Internet and returns its exit code, or
// in there the Internet.
func Enter() (*Internet, int, error) {
	if os.Getenv(marker) != "" {
		n, err := start()
		return n, 0, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), marker+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_NET_BIND_SERVICE}
	}
	runtime.LockOSThread() // the child ends with this thread
	defer runtime.UnlockOSThread()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(stop)
	if err := cmd.Start(); err != nil {
		return nil, 1, fmt.Errorf("make a network namespace: %w", err)
	}
	done := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-stop:
				_ = cmd.Process.Signal(s)
			case <-done:
				return
			}
		}
	}()
	err := cmd.Wait()
	close(done)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, max(1, exit.ExitCode()), nil
	}
	return nil, 0, err
}

// start makes the Internet. This process is in the host's namespace.
func start() (*Internet, error) {
	dir, err := os.MkdirTemp("", "cove-internet-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // for daemons of other users
		return nil, err
	}
	n := &Internet{CA: filepath.Join(dir, "ca.pem"), dir: dir, do: make(chan func()), visits: map[string]int{}, asked: map[string]Request{}, sites: map[string]http.Handler{}}
	if n.ca, err = newAuthority(n.CA); err != nil {
		return nil, err
	}
	n.dns.names = standardNames()
	err = errors.Join(allowPings(), setUp("lo"))
	if err == nil {
		err = n.makeNamespace()
	}
	if err == nil {
		err = connectHost()
	}
	if err == nil {
		err = n.serve()
	}
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Close ends all servers.
func (n *Internet) Close() {
	for _, f := range n.close {
		f()
	}
	n.wg.Wait()
	os.RemoveAll(n.dir)
}

// allowPings lets every user send echo requests without rights, as most
// distributions do.
func allowPings() error {
	const file = "/proc/sys/net/ipv4/ping_group_range"
	if os.WriteFile(file, []byte("0 2147483647"), 0) == nil {
		return nil
	}
	gid := strconv.Itoa(os.Getegid()) // an ordinary user knows no other group
	return os.WriteFile(file, []byte(gid+" "+gid), 0)
}

// makeNamespace makes the Internet's own namespace, on a thread that stays in it.
func (n *Internet) makeNamespace() error {
	host, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer host.Close()
	made := make(chan error)
	var stay func()
	stay = func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if unix.Gettid() == os.Getpid() { // the first thread shows as the process
			wait := make(chan struct{})
			go func() { defer close(wait); stay() }()
			<-wait
			return
		}
		made <- prepare(host)
		for f := range n.do {
			f()
		}
	}
	go stay()
	return <-made
}

// prepare makes a namespace for this thread, with all addresses and a link to
// the host's.
func prepare(host *os.File) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make the Internet's namespace: %w", err)
	}
	if err := setUp("lo"); err != nil {
		return err
	}
	for _, a := range append(append([]netip.Addr{Resolver}, Public...), Private...) {
		if err := addAddr("lo", a, 32); err != nil {
			return err
		}
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "host"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(host.Fd())}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("link the host: %w", err)
	}
	return errors.Join(addAddr("host", Router, 24), setUp("host"))
}

// connectHost gives the host its address and its route.
func connectHost() error {
	if err := errors.Join(addAddr("eth0", Host, 24), setUp("eth0")); err != nil {
		return err
	}
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: Router.AsSlice()})
}

func setUp(link string) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	return netlink.LinkSetUp(l)
}

func addAddr(link string, a netip.Addr, bits int) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("find link %s: %w", link, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}}
	if err := netlink.AddrAdd(l, addr); err != nil {
		return fmt.Errorf("add address %s to %s: %w", a, link, err)
	}
	return nil
}

// Listen opens a TCP port of the Internet. Connections to it are counted.
func (n *Internet) Listen(address string) (net.Listener, error) {
	var l net.Listener
	var err error
	n.within(func() { l, err = net.Listen("tcp", address) })
	if err != nil {
		return nil, err
	}
	return &counted{l, n}, nil
}

// ListenPacket opens a UDP port of the Internet.
func (n *Internet) ListenPacket(address string) (net.PacketConn, error) {
	var pc net.PacketConn
	var err error
	n.within(func() { pc, err = net.ListenPacket("udp", address) })
	return pc, err
}

// Dial connects from the Internet, as a stranger does.
func (n *Internet) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	n.within(func() { c, err = new(net.Dialer).DialContext(ctx, network, address) })
	return c, err
}

// within runs f in the Internet's namespace.
func (n *Internet) within(f func()) {
	done := make(chan struct{})
	n.do <- func() { f(); close(done) }
	<-done
}

// counted is a listener whose connections are counted.
type counted struct {
	net.Listener
	n *Internet
}

// Accept implements [net.Listener].
func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.visit("tcp " + c.LocalAddr().String())
	}
	return c, err
}

func (n *Internet) visit(where string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.visits[where]++
}

// Visits returns how many connections, or datagrams, have reached a place, such
// as "tcp 198.51.100.10:443".
func (n *Internet) Visits(where string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.visits[where]
}
