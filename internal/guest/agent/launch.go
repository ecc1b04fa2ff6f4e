package agent

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// plan is a checked request to run something.
type plan struct {
	id       string
	argv     []string
	shown    []string // what to list in place of argv; nil: argv
	language string   // of the code; empty for a command
	path     string   // the file to execute; relative to workdir unless absolute
	env      []string
	workdir  string
	user     account
	terminal *agentv1.TerminalSize
	stdin    []byte
	open     bool
	tag      string
	keep     int
	spool    *spool // for output beyond keep; nil: that is lost
	timeout  time.Duration
	scratch  string // directory with files of the process; empty: none
}

// planJob checks a request and completes it with the sandbox's defaults. It uses the
// file system as little as possible: explainStart finds problems there after the start
// has failed.
func (a *Agent) planJob(req *agentv1.ExecRequest) (*plan, error) {
	if err := checkExec(req); err != nil {
		return nil, err
	}
	s := a.current()
	acc, err := a.users.lookupAllowed(cmp.Or(req.GetUser(), s.user))
	if err != nil {
		return nil, err
	}
	workdir := s.workdir
	if req.GetWorkdir() != "" {
		if workdir, err = resolvePath(s.workdir, req.GetWorkdir()); err != nil {
			return nil, err
		}
	}
	env := jobEnv(&acc, s, req)
	p := &plan{
		id:       req.GetJobId(),
		argv:     req.GetArgv(),
		workdir:  workdir,
		user:     acc,
		terminal: req.GetTerminal(),
		stdin:    req.GetStdin(),
		open:     req.GetOpenStdin(),
		tag:      req.GetTag(),
		keep:     int(req.GetKeepBytes()),
		timeout:  time.Duration(req.GetTimeoutMs()) * time.Millisecond,
	}
	if p.keep == 0 {
		p.keep, p.spool = sandbox.DefaultKeepBytes, a.spool.newSpool()
	}
	if req.GetLanguage() != "" {
		if err := a.planJobCode(p, env, req); err != nil {
			return nil, err
		}
	}
	p.env = environ(env)
	if p.path != "" {
		return p, nil
	}
	if req.GetShell() != "" {
		shell, err := findShell()
		if err != nil {
			return nil, err
		}
		p.argv = []string{shell, "-c", req.GetShell()}
	}
	if p.path, err = findProgram(p.argv[0], env["PATH"], workdir); err != nil {
		return nil, err
	}
	return p, nil
}

// environ formats an environment for the kernel.
func environ(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	return list
}

// maxMillis bounds every duration in a request, so that none overflows.
const maxMillis = int64(365 * 24 * time.Hour / time.Millisecond)

func checkMillis(name string, ms int64) error {
	if ms < 0 || ms > maxMillis {
		return invalid("%s is out of range; use 0 to %d milliseconds", name, maxMillis)
	}
	return nil
}

func checkExec(req *agentv1.ExecRequest) error {
	if req.GetLanguage() != "" || req.GetCode() != "" {
		if len(req.GetArgv()) > 0 || req.GetShell() != "" {
			return invalid("give a program with its arguments, a line for the shell, or code in a language: one of them")
		}
		if err := cmp.Or(checkLanguage(req.GetLanguage()), checkCode(req.GetCode())); err != nil {
			return err
		}
	} else if (len(req.GetArgv()) == 0) == (req.GetShell() == "") {
		return invalid("give either a program with its arguments or a line for the shell")
	}
	if len(req.GetArgv()) > 0 && req.GetArgv()[0] == "" {
		return invalid("the program's name is empty; give a name or a path")
	}
	size := len(req.GetShell())
	for _, arg := range append(slices.Clip(req.GetArgv()), req.GetShell()) {
		if strings.IndexByte(arg, 0) >= 0 {
			return invalid("an argument holds a NUL byte; pass binary data on standard input or in a file")
		}
		size += len(arg) + 1
	}
	if size > sandbox.MaxCommandBytes {
		return invalid("the command is longer than %d bytes; pass large data on standard input or in a file", sandbox.MaxCommandBytes)
	}
	err := cmp.Or(
		checkEnv(req.GetEnv()),
		checkKeep(req.GetKeepBytes()),
		checkMillis("timeout_ms", req.GetTimeoutMs()),
		checkMillis("detach_after_ms", req.GetDetachAfterMs()),
		checkTerminal(req.GetTerminal()),
	)
	if err != nil {
		return err
	}
	if len(req.GetTag()) > sandbox.MaxTagBytes {
		return invalid("the tag is longer than %d bytes; give a shorter one", sandbox.MaxTagBytes)
	}
	return checkJobID(req.GetJobId())
}

