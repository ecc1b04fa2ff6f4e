// Package runsc starts gVisor in this process. It is the only importer of
// gvisor.dev/gvisor/runsc. gVisor's own processes are this same binary, executed again
// (see [IsRole]).
package runsc

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
)

// Config describes one gVisor sandbox with one container.
type Config struct {
	// ID consists of letters, digits and "-".
	ID string
	// StateDir is for gVisor's own records and its control socket; its path
	// must be short (a socket's path has at most 108 bytes).
	StateDir string
	// BundleDir receives the OCI bundle.
	BundleDir string
	// RootDir becomes "/", read-only under an overlay.
	RootDir string
	// WritesDir holds the overlay's writes in one unlinked file.
	WritesDir string
	// WritesBytes limits these writes.
	WritesBytes int64
	// TmpBytes limits each of /tmp and /dev/shm, which are in memory.
	TmpBytes int64
	Hostname string
	Limits   Limits
	// MaxFiles limits the open files of a process.
	MaxFiles uint64
	// Args and Env are those of the first process, which runs as root.
	Args []string
	Env  []string
	// Binds are host directories shown read-only.
	Binds []Bind
	// Mounts are the sandbox's own mounts, above everything else.
	Mounts []Mount
	// NetNS is the path of the network namespace whose links gVisor takes over, with
	// their addresses and routes.
	NetNS string
	// IDMap gives gVisor's processes other users of the host; if nil, they have this
	// process's user. RootDir and all sources must be mounted so that their files have the
	// same owners in the user namespace.
	IDMap *IDMap
	// PanicLog is where gVisor's processes write if they crash.
	PanicLog string
	// FilesDir, if set, was filled by [PrepareFiles]. The sandbox starts with these files
	// above the root. FilesDir may be removed after Create.
	FilesDir string
}

// IDMap maps Count user and group ids, from 0, in gVisor's user namespaces to the host's
// ids from First.
type IDMap struct {
	First, Count uint32
}

// Bind shows the directory Source of the host at Target.
type Bind struct {
	Source string
	Target string
}

// Mount shows the directory Source of the host, which others may change too, at Target.
// If Source is empty, it is a file system in memory of at most Bytes.
type Mount struct {
	Source   string
	Target   string
	Bytes    int64
	ReadOnly bool
}

// Sandbox is a running gVisor with its container. Only Wait, Kill and the methods whose
// documentation says so may be called concurrently.
type Sandbox struct {
	conf *config.Config
	c    *container.Container
	// filestore is the file with all writes above the root.
	filestore   *os.File
	writesBytes int64
	// writesDir is the directory of filestore, which may have been renamed.
	writesDir *os.File
	loading   loading
	freezes   freezes
	// writeTurn is a semaphore of one: what several checkpoints lack is written one after
	// another.
	writeTurn *semaphore.Weighted
	memfd     memfd
	// pages is the file of pages that the restored sandbox still reads, or nil.
	pages atomic.Pointer[os.File]
	// damage is the first error in the pages of the restored checkpoint.
	damage atomic.Pointer[error]
	// hasFiles reports whether the sandbox starts with files of [Config.FilesDir].
	hasFiles bool
}

// SetLog writes the warnings and errors of gVisor's code in this process to w.
func SetLog(w io.Writer) {
	log.SetLevel(log.Warning)
	log.SetTarget(&log.GoogleEmitter{Writer: &log.Writer{Next: w}})
}

