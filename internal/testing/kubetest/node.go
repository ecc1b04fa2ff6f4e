package kubetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

type object = map[string]any

// startNode starts a node. Its files are below a directory of its own.
func (c *Cluster) startNode(ctx context.Context, i int) error {
	name := NodeName(i)
	dir := filepath.Join(c.cfg.Dir, name)
	for _, d := range []string{"containerd", "run", "kubelet/seccomp", "cni", "pods", "log"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	for path, file := range c.cfg.Seccomp {
		data, err := os.ReadFile(file)
		if err == nil {
			path = filepath.Join(dir, "kubelet/seccomp", path)
			err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, 0o644))
		}
		if err != nil {
			return err
		}
	}
	kubeconfig, err := c.pki.kubeconfig(name, "system:node:"+name, "system:nodes")
	if err != nil {
		return err
	}
	if err := c.pki.issue(name+"-server", "system:node:"+name, "system:nodes", []string{name}, nodeAddress(i)); err != nil {
		return err
	}
	cgroup := fmt.Sprintf("/kubetest-%d-%s", os.Getpid(), name)
	m := &machine{Name: name, LogDir: filepath.Join(dir, "log"), Path: c.path(), Binds: [][2]string{{filepath.Join(dir, "kubelet"), kubeletDir}, {filepath.Join(dir, "run"), "/run/containerd"}}, cgroup: cgroup}
	c.machines = append(c.machines, m)
	for _, b := range m.Binds {
		if os.MkdirAll(filepath.Dir(b[1]), 0o755) == nil && os.Mkdir(b[1], 0o755) == nil {
			c.made = append(c.made, b[1])
		}
	}
	if err := makeCgroups(cgroup); err != nil {
		return err
	}
	if err := errors.Join(
		writeJSON(filepath.Join(dir, "cni", "10-bridge.conflist"), c.network(dir, i)),
		os.WriteFile(filepath.Join(dir, "containerd.toml"), c.containerd(dir), 0o600),
		os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte("# no name servers\n"), 0o644),
		writeJSON(filepath.Join(dir, "kubelet.json"), c.kubelet(dir, i, cgroup)),
	); err != nil {
		return err
	}
	socket := filepath.Join(dir, "c.sock")
	m.Programs = []program{{Args: []string{c.program("containerd"), "-c", filepath.Join(dir, "containerd.toml")}}}
	for _, image := range append([]string{c.program("pause.tar")}, c.cfg.Images...) {
		m.Programs = append(m.Programs, program{Ends: true, Args: []string{c.program("ctr"), "-a", socket, "-n", "k8s.io", "images", "import", "--local", image}})
	}
	m.Programs = append(m.Programs,
		program{Args: []string{
			c.program("kubelet"), "--config=" + filepath.Join(dir, "kubelet.json"), "--kubeconfig=" + kubeconfig, "--hostname-override=" + name,
			"--node-ip=" + nodeAddress(i), "--root-dir=" + kubeletDir, "--cert-dir=" + kubeletDir + "/pki",
		}},
		program{Args: []string{
			c.program("kube-proxy"), "--kubeconfig=" + c.pki.file("proxy.kubeconfig"), "--hostname-override=" + name, "--proxy-mode=nftables", "--cluster-cidr=" + pods,
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "--nodeport-addresses=127.0.0.1/32",
		}})
	ready, err := m.start(filepath.Join(c.cfg.Dir, name+".json"))
	if err != nil {
		return err
	}
	if err := c.connect(ctx, m, i); err != nil {
		return err
	}
	return ready()
}

