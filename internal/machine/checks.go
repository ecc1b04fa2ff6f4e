package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

const delegate = "run cove as root, or with systemd-run --user --scope -p Delegate=yes"

// read returns the trimmed content of a file in /proc, or "" if it does not exist.
func (p probe) read(name string) string {
	b, err := os.ReadFile(filepath.Join(p.proc, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// statusField returns a field of this process's status.
func (p probe) statusField(name string) string {
	for line := range strings.Lines(p.read("self/status")) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

var release = lazyregexp.New(`^(\d+)\.(\d+)`)

func (p probe) kernel() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "kernel", Status: sandbox.CheckOK}
	v := p.read("sys/kernel/osrelease")
	c.Detail = "Linux " + v + " on " + runtime.GOARCH
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		c.Status, c.Fix = sandbox.CheckFail, "gVisor runs on amd64 and arm64 only"
		return c
	}
	m := release.FindStringSubmatch(v)
	if m == nil {
		c.Status, c.Detail = sandbox.CheckWarn, "the kernel version cannot be read"
		return c
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major < 5 || major == 5 && minor < 4 {
		c.Status, c.Fix = sandbox.CheckWarn, "use Linux 5.4 or later; older versions are not tested"
	}
	return c
}

func (p probe) user() sandbox.MachineCheck {
	if p.root {
		return sandbox.MachineCheck{Name: "user", Status: sandbox.CheckOK, Detail: "root"}
	}
	return sandbox.MachineCheck{Name: "user", Status: sandbox.CheckOK, Detail: fmt.Sprintf("running as an ordinary user (uid %d): everything runs in user namespaces of that user", os.Geteuid())}
}

// namespaces tries to make the namespaces of a cell.
func (p probe) namespaces() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "namespaces", Status: sandbox.CheckOK, Detail: "user, mount and network namespaces can be created"}
	const sysAdmin = 21
	if caps, err := strconv.ParseUint(p.statusField("CapEff"), 16, 64); p.root && err == nil && caps&(1<<sysAdmin) == 0 {
		return sandbox.MachineCheck{Name: "namespaces", Status: sandbox.CheckFail, Detail: "root lacks the capability SYS_ADMIN, as in an unprivileged container",
			Fix: "run cove as an ordinary user, or give the container CAP_SYS_ADMIN"}
	}
	err := UserNamespaces()
	if err == nil {
		return c
	}
	c.Status, c.Detail = sandbox.CheckFail, cause(err)
	switch {
	case p.read("sys/kernel/unprivileged_userns_clone") == "0":
		c.Fix = "sysctl -w kernel.unprivileged_userns_clone=1"
	case p.read("sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
		c.Fix = "AppArmor restricts user namespaces: give cove a profile with 'userns,', or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case p.read("sys/user/max_user_namespaces") == "0":
		c.Fix = "sysctl -w user.max_user_namespaces=15000"
	case p.statusField("Seccomp") == "2":
		c.Fix = "a seccomp filter forbids it, as in a container: start the container with --security-opt seccomp=unconfined"
	default:
		c.Fix = "run cove as root"
	}
	return c
}

// sandboxUsers tries to give gVisor's processes separate user ids on the host.
func (p probe) sandboxUsers() sandbox.MachineCheck {
	const first, count = 0x00080000, 1 << 16 // any ids will do
	c := sandbox.MachineCheck{Name: "sandbox users", Status: sandbox.CheckOK, Detail: "gVisor's processes run as host users that own nothing"}
	if !p.root {
		c.Detail = "gVisor's processes run as this user, in a user namespace of their own"
		return c
	}
	ns, err := NewUserNamespace(first, count)
	if err == nil {
		defer ns.Close()
		for _, dir := range []string{nearest(p.stateDir), "/usr"} {
			var fd int
			if fd, err = CloneMapped(dir, ns); err != nil {
				break
			}
			unix.Close(fd)
		}
	}
	if err != nil {
		c.Status, c.Detail = sandbox.CheckWarn, "gVisor's processes run as root on the host: "+err.Error()
		c.Fix = "use Linux 5.12 or later and a file system that can map owners, such as ext4, XFS or btrfs, for the state directory; otherwise run cove as an ordinary user"
	}
	return c
}

// procMount checks whether /proc can be mounted in a new namespace: the kernel denies
// this to users who would then see more than before. Cells then use what is there.
func (p probe) procMount() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "proc", Status: sandbox.CheckOK, Detail: "/proc is fully visible"}
	var covered []string
	for line := range strings.Lines(p.read("self/mountinfo")) {
		f := strings.Fields(line)
		if len(f) > 4 && strings.HasPrefix(f[4], "/proc/") && f[4] != "/proc/sys/fs/binfmt_misc" {
			covered = append(covered, f[4])
		}
	}
	if len(covered) == 0 {
		return c
	}
	c.Detail = "parts of /proc are hidden (" + covered[0] + "), as in a container"
	if p.root {
		return c
	}
	const otherwise = "start the container with --security-opt systempaths=unconfined, or run cove as root"
	switch {
	case !p.foreignProc:
		c.Status, c.Fix = sandbox.CheckFail, "in this case an ordinary user cannot mount a /proc: use a program built with 'make build', "+otherwise
	case !p.findsProcesses():
		c.Status, c.Detail = sandbox.CheckFail, c.Detail+", and a process cannot find its children in it"
		c.Fix = "allow pidfd_open in the container's seccomp profile, and use a kernel with CONFIG_PROC_CHILDREN; otherwise " + otherwise
	default:
		c.Detail += ": the supervisors of sandboxes use this /proc, with all processes of the container; code in sandboxes does not see it"
	}
	return c
}

