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
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/internal/objects"
	"github.com/cove-sh/cove/sandbox"
)

// Config is how a daemon runs. See sample.yaml for a file with every key.
type Config struct {
	// StateDir holds everything the daemon keeps. One daemon uses it at a time.
	StateDir string `yaml:"state_dir"`
	// Store is the address of a PostgreSQL database that has the records, with its
	// password. Empty is a file in StateDir.
	Store Secret `yaml:"store"`
	// Standby waits while another daemon has the database of Store, and takes over from it.
	Standby bool `yaml:"standby"`
	// Objects is an object store that has snapshots and paused sandboxes too.
	Objects Objects `yaml:"objects"`
	// Listen is the TCP address, host:port, or "off".
	Listen string `yaml:"listen"`
	// Socket is the path of the unix socket, whose user is trusted. Empty is
	// cove.sock in StateDir.
	Socket string `yaml:"socket"`
	// DialectPorts are further TCP addresses, on each of which /mcp speaks
	// another dialect: NAME=PORT, on loopback, or NAME=HOST:PORT.
	DialectPorts []string `yaml:"dialect_ports"`
	// Dev serves everyone on loopback without a key.
	Dev bool `yaml:"dev"`
	// AllowedHosts are names by which web browsers and proxies may call the
	// daemon, besides those of loopback.
	AllowedHosts []string `yaml:"allowed_hosts"`
	// KeyPrefix is how the secrets of API keys begin.
	KeyPrefix string `yaml:"key_prefix"`
	// UserIDs are the user and group ids of this machine that sandboxes may
	// have where root runs the daemon: FIRST-LAST, or "off".
	UserIDs string `yaml:"user_ids"`
	// IdleExit ends the daemon after this time without a client and without a
	// sandbox; 0 is never.
	IdleExit time.Duration `yaml:"idle_exit"`
	// DrainTimeout is how long calls may take to end when the daemon stops.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	Log          Log           `yaml:"log"`
	Defaults     Defaults      `yaml:"defaults"`
	Quotas       Quotas        `yaml:"quotas"`
	Network      Network       `yaml:"network"`
	Previews     Previews      `yaml:"previews"`
	TLS          TLS           `yaml:"tls"`
	SSO          SSO           `yaml:"sso"`
	Webhooks     Webhooks      `yaml:"webhooks"`
	Templates    Templates     `yaml:"templates"`
	Registries   Registries    `yaml:"registries"`
	Mounts       Mounts        `yaml:"mounts"`
	Orphans      Orphans       `yaml:"orphans"`
	Nodes        Nodes         `yaml:"nodes"`
}

// Nodes says whether other machines run sandboxes of this server.
type Nodes struct {
	// Listen is the TCP address, host:port, to which nodes connect. Empty takes no nodes.
	Listen string `yaml:"listen"`
	// Only keeps sandboxes from this machine.
	Only bool `yaml:"only"`
	// Lease is how long a node may be away before its running sandboxes fail, or go back to
	// their automatic checkpoints.
	Lease time.Duration `yaml:"lease"`
	// ServiceAccount, as NAMESPACE/NAME, lets Pods of a Kubernetes cluster join that run as
	// this ServiceAccount. Empty lets none.
	ServiceAccount string `yaml:"service_account"`
}

// Objects is an object store. Credentials come from the AWS variables and files.
type Objects struct {
	// URL is s3://BUCKET/PREFIX or file:///DIRECTORY; empty is none.
	URL string `yaml:"url"`
	// Endpoint is the address of an S3-compatible store; empty is that of the
	// environment, or Amazon's.
	Endpoint string `yaml:"endpoint"`
	Region   string `yaml:"region"`
	// PathStyle puts the bucket into the path of addresses, as is always done with
	// an endpoint.
	PathStyle bool `yaml:"path_style"`
	// CacheMiB is how much of the disk snapshots and paused sandboxes may take, as
	// far as they are in the object store; 0 is no bound.
	CacheMiB int64 `yaml:"cache_mib"`
	// UploadMiB bounds uploads, in MiB a second; 0 is no bound.
	UploadMiB int64 `yaml:"upload_mib"`
}

