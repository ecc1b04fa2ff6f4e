package service

import (
	"crypto/rand"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// idPrefix begins ids of sandboxes. Names must not, so that a name is never
// taken for an id.
const idPrefix = "sbx-"

// newID returns an unguessable id (130 bits) that is a valid DNS label.
func newID(prefix string) string { return prefix + strings.ToLower(rand.Text()) }

func isSandboxID(s string) bool { return strings.HasPrefix(s, idPrefix) }

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

var (
	// names are of sandboxes, namespaces and teams: what is safe in a file
	// name, in a URL and, but for dot and underscore, in a host name.
	names = regexp.MustCompile(`^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$`)
	// templateNames leave room for references of images.
	templateNames = regexp.MustCompile(`^[a-z0-9]([A-Za-z0-9._/:@-]{0,253}[A-Za-z0-9])?$`)
	// newTemplateNames are of templates that callers define.
	newTemplateNames = regexp.MustCompile(`^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$`)
	packageNames     = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{1,127}$`)
	userNames        = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?)$`)
	modes            = regexp.MustCompile(`^(0o)?[0-7]{1,5}$`)
	hostLabel        = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

func checkName(field, s string) error {
	if len(s) > sandbox.MaxNameLength || !names.MatchString(s) {
		return invalid("%s %s is not valid; use 1 to %d lower-case letters, digits, dashes, underscores and dots, with a letter or digit first and last", field, quote(s), sandbox.MaxNameLength)
	}
	return nil
}

func checkSandboxName(s string) error {
	if isSnapshotID(s) {
		return invalid("name %s begins like a snapshot's id; choose one that does not begin with %q", quote(s), snapshotPrefix)
	}
	if isSandboxID(s) {
		return invalid("name %s begins like an id; choose one that does not begin with %q", quote(s), idPrefix)
	}
	return checkName("name", s)
}

// checkText refuses what cannot travel as text or end up in a C string.
func checkText(field, s string) error {
	if !utf8.ValidString(s) {
		return invalid("%s is not valid UTF-8; send text, or bytes through a file", field)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return invalid("%s has a NUL byte; remove it", field)
	}
	return nil
}

func checkRange(field string, v, low, high int64) error {
	if v < low || v > high {
		return invalid("%s is %d; give %d to %d", field, v, low, high)
	}
	return nil
}

func checkMetadata(m map[string]string) error {
	if len(m) > sandbox.MaxMetadataPairs {
		return invalid("metadata has %d pairs; give at most %d", len(m), sandbox.MaxMetadataPairs)
	}
	for k, v := range m {
		if err := checkText("a metadata key", k); err != nil {
			return err
		}
		if k == "" || len(k) > sandbox.MaxMetadataKey {
			return invalid("metadata key %s has %d bytes; keys have 1 to %d", quote(k), len(k), sandbox.MaxMetadataKey)
		}
		if err := checkText("the metadata value of "+quote(k), v); err != nil {
			return err
		}
		if len(v) > sandbox.MaxMetadataValue {
			return invalid("the metadata value of %s has %d bytes; values have at most %d", quote(k), len(v), sandbox.MaxMetadataValue)
		}
	}
	return nil
}

// checkEnv never shows values: they are often secrets.
func checkEnv(env map[string]string) error {
	if len(env) > sandbox.MaxEnvPairs {
		return invalid("env has %d variables; give at most %d", len(env), sandbox.MaxEnvPairs)
	}
	size := 0
	for k, v := range env {
		if err := checkText("a name in env", k); err != nil {
			return err
		}
		if k == "" || strings.ContainsRune(k, '=') || strings.ContainsFunc(k, unicode.IsSpace) {
			return invalid("env name %s is not valid; names are not empty and have no '=' and no blanks", quote(k))
		}
		if err := checkText("the env value of "+quote(k), v); err != nil {
			return err
		}
		size += len(k) + len(v) + 2
	}
	if size > sandbox.MaxEnvBytes {
		return invalid("env has %d bytes; give at most %d, and pass larger data in a file", size, sandbox.MaxEnvBytes)
	}
	return nil
}

func checkUser(field, s string) error {
	ok := userNames.MatchString(s)
	if ok && s[0] <= '9' {
		uid, gid, _ := strings.Cut(s, ":")
		for _, id := range []string{uid, gid} {
			if id == "" {
				continue
			}
			// The largest number means "none" to the kernel.
			if n, err := strconv.ParseUint(id, 10, 32); err != nil || n == 1<<32-1 {
				ok = false
			}
		}
	}
	if !ok {
		return invalid("%s %s is not valid; give a user name, a uid, or uid:gid", field, quote(s))
	}
	return nil
}

func checkPath(field, p string) error {
	if p == "" {
		return invalid("%s is empty; give a path, absolute or relative to the working directory", field)
	}
	if len(p) > sandbox.MaxPathBytes {
		return invalid("%s has %d bytes; paths have at most %d", field, len(p), sandbox.MaxPathBytes)
	}
	return checkText(field, p)
}

func checkWorkDir(p string) error {
	if err := checkPath("workdir", p); err != nil {
		return err
	}
	if !path.IsAbs(p) || path.Clean(p) != p {
		return invalid("workdir %s is not an absolute, clean path; give one such as /workspace", quote(p))
	}
	return nil
}

// checkMode reads permission bits; 0 is none given.
func checkMode(s string) (uint32, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if !modes.MatchString(s) || err != nil || n == 0 || n > 0o7777 {
		return 0, invalid("mode %s is not valid; give permission bits in octal, such as 0644 or 0755", quote(s))
	}
	return uint32(n), nil
}

// checkResources refuses values out of range; zero ones are not given.
func checkResources(r sandbox.Resources) error {
	for _, c := range []struct {
		field        string
		v, low, high int64
	}{
		{"resources.vcpus", int64(r.VCPUs), 1, sandbox.MaxVCPUs},
		{"resources.memory_mib", r.MemoryMiB, sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB},
		{"resources.disk_mib", r.DiskMiB, sandbox.MinDiskMiB, sandbox.MaxDiskMiB},
		{"resources.max_pids", r.MaxPIDs, sandbox.MinPIDs, sandbox.MaxPIDsLimit},
	} {
		if c.v == 0 {
			continue
		}
		if err := checkRange(c.field, c.v, c.low, c.high); err != nil {
			return err
		}
	}
	return nil
}

// checkLargest refuses resources that were asked for and that the machine has
// not; zero ones are not given. Prefix begins the names of the fields.
func (s *Service) checkLargest(prefix string, r sandbox.Resources) error {
	largest := s.cfg.Largest
	for _, c := range []struct {
		field, unit string
		v, has      int64
	}{
		{"vcpus", "processors", int64(r.VCPUs), int64(largest.VCPUs)},
		{"memory_mib", "MiB of memory for sandboxes", r.MemoryMiB, largest.MemoryMiB},
		{"disk_mib", "MiB of disk", r.DiskMiB, largest.DiskMiB},
	} {
		if c.has > 0 && c.v > c.has {
			return invalid("%s is %d, and the server's machine has %d %s; give at most that", prefix+c.field, c.v, c.has, c.unit)
		}
	}
	return nil
}

// atMost returns resources that nobody has asked for, of a template or a
// default, as far as the machine has them.
func (s *Service) atMost(r sandbox.Resources) sandbox.Resources {
	if n := s.cfg.Largest.VCPUs; n > 0 {
		r.VCPUs = min(r.VCPUs, n)
	}
	if n := s.cfg.Largest.MemoryMiB; n > 0 {
		r.MemoryMiB = min(r.MemoryMiB, n)
	}
	return r
}

// fit returns the resources of a request that takes less than it asks for.
func (s *Service) fit(r sandbox.Resources) sandbox.Resources {
	if n := s.cfg.Largest.DiskMiB; n > 0 {
		r.DiskMiB = min(r.DiskMiB, n)
	}
	return s.atMost(r)
}

const maxSeconds = int64(sandbox.MaxLifetime / 1e9)

func checkSeconds(field string, v *int64) error {
	if v == nil {
		return nil
	}
	if *v < 0 || *v > maxSeconds {
		return invalid("%s is %d; give 1 to %d, or 0 for no bound", field, *v, maxSeconds)
	}
	return nil
}

func checkTimeoutAction(a sandbox.TimeoutAction) error {
	if a == sandbox.ActionKill || a == sandbox.ActionPause {
		return nil
	}
	return invalid("on_timeout %s is not known; use %q or %q", quote(string(a)), sandbox.ActionKill, sandbox.ActionPause)
}

// checkPauses refuses to pause at a timeout where the engine cannot.
func (s *Service) checkPauses(a sandbox.TimeoutAction) error {
	if a == sandbox.ActionPause && s.keeper == nil {
		return sandbox.Errorf(sandbox.CodeUnsupported, "on_timeout %q is not supported by this server; use %q", a, sandbox.ActionKill)
	}
	return nil
}

func checkTemplateName(s string) error {
	if s == windowsTemplate {
		return errWindows
	}
	if !templateNames.MatchString(s) {
		return invalid("template %s is not a valid name; list the templates to see which there are", quote(s))
	}
	return nil
}

func checkJobID(s string) error {
	if !agentclient.ValidJobID(s) {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no job %s; list the jobs to see which there are", quote(s))
	}
	return nil
}

const (
	// maxArgument is execve's own bound of one argument on Linux.
	maxArgument = 128<<10 - 1
	// maxMillis is the longest time of a command, in milliseconds.
	maxMillis = int64(sandbox.MaxLifetime / 1e6)
)

// checkExec refuses what is wrong and fills in what was left out.
func checkExec(req *sandbox.ExecRequest) error {
	if err := checkCommand(req); err != nil {
		return err
	}
	if err := checkEnv(req.Env); err != nil {
		return err
	}
	if req.WorkDir != "" {
		if err := checkPath("workdir", req.WorkDir); err != nil {
			return err
		}
	}
	if req.User != "" {
		if err := checkUser("user", req.User); err != nil {
			return err
		}
	}
	if len(req.Stdin) > sandbox.MaxStdinBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "stdin has %d bytes; send at most %d, and more through a file", len(req.Stdin), sandbox.MaxStdinBytes)
	}
	if t := req.Terminal; t != nil && (t.Cols == 0 || t.Rows == 0) {
		return invalid("terminal is %d by %d; give at least 1 column and 1 row", t.Cols, t.Rows)
	}
	if err := checkRange("keep_bytes", req.KeepBytes, 0, sandbox.MaxKeepBytes); err != nil {
		return err
	}
	return checkExecTimes(req)
}