func checkKeep(keep int64) error {
	if keep < 0 || keep > sandbox.MaxKeepBytes {
		return invalid("keep_bytes is out of range; use 0 to %d", sandbox.MaxKeepBytes)
	}
	return nil
}

func checkTerminal(t *agentv1.TerminalSize) error {
	if t.GetCols() > 65535 || t.GetRows() > 65535 {
		return invalid("a terminal has at most 65535 columns and rows")
	}
	return nil
}

func checkJobID(id string) error {
	if id != "" && !sandbox.ValidJobID(id) {
		return invalid("the job id %.70q is not valid; use at most 64 letters, digits, '-', '_' and '.'", id)
	}
	return nil
}

// jobEnv merges the environment: what every process expects, then the variables of a
// fork and those of trust, the sandbox's own, and the request's.
func jobEnv(acc *account, s settings, req *agentv1.ExecRequest) map[string]string {
	env := make(map[string]string, 8+len(s.env)+len(req.GetEnv()))
	env["PATH"] = defaultPath
	env["HOME"] = acc.home
	env["USER"] = acc.name
	env["LOGNAME"] = acc.name
	env["SHELL"] = acc.shell
	if s.hostname != "" {
		env["HOSTNAME"] = s.hostname
	}
	if req.GetTerminal() != nil {
		env["TERM"] = "xterm-256color"
	}
	maps.Copy(env, s.fork)
	maps.Copy(env, s.trust)
	maps.Copy(env, s.env)
	maps.Copy(env, req.GetEnv())
	return env
}

func findShell() (string, error) {
	if _, shell := findFirst([]string{"/bin/bash", "/bin/sh"}, "", ""); shell != "" {
		return shell, nil
	}
	return "", failFor(sandbox.ReasonProgramNotFound, connect.CodeNotFound, "the sandbox's image has no /bin/bash or /bin/sh; give a program and its arguments instead of a shell line")
}

// executable fails if path cannot be a program.
func executable(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return unix.EACCES
	}
	return nil
}

// findFirst returns the first of names that is an executable program, and its path.
func findFirst(names []string, path, workdir string) (name, file string) {
	for _, name := range names {
		if file, err := findProgram(name, path, workdir); err == nil && executable(file) == nil {
			return name, file
		}
	}
	return "", ""
}

// findProgram searches the PATH of a job, as execvp does.
func findProgram(name, path, workdir string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var found string // present but not executable
	for dir := range strings.SplitSeq(path, ":") {
		if !strings.HasPrefix(dir, "/") {
			dir = filepath.Join(workdir, dir)
		}
		file := dir + "/" + name
		switch err := executable(file); {
		case err == nil:
			return file, nil
		case errors.Is(err, unix.EACCES) && found == "":
			found = file
		}
	}
	if found != "" {
		return "", failFor(sandbox.ReasonProgramNotExecutable, connect.CodePermissionDenied, "%s is not an executable file; make it executable or name its interpreter", found)
	}
	return "", failFor(sandbox.ReasonProgramNotFound, connect.CodeNotFound, "command not found: %s; install it, or give a path to it", name)
}