// Open returns the object store, or nil if there is none.
func (o *Objects) Open(env func(string) string) (objects.Bucket, error) {
	if o.URL == "" {
		return nil, nil
	}
	return objects.Open(o.URL, objects.Options{Endpoint: o.Endpoint, Region: o.Region, PathStyle: o.PathStyle, Env: env})
}

// problem says what is wrong with the object store, or nothing.
func (o *Objects) problem() string {
	if o.URL == "" {
		return ""
	}
	if _, err := objects.ParseAddress(o.URL); err != nil {
		return err.Error()
	}
	if o.Endpoint != "" {
		if _, err := objects.ParseEndpoint(o.Endpoint); err != nil {
			return err.Error()
		}
	}
	return ""
}

// Templates says what templates may be made of.
type Templates struct {
	// AllowPaths are absolute paths of this machine: whoever may build templates
	// may read archives and root file systems there, with all below.
	AllowPaths []string `yaml:"allow_paths"`
}

// Registries says where images come from. Credentials are those of the Docker
// configuration of the daemon's user.
type Registries struct {
	// Mirrors are asked first, by registry: "docker.io" to "mirror.example.com"
	// or "mirror.example.com/prefix".
	Mirrors map[string][]string `yaml:"mirrors"`
	// Insecure are registries, host or host:port, that speak plain HTTP or have a
	// certificate that nobody vouches for.
	Insecure []string `yaml:"insecure"`
	// Private are registries, likewise, that have addresses of loopback or a
	// private network. Mirrors and insecure ones may without being here.
	Private []string `yaml:"private"`
}

// Mounts says what of this machine sandboxes may be shown.
type Mounts struct {
	// AllowHost are absolute paths of directories: whoever may create sandboxes
	// may mount them and all below, read-only; with ":rw" at the end, to write.
	AllowHost []string `yaml:"allow_host"`
}

// Orphans says what becomes of what is in the state directory and has no record.
type Orphans struct {
	// Retention is how long it is kept for cove recover.
	Retention time.Duration `yaml:"retention"`
}

// Webhooks says how the ends of jobs are told, and to whom what network policies ask.
type Webhooks struct {
	// AllowPrivate lets webhooks reach loopback and private networks of the
	// host.
	AllowPrivate bool `yaml:"allow_private"`
	// Approvals are told what the network policies of a team's sandboxes ask.
	Approvals []ApprovalWebhook `yaml:"approvals"`
}

// ApprovalWebhook is told what the network policies of a team's sandboxes ask.
type ApprovalWebhook struct {
	Team string `yaml:"team"`
	// URL is http or https.
	URL string `yaml:"url"`
	// SecretFile is a file with what the POSTs are signed with; empty signs none.
	SecretFile string `yaml:"secret_file"`
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
	// CheckpointInterval is that of automatic checkpoints; 0 is none.
	CheckpointInterval time.Duration `yaml:"checkpoint_interval"`
	// Dedicated gives each sandbox and its forks a node on which nothing else runs.
	Dedicated bool `yaml:"dedicated"`
	// Warm is how many sandboxes of a template wait ready at most; the daemon
	// keeps fewer when few are made or memory is short. 0 boots each afresh.
	Warm int `yaml:"warm"`
}

// Quotas bound what one team has together; 0 is no bound.
type Quotas struct {
	Sandboxes int `yaml:"sandboxes"`
	// VCPUs and MemoryMiB are by default those of [machine.DefaultQuota].
	VCPUs     int   `yaml:"vcpus"`
	MemoryMiB int64 `yaml:"memory_mib"`
	// DiskMiB is what the disks of living sandboxes and volumes may grow to, with
	// what snapshots hold.
	DiskMiB int64 `yaml:"disk_mib"`
	// Snapshots are those that no history has made.
	Snapshots int `yaml:"snapshots"`
}