func checkCommand(req *sandbox.ExecRequest) error {
	if req.Code != nil {
		return checkJobCode(req)
	}
	if (len(req.Command) == 0) == (req.Shell == "") {
		return invalid("give exactly one of command, a program with its arguments, and shell, a line for the shell")
	}
	if err := checkText("shell", req.Shell); err != nil {
		return err
	}
	if len(req.Shell) > maxArgument {
		return sandbox.Errorf(sandbox.CodeTooLarge, "shell has %d bytes; give at most %d, or write a script to a file and run that", len(req.Shell), maxArgument)
	}
	size := len(req.Shell)
	for i, a := range req.Command {
		field := "command[" + strconv.Itoa(i) + "]"
		if err := checkText(field, a); err != nil {
			return err
		}
		if len(a) > maxArgument {
			return sandbox.Errorf(sandbox.CodeTooLarge, "%s has %d bytes; an argument has at most %d, pass more through a file", field, len(a), maxArgument)
		}
		size += len(a) + 9 // its end and its pointer
	}
	for k, v := range req.Env {
		size += len(k) + len(v) + 10
	}
	if size > sandbox.MaxCommandBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "command and env have %d bytes together; give at most %d, and pass more through a file", size, sandbox.MaxCommandBytes)
	}
	if len(req.Command) > 0 && req.Command[0] == "" {
		return invalid("command[0] is empty; give the program to run")
	}
	return nil
}

