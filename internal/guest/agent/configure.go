package agent

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// settings are what Configure sets. A value in use is never changed: Configure replaces
// it.
type settings struct {
	hostname string
	env      map[string]string
	user     string
	workdir  string
	// fork is the environment of a fork, which says which child it is; env overrides it.
	fork map[string]string
	// trust is the environment that names the files of certificate authorities; env
	// overrides it.
	trust map[string]string
}

// current returns the settings; the caller must not change the map in them.
func (a *Agent) current() settings {
	a.mu.RLock()
	defer a.mu.RUnlock()
	s := a.settings
	s.workdir = cmp.Or(s.workdir, "/")
	return s
}

// Configure implements [agentv1connect.AgentHandler]. An invalid request changes
// nothing.
func (a *Agent) Configure(_ context.Context, req *connect.Request[agentv1.ConfigureRequest]) (*connect.Response[agentv1.ConfigureResponse], error) {
	m := req.Msg
	if err := a.checkConfigure(m); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.settings
	next.env = maps.Clone(next.env)
	if m.GetReplaceEnv() || next.env == nil {
		next.env = map[string]string{}
	}
	maps.Copy(next.env, m.GetEnv())
	if err := checkEnv(next.env); err != nil {
		return nil, err
	}
	if m.User != nil {
		next.user = m.GetUser()
	}
	if m.Workdir != nil {
		next.workdir = m.GetWorkdir()
	}
	if m.Hostname != nil {
		next.hostname = m.GetHostname()
	}
	if f := m.GetFork(); f != nil {
		next.fork = forkEnv(f)
	}
	if env := a.joinNetwork(m); env != nil {
		next.trust = env
	}
	a.settings = next
	a.renewIdentity(m)
	if m.GetFresh() || m.GetFork() != nil {
		a.code.reseed()
	}
	if m.GetFresh() {
		a.code.renew()
	}
	unenforced := a.applyLimits(m)
	return connect.NewResponse(&agentv1.ConfigureResponse{Unenforced: unenforced}), nil
}

// validHostname accepts names that both Linux and the programs that read them accept.
func validHostname(name string) bool {
	for i, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case (c == '-' || c == '.') && i > 0 && i < len(name)-1:
		default:
			return false
		}
	}
	return name != "" && len(name) <= 64
}

func (a *Agent) checkConfigure(m *agentv1.ConfigureRequest) error {
	if m.Hostname != nil && !validHostname(m.GetHostname()) {
		return invalid("the host name %q is not valid; use at most 64 letters, digits, dots and dashes", m.GetHostname())
	}
	if err := checkEnv(m.GetEnv()); err != nil {
		return err
	}
	if m.GetUser() != "" {
		if _, err := a.users.lookup(m.GetUser()); err != nil {
			return err
		}
	}
	if m.GetWorkdir() != "" {
		if p, err := resolvePath("/", m.GetWorkdir()); err != nil {
			return err
		} else if p != m.GetWorkdir() {
			return invalid("the working directory %q is not an absolute, clean path; use %q", m.GetWorkdir(), p)
		}
	}
	if m.GetMemoryLimit() < 0 || m.GetMaxPids() < 0 {
		return invalid("limits cannot be negative; use 0 for no limit")
	}
	if m.Nameserver != nil {
		if _, err := netip.ParseAddr(m.GetNameserver()); err != nil {
			return invalid("the name server %q is not an address", m.GetNameserver())
		}
	}
	if len(m.GetAuthority()) > maxBundle {
		return invalid("the authority is larger than %d bytes", maxBundle)
	}
	return nil
}

func checkEnv(env map[string]string) error {
	size := 0
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return invalid("the environment variable name %q is not valid; it must not be empty or hold '=' or NUL", k)
		}
		if strings.IndexByte(v, 0) >= 0 {
			return invalid("the value of the environment variable %s holds a NUL byte; remove it", k)
		}
		size += len(k) + len(v) + 2
	}
	if size > sandbox.MaxCommandBytes {
		return invalid("the environment is larger than %d bytes; pass large data in a file", sandbox.MaxCommandBytes)
	}
	return nil
}

const notInit = "the agent is not the first process of a sandbox"

// applyLimits sets host name and limits, and returns which it could not set, and why.
//
// Preconditions: a.mu is held.
func (a *Agent) applyLimits(m *agentv1.ConfigureRequest) (unenforced []string) {
	report := func(what, why string) {
		if why != "" {
			unenforced = append(unenforced, what+": "+why)
		}
	}
	if m.Hostname != nil {
		report("host name", a.setHostname(m.GetHostname()))
	}
	switch {
	case m.MemoryLimit != nil && a.guard != nil:
		a.guard.setLimit(m.GetMemoryLimit())
	case m.GetMemoryLimit() > 0:
		report("memory limit", notInit)
	}
	if m.MaxPids != nil {
		report("process limit", a.setMaxPIDs(m.GetMaxPids()))
	}
	return unenforced
}

// setMaxPIDs returns why it could not limit processes, or "".
//
// Preconditions: a.mu is held.
func (a *Agent) setMaxPIDs(limit int64) string {
	if a.pids == nil && limit == 0 {
		return ""
	}
	if !a.cfg.Init {
		return notInit
	}
	if a.pids == nil {
		l, err := newPIDLimiter("/sys/fs/cgroup", "/proc/self/cgroup")
		if err != nil {
			return err.Error()
		}
		a.pids = l
	}
	if err := a.pids.setMax(limit); err != nil {
		return err.Error()
	}
	a.bombs.setLimit(limit)
	return ""
}

// setHostname returns why it could not set the host name, or "".
//
// Preconditions: a.mu is held.
func (a *Agent) setHostname(name string) string {
	if !a.cfg.Init {
		return notInit
	}
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err.Error()
	}
	// A fork's /etc/hosts has the name of its parent, which is another machine.
	if err := addHost("/etc/hosts", name, a.hosted); err != nil {
		a.log.Debug("add host name to /etc/hosts", "error", err)
		return ""
	}
	a.hosted = name
	return ""
}

// addHost makes name resolve to this machine in the hosts file at path. It replaces
// before, the name that it has added earlier, if any.
func addHost(path, name, before string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	old, err := readRegular(f, 1<<20)
	if err != nil {
		return err
	}
	now := hostsWith(old, name, before)
	if bytes.Equal(now, old) {
		return nil
	}
	if _, err := f.WriteAt(now, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(now)))
}

// hostsWith returns the content of a hosts file with name, and without the line that
// was added for before.
func hostsWith(old []byte, name, before string) []byte {
	var out []byte
	found := false
	for line := range bytes.Lines(old) {
		text, _, _ := bytes.Cut(line, []byte("#"))
		fields := strings.Fields(string(text))
		if before != "" && before != name && strings.TrimRight(string(line), "\n") == hostLine(before) {
			continue
		}
		found = found || len(fields) > 1 && slices.Contains(fields[1:], name)
		out = append(out, line...)
	}
	if len(old) == 0 {
		out = []byte("127.0.0.1 localhost\n::1 localhost\n")
	}
	if found {
		return out
	}
	return append(endLine(out), hostLine(name)+"\n"...)
}

func hostLine(name string) string { return "127.0.1.1 " + name }