// Network says what sandboxes reach, and how.
type Network struct {
	// Default is the preset of sandboxes that say nothing of their network.
	Default string `yaml:"default"`
	// Resolvers are DNS servers, address:port, in place of the host's.
	Resolvers []string `yaml:"resolvers"`
	// ExtraCA is a PEM file of authorities, besides the system's, that
	// registries and the servers to which secrets go may have their
	// certificates from.
	ExtraCA string `yaml:"extra_ca"`
}

// Previews says how ports of sandboxes become URLs.
type Previews struct {
	// Domain is the one below which each preview has its own name.
	Domain string `yaml:"domain"`
	// URLFormat is what URLs of previews look like from outside, with "{label}"
	// for the first label of the name. Empty is http with the domain and the
	// port of Listen.
	URLFormat string `yaml:"url_format"`
}

// TLS makes the TCP listener speak HTTPS, with a certificate from files or from
// an authority. Zero is HTTP.
type TLS struct {
	// Cert and Key are PEM files. They are read again when they change.
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
	ACME ACME   `yaml:"acme"`
}

// ACME gets certificates by itself. The listener must be reachable on port 443
// of the names.
type ACME struct {
	// Hosts are the server's names. Previews get certificates too.
	Hosts []string `yaml:"hosts"`
	// Email is told to the authority.
	Email string `yaml:"email"`
	// Cache is the directory of the certificates; empty is acme in StateDir.
	Cache string `yaml:"cache"`
	// Directory is the URL of the authority; empty is Let's Encrypt.
	Directory string `yaml:"directory"`
}

