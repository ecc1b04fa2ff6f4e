// Package kubetest runs a real Kubernetes for tests: etcd, the control plane, and nodes with
// kubelet, kube-proxy, containerd, runc and CNI, each machine in namespaces of its own. It
// needs root. [Build] builds the programs from the Go module proxy once.
//
// The cluster has no DNS, and nothing in it enforces NetworkPolicies.
package kubetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/silence"
	"golang.org/x/sys/unix"
)

// Config configures a [Cluster].
type Config struct {
	// Programs is the directory that [Build] has returned.
	Programs string
	// Dir is an empty directory; it must not be in memory, and its path must be short.
	Dir string
	// Nodes is how many nodes there are.
	Nodes int
	// Images are files in the form of docker save or of OCI, imported on each node.
	Images []string
	// Seccomp are profiles that are put onto the nodes, by their path below the kubelet's
	// directory of profiles.
	Seccomp map[string]string
}

// Cluster is a running cluster.
type Cluster struct {
	cfg      Config
	pki      *pki
	admin    string
	control  *machine
	machines []*machine
	netns    *os.File // that of the control plane
	made     []string // directories of the host's that others are mounted over
	helpers  []*exec.Cmd
}

const (
	// ControlAddress is the address of the control plane, which nodes and Pods reach.
	ControlAddress = "10.88.0.1"
	services       = "10.96.0.0/16"
	pods           = "10.200.0.0/16"
	// kubeletDir is where each machine's kubelet has its files.
	kubeletDir = "/var/lib/kubelet"
	pause      = "kubetest.invalid/pause:1"
	// frontProxy is the name of the API server when it passes requests on.
	frontProxy = "front-proxy"
	// readyLimit is how long a cluster may take on a machine that is busy.
	readyLimit = 5 * time.Minute
)

// NodeName returns the name of a node, from 1 on.
func NodeName(i int) string { return fmt.Sprintf("node%d", i) }

func nodeAddress(i int) string { return fmt.Sprintf("10.88.0.%d", 10+i) }

func nodePods(i int) string { return fmt.Sprintf("10.200.%d.0/24", i) }

// Start starts a cluster, and returns when its nodes are ready. The caller closes it.
func Start(ctx context.Context, cfg Config) (c *Cluster, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a cluster needs root, for namespaces, mounts and cgroups")
	}
	c = &Cluster{cfg: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.makePKI(); err != nil {
		return nil, err
	}
	if err := c.startControl(ctx); err != nil {
		return nil, fmt.Errorf("start the control plane: %w", err)
	}
	if err := c.await(ctx, "the API server", func() error { return c.Kubectl(ctx, nil, io.Discard, "get", "--raw", "/readyz") }); err != nil {
		return nil, err
	}
	if err := c.Kubectl(ctx, nil, io.Discard, "create", "clusterrolebinding", "kube-proxy", "--clusterrole=system:node-proxier", "--user=system:kube-proxy"); err != nil {
		return nil, err
	}
	for i := range cfg.Nodes {
		if err := c.startNode(ctx, i+1); err != nil {
			return nil, fmt.Errorf("start node %d: %w", i+1, err)
		}
	}
	return c, c.await(ctx, "the nodes", func() error {
		var out bytes.Buffer
		if err := c.Kubectl(ctx, nil, &out, "get", "nodes,serviceaccounts", "--no-headers", "--show-kind"); err != nil {
			return err
		}
		if strings.Count(out.String(), " Ready ") != cfg.Nodes || !strings.Contains(out.String(), "serviceaccount/default") {
			return fmt.Errorf("nodes and ServiceAccounts are %s", out.String())
		}
		return nil
	})
}

// await repeats what is asked until it succeeds.
func (c *Cluster) await(ctx context.Context, what string, ask func() error) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready: %w", what, err)
		case <-time.After(again):
		}
	}
}

