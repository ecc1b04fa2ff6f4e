package microsandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// target names a sandbox.
type target struct {
	Sandbox   *string `json:"sandbox"`
	Namespace *string `json:"namespace"`
}

type startParams struct {
	target
	Config *config `json:"config"`
}

type codeParams struct {
	target
	Code     *string `json:"code"`
	Language *string `json:"language"`
	Timeout  *whole  `json:"timeout"`
}

type commandParams struct {
	target
	Command *string  `json:"command"`
	Args    []string `json:"args"`
	Timeout *whole   `json:"timeout"`
}

// config is the configuration of a sandbox.
type config struct {
	Image   *string  `json:"image"`
	Memory  *whole   `json:"memory"`
	CPUs    *whole   `json:"cpus"`
	Volumes []string `json:"volumes"`
	Ports   []string `json:"ports"`
	Envs    []string `json:"envs"`
	WorkDir *string  `json:"workdir"`
	// Fields that have no effect when left out are accepted if they are empty.
	DependsOn []string          `json:"depends_on"`
	Shell     *string           `json:"shell"`
	Scripts   map[string]string `json:"scripts"`
	Exec      *string           `json:"exec"`
}

// whole is a number without a fraction, which clients may also write as 1.0 or 1e3.
type whole float64

// UnmarshalJSON implements [json.Unmarshaler].
func (w *whole) UnmarshalJSON(data []byte) error {
	var f float64
	if err := json.Unmarshal(data, &f); err != nil || f != math.Trunc(f) {
		return errNotWhole
	}
	*w = whole(f)
	return nil
}

var errNotWhole = errors.New("a number that must be an integer is not one")

// between returns the number if it is in bounds.
func (w *whole) between(name string, low, high float64) (int64, error) {
	if f := float64(*w); f < low || f > high {
		return 0, dialect.Invalid("%s must be %.0f to %.0f", name, low, high)
	}
	return int64(*w), nil
}

// seconds returns a timeout, or 0 for none. One client sends nanoseconds, so a value of
// over a year is treated as no timeout.
func (w *whole) seconds() (time.Duration, error) {
	switch {
	case w == nil || float64(*w) == 0 || float64(*w) > (365*24*time.Hour).Seconds():
		return 0, nil
	case float64(*w) < 0:
		return 0, dialect.Invalid("timeout must not be negative")
	}
	return time.Duration(*w) * time.Second, nil
}

func internal(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeUnavailable, format, args...)
}

// decode reads the parameters of a method. Unknown ones are ignored.
func decode(params json.RawMessage, into any) error {
	if len(params) == 0 || string(params) == "null" {
		params = json.RawMessage("{}")
	}
	if !utf8.Valid(params) {
		return dialect.Invalid("the parameters are not valid UTF-8")
	}
	err := json.Unmarshal(params, into)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		return misfit("", "%s must not be a %s", strings.TrimPrefix(e.Field, "target."), e.Value)
	}
	if errors.Is(err, errNotWhole) {
		return misfit("", "memory, cpus and timeout must be integers")
	}
	return misfit("", "the parameters must be one JSON object")
}

// paramsError is the error for parameters that do not fit a method.
type paramsError struct {
	err *sandbox.Error
	// missing is the name of a missing parameter, if that is the problem.
	missing string
}

func (e *paramsError) Error() string { return e.err.Error() }
func (e *paramsError) Unwrap() error { return e.err }

func misfit(missing, format string, args ...any) error {
	return &paramsError{sandbox.Errorf(sandbox.CodeInvalid, format, args...), missing}
}

// required returns a parameter, or an error if it is missing.
func required(name string, v *string) (string, error) {
	if v == nil {
		return "", misfit(name, "Missing required '%s' parameter", name)
	}
	return *v, nil
}

// names returns the checked names of a sandbox and its namespace.
func (t *target) names(c *call) (namespace, name string, err error) {
	if name, err = required("sandbox", t.Sandbox); err == nil {
		err = checkName("Sandbox name", name)
	}
	if err != nil {
		return "", "", err
	}
	if namespace, err = t.namespace(c); err == nil {
		err = checkName("Namespace", namespace)
	}
	return namespace, name, err
}