// On reports whether the TCP listener speaks HTTPS.
func (t *TLS) On() bool { return t.Cert != "" || len(t.ACME.Hosts) > 0 }

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
	vcpus, memoryMiB := machine.DefaultQuota(machine.Capacity(""))
	return Config{
		StateDir:     DefaultStateDir(env),
		Listen:       "127.0.0.1:7777",
		KeyPrefix:    "cove_",
		UserIDs:      "524288-1879048191", // systemd's, for containers
		DrainTimeout: 10 * time.Second,
		Log:          Log{Level: "info", Format: "auto"},
		Defaults: Defaults{
			Template:    "host",
			Lifetime:    sandbox.DefaultLifetime,
			IdleTimeout: sandbox.DefaultIdleTimeout,
			Warm:        4,
		},
		Quotas:   Quotas{Sandboxes: 100, VCPUs: vcpus, MemoryMiB: memoryMiB, Snapshots: 100},
		Network:  Network{Default: string(sandbox.NetworkOpen)},
		Previews: Previews{Domain: "localhost"},
		Orphans:  Orphans{Retention: 7 * 24 * time.Hour},
		Nodes:    Nodes{Lease: time.Minute},
		SSO:      SSO{Name: "single sign-on", RequestScopes: []string{"openid", "email", "profile"}, SessionLifetime: 12 * time.Hour},
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

// leastUserID is the first id that may be given to sandboxes: those below are of
// people and services. idsPerSandbox is how many each has.
const leastUserID, idsPerSandbox = 1 << 16, 1 << 16

// UserIDRange returns the ids that sandboxes may have: count of them from first
// up. Both are 0 if there are none, or if the setting is not valid.
func (c *Config) UserIDRange() (first, count int64) {
	from, to, _ := strings.Cut(c.UserIDs, "-")
	low, err := strconv.ParseUint(from, 10, 32)
	high, err2 := strconv.ParseUint(to, 10, 32)
	if err != nil || err2 != nil || high == 1<<32-1 || low < leastUserID || high < low+idsPerSandbox-1 {
		return 0, 0
	}
	return int64(low), int64(high - low + 1)
}

func validUserIDs(s string) bool {
	_, count := (&Config{UserIDs: s}).UserIDRange()
	return s == "off" || count > 0
}

// Validate reports the first value that no daemon can run with. The error says
// which key it is.
func (c *Config) Validate() error {
	for _, check := range []struct {
		key, problem string
		bad          bool
	}{
		{"state_dir", "must be an absolute path", !filepath.IsAbs(c.StateDir)},
		{"store", "must be the address of a PostgreSQL database, postgres://USER:PASSWORD@HOST:PORT/DATABASE", c.Store.Reveal() != "" && !postgresAddress(c.Store.Reveal())},
		{"objects.url", "is not valid: " + c.Objects.problem(), c.Objects.problem() != ""},
		{"objects", "must not have negative numbers", c.Objects.CacheMiB < 0 || c.Objects.UploadMiB < 0},
		{"socket", "must be an absolute path", c.Socket != "" && !filepath.IsAbs(c.Socket)},
		{"socket", fmt.Sprintf("must be at most %d bytes long (%s); use a shorter state_dir", maxSocketPath, c.SocketPath()), len(c.SocketPath()) > maxSocketPath},
		{"listen", "must be host:port or off", !validListen(c.Listen)},
		{"dialect_ports", "must have entries of the form NAME=PORT or NAME=HOST:PORT, such as microsandbox=5555", slices.ContainsFunc(c.DialectPorts, badDialectPort)},
		{"listen", "must be a loopback address, because dev serves without keys; use 127.0.0.1, or turn dev off", c.Dev && c.Listen != Off && !c.Loopback()},
		{"dialect_ports", "must have only loopback addresses, because dev serves without keys; give only the port, or turn dev off", c.Dev && c.Exposed()},
		{"key_prefix", "must be 1 to 32 letters, digits, _ and -", !validPrefix(c.KeyPrefix)},
		{"idle_exit", "must not be negative", c.IdleExit < 0},
		{"drain_timeout", "must not be negative", c.DrainTimeout < 0},
		{"log.level", "must be debug, info, warn or error", !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level)},
		{"log.format", "must be auto, text or json", !slices.Contains([]string{"auto", "text", "json"}, c.Log.Format)},
		{"defaults.template", "must not be empty", c.Defaults.Template == ""},
		{"defaults.lifetime", "must be from 0 to a year", c.Defaults.Lifetime < 0 || c.Defaults.Lifetime > sandbox.MaxLifetime},
		{"defaults.warm", "must be from 0 to 64", c.Defaults.Warm < 0 || c.Defaults.Warm > 64},
		{"defaults.checkpoint_interval", "must be whole seconds from a minute to a day, or 0", badInterval(c.Defaults.CheckpointInterval)},
		{"defaults.idle_timeout", "must be from 0 to a year", c.Defaults.IdleTimeout < 0 || c.Defaults.IdleTimeout > sandbox.MaxLifetime},
		{"quotas", "must not have negative numbers", c.Quotas.Sandboxes < 0 || c.Quotas.VCPUs < 0 || c.Quotas.MemoryMiB < 0 || c.Quotas.DiskMiB < 0 || c.Quotas.Snapshots < 0},
		{"network.default", "must be open, none or packages", !slices.Contains([]string{"open", "none", "packages"}, c.Network.Default)},
		{"network.resolvers", "must have entries of the form address:port, such as 192.0.2.53:53", slices.ContainsFunc(c.Network.Resolvers, badResolver)},
		{"network.extra_ca", "must be an absolute path", c.Network.ExtraCA != "" && !filepath.IsAbs(c.Network.ExtraCA)},
		{"previews.domain", "must be a domain in lower case, such as localhost or preview.example.com", !domains.MatchString(c.Previews.Domain) || len(c.Previews.Domain) > maxDomain},
		{"previews.url_format", "must be http:// or https:// and a host that begins with {label}., such as https://{label}.preview.example.com", c.Previews.URLFormat != "" && !urlFormats.MatchString(c.Previews.URLFormat)},
		{"tls", "needs both tls.cert and tls.key; set the one that is missing", (c.TLS.Cert == "") != (c.TLS.Key == "")},
		{"tls", "must have absolute paths", relative(c.TLS.Cert, c.TLS.Key, c.TLS.ACME.Cache)},
		{"tls", "has both certificate files and acme; use one of them", c.TLS.Cert != "" && len(c.TLS.ACME.Hosts) > 0},
		{"tls.acme.hosts", "must have domain names in lower case, such as cove.example.com", slices.ContainsFunc(c.TLS.ACME.Hosts, func(h string) bool { return !domains.MatchString(h) })},
		{"templates.allow_paths", "must have absolute paths", relative(c.Templates.AllowPaths...)},
		{"registries.insecure", "must have entries of the form host or host:port, such as registry.lan:5000", slices.ContainsFunc(c.Registries.Insecure, badRegistry)},
		{"registries.private", "must have entries of the form host or host:port, such as registry.lan:5000", slices.ContainsFunc(c.Registries.Private, badRegistry)},
		{"registries.mirrors", "must have entries of the form host, host:port or host/prefix, such as docker.io: [mirror.example.com]", badMirrors(c.Registries.Mirrors)},
		{"user_ids", "must be off, or FIRST-LAST with at least 65536 ids from 65536 up", !validUserIDs(c.UserIDs)},
		{"orphans.retention", "must be at least 1m", c.Orphans.Retention < time.Minute},
		{"nodes.listen", "must be host:port", c.Nodes.Listen != "" && (c.Nodes.Listen == Off || !validListen(c.Nodes.Listen))},
		{"nodes.service_account", "must be NAMESPACE/NAME", c.Nodes.ServiceAccount != "" && !accounts.MatchString(c.Nodes.ServiceAccount)},
		{"nodes.lease", "must be from 30s to 24h", c.Nodes.Lease < 30*time.Second || c.Nodes.Lease > 24*time.Hour},
		{"mounts.allow_host", "must have absolute paths", relative(c.Mounts.AllowHost...)},
		{"webhooks.approvals", "must have at most 64 entries", len(c.Webhooks.Approvals) > 64},
		{"webhooks.approvals", "must have teams of 1 to 63 lower-case letters, digits, dashes, underscores and dots, with a letter or digit first and last", slices.ContainsFunc(c.Webhooks.Approvals, func(a ApprovalWebhook) bool { return !teams.MatchString(a.Team) })},
		{"webhooks.approvals", "must have absolute paths for secret_file", slices.ContainsFunc(c.Webhooks.Approvals, func(a ApprovalWebhook) bool { return relative(a.SecretFile) })},
		{"webhooks.approvals", "must not have the same team and url twice", twice(c.Webhooks.Approvals)},
		{"sso", "needs an issuer; set it to the address of the identity provider, such as https://login.example.com", c.SSO.Issuer == "" && c.SSO.given()},
		{"tls.acme", "needs hosts; set them to the server's names", len(c.TLS.ACME.Hosts) == 0 && c.TLS.ACME.Email+c.TLS.ACME.Cache+c.TLS.ACME.Directory != ""},
	} {
		if check.bad {
			return sandbox.Errorf(sandbox.CodeInvalid, "configuration: %s %s", check.key, check.problem)
		}
	}
	if c.SSO.Issuer == "" {
		return nil
	}
	return c.validateSSO()
}