func (c *Cluster) makePKI() (err error) {
	if c.pki, err = newPKI(filepath.Join(c.cfg.Dir, "pki")); err != nil {
		return err
	}
	for _, u := range [][3]string{
		{"admin", "admin", "system:masters"},
		{"manager", "system:kube-controller-manager", ""},
		{"scheduler", "system:kube-scheduler", ""},
		{"proxy", "system:kube-proxy", ""},
	} {
		path, err := c.pki.kubeconfig(u[0], u[1], u[2])
		if err != nil {
			return err
		}
		if u[0] == "admin" {
			c.admin = path
		}
	}
	return errors.Join(
		c.pki.issue("apiserver", "kube-apiserver", "", []string{"kubernetes.default.svc", "localhost"}, ControlAddress, "10.96.0.1", "127.0.0.1"),
		c.pki.issue("apiserver-kubelet", "kube-apiserver-kubelet", "system:masters", nil),
		c.pki.issue("front-proxy", frontProxy, "", nil),
		c.pki.issue("serviceaccounts", "service accounts", "", nil))
}

func (c *Cluster) program(name string) string { return filepath.Join(c.cfg.Programs, name) }

func (c *Cluster) path() string { return c.cfg.Programs + ":/usr/sbin:/usr/bin:/sbin:/bin" }

func (c *Cluster) startControl(ctx context.Context) error {
	dir, f := filepath.Join(c.cfg.Dir, "control"), c.pki.file
	c.control = &machine{
		Name: "control", LogDir: filepath.Join(dir, "log"), Path: c.path(),
		Programs: []program{
			{Args: []string{
				c.program("etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
				"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380",
			}},
			{Args: []string{
				c.program("kube-apiserver"), "--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0", "--secure-port=6443",
				"--advertise-address=" + ControlAddress, "--kubelet-preferred-address-types=InternalIP", "--service-cluster-ip-range=" + services,
				"--authorization-mode=Node,RBAC", "--client-ca-file=" + f("ca.crt"), "--tls-cert-file=" + f("apiserver.crt"), "--tls-private-key-file=" + f("apiserver.key"),
				"--kubelet-client-certificate=" + f("apiserver-kubelet.crt"), "--kubelet-client-key=" + f("apiserver-kubelet.key"), "--kubelet-certificate-authority=" + f("ca.crt"),
				"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + f("serviceaccounts.pub"), "--service-account-signing-key-file=" + f("serviceaccounts.key"),
				"--requestheader-client-ca-file=" + f("ca.crt"), "--requestheader-allowed-names=" + frontProxy, "--requestheader-username-headers=X-Remote-User",
				"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
				"--proxy-client-cert-file=" + f("front-proxy.crt"), "--proxy-client-key-file=" + f("front-proxy.key"), "--enable-aggregator-routing",
				"--enable-admission-plugins=NodeRestriction", "--allow-privileged=false", "--profiling=false",
			}},
			// It gives up if it is started before the API server's own roles exist.
			{Args: []string{c.program("kubectl"), "--kubeconfig", c.admin, "get", "--raw", "/readyz"}, Ends: true},
			{Args: []string{
				c.program("kube-controller-manager"), "--kubeconfig=" + f("manager.kubeconfig"), "--authentication-kubeconfig=" + f("manager.kubeconfig"), "--authorization-kubeconfig=" + f("manager.kubeconfig"),
				"--service-account-private-key-file=" + f("serviceaccounts.key"), "--root-ca-file=" + f("ca.crt"), "--use-service-account-credentials", "--leader-elect=false",
				"--bind-address=127.0.0.1", "--node-monitor-grace-period=8s", "--node-monitor-period=1s", "--horizontal-pod-autoscaler-sync-period=2s",
			}},
			{Args: []string{
				c.program("kube-scheduler"), "--kubeconfig=" + f("scheduler.kubeconfig"), "--authentication-kubeconfig=" + f("scheduler.kubeconfig"), "--authorization-kubeconfig=" + f("scheduler.kubeconfig"),
				"--leader-elect=false", "--bind-address=127.0.0.1",
			}},
		},
	}
	ready, err := c.control.start(filepath.Join(c.cfg.Dir, "control.json"))
	if err != nil {
		return err
	}
	if c.netns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", c.control.cmd.Process.Pid)); err != nil {
		return err
	}
	for _, args := range []string{
		"link set lo up", "link add nodes type bridge", "addr add " + ControlAddress + "/24 dev nodes", "link set nodes up",
	} {
		if err := c.ip(ctx, c.control, args); err != nil {
			return err
		}
	}
	return ready()
}