// findsProcesses reports whether a process finds others in a /proc that has other ids for
// them; see package procfs.
func (p probe) findsProcesses() bool {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	lists, err := filepath.Glob(filepath.Join(p.proc, "self/task/*/children"))
	return err == nil && len(lists) > 0
}

func (p probe) platform() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "platform", Status: sandbox.CheckOK, Detail: "gVisor's systrap, which needs no virtualization"}
	fd, err := unix.Open("/dev/kvm", unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		unix.Close(fd)
		c.Detail += "; /dev/kvm is present but not used"
	case errors.Is(err, unix.ENOENT):
	default:
		c.Detail += "; /dev/kvm cannot be opened, and is not needed"
	}
	return c
}

func (p probe) seccomp() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "seccomp", Status: sandbox.CheckOK, Detail: "filters can be used"}
	if actions := p.read("sys/kernel/seccomp/actions_avail"); !strings.Contains(actions, "trap") {
		return sandbox.MachineCheck{Name: "seccomp", Status: sandbox.CheckFail, Detail: "the kernel does not support seccomp filters", Fix: "use a kernel with CONFIG_SECCOMP_FILTER"}
	}
	if p.statusField("Seccomp") == "2" {
		c.Detail += "; cove itself runs under a filter, as in a container"
	}
	return c
}

func (p probe) ptrace() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "ptrace", Status: sandbox.CheckOK, Detail: "processes can trace their children"}
	switch scope := p.read("sys/kernel/yama/ptrace_scope"); {
	case scope == "3", scope == "2" && !p.root:
		c.Status, c.Detail, c.Fix = sandbox.CheckFail, "kernel.yama.ptrace_scope is "+scope+": gVisor cannot trace its own processes", "sysctl -w kernel.yama.ptrace_scope=1"
		if scope == "3" {
			c.Fix = "remove the setting kernel.yama.ptrace_scope=3 and reboot"
		}
	}
	return c
}

// network looks for the kernel driver of the link between a sandbox and its cell.
func (p probe) network() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "network", Status: sandbox.CheckOK, Detail: "each sandbox has a virtual Ethernet link (veth) to its own gateway; /dev/net/tun is not needed"}
	if _, err := os.Stat("/sys/module/veth"); err == nil {
		return c
	}
	dir := filepath.Join("/lib/modules", p.read("sys/kernel/osrelease"))
	for _, index := range []string{"modules.builtin", "modules.dep"} {
		if b, err := os.ReadFile(filepath.Join(dir, index)); err == nil && strings.Contains(string(b), "/veth.ko") {
			return c
		}
	}
	if strings.Contains(p.kconfig(), "CONFIG_VETH=") {
		return c
	}
	c.Status, c.Detail = sandbox.CheckWarn, "cannot determine whether the kernel has the veth driver, which the link of each sandbox needs"
	c.Fix = "if creating a sandbox fails, load it ('modprobe veth') or use a kernel with CONFIG_VETH"
	return c
}

func (p probe) cgroup() sandbox.MachineCheck {
	s := p.cgroups
	c := sandbox.MachineCheck{Name: "cgroups", Status: sandbox.CheckOK}
	var have []string
	for _, x := range []struct {
		name string
		ok   bool
	}{{"memory", s.Memory}, {"cpu", s.CPU}, {"pids", s.PIDs}} {
		if x.ok {
			have = append(have, x.name)
		}
	}
	c.Detail = "cgroup " + s.Version + ", writable controllers: " + strings.Join(have, ", ")
	if len(have) == 0 {
		c.Detail = "cgroup " + s.Version + ", no usable controllers"
	}
	if len(have) < 3 {
		c.Status, c.Detail = sandbox.CheckWarn, c.Detail+" ("+strings.Join(s.Missing, "; ")+")"
		c.Fix = delegate + "; for cpu as a user, also: systemctl edit user@.service with [Service] Delegate=cpu memory pids"
	}
	return c
}

