package oci

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// Settings are the runtime settings of an image.
type Settings struct {
	Env map[string]string
	// WorkDir is absolute and clean; "" if not set.
	WorkDir string
	// User is a name or number, with an optional group; "" if not set.
	User string
	// Ports are TCP ports, sorted.
	Ports []int
}

// maxPorts bounds the ports of an image; further ones are left out.
const maxPorts = 100

// validUser matches a name or number, with an optional group.
var validUser = lazyregexp.New(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$`)

// settings returns the settings in an image's configuration.
func settings(c *v1.Config) (Settings, error) {
	s := Settings{Env: map[string]string{}}
	size := 0
	for _, kv := range c.Env {
		name, value, ok := strings.Cut(kv, "=")
		if size += len(kv); size > sandbox.MaxEnvBytes || len(s.Env) >= sandbox.MaxEnvPairs {
			return s, bad("its environment is too large")
		}
		if !ok || name == "" || strings.ContainsRune(kv, 0) || !utf8.ValidString(kv) {
			continue // as Docker does
		}
		s.Env[name] = value
	}
	if d := c.WorkingDir; d != "" {
		if len(d) > sandbox.MaxPathBytes || strings.ContainsRune(d, 0) || !utf8.ValidString(d) {
			return s, bad("its working directory is not a path")
		}
		s.WorkDir = path.Clean("/" + d)
	}
	if c.User != "" {
		if !validUser.MatchString(c.User) {
			return s, bad("its user %.80q is neither a name nor a number", c.User)
		}
		s.User = c.User
	}
	for p := range c.ExposedPorts {
		number, proto, _ := strings.Cut(p, "/")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || proto != "" && proto != "tcp" {
			continue
		}
		s.Ports = append(s.Ports, int(n))
	}
	slices.Sort(s.Ports)
	if s.Ports = slices.Compact(s.Ports); len(s.Ports) > maxPorts {
		s.Ports = s.Ports[:maxPorts]
	}
	return s, nil
}