// Create makes a sandbox that is ready to start. Its first process inherits this
// process's standard streams.
func Create(cfg Config) (*Sandbox, error) {
	conf, err := newConfig(cfg)
	if err != nil {
		return nil, err
	}
	spec := newSpec(cfg)
	if err := writeBundle(cfg, spec); err != nil {
		return nil, err
	}
	if keepsOwners(cfg.Mounts) {
		if err := keepOwners(cfg.BundleDir); err != nil {
			return nil, err
		}
	}
	var c *container.Container
	err = OnOwnThread(func() (err error) {
		c, err = container.New(conf, container.Args{ID: cfg.ID, Spec: spec, BundleDir: cfg.BundleDir, FSRestoreImagePath: cfg.FilesDir})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create gVisor container: %w", err)
	}
	s := &Sandbox{conf: conf, c: c, writeTurn: semaphore.NewWeighted(1), writesBytes: cfg.WritesBytes, hasFiles: cfg.FilesDir != ""}
	if s.writesDir, err = os.Open(cfg.WritesDir); err != nil {
		return nil, errors.Join(err, c.Destroy())
	}
	if s.filestore, err = openFilestore(c.SandboxPid()); err != nil {
		return nil, errors.Join(err, c.Destroy())
	}
	return s, nil
}

// Start starts the first process. It returns when all files are restored.
func (s *Sandbox) Start() error {
	if err := OnOwnThread(func() error { return s.c.Start(s.conf) }); err != nil {
		return fmt.Errorf("start gVisor container: %w", err)
	}
	if !s.hasFiles {
		return nil
	}
	if err := s.c.WaitFSRestore(); err != nil {
		return fmt.Errorf("restore files: %w", err)
	}
	return nil
}

// Wait waits until the first process or gVisor has exited.
func (s *Sandbox) Wait() (unix.WaitStatus, error) { return s.c.Wait() }

// Damage returns the [ErrPages], [ErrUnwritten] or [ErrUnfetched] for which the sandbox was
// ended, or nil. It may be called at any time.
func (s *Sandbox) Damage() error {
	if err := s.damage.Load(); err != nil {
		return *err
	}
	return nil
}

// damaged ends a sandbox some of whose memory is damaged or missing.
func (s *Sandbox) damaged(err error) {
	if s.damage.CompareAndSwap(nil, &err) {
		_ = s.signal(unix.SIGKILL)
	}
}

// Kill kills gVisor and all programs in it. It does not wait until the processes are
// gone: they end with process 1 of their namespace. gVisor's records stay behind; their
// directory also ends with that namespace.
func (s *Sandbox) Kill() {
	for _, pid := range []int{s.c.SandboxPid(), s.c.GoferPid.Load()} {
		if pid > 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// Stop stops gVisor's kernel, so that programs can neither make system calls nor reach the
// network, until [Sandbox.GoOn]. Both may be called at any time.
func (s *Sandbox) Stop() error { return s.signal(unix.SIGSTOP) }

// GoOn undoes [Sandbox.Stop].
func (s *Sandbox) GoOn() error { return s.signal(unix.SIGCONT) }

func (s *Sandbox) signal(sig unix.Signal) error {
	pid := s.c.SandboxPid()
	if pid <= 0 { // it has ended; to the kernel, this is all processes of a group or a namespace
		return nil
	}
	if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send gVisor's kernel %s: %w", unix.SignalName(sig), err)
	}
	return nil
}

// DiskBytes returns the disk space of the sandbox's writes, or 0 if it is unknown. It
// includes a removed checkpoint from which the sandbox still loads, since only the
// sandbox keeps it on the disk.
func (s *Sandbox) DiskBytes() int64 {
	n := s.writtenBytes()
	if f := s.pages.Load(); f != nil {
		if info, err := f.Stat(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 0 {
				n += st.Blocks * 512
			}
		}
	}
	return n
}

// writtenBytes returns the size on disk of the file of all writes, or 0 if it is unknown.
func (s *Sandbox) writtenBytes() int64 {
	var st unix.Stat_t
	if unix.Fstat(int(s.filestore.Fd()), &st) != nil {
		return 0
	}
	return st.Blocks * 512
}

// PIDs returns the process ids of gVisor's sentry and gofer.
func (s *Sandbox) PIDs() (sentry, gofer int) {
	return s.c.SandboxPid(), s.c.GoferPid.Load()
}

// Probe returns nil if gVisor's kernel answers, whatever the sandbox's processes do. It
// may be called at any time.
func (s *Sandbox) Probe() error {
	if _, err := s.c.Sandbox.ContainerRuntimeState(s.c.ID); err != nil {
		return fmt.Errorf("ask gVisor's kernel: %w", err)
	}
	return nil
}

// newConfig makes gVisor's configuration, starting from its flags' defaults.
func newConfig(cfg Config) (*config.Config, error) {
	fs := flag.NewFlagSet("runsc", flag.ContinueOnError)
	config.RegisterFlags(fs)
	mountAccess := "exclusive"
	if len(cfg.Mounts) > 0 {
		mountAccess = "shared"
	}
	for name, value := range map[string]string{
		"root":     cfg.StateDir,
		"platform": "systrap",
		// gVisor would replace system calls in a program's code with jumps, which are faster
		// than a signal for each. On a busy machine, threads then continue with the vector
		// registers of other threads, and compute wrong results.
		"systrap-disable-syscall-patching": "true",
		"network":                          "sandbox",
		"overlay2":                         "root:dir=" + cfg.WritesDir + ",size=" + strconv.FormatInt(cfg.WritesBytes, 10),
		// The template does not change while it is in use.
		"file-access":        "exclusive",
		"file-access-mounts": mountAccess,
		// The cell is in its sandbox's cgroup before gVisor starts.
		"ignore-cgroups": "true",
		// In version 1, gVisor charges a fork to one hierarchy at random, so most forks evade
		// the limit of processes.
		"in-sandbox-cgroup": "v2",
		// sudo in the sandbox grants rights inside the sandbox only.
		"allow-suid": "true",
		// A separate namespace costs less than pinning a shared one, which would stay mounted.
		"gofer-network-namespace": "new",
		"host-settings":           "ignore",
		// The caller guarantees that the root is the same. Other differences, such as the sizes
		// of file systems in memory, are allowed.
		"restore-spec-validation": "ignore",
		"panic-log":               cfg.PanicLog,
		"sidecar-usage-policy":    "LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
	} {
		if err := fs.Set(name, value); err != nil {
			return nil, fmt.Errorf("gVisor flag %s=%q: %w", name, value, err)
		}
	}
	conf, err := config.NewFromFlags(fs)
	if err == nil && keepsOwners(cfg.Mounts) {
		// The gofer must open all files. The system calls of gVisor's kernel cannot be
		// intercepted too, since a process can have only one listener for notifications, and
		// the kernel has one for its own children. The gofer then runs as nobody, which is this
		// user.
		conf.DirectFS, conf.Rootless = false, true
	}
	if err != nil {
		return nil, fmt.Errorf("gVisor configuration: %w", err)
	}
	return conf, nil
}

func newSpec(cfg Config) *specs.Spec {
	tmp := strconv.FormatInt(cfg.TmpBytes, 10)
	spec := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args:         cfg.Args,
			Env:          cfg.Env,
			Cwd:          "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities, Inheritable: nil},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: cfg.MaxFiles, Soft: cfg.MaxFiles}},
		},
		Root:     &specs.Root{Path: cfg.RootDir},
		Hostname: cfg.Hostname,
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", "size=" + tmp}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", "size=" + tmp}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: cfg.NetNS},
			},
		},
	}
	if m := cfg.IDMap; m != nil {
		mapping := []specs.LinuxIDMapping{{ContainerID: 0, HostID: m.First, Size: m.Count}}
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = mapping, mapping
	}
	for _, b := range cfg.Binds {
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: b.Target, Type: "bind", Source: b.Source, Options: []string{"rbind", "ro", "nosuid", "nodev"},
		})
	}
	for _, m := range cfg.Mounts {
		spec.Mounts = append(spec.Mounts, m.spec())
	}
	return spec
}

