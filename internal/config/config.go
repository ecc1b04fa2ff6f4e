// Package config is the configuration of a Cove daemon: one struct, its
// defaults, and how a file, the environment and flags change them, each
// stronger than the one before. Only packages server and cli read it; others
// take what they need in a Config of their own.
package config

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Config is how a daemon runs. See sample.yaml for a file with every key.
type Config struct {
	// StateDir holds everything the daemon keeps. One daemon uses it at a time.
	StateDir string `yaml:"state_dir"`
	// Listen is the TCP address, host:port, or "off".
	Listen string `yaml:"listen"`
	// Socket is the path of the unix socket, whose user is trusted. Empty is
	// cove.sock in StateDir.
	Socket string `yaml:"socket"`
	// Dev serves everyone on loopback without a key.
	Dev bool `yaml:"dev"`
	// AllowedHosts are names by which web browsers and proxies may call the
	// daemon, besides those of loopback.
	AllowedHosts []string `yaml:"allowed_hosts"`
	// KeyPrefix is how the secrets of API keys begin.
	KeyPrefix string `yaml:"key_prefix"`
	// IdleExit ends the daemon after this time without a client and without a
	// sandbox; 0 is never.
	IdleExit time.Duration `yaml:"idle_exit"`
	// DrainTimeout is how long calls may take to end when the daemon stops.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	Log          Log           `yaml:"log"`
	Defaults     Defaults      `yaml:"defaults"`
	Quotas       Quotas        `yaml:"quotas"`
}

// Log says what is logged, and how.
type Log struct {
	// Level is debug, info, warn or error.
	Level string `yaml:"level"`
	// Format is text, json, or auto: colours on a terminal, else text.
	Format string `yaml:"format"`
}

// Defaults are what a new sandbox gets that does not say otherwise.
type Defaults struct {
	Template string `yaml:"template"`
	// Lifetime and IdleTimeout of 0 are no bound.
	Lifetime    time.Duration `yaml:"lifetime"`
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// Warm is how many sandboxes of a template wait ready at most; the daemon
	// keeps fewer when few are made or memory is short. 0 boots each afresh.
	Warm int `yaml:"warm"`
}

// Quotas bound what one team's living sandboxes have together; 0 is no bound.
type Quotas struct {
	Sandboxes int   `yaml:"sandboxes"`
	VCPUs     int   `yaml:"vcpus"`
	MemoryMiB int64 `yaml:"memory_mib"`
	// Snapshots are those that no history has made.
	Snapshots int `yaml:"snapshots"`
}

// Off is the value of Listen for no TCP listener.
const Off = "off"

// DefaultStateDir is where a daemon keeps its state unless it is told: for
// root /var/lib/cove, for others cove in the XDG state directory.
func DefaultStateDir(env func(string) string) string {
	if os.Geteuid() == 0 {
		return "/var/lib/cove"
	}
	if dir := env("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "cove")
	}
	return filepath.Join(env("HOME"), ".local", "state", "cove")
}

// Default returns the configuration of a daemon that is told nothing.
func Default(env func(string) string) Config {
	return Config{
		StateDir:     DefaultStateDir(env),
		Listen:       "127.0.0.1:7777",
		KeyPrefix:    "cove_",
		DrainTimeout: 10 * time.Second,
		Log:          Log{Level: "info", Format: "auto"},
		Defaults: Defaults{
			Template:    "host",
			Lifetime:    sandbox.DefaultLifetime,
			IdleTimeout: sandbox.DefaultIdleTimeout,
			Warm:        4,
		},
		Quotas: Quotas{Sandboxes: 100, Snapshots: 100},
	}
}

// maxSocketPath is what the kernel takes, in bytes.
const maxSocketPath = 107

// SocketPath returns the path of the unix socket.
func (c *Config) SocketPath() string {
	if c.Socket != "" {
		return c.Socket
	}
	return filepath.Join(c.StateDir, "cove.sock")
}

// Validate reports the first value that no daemon can run with. The error says
// which key it is.
func (c *Config) Validate() error {
	for _, check := range []struct {
		key, problem string
		bad          bool
	}{
		{"state_dir", "is not an absolute path", !filepath.IsAbs(c.StateDir)},
		{"socket", "is not an absolute path", c.Socket != "" && !filepath.IsAbs(c.Socket)},
		{"socket", fmt.Sprintf("is longer than %d bytes (%s); use a shorter state_dir", maxSocketPath, c.SocketPath()), len(c.SocketPath()) > maxSocketPath},
		{"listen", "is not host:port or off", !validListen(c.Listen)},
		{"listen", "is not a loopback address, but dev serves without keys; use 127.0.0.1, or leave dev off", c.Dev && c.Listen != Off && !c.Loopback()},
		{"key_prefix", "is not 1 to 32 letters, digits, _ and -", !validPrefix(c.KeyPrefix)},
		{"idle_exit", "is negative", c.IdleExit < 0},
		{"drain_timeout", "is negative", c.DrainTimeout < 0},
		{"log.level", "is not debug, info, warn or error", !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level)},
		{"log.format", "is not auto, text or json", !slices.Contains([]string{"auto", "text", "json"}, c.Log.Format)},
		{"defaults.template", "is empty", c.Defaults.Template == ""},
		{"defaults.lifetime", "is negative or over a year", c.Defaults.Lifetime < 0 || c.Defaults.Lifetime > sandbox.MaxLifetime},
		{"defaults.warm", "is negative or over 64", c.Defaults.Warm < 0 || c.Defaults.Warm > 64},
		{"defaults.idle_timeout", "is negative or over a year", c.Defaults.IdleTimeout < 0 || c.Defaults.IdleTimeout > sandbox.MaxLifetime},
		{"quotas", "holds a negative number", c.Quotas.Sandboxes < 0 || c.Quotas.VCPUs < 0 || c.Quotas.MemoryMiB < 0},
	} {
		if check.bad {
			return sandbox.Errorf(sandbox.CodeInvalid, "configuration: %s %s", check.key, check.problem)
		}
	}
	return nil
}

// Loopback reports whether the TCP address can only be reached from this
// machine.
func (c *Config) Loopback() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

func validListen(s string) bool {
	if s == Off {
		return true
	}
	_, port, err := net.SplitHostPort(s)
	return err == nil && port != ""
}

func validPrefix(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
	return s != "" && len(s) <= 32 && strings.Trim(s, allowed) == ""
}
