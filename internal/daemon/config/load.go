package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/sandbox"
)

// Setting is a key that the environment and a flag can set, besides the file.
type Setting struct {
	// Flag is the flag's name without dashes, Env the variable's.
	Flag, Env string
	// Usage describes it in a few words.
	Usage string
	// Bool settings are true when their flag has no value.
	Bool bool
	set  func(*Config, string) error
}

// Settings lists the settings in the order of the file.
func Settings() []Setting {
	return []Setting{
		{"state-dir", "COVE_STATE_DIR", "directory of everything the daemon keeps", false, text(func(c *Config) *string { return &c.StateDir })},
		{"store", "COVE_STORE", "address of a PostgreSQL database for the records, postgres://USER:PASSWORD@HOST:PORT/DATABASE (default a file in the state directory)", false, func(c *Config, s string) error { c.Store = Secret{sandbox.NewSecretValue(s)}; return nil }},
		{"listen", "COVE_LISTEN", "TCP address, host:port, or off", false, text(func(c *Config) *string { return &c.Listen })},
		{"socket", "COVE_SOCKET", "path of the unix socket (default cove.sock in the state directory)", false, text(func(c *Config) *string { return &c.Socket })},
		{repeated, "COVE_DIALECT_PORTS", "NAME=PORT or NAME=HOST:PORT: a further address, on loopback unless told, where /mcp speaks another dialect; may be repeated", false, list(func(c *Config) *[]string { return &c.DialectPorts })},
		{"dev", "COVE_DEV", "serve everyone on loopback without a key", true, boolean(func(c *Config) *bool { return &c.Dev })},
		{"allowed-hosts", "COVE_ALLOWED_HOSTS", "host names, with commas, by which browsers and proxies may call", false, list(func(c *Config) *[]string { return &c.AllowedHosts })},
		{"key-prefix", "COVE_KEY_PREFIX", "how secrets of API keys begin", false, text(func(c *Config) *string { return &c.KeyPrefix })},
		{"user-ids", "COVE_USER_IDS", "user and group ids for sandboxes where root runs the daemon, FIRST-LAST or off", false, text(func(c *Config) *string { return &c.UserIDs })},
		{"idle-exit", "COVE_IDLE_EXIT", "end after this time without clients and sandboxes; 0 is never", false, duration(func(c *Config) *time.Duration { return &c.IdleExit })},
		{"drain-timeout", "COVE_DRAIN_TIMEOUT", "how long calls may take to end at a stop", false, duration(func(c *Config) *time.Duration { return &c.DrainTimeout })},
		{"log-level", "COVE_LOG_LEVEL", "debug, info, warn or error", false, text(func(c *Config) *string { return &c.Log.Level })},
		{"log-format", "COVE_LOG_FORMAT", "auto, text or json", false, text(func(c *Config) *string { return &c.Log.Format })},
		{"default-template", "COVE_DEFAULT_TEMPLATE", "template of sandboxes that name none", false, text(func(c *Config) *string { return &c.Defaults.Template })},
		{"default-lifetime", "COVE_DEFAULT_LIFETIME", "lifetime of sandboxes that name none; 0 is no bound", false, duration(func(c *Config) *time.Duration { return &c.Defaults.Lifetime })},
		{"default-idle-timeout", "COVE_DEFAULT_IDLE_TIMEOUT", "idle timeout of sandboxes that name none; 0 is no bound", false, duration(func(c *Config) *time.Duration { return &c.Defaults.IdleTimeout })},
		{"warm", "COVE_WARM", "sandboxes of a template that wait ready, at most; 0 boots each afresh", false, integer(func(c *Config, n int64) { c.Defaults.Warm = int(n) })},
		{"network", "COVE_NETWORK", "network of sandboxes that say nothing of it: open, none or packages", false, text(func(c *Config) *string { return &c.Network.Default })},
		{"resolvers", "COVE_RESOLVERS", "DNS servers for sandboxes, address:port with commas (default those of the host)", false, list(func(c *Config) *[]string { return &c.Network.Resolvers })},
		{"extra-ca", "COVE_EXTRA_CA", "PEM file of further authorities of servers to which secrets go", false, text(func(c *Config) *string { return &c.Network.ExtraCA })},
		{"preview-domain", "COVE_PREVIEW_DOMAIN", "domain below which previews have their names", false, text(func(c *Config) *string { return &c.Previews.Domain })},
		{"preview-url", "COVE_PREVIEW_URL", "what URLs of previews look like from outside, with {label}", false, text(func(c *Config) *string { return &c.Previews.URLFormat })},
		{"webhooks-allow-private", "COVE_WEBHOOKS_ALLOW_PRIVATE", "let webhooks reach loopback and private networks of this machine", true, boolean(func(c *Config) *bool { return &c.Webhooks.AllowPrivate })},
		{"mount-paths", "COVE_MOUNT_PATHS", "directories of this machine that sandboxes may mount, with commas; with :rw at the end, to write", false, list(func(c *Config) *[]string { return &c.Mounts.AllowHost })},
		{"orphan-retention", "COVE_ORPHAN_RETENTION", "how long what no record names is kept for cove recover", false, duration(func(c *Config) *time.Duration { return &c.Orphans.Retention })},
		{"template-paths", "COVE_TEMPLATE_PATHS", "paths of this machine from which templates may be made, with commas", false, list(func(c *Config) *[]string { return &c.Templates.AllowPaths })},
		{"insecure-registries", "COVE_INSECURE_REGISTRIES", "registries that speak plain HTTP or have a certificate that nobody vouches for, with commas", false, list(func(c *Config) *[]string { return &c.Registries.Insecure })},
		{"private-registries", "COVE_PRIVATE_REGISTRIES", "registries on loopback or a private network that may be asked, with commas", false, list(func(c *Config) *[]string { return &c.Registries.Private })},
		{"quota-snapshots", "COVE_QUOTA_SNAPSHOTS", "snapshots of one team, steps of histories aside; 0 is no bound", false, integer(func(c *Config, n int64) { c.Quotas.Snapshots = int(n) })},
		{"quota-sandboxes", "COVE_QUOTA_SANDBOXES", "living sandboxes of one team; 0 is no bound", false, integer(func(c *Config, n int64) { c.Quotas.Sandboxes = int(n) })},
		{"quota-vcpus", "COVE_QUOTA_VCPUS", "their vCPUs together; 0 is no bound (default 64 for each processor of the machine)", false, integer(func(c *Config, n int64) { c.Quotas.VCPUs = int(n) })},
		{"quota-memory-mib", "COVE_QUOTA_MEMORY_MIB", "their memory together, in MiB; 0 is no bound (default 8 times the machine's, or its cgroup's)", false, integer(func(c *Config, n int64) { c.Quotas.MemoryMiB = n })},
		{"quota-disk-mib", "COVE_QUOTA_DISK_MIB", "disk of living sandboxes and volumes as far as it may grow, and of snapshots, in MiB; 0 is no bound", false, integer(func(c *Config, n int64) { c.Quotas.DiskMiB = n })},
	}
}

