package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
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
		{"state-dir", "COVE_STATE_DIR", "Directory of everything the daemon stores", false, text(func(c *Config) *string { return &c.StateDir })},
		{"store", "COVE_STORE", "Address of a PostgreSQL database for the records, as postgres://USER:PASSWORD@HOST:PORT/DATABASE (default a file in the state directory)", false, func(c *Config, s string) error { c.Store = Secret{sandbox.NewSecretValue(s)}; return nil }},
		{"standby", "COVE_STANDBY", "Wait while another server has the database of --store, and take over when it ends; for servers that run sandboxes on nodes only", true, boolean(func(c *Config) *bool { return &c.Standby })},
		{"objects", "COVE_OBJECTS", "Object store that keeps snapshots and paused sandboxes too, as s3://BUCKET/PREFIX or file:///DIRECTORY (credentials come from the AWS variables and files)", false, text(func(c *Config) *string { return &c.Objects.URL })},
		{"objects-endpoint", "COVE_OBJECTS_ENDPOINT", "Address of an S3-compatible store, as https://HOST:PORT (default AWS_ENDPOINT_URL_S3, or Amazon S3)", false, text(func(c *Config) *string { return &c.Objects.Endpoint })},
		{"objects-region", "COVE_OBJECTS_REGION", "Region of the bucket (default AWS_REGION, or us-east-1)", false, text(func(c *Config) *string { return &c.Objects.Region })},
		{"objects-path-style", "COVE_OBJECTS_PATH_STYLE", "Put the bucket into the path of addresses, as is always done with an endpoint", true, boolean(func(c *Config) *bool { return &c.Objects.PathStyle })},
		{"objects-cache-mib", "COVE_OBJECTS_CACHE_MIB", "Limit on the disk for snapshots and paused sandboxes that the object store has too, in MiB; 0 means no limit", false, integer(func(c *Config, n int64) { c.Objects.CacheMiB = n })},
		{"objects-upload-mib", "COVE_OBJECTS_UPLOAD_MIB", "Limit on uploads to the object store, in MiB per second; 0 means no limit", false, integer(func(c *Config, n int64) { c.Objects.UploadMiB = n })},
		{"listen", "COVE_LISTEN", "TCP address to listen on, as host:port, or off", false, text(func(c *Config) *string { return &c.Listen })},
		{"socket", "COVE_SOCKET", "Path of the Unix socket (default cove.sock in the state directory)", false, text(func(c *Config) *string { return &c.Socket })},
		{repeated, "COVE_DIALECT_PORTS", "Serve another dialect on /mcp at a further address, as NAME=PORT (on loopback) or NAME=HOST:PORT (repeatable)", false, list(func(c *Config) *[]string { return &c.DialectPorts })},
		{"dev", "COVE_DEV", "Give everyone on loopback full access without a key", true, boolean(func(c *Config) *bool { return &c.Dev })},
		{"allowed-hosts", "COVE_ALLOWED_HOSTS", "Host names that browsers and proxies may use to call the server (comma-separated)", false, list(func(c *Config) *[]string { return &c.AllowedHosts })},
		{"key-prefix", "COVE_KEY_PREFIX", "Prefix of the secrets of API keys", false, text(func(c *Config) *string { return &c.KeyPrefix })},
		{"user-ids", "COVE_USER_IDS", "User and group ids for sandboxes when root runs the daemon, as FIRST-LAST or off", false, text(func(c *Config) *string { return &c.UserIDs })},
		{"idle-exit", "COVE_IDLE_EXIT", "Stop after this time without clients and sandboxes; 0 means never", false, duration(func(c *Config) *time.Duration { return &c.IdleExit })},
		{"drain-timeout", "COVE_DRAIN_TIMEOUT", "How long to wait for calls to finish when stopping", false, duration(func(c *Config) *time.Duration { return &c.DrainTimeout })},
		{"log-level", "COVE_LOG_LEVEL", "Log level: debug, info, warn or error", false, text(func(c *Config) *string { return &c.Log.Level })},
		{"log-format", "COVE_LOG_FORMAT", "Log format: auto, text or json", false, text(func(c *Config) *string { return &c.Log.Format })},
		{"default-template", "COVE_DEFAULT_TEMPLATE", "Default template of sandboxes", false, text(func(c *Config) *string { return &c.Defaults.Template })},
		{"default-lifetime", "COVE_DEFAULT_LIFETIME", "Default lifetime of sandboxes; 0 means no limit", false, duration(func(c *Config) *time.Duration { return &c.Defaults.Lifetime })},
		{"default-checkpoint-interval", "COVE_DEFAULT_CHECKPOINT_INTERVAL", "Default interval of automatic checkpoints of sandboxes, from which they continue if their node or supervisor dies; 0 means none", false, duration(func(c *Config) *time.Duration { return &c.Defaults.CheckpointInterval })},
		{"default-dedicated", "COVE_DEFAULT_DEDICATED", "Give each sandbox and its forks a node on which nothing else runs, unless a request says otherwise; needs nodes of: cove node run --dedicated", true, boolean(func(c *Config) *bool { return &c.Defaults.Dedicated })},
		{"default-idle-timeout", "COVE_DEFAULT_IDLE_TIMEOUT", "Default idle timeout of sandboxes; 0 means no limit", false, duration(func(c *Config) *time.Duration { return &c.Defaults.IdleTimeout })},
		{"warm", "COVE_WARM", "Limit on standby sandboxes per template; 0 boots each sandbox afresh", false, integer(func(c *Config, n int64) { c.Defaults.Warm = int(n) })},
		{"network", "COVE_NETWORK", "Default network of sandboxes: open, none or packages", false, text(func(c *Config) *string { return &c.Network.Default })},
		{"resolvers", "COVE_RESOLVERS", "DNS servers for sandboxes, as address:port (comma-separated; default those of the host)", false, list(func(c *Config) *[]string { return &c.Network.Resolvers })},
		{"extra-ca", "COVE_EXTRA_CA", "PEM file with additional certificate authorities to trust for servers that secrets are sent to", false, text(func(c *Config) *string { return &c.Network.ExtraCA })},
		{"preview-domain", "COVE_PREVIEW_DOMAIN", "Domain below which previews have their names", false, text(func(c *Config) *string { return &c.Previews.Domain })},
		{"preview-url", "COVE_PREVIEW_URL", "Form of preview URLs as seen from outside, with {label}", false, text(func(c *Config) *string { return &c.Previews.URLFormat })},
		{"webhooks-allow-private", "COVE_WEBHOOKS_ALLOW_PRIVATE", "Let webhooks connect to loopback and private networks of this machine", true, boolean(func(c *Config) *bool { return &c.Webhooks.AllowPrivate })},
		{"mount-paths", "COVE_MOUNT_PATHS", "Directories of this machine that sandboxes may mount, with :rw at the end to allow writing (comma-separated)", false, list(func(c *Config) *[]string { return &c.Mounts.AllowHost })},
		{"orphan-retention", "COVE_ORPHAN_RETENTION", "How long to keep data that no record names, for cove recover", false, duration(func(c *Config) *time.Duration { return &c.Orphans.Retention })},
		{"nodes", "COVE_NODES", "TCP address, as host:port, to which other machines connect that run sandboxes of this server (cove node)", false, text(func(c *Config) *string { return &c.Nodes.Listen })},
		{"nodes-only", "COVE_NODES_ONLY", "Run sandboxes on nodes only, not on this machine", true, boolean(func(c *Config) *bool { return &c.Nodes.Only })},
		{"nodes-service-account", "COVE_NODES_SERVICE_ACCOUNT", "Let Pods of this Kubernetes cluster join as nodes that run as this ServiceAccount, as NAMESPACE/NAME", false, text(func(c *Config) *string { return &c.Nodes.ServiceAccount })},
		{"node-lease", "COVE_NODE_LEASE", "How long a node may be away before its running sandboxes fail, or go back to their automatic checkpoints (default 1m)", false, duration(func(c *Config) *time.Duration { return &c.Nodes.Lease })},
		{"template-paths", "COVE_TEMPLATE_PATHS", "Paths of this machine from which templates may be built (comma-separated)", false, list(func(c *Config) *[]string { return &c.Templates.AllowPaths })},
		{"insecure-registries", "COVE_INSECURE_REGISTRIES", "Registries that use plain HTTP or an untrusted certificate (comma-separated)", false, list(func(c *Config) *[]string { return &c.Registries.Insecure })},
		{"private-registries", "COVE_PRIVATE_REGISTRIES", "Registries on loopback or a private network that may be used (comma-separated)", false, list(func(c *Config) *[]string { return &c.Registries.Private })},
		{"quota-snapshots", "COVE_QUOTA_SNAPSHOTS", "Limit on snapshots of a team, without steps of histories; 0 means no limit", false, integer(func(c *Config, n int64) { c.Quotas.Snapshots = int(n) })},
		{"quota-sandboxes", "COVE_QUOTA_SANDBOXES", "Limit on sandboxes of a team that have not ended; 0 means no limit", false, integer(func(c *Config, n int64) { c.Quotas.Sandboxes = int(n) })},
		{"quota-vcpus", "COVE_QUOTA_VCPUS", "Limit on their total vCPUs; 0 means no limit (default 64 for each processor of the machine)", false, integer(func(c *Config, n int64) { c.Quotas.VCPUs = int(n) })},
		{"quota-memory-mib", "COVE_QUOTA_MEMORY_MIB", "Limit on their total memory, in MiB; 0 means no limit (default 8 times the machine's, or its cgroup's)", false, integer(func(c *Config, n int64) { c.Quotas.MemoryMiB = n })},
		{"quota-disk-mib", "COVE_QUOTA_DISK_MIB", "Limit on disk: the disk limits of its sandboxes and volumes plus the size of its snapshots, in MiB; 0 means no limit", false, integer(func(c *Config, n int64) { c.Quotas.DiskMiB = n })},
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
	return func(c *Config, s string) error {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return errors.New("use true or false")
		}
		*field(c) = b
		return nil
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
	return func(c *Config, s string) error {
		d, err := time.ParseDuration(s)
		if err != nil {
			return errors.New("use a duration such as 90s or 2h")
		}
		*field(c) = d
		return nil
	}
}

func integer(set func(*Config, int64)) func(*Config, string) error {
	return func(c *Config, s string) error {
		n, err := strconv.ParseInt(s, 10, 32)
		if err != nil {
			return fmt.Errorf("use a whole number up to %d", math.MaxInt32)
		}
		set(c, n)
		return nil
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
			return Config{}, sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("cannot read the configuration file %s; check its path and permissions", src.File))
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