// ip runs the program ip in the network of a machine.
func (c *Cluster) ip(ctx context.Context, m *machine, args string) error {
	out, err := m.command(ctx, append([]string{"ip"}, strings.Fields(args)...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, out)
	}
	return nil
}

// command returns a command in the network of a machine.
func (m *machine) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", m.cmd.Process.Pid), "--"}, args...)...)
}

// Kubectl runs kubectl as the cluster's administrator.
func (c *Cluster) Kubectl(ctx context.Context, in io.Reader, out io.Writer, args ...string) error {
	cmd := c.KubectlCommand(ctx, args...)
	var errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &errs
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return nil
}

// KubectlCommand returns a command of kubectl's as the cluster's administrator.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	return c.control.command(ctx, append([]string{c.program("kubectl"), "--kubeconfig", c.admin}, args...)...)
}

// Dial makes a connection from the network that the nodes are in, which routes addresses
// of Services to the first node.
func (c *Cluster) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	// With one address and no name, the socket is made by this thread. What was sent to a machine
	// that has died is not waited for.
	d := silence.Dialer(silentFor)
	d.Timeout = silentFor
	return inside(c, func() (net.Conn, error) { return d.DialContext(ctx, network, address) })
}

// silentFor is how long it takes until a connection with a machine that has died, which closes
// none, ends.
const silentFor = 24 * time.Second

// Forward takes connections from Pods at a port of [ControlAddress], and forwards them to
// what dial connects with, until ctx ends.
func (c *Cluster) Forward(ctx context.Context, port int, dial func() (net.Conn, error)) error {
	l, err := inside(c, func() (net.Listener, error) {
		return (&net.ListenConfig{KeepAliveConfig: silence.KeepAlive(silentFor)}).Listen(ctx, "tcp", net.JoinHostPort(ControlAddress, strconv.Itoa(port)))
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go forward(ctx, conn, dial)
		}
	}()
	return nil
}

func forward(ctx context.Context, from net.Conn, dial func() (net.Conn, error)) {
	defer from.Close()
	to, err := dial()
	if err != nil {
		return
	}
	defer to.Close()
	defer context.AfterFunc(ctx, func() { from.Close(); to.Close() })()
	done := make(chan struct{}, 2)
	for _, ends := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(ends[0], ends[1])
			done <- struct{}{}
		}()
	}
	<-done // neither end of what is forwarded closes one direction alone
}

// inside makes a socket in the network that the nodes are in.
func inside[T any](c *Cluster, f func() (T, error)) (T, error) {
	type result struct {
		made T
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked, so that the thread ends
		var r result
		if r.err = unix.Setns(int(c.netns.Fd()), unix.CLONE_NEWNET); r.err == nil {
			r.made, r.err = f()
		}
		done <- r
	}()
	r := <-done
	return r.made, r.err
}

// StopNode ends the machine of a node at once, as a loss of power does, for ever.
// [Cluster.Dial] then goes by another node.
func (c *Cluster) StopNode(ctx context.Context, name string) error {
	left := 0
	for i, m := range c.machines {
		if m.Name == name {
			m.stop()
		} else {
			left = i + 1
		}
	}
	return c.ip(ctx, c.control, "route replace "+services+" via "+nodeAddress(left))
}

// Close ends the cluster, and leaves nothing but the files below Dir.
func (c *Cluster) Close() error {
	c.stopHelpers()
	for _, m := range c.machines {
		m.stop()
	}
	if c.control != nil {
		c.control.stop()
	}
	if c.netns != nil {
		c.netns.Close()
	}
	var errs []error
	for _, m := range c.machines {
		errs = append(errs, removeCgroups(m.cgroup))
	}
	for _, dir := range c.made {
		errs = append(errs, os.Remove(dir))
	}
	return errors.Join(errs...)
}

// Logs returns the ends of the logs of all programs.
func (c *Cluster) Logs() string {
	var out strings.Builder
	files, _ := filepath.Glob(filepath.Join(c.cfg.Dir, "*", "log", "*.log"))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		fmt.Fprintf(&out, "== %s\n%s\n", file, data[max(0, len(data)-2000):])
	}
	return out.String()
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// Command returns a command of the host's that runs in the network that the nodes are in.
func (c *Cluster) Command(ctx context.Context, args ...string) *exec.Cmd {
	return c.control.command(ctx, args...)
}
