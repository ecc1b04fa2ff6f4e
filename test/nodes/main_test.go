// Package nodes tests one server and its nodes, all on one machine, each with a state
// directory of its own.
package nodes

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { os.Exit(internet.Main(m, covetest.Main)) }

// lease is that of the server in these tests.
const lease = 30 * time.Second

// server is a server that runs sandboxes on nodes only.
type server struct {
	*covetest.Daemon
	uid   uint32
	args  []string
	nodes map[string]*node
}

// node is a machine that runs sandboxes. Its link to the server can be cut.
type node struct {
	*covetest.Daemon // for what is on its disk; it is not started
	name             string
	server           string // to which it connects
	link             *link
	cmd              *exec.Cmd
	output           *output
	before           int // how much output there was when the process was started
	exited           chan struct{}
}

// oneUser runs a test with a server and two nodes of the ordinary user; "make soak" also
// runs it as root.
func oneUser(t *testing.T, test func(t *testing.T, s *server, a, b *node)) {
	t.Helper()
	run(t, needs.Soak(), test)
}

func run(t *testing.T, both bool, test func(t *testing.T, s *server, a, b *node)) {
	t.Helper()
	needs.GVisor(t)
	covetest.ForUsers(t, both, func(t *testing.T, uid uint32) {
		address := free(t)
		s := begin(t, uid, address, nil)
		test(t, s, s.join(t, "a", address), s.join(t, "b", address))
	})
}

// begin starts a server that runs sandboxes on nodes only.
func begin(t *testing.T, uid uint32, address string, env []string, more ...string) *server {
	t.Helper()
	args := slices.Concat([]string{"--nodes", address, "--nodes-only", "--node-lease", lease.String(), "--warm", "1"}, internet.Here(t).Args(), more)
	s := &server{Daemon: covetest.Start(t, covetest.Options{UID: uid, Args: args, Env: env}), uid: uid, args: internet.Here(t).Args(), nodes: map[string]*node{}}
	t.Cleanup(func() { s.end(t) }) // before the server's own end
	return s
}

// free returns an address on which nobody listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// join starts a node with a new token, and more arguments.
func (s *server) join(t *testing.T, name, address string, more ...string) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "cove-node-")
	if err == nil && s.uid != 0 {
		err = os.Chown(dir, int(s.uid), int(s.uid))
	}
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Daemon: &covetest.Daemon{Binary: s.Binary, StateDir: dir}, name: name, link: newLink(t, address), output: new(output)}
	n.server = n.link.address
	if strings.Contains(address, ",") {
		n.server = address // of several servers
	}
	s.nodes[name] = n
	token, err := s.Client.CreateJoinToken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.start(t, n, append(more, "--token", token.Token, "--name", name)...)
	s.waitState(t, n, sandbox.NodeReady)
	return n
}

// start starts a node's process. [server.waitState] waits until it is ready.
func (s *server) start(t *testing.T, n *node, args ...string) {
	t.Helper()
	n.cmd = s.Command(context.WithoutCancel(t.Context()), append([]string{"node", "run", "--state-dir", n.StateDir, "--server", n.server}, args...)...)
	n.cmd.Env = append(n.cmd.Env, "HOME="+n.StateDir, "COVE_RESOLVERS="+s.args[1], "COVE_EXTRA_CA="+s.args[3])
	n.cmd.Stdout, n.cmd.Stderr = n.output, n.output
	n.before = len(n.output.String())
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	n.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(n.cmd, n.exited)
}

// kill ends a node's process with SIGKILL. Its sandboxes live on.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	<-n.exited
}

// waitState waits until the server says that a node is in a state. If the state is ready,
// the node must have said so too since it was started: the server notices late that the
// process before it is gone.
func (s *server) waitState(t *testing.T, n *node, want sandbox.NodeState) {
	t.Helper()
	var got sandbox.Node
	ok := covetest.Eventually(time.Minute, func() bool {
		got = s.node(t, n.name)
		said := want != sandbox.NodeReady || strings.Contains(n.output.String()[n.before:], "node "+n.name+" is ready: the server at ")
		return got.State == want && said
	})
	if !ok {
		t.Fatalf("node %+v, want %s; it says:\n%s", got, want, n.output)
	}
}