func checkExecTimes(req *sandbox.ExecRequest) error {
	if req.Background && req.HandoverMS != 0 {
		return invalid("handover_ms is for foreground commands; leave it out with background")
	}
	if err := checkRange("handover_ms", req.HandoverMS, 0, maxMillis); err != nil {
		return err
	}
	longest := sandbox.MaxExecTimeout.Milliseconds()
	// A caller that stops waiting long before lets the command go on as a job.
	handedOver := 0 < req.HandoverMS && req.HandoverMS <= longest
	if handedOver {
		longest = sandbox.HandedOverTimeout.Milliseconds()
	}
	switch t := req.TimeoutMS; {
	case req.Background && t == -1:
		req.TimeoutMS = 0
	case req.Background:
		return checkRange("timeout_ms", t, -1, maxMillis)
	case t == -1 && handedOver:
		req.TimeoutMS = 0
	case t == 0 && handedOver:
		req.TimeoutMS = longest
	case t == 0:
		req.TimeoutMS = sandbox.DefaultExecTimeout.Milliseconds()
	case t < 0 || t > longest:
		return invalid("timeout_ms is %d; give 1 to %d, or run the command in the background", t, longest)
	}
	return nil
}

func checkScopes(scopes []sandbox.Scope) error {
	all := sandbox.Scopes()
	for _, s := range scopes {
		if !slices.Contains(all, s) {
			return invalid("scope %s is not known; use some of %v", quote(string(s)), all)
		}
	}
	return nil
}