func (m Mount) spec() specs.Mount {
	options := []string{"nosuid", "nodev"}
	if m.ReadOnly {
		options = append(options, "ro")
	}
	if m.Source == "" {
		options = append(options, "mode=1777", "size="+strconv.FormatInt(m.Bytes, 10))
		return specs.Mount{Destination: m.Target, Type: "tmpfs", Source: "tmpfs", Options: options}
	}
	return specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: append(options, "rbind")}
}

func writeBundle(cfg Config, spec *specs.Spec) error {
	if err := os.MkdirAll(cfg.BundleDir, 0o700); err != nil {
		return err
	}
	for name, file := range map[string]struct {
		content any
		mode    os.FileMode
	}{
		"config.json": {spec, 0o600},
		limitsFile:    {cfg.Limits, 0o644}, // gVisor's processes may run as another user
	} {
		data, err := json.Marshal(file.content)
		if err != nil {
			return fmt.Errorf("encode %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(cfg.BundleDir, name), data, file.mode); err != nil {
			return fmt.Errorf("write bundle: %w", err)
		}
	}
	return nil
}

// capabilities are root's inside the sandbox. They apply in gVisor's kernel only, never
// on the host. CAP_NET_RAW is missing, so that packets cannot be forged.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
	"CAP_IPC_LOCK", "CAP_KILL", "CAP_LEASE", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE",
	"CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_CHROOT",
	"CAP_SYS_NICE", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}