func (s *server) node(t *testing.T, name string) sandbox.Node {
	t.Helper()
	list, err := s.Client.ListNodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range list.Items {
		if n.Name == name {
			return n
		}
	}
	return sandbox.Node{}
}

// nodeOf returns the node that a sandbox is on.
func (s *server) nodeOf(t *testing.T, id string) *node {
	t.Helper()
	sb, err := s.Client.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if s.nodes[sb.Node] == nil {
		t.Fatalf("sandbox %s is on node %q", id, sb.Node)
	}
	return s.nodes[sb.Node]
}

// onEach creates one sandbox on each node. The server may place some on the same node, since
// nodes report their free memory at different moments; these are killed.
func (s *server) onEach(t *testing.T) map[*node]*sandbox.Sandbox {
	t.Helper()
	found := map[*node]*sandbox.Sandbox{}
	var more []string
	for range 4 {
		sb := s.Create(t, covetest.Small())
		on := s.nodeOf(t, sb.ID)
		if found[on] != nil {
			more = append(more, sb.ID)
			continue
		}
		found[on] = sb
		if len(found) == len(s.nodes) {
			break
		}
	}
	if len(found) < len(s.nodes) {
		t.Fatal("four sandboxes were not spread over both nodes")
	}
	for _, id := range more {
		if _, err := s.Client.Kill(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	for n := range found {
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { return s.node(t, n.name).Sandboxes == 1 }) {
			t.Fatalf("node %s has %d sandboxes", n.name, s.node(t, n.name).Sandboxes)
		}
	}
	return found
}

// end ends all sandboxes and all nodes, and removes what they have.
func (s *server) end(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for _, n := range s.nodes {
		n.link.restore()
	}
	if err := s.KillAll(ctx); err != nil {
		t.Error(err)
	}
	for _, n := range s.nodes {
		n.link.close()
		_ = n.cmd.Process.Signal(syscall.SIGTERM)
		<-n.exited
		for id, pid := range n.Cells() {
			t.Logf("sandbox %s is left on node %s", id, n.name)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if !covetest.Eventually(time.Minute, func() bool { return len(n.Cells()) == 0 && os.RemoveAll(n.StateDir) == nil }) {
			t.Errorf("something is left below %s", n.StateDir)
		}
		if t.Failed() {
			t.Logf("node %s said:\n%s", n.name, n.output)
		}
	}
}

// link passes on the bytes between a node and the server until it is cut.
type link struct {
	address  string
	listener net.Listener

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
	wake  chan struct{} // closed when the link is whole again
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{address: l.Addr().String(), listener: l, wake: make(chan struct{})}
	close(k.wake)
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			network := "tcp"
			if filepath.IsAbs(to) {
				network = "unix"
			}
			far, err := net.Dial(network, to)
			if err != nil {
				near.Close()
				continue
			}
			k.mu.Lock()
			k.conns = append(k.conns, near, far)
			k.mu.Unlock()
			go k.pass(near, far)
			go k.pass(far, near)
		}
	}()
	return k
}

func (k *link) close() {
	k.listener.Close()
	k.restore()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.conns {
		c.Close()
	}
}

// pass copies bytes, and holds them while the link is cut.
func (k *link) pass(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		k.mu.Lock()
		wake := k.wake
		k.mu.Unlock()
		<-wake
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// stop passes on nothing any more; neither end is told.
func (k *link) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.cut {
		k.cut, k.wake = true, make(chan struct{})
	}
}

func (k *link) restore() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cut {
		k.cut = false
		close(k.wake)
	}
}

// output keeps what a node writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// contains searches the files below a directory, but not programs and templates.
func contains(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() && slices.Contains([]string{"rootfs", "bin", "agent"}, d.Name()) {
			return filepath.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return nil // it has just been removed
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(text)) {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