// connect links a node to the others.
func (c *Cluster) connect(ctx context.Context, m *machine, i int) error {
	pid := strconv.Itoa(m.cmd.Process.Pid)
	for _, args := range []string{"link add v" + strconv.Itoa(i) + " type veth peer name eth0 netns " + pid, "link set v" + strconv.Itoa(i) + " master nodes up", "route add " + nodePods(i) + " via " + nodeAddress(i)} {
		if err := c.ip(ctx, c.control, args); err != nil {
			return err
		}
	}
	if i == 1 {
		if err := c.ip(ctx, c.control, "route add "+services+" via "+nodeAddress(i)); err != nil {
			return err
		}
	}
	routes := []string{"link set lo up", "addr add " + nodeAddress(i) + "/24 dev eth0", "link set eth0 up", "route add default via " + ControlAddress}
	for j := range c.cfg.Nodes {
		if j+1 != i {
			routes = append(routes, "route add "+nodePods(j+1)+" via "+nodeAddress(j+1))
		}
	}
	for _, args := range routes {
		if err := c.ip(ctx, m, args); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) network(dir string, i int) object {
	return object{"cniVersion": "1.0.0", "name": "kubetest", "plugins": []object{
		{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": object{
			"type": "host-local", "dataDir": filepath.Join(dir, "ipam"), "ranges": [][]object{{{"subnet": nodePods(i)}}}, "routes": []object{{"dst": "0.0.0.0/0"}},
		}},
		{"type": "portmap", "capabilities": object{"portMappings": true}},
	}}
}

// containerd returns the configuration of containerd. The machine may lack the capability
// to lower scores of the kernel's memory killer.
func (c *Cluster) containerd(dir string) []byte {
	return fmt.Appendf(nil, `version = 3
root = %q
state = %q
[grpc]
  address = %q
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = %q
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [%q]
    conf_dir = %q
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = %q
      SystemdCgroup = false
`, filepath.Join(dir, "containerd"), "/run/containerd", filepath.Join(dir, "c.sock"), pause, c.cfg.Programs, filepath.Join(dir, "cni"), c.program("runc"))
}

func (c *Cluster) kubelet(dir string, i int, cgroup string) object {
	return object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"cgroupDriver": "cgroupfs", "cgroupRoot": cgroup, "failCgroupV1": false, "failSwapOn": false, "cgroupsPerQOS": true,
		"containerRuntimeEndpoint": "unix://" + filepath.Join(dir, "c.sock"),
		"authentication":           object{"anonymous": object{"enabled": false}, "webhook": object{"enabled": true}, "x509": object{"clientCAFile": c.pki.file("ca.crt")}},
		"authorization":            object{"mode": "Webhook"},
		"address":                  nodeAddress(i), "tlsCertFile": c.pki.file(NodeName(i) + "-server.crt"), "tlsPrivateKeyFile": c.pki.file(NodeName(i) + "-server.key"),
		"resolvConf": filepath.Join(dir, "resolv.conf"), "podLogsDir": filepath.Join(dir, "pods"), "volumePluginDir": filepath.Join(dir, "volume-plugins"),
		"healthzBindAddress": "127.0.0.1", "nodeStatusUpdateFrequency": "2s", "syncFrequency": "10s",
		"imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		"evictionHard": object{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%"},
	}
}

// hierarchies returns the directories of cgroups: one of version 2, or those of version 1.
func hierarchies() []string {
	const root = "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return []string{root}
	}
	var all []string
	for _, name := range []string{"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "net_cls", "net_prio", "perf_event", "pids", "rdma", "systemd", "unified"} {
		if _, err := os.Stat(filepath.Join(root, name, "cgroup.procs")); err == nil {
			all = append(all, filepath.Join(root, name))
		}
	}
	return all
}

func makeCgroups(name string) error {
	for _, h := range hierarchies() {
		if err := os.MkdirAll(h+name, 0o755); err != nil {
			return err
		}
		if filepath.Base(h) != "cpuset" {
			continue
		}
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			data, err := os.ReadFile(filepath.Join(h, f))
			if err == nil {
				err = os.WriteFile(filepath.Join(h+name, f), data, 0)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// removeCgroups removes the cgroups of a machine of which no process is left. The kernel
// may need a moment for that.
func removeCgroups(name string) error {
	if name == "" {
		return nil
	}
	var left []string
	for range 100 {
		left = nil
		for _, h := range hierarchies() {
			var dirs []string
			_ = filepath.WalkDir(h+name, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for j := len(dirs) - 1; j >= 0; j-- {
				if err := os.Remove(dirs[j]); err != nil && !errors.Is(err, fs.ErrNotExist) {
					left = append(left, dirs[j])
				}
			}
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(again / 3)
	}
	return fmt.Errorf("cgroups are left: %s", strings.Join(left, " "))
}