// ownGroups are the supplementary groups of this process.
var ownGroups = sync.OnceValue(func() []uint32 {
	gids, err := os.Getgroups()
	if err != nil {
		return nil
	}
	var groups []uint32
	for _, g := range gids {
		if g != os.Getegid() {
			groups = append(groups, uint32(g))
		}
	}
	slices.Sort(groups)
	return slices.Compact(groups)
})

// credential is what a child must change to run as acc; nil if nothing.
func credential(acc *account) *syscall.Credential {
	euid := os.Geteuid()
	if euid != 0 {
		return nil // see account.allowed
	}
	if acc.uid == 0 && acc.gid == uint32(os.Getegid()) && slices.Equal(acc.groups, ownGroups()) {
		return nil
	}
	return &syscall.Credential{Uid: acc.uid, Gid: acc.gid, Groups: acc.groups}
}

// attr returns the attributes of the process that p starts, but for its files.
func (p *plan) attr() *syscall.ProcAttr {
	return &syscall.ProcAttr{
		Dir: p.workdir,
		Env: p.env,
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: credential(&p.user)},
	}
}

// explainStart finds out why starting p failed.
func explainStart(p *plan, err error) *connect.Error {
	var st unix.Stat_t
	if serr := unix.Stat(p.workdir, &st); serr != nil {
		return invalid("the working directory %s cannot be used (%v); make it first or choose another", p.workdir, serr)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return invalid("the working directory %s is not a directory; choose another", p.workdir)
	}
	path := p.path
	if !strings.HasPrefix(path, "/") {
		path = filepath.Join(p.workdir, path)
	}
	serr := unix.Stat(path, &st)
	errno, _ := errors.AsType[syscall.Errno](err)
	switch {
	case errno == unix.E2BIG:
		return invalid("the arguments and environment are too long for the kernel; pass large data on standard input or in a file")
	case errno == unix.EAGAIN:
		return fail(connect.CodeResourceExhausted, "the sandbox has as many processes as it may; stop a job with job_stop or a signal, or kill the sandbox")
	case errno == unix.ENOMEM || errno == unix.EMFILE || errno == unix.ENFILE:
		return fail(connect.CodeResourceExhausted, "the sandbox has no memory or file handles left for another process; end some and try again")
	case errors.Is(serr, unix.ENOENT) || errors.Is(serr, unix.ENOTDIR):
		return failFor(sandbox.ReasonProgramNotFound, connect.CodeNotFound, "command not found: %s; check the path", p.argv[0])
	case errno == unix.ENOENT:
		return failFor(sandbox.ReasonProgramNotExecutable, connect.CodeNotFound, "%s exists, but the interpreter or loader it needs does not; install that", path)
	case serr == nil && st.Mode&unix.S_IFMT != unix.S_IFREG:
		return failFor(sandbox.ReasonProgramNotExecutable, connect.CodePermissionDenied, "%s is not a file that can be executed", path)
	case serr == nil && st.Mode&0o111 == 0:
		return failFor(sandbox.ReasonProgramNotExecutable, connect.CodePermissionDenied, "%s is not an executable file; make it executable or name its interpreter", path)
	case errno == unix.EACCES || errno == unix.EPERM:
		return failFor(sandbox.ReasonProgramNotExecutable, connect.CodePermissionDenied, "user %q may not execute %s or enter %s; choose another user or change their modes", p.user.name, path, p.workdir)
	case errno == unix.ENOEXEC:
		return failFor(sandbox.ReasonProgramNotExecutable, connect.CodeInvalidArgument, "%s is neither a program for this machine nor a script with a #! line; name its interpreter", path)
	case errno == unix.EINVAL:
		return fail(connect.CodePermissionDenied, "this sandbox cannot switch to user %q; leave the user out", p.user.name)
	}
	return fail(connect.CodeInternal, "start %s: %v", path, err)
}
