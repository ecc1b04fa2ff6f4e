// Package validate checks what callers send, before anything is done with it.
// Every error is a [sandbox.Error] that says what to send instead.
package validate

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/daemon/service/ids"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// Errorf is an error that says what is wrong with a request.
func Errorf(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

// Quote returns a caller's text for an error, quoted and of bounded length.
func Quote(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%q…", s[:80])
	}
	return fmt.Sprintf("%q", s)
}

// names matches the names of sandboxes, namespaces and teams: safe in a file name, in a
// URL and, except for dot and underscore, in a host name.
var names = lazyregexp.New(`^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$`)

// templateNames matches the names of templates. It leaves room for references to
// images.
var templateNames = lazyregexp.New(`^[a-z0-9]([A-Za-z0-9._/:@-]{0,253}[A-Za-z0-9])?$`)

// NewTemplateNames matches the names of templates that callers define.
var NewTemplateNames = lazyregexp.New(`^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$`)

// PackageNames matches the names of Debian packages.
var PackageNames = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]{1,127}$`)

var userNames = lazyregexp.New(`^([A-Za-z_][A-Za-z0-9_.-]{0,31}|[0-9]{1,10}(:[0-9]{1,10})?)$`)

var modes = lazyregexp.New(`^(0o)?[0-7]{1,5}$`)

// HostLabel matches one label of a host name.
var HostLabel = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// windowsTemplate is what other products call a computer with Windows. Cove has none:
// gVisor runs Linux programs, and Windows would need a virtual machine and a licence of
// the user's.
const windowsTemplate = "windows-11"

var errWindows = sandbox.Errorf(sandbox.CodeUnsupported, "Windows is not supported: it needs a machine with KVM and an image that you supply and license, and no such engine is built; use the template desktop, a Linux desktop (docs/computers.md says more)")

// Name refuses an invalid name of a sandbox, a namespace or a team.
func Name(field, s string) error {
	if len(s) > sandbox.MaxNameLength || !names.MatchString(s) {
		return Errorf("%s %s is not valid; use 1 to %d lower-case letters, digits, dashes, underscores and dots, with a letter or digit first and last", field, Quote(s), sandbox.MaxNameLength)
	}
	return nil
}

// SandboxName refuses an invalid name of a sandbox, including one that looks like an
// id.
func SandboxName(s string) error {
	if ids.IsSnapshot(s) {
		return Errorf("name %s begins like a snapshot's id; use one that does not begin with %q", Quote(s), ids.Snapshot)
	}
	if ids.IsSandbox(s) {
		return Errorf("name %s begins like an id; use one that does not begin with %q", Quote(s), ids.Sandbox)
	}
	return Name("name", s)
}

// TemplateName refuses an invalid name of a template.
func TemplateName(s string) error {
	if s == windowsTemplate {
		return errWindows
	}
	if !templateNames.MatchString(s) {
		return Errorf("template %s is not a valid name; list the templates to see which exist", Quote(s))
	}
	return nil
}

// JobID returns a not_found error for a string that cannot be the id of a job.
func JobID(s string) error {
	if !sandbox.ValidJobID(s) {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no job %s; list the jobs to see which exist", Quote(s))
	}
	return nil
}

// Text refuses text that is not UTF-8 or contains a NUL.
func Text(field, s string) error {
	if !utf8.ValidString(s) {
		return Errorf("%s is not valid UTF-8; send text, or put bytes into a file", field)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return Errorf("%s has a NUL byte; remove it", field)
	}
	return nil
}

// Range refuses a number that is not from low to high.
func Range(field string, v, low, high int64) error {
	if v < low || v > high {
		return Errorf("%s is %d; use %d to %d", field, v, low, high)
	}
	return nil
}

// Metadata refuses pairs that are too many, too long or not text.
func Metadata(m map[string]string) error {
	if len(m) > sandbox.MaxMetadataPairs {
		return Errorf("metadata has %d pairs; use at most %d", len(m), sandbox.MaxMetadataPairs)
	}
	for k, v := range m {
		if err := Text("a metadata key", k); err != nil {
			return err
		}
		if k == "" || len(k) > sandbox.MaxMetadataKey {
			return Errorf("metadata key %s has %d bytes; keys have 1 to %d", Quote(k), len(k), sandbox.MaxMetadataKey)
		}
		if err := Text("the metadata value of "+Quote(k), v); err != nil {
			return err
		}
		if len(v) > sandbox.MaxMetadataValue {
			return Errorf("the metadata value of %s has %d bytes; values have at most %d", Quote(k), len(v), sandbox.MaxMetadataValue)
		}
	}
	return nil
}

// Env refuses variables that cannot be passed to a program. Its errors never show
// values, which are often secrets.
func Env(env map[string]string) error {
	if len(env) > sandbox.MaxEnvPairs {
		return Errorf("env has %d variables; use at most %d", len(env), sandbox.MaxEnvPairs)
	}
	size := 0
	for k, v := range env {
		if err := Text("a name in env", k); err != nil {
			return err
		}
		if k == "" || strings.ContainsRune(k, '=') || strings.ContainsFunc(k, unicode.IsSpace) {
			return Errorf("env name %s is not valid; names must not be empty and must not have '=' or blanks", Quote(k))
		}
		if err := Text("the env value of "+Quote(k), v); err != nil {
			return err
		}
		size += len(k) + len(v) + 2
	}
	if size > sandbox.MaxEnvBytes {
		return Errorf("env has %d bytes; use at most %d, and put larger data into a file", size, sandbox.MaxEnvBytes)
	}
	return nil
}

// User refuses a string that is neither a user name, a uid nor uid:gid.
func User(field, s string) error {
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
		return Errorf("%s %s is not valid; use a user name, a uid, or uid:gid", field, Quote(s))
	}
	return nil
}

// Path refuses an invalid path inside a sandbox, absolute or relative.
func Path(field, p string) error {
	if p == "" {
		return Errorf("%s is empty; use a path, absolute or relative to the working directory", field)
	}
	if len(p) > sandbox.MaxPathBytes {
		return Errorf("%s has %d bytes; paths have at most %d", field, len(p), sandbox.MaxPathBytes)
	}
	return Text(field, p)
}

// WorkDir refuses a path that is not absolute and clean.
func WorkDir(p string) error {
	if err := Path("workdir", p); err != nil {
		return err
	}
	if !path.IsAbs(p) || path.Clean(p) != p {
		return Errorf("workdir %s must be an absolute, clean path, such as /workspace", Quote(p))
	}
	return nil
}

// Mode parses permission bits in octal; the result is 0 if s is empty.
func Mode(s string) (uint32, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	if !modes.MatchString(s) || err != nil || n == 0 || n > 0o7777 {
		return 0, Errorf("mode %s is not valid; use permission bits in octal, such as 0644 or 0755", Quote(s))
	}
	return uint32(n), nil
}

// Resources refuses values out of range; zero means not given.
func Resources(r sandbox.Resources) error {
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
		if err := Range(c.field, c.v, c.low, c.high); err != nil {
			return err
		}
	}
	return nil
}

// MaxSeconds is the longest lifetime, in seconds.
const MaxSeconds = int64(sandbox.MaxLifetime / 1e9)

// Seconds refuses a time that is negative or too long; nil means not given.
func Seconds(field string, v *int64) error {
	if v == nil {
		return nil
	}
	if *v < 0 || *v > MaxSeconds {
		return Errorf("%s is %d; use 1 to %d, or 0 for no limit", field, *v, MaxSeconds)
	}
	return nil
}

// Interval refuses an interval of automatic checkpoints that is out of bounds; nil means not
// given.
func Interval(field string, v *int64) error {
	const least, most = int64(sandbox.MinCheckpointInterval / 1e9), int64(sandbox.MaxCheckpointInterval / 1e9)
	if v == nil || *v == 0 || *v >= least && *v <= most {
		return nil
	}
	return Errorf("%s is %d; use %d to %d, or 0 for no automatic checkpoints", field, *v, least, most)
}

// TimeoutAction refuses an unknown action at a timeout.
func TimeoutAction(a sandbox.TimeoutAction) error {
	if a == sandbox.ActionKill || a == sandbox.ActionPause {
		return nil
	}
	return Errorf("on_timeout %s is not valid; use %q or %q", Quote(string(a)), sandbox.ActionKill, sandbox.ActionPause)
}

// Scopes refuses unknown scopes.
func Scopes(scopes []sandbox.Scope) error {
	all := sandbox.Scopes()
	for _, s := range scopes {
		if !slices.Contains(all, s) {
			return Errorf("scope %s is not valid; use one of %v", Quote(string(s)), all)
		}
	}
	return nil
}