// repeated is the flag that may be given more than once.
const repeated = "dialect-port"

// Repeats reports whether a flag may be given more than once; its values are
// then joined with commas.
func Repeats(flag string) bool { return flag == repeated }

func text(field func(*Config) *string) func(*Config, string) error {
	return func(c *Config, s string) error {
		*field(c) = s
		return nil
	}
}

func boolean(field func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, s string) (err error) {
		*field(c), err = strconv.ParseBool(s)
		return err
	}
}

func list(field func(*Config) *[]string) func(*Config, string) error {
	return func(c *Config, s string) error {
		var items []string
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, item)
			}
		}
		*field(c) = items
		return nil
	}
}

func duration(field func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, s string) (err error) {
		*field(c), err = time.ParseDuration(s)
		return err
	}
}

func integer(set func(*Config, int64)) func(*Config, string) error {
	return func(c *Config, s string) error {
		n, err := strconv.ParseInt(s, 10, 32)
		if err == nil {
			set(c, n)
		}
		return err
	}
}

// Source is where a configuration comes from.
type Source struct {
	// File is the path of a YAML file; empty is none.
	File string
	// Env returns a variable of the environment, "" when it is not set.
	Env func(string) string
	// Flags are the flags that were given, by name.
	Flags map[string]string
}

// Load returns the defaults as the file, the environment and the flags change
// them, checked.
func Load(src Source) (Config, error) {
	cfg := Default(src.Env)
	if src.File != "" {
		data, err := os.ReadFile(src.File)
		if err != nil {
			return Config{}, sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("the configuration file %s cannot be read; check its path", src.File))
		}
		if err := decode(data, &cfg); err != nil {
			return Config{}, sandbox.Errorf(sandbox.CodeInvalid, "configuration file %s: %w", src.File, err)
		}
	}
	for _, s := range Settings() {
		if value := src.Env(s.Env); value != "" {
			if err := s.set(&cfg, value); err != nil {
				return Config{}, sandbox.Errorf(sandbox.CodeInvalid, "%s=%q is not valid: %w", s.Env, value, err)
			}
		}
	}
	for _, s := range Settings() {
		if value, given := src.Flags[s.Flag]; given {
			if err := s.set(&cfg, value); err != nil {
				return Config{}, sandbox.Errorf(sandbox.CodeInvalid, "--%s %q is not valid: %w", s.Flag, value, err)
			}
		}
	}
	if err := cfg.Validate(); err != nil {
		return Config{}, err
	}
	return cfg, nil
}

// decode reads YAML into cfg. Keys that cfg does not have are errors.
func decode(data []byte, cfg *Config) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(cfg); err != nil && !errors.Is(err, io.EOF) {
		return explained(err)
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return errors.New("it holds more than one document")
	}
	return nil
}