func (p probe) processors() sandbox.MachineCheck {
	var set unix.CPUSet
	n := runtime.NumCPU()
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		n = set.Count()
	}
	c := sandbox.MachineCheck{Name: "processors", Status: sandbox.CheckOK, Detail: strconv.Itoa(n)}
	if n < 2 {
		c.Status, c.Fix = sandbox.CheckWarn, "sandboxes start and respond slowly on one processor; use at least two"
	}
	return c
}

// memory reports how much memory sandboxes may use, given the machine's memory and the
// limits of cgroups.
func (p probe) memory() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "memory", Status: sandbox.CheckOK}
	var found []string
	for i, m := range p.bounds {
		text := fmt.Sprintf("%s and keeps %d free", m, m.Floor()>>20)
		if i > 0 {
			text += " (" + m.Group + ")"
		}
		found = append(found, text)
	}
	if len(found) == 0 {
		return sandbox.MachineCheck{Name: "memory", Status: sandbox.CheckWarn, Detail: "the kernel does not report available memory, so sandboxes start whether or not there is enough", Fix: "mount /proc"}
	}
	c.Detail = strings.Join(found, "; ")
	for _, m := range p.bounds {
		if m.Room() < 256<<20 {
			c.Status, c.Fix = sandbox.CheckWarn, "free memory or raise the limit: a sandbox needs what its programs use plus about 50 MiB"
		}
	}
	return c
}

// quotas reports the default quota of a team.
func (p probe) quotas() sandbox.MachineCheck {
	vcpus, memory := DefaultQuota(p.capacity)
	return sandbox.MachineCheck{Name: "quotas", Status: sandbox.CheckOK, Detail: fmt.Sprintf(
		"limits per sandbox: %d vCPUs, %d MiB of memory and %d MiB of disk; limits per team: %d vCPUs and %d MiB of memory, unless quotas.vcpus and quotas.memory_mib set others",
		p.capacity.VCPUs, p.capacity.MemoryMiB, p.capacity.DiskMiB, vcpus, memory)}
}

func (p probe) swap() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "swap", Status: sandbox.CheckOK}
	switch total, err := meminfo(p.read("meminfo"), "SwapTotal"); {
	case err != nil || total == 0:
		c.Detail = "none"
	case p.cgroups.Swap:
		c.Detail = fmt.Sprintf("%d MiB, counted towards the memory limit", total>>20)
	default:
		c.Status = sandbox.CheckWarn
		c.Detail = fmt.Sprintf("%d MiB, not counted towards the memory limit: a sandbox over its limit may swap", total>>20)
		c.Fix = "boot with swapaccount=1, or turn off swap"
	}
	return c
}

func (p probe) files() sandbox.MachineCheck {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return sandbox.MachineCheck{Name: "open files", Status: sandbox.CheckWarn, Detail: cause(err)}
	}
	c := sandbox.MachineCheck{Name: "open files", Status: sandbox.CheckOK, Detail: fmt.Sprintf("at most %d per process", l.Max)}
	if l.Max < 16384 {
		c.Status, c.Fix = sandbox.CheckWarn, "raise the limit: ulimit -Hn 65536"
	}
	return c
}

func (p probe) subordinateIDs() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "subordinate ids", Status: sandbox.CheckOK}
	if p.root {
		c.Detail = "not needed when running as root"
		return c
	}
	if err := SubordinateIDs(); err != nil {
		c.Status, c.Detail = sandbox.CheckWarn, cause(err)+"; needed only to build Debian templates as an ordinary user without fakechroot"
		c.Fix = "apt install uidmap, then as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER"
		return c
	}
	c.Detail = "available"
	return c
}

func (p probe) debian() sandbox.MachineCheck {
	c := sandbox.MachineCheck{Name: "templates", Status: sandbox.CheckOK, Detail: "the template host is ready, and Debian templates can be built"}
	has := func(prog string) bool { _, err := exec.LookPath(prog); return err == nil }
	switch {
	case !has("mmdebstrap"):
		c.Status, c.Detail, c.Fix = sandbox.CheckWarn, "the template host is ready; Debian templates such as code-interpreter need mmdebstrap", "apt install mmdebstrap"
	case !p.root && SubordinateIDs() != nil && !(has("fakechroot") && has("fakeroot")):
		c.Status, c.Detail = sandbox.CheckWarn, "the template host is ready; Debian templates cannot be built by this user"
		c.Fix = "apt install uidmap fakechroot fakeroot, or see subordinate ids"
	}
	return c
}

// cause returns the text of an error in one line.
func cause(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