func postgresAddress(s string) bool {
	return strings.HasPrefix(s, "postgres://") || strings.HasPrefix(s, "postgresql://")
}

// maxDomain leaves room for the label of a preview, in bytes.
const maxDomain = 253 - 64

var (
	domains    = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)
	accounts   = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)
	urlFormats = lazyregexp.New(`^https?://\{label\}(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+(:[0-9]{1,5})?$`)
)

func twice(all []ApprovalWebhook) bool {
	seen := map[[2]string]bool{}
	for _, a := range all {
		seen[[2]string{a.Team, a.URL}] = true
	}
	return len(seen) < len(all)
}

func relative(paths ...string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return p != "" && !filepath.IsAbs(p) })
}

// registries match host, host:port or an IPv6 address in brackets.
var (
	registries = lazyregexp.New(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?$`)
	prefixes   = lazyregexp.New(`^[a-z0-9]+([._/-][a-z0-9]+)*/?$`)
)

func badRegistry(s string) bool { return !registries.MatchString(s) }

func badMirrors(mirrors map[string][]string) bool {
	for of, all := range mirrors {
		if badRegistry(of) || slices.ContainsFunc(all, func(m string) bool {
			host, prefix, _ := strings.Cut(m, "/")
			return badRegistry(host) || prefix != "" && !prefixes.MatchString(prefix)
		}) {
			return true
		}
	}
	return false
}

func badResolver(s string) bool {
	a, err := netip.ParseAddrPort(s)
	return err != nil || a.Port() == 0
}

// PreviewURL returns the URL of a preview by the first label of its name; port
// is that of the TCP listener, or 0 if there is none.
func (c *Config) PreviewURL(label string, port int) string {
	if c.Previews.URLFormat != "" {
		return strings.Replace(c.Previews.URLFormat, "{label}", label, 1)
	}
	scheme, usual := "http", 80
	if c.TLS.On() {
		scheme, usual = "https", 443
	}
	host := label + "." + c.Previews.Domain
	if port != 0 && port != usual {
		host += ":" + strconv.Itoa(port)
	}
	return scheme + "://" + host
}

// UploadURL returns the address to which an archive is sent by a link; port is
// that of the TCP listener. It is "" when no name is known by which others reach
// the server.
func (c *Config) UploadURL(path string, port int) string {
	scheme, usual := "http", 80
	if c.TLS.On() {
		scheme, usual = "https", 443
	}
	if port == 0 {
		return ""
	}
	if c.Loopback() {
		host, _, err := net.SplitHostPort(c.Listen)
		if err != nil {
			return ""
		}
		return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port)) + path
	}
	i := slices.IndexFunc(c.AllowedHosts, func(h string) bool { return h != "" && !strings.Contains(h, "*") })
	if i < 0 {
		return ""
	}
	if before, _, ok := strings.Cut(c.Previews.URLFormat, "://"); ok && before != scheme {
		// There is something in front, which the format knows of.
		return before + "://" + c.AllowedHosts[i] + path
	}
	host := c.AllowedHosts[i]
	if port != usual {
		host += ":" + strconv.Itoa(port)
	}
	return scheme + "://" + host + path
}

// Loopback reports whether the TCP address can only be reached from this
// machine.
func (c *Config) Loopback() bool { return loopback(c.Listen) }

// Exposed reports whether a TCP address, of those for dialects too, can be
// reached from other machines.
func (c *Config) Exposed() bool {
	return c.Listen != Off && !c.Loopback() || slices.ContainsFunc(c.DialectPorts, func(s string) bool {
		_, addr, ok := ParseDialectPort(s)
		return ok && !loopback(addr)
	})
}

// ParseDialectPort splits one of DialectPorts into the dialect's name and the
// TCP address.
func ParseDialectPort(s string) (dialect, addr string, ok bool) {
	dialect, addr, ok = strings.Cut(s, "=")
	if ok && !strings.Contains(addr, ":") {
		addr = net.JoinHostPort("127.0.0.1", addr)
	}
	_, port, err := net.SplitHostPort(addr)
	_, portErr := strconv.ParseUint(port, 10, 16)
	return dialect, addr, ok && dialect != "" && err == nil && portErr == nil
}

func badDialectPort(s string) bool {
	_, _, ok := ParseDialectPort(s)
	return !ok
}

func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
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

func badInterval(d time.Duration) bool {
	return d != 0 && (d < sandbox.MinCheckpointInterval || d > sandbox.MaxCheckpointInterval || d%time.Second != 0)
}