// namespace returns the namespace as given.
func (t *target) namespace(c *call) (string, error) {
	if t.Namespace == nil && c.lenient {
		return sandbox.DefaultNamespace, nil
	}
	return required("namespace", t.Namespace)
}

// maxName bounds the names of sandboxes and namespaces.
const maxName = 63

// checkName refuses an invalid name; what is the product's word for the thing named.
func checkName(what, s string) error {
	switch {
	case s == "":
		return dialect.Invalid("%s cannot be empty", what)
	case len(s) > maxName:
		return dialect.Invalid("%s cannot exceed %d characters", what, maxName)
	case strings.IndexFunc(s, func(r rune) bool { return !alphanumeric(r) && r != '-' && r != '_' }) >= 0:
		return dialect.Invalid("%s can only contain alphanumeric characters, hyphens, or underscores", what)
	case !alphanumeric(rune(s[0])):
		return dialect.Invalid("%s must start with an alphanumeric character", what)
	}
	return nil
}

func alphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

// wildcard stands for every namespace.
const wildcard = "*"

// unsupported refuses settings that would have no effect here.
func (cfg *config) unsupported() error {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"depends_on", len(cfg.DependsOn) > 0}, {"scripts", len(cfg.Scripts) > 0},
		{"shell", cfg.Shell != nil && *cfg.Shell != ""}, {"exec", cfg.Exec != nil && *cfg.Exec != ""},
	} {
		if f.given {
			return dialect.Invalid("config.%s is not supported by this server; leave it out", f.name)
		}
	}
	return nil
}

// guestPort is a port that the product reserves and drops.
const guestPort = 4444

// parsePorts reads ports of the form "host:guest" or "port".
func parsePorts(list []string) ([]sandbox.PublishedPort, error) {
	var ports []sandbox.PublishedPort
	for _, s := range list {
		host, guest, two := strings.Cut(s, ":")
		if !two {
			guest = host
		}
		h, errHost := parsePort(host)
		g, errGuest := parsePort(guest)
		if errHost != nil || errGuest != nil {
			return nil, dialect.Invalid("invalid port mapping '%s': expected host:guest, or one port for both", clip.Text(s, maxShown))
		}
		if g != guestPort {
			ports = append(ports, sandbox.PublishedPort{Host: h, Guest: g})
		}
	}
	return ports, nil
}

func parsePort(s string) (int, error) {
	n := 0
	for _, r := range s {
		if r < '0' || r > '9' || n > math.MaxUint16 {
			return 0, errNotWhole
		}
		n = n*10 + int(r-'0')
	}
	if s == "" || n == 0 || n > math.MaxUint16 {
		return 0, errNotWhole
	}
	return n, nil
}

// parseEnvs reads variables of the form "NAME=value".
func parseEnvs(list []string) (map[string]string, error) {
	env := make(map[string]string, len(list))
	for _, s := range list {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return nil, dialect.Invalid("invalid environment variable '%s': expected NAME=value", clip.Text(s, maxShown))
		}
		env[name] = value
	}
	return env, nil
}

// parseVolumes reads directories of the form "host:guest" or "path".
func parseVolumes(list []string) ([]sandbox.Mount, error) {
	var mounts []sandbox.Mount
	for _, s := range list {
		host, guest, two := strings.Cut(s, ":")
		if !two {
			guest = host
		}
		switch {
		case host == "" || guest == "":
			return nil, dialect.Invalid("invalid volume '%s': expected host:guest, or one path for both", clip.Text(s, maxShown))
		case !strings.HasPrefix(host, "/"):
			return nil, dialect.Invalid("the volume '%s' has a relative path; give an absolute one, which the server's operator must have allowed", clip.Text(s, maxShown))
		}
		mounts = append(mounts, sandbox.Mount{Host: host, Target: guest})
	}
	return mounts, nil
}

// started and the functions below return the product's messages.
func started(name string) string { return fmt.Sprintf("Sandbox %s started successfully", name) }
func stopped(name string) string { return fmt.Sprintf("Sandbox %s stopped successfully", name) }
