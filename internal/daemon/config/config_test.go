package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/sandbox"
)

// noEnv is an environment that says nothing but where an ordinary user is at
// home.
func noEnv(name string) string {
	if name == "HOME" {
		return "/home/user"
	}
	return ""
}

// seen lets secrets be compared.
var seen = cmp.AllowUnexported(sandbox.SecretValue{})

func TestSampleIsTheDefaults(t *testing.T) {
	data, err := os.ReadFile("sample.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := Config{}
	if err := decode(data, &got); err != nil {
		t.Fatal(err)
	}
	want := Default(noEnv)
	want.StateDir = "/var/lib/cove"
	want.Quotas.VCPUs, want.Quotas.MemoryMiB = 128, 65536 // of no machine in particular
	want.AllowedHosts = []string{}
	want.DialectPorts = []string{}
	want.Network.Resolvers = []string{}
	want.TLS.ACME.Hosts = []string{}
	want.Templates.AllowPaths = []string{}
	want.Mounts.AllowHost = []string{}
	want.SSO.Rules = []SSORule{}
	want.Webhooks.Approvals = []ApprovalWebhook{}
	want.Registries = Registries{Mirrors: map[string][]string{}, Insecure: []string{}, Private: []string{}}
	if diff := cmp.Diff(want, got, seen); diff != "" {
		t.Errorf("sample.yaml differs from the defaults (-want +got):\n%s", diff)
	}
	// Every key of the struct is in the sample.
	var sample, all map[string]any
	full, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &sample); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(full, &all); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(keys("", all), keys("", sample)); diff != "" {
		t.Errorf("keys of the struct and of the sample differ (-struct +sample):\n%s", diff)
	}
}

func keys(prefix string, m map[string]any) map[string]bool {
	out := map[string]bool{}
	for k, v := range m {
		if sub, ok := v.(map[string]any); ok {
			for name := range keys(prefix+k+".", sub) {
				out[name] = true
			}
			continue
		}
		out[prefix+k] = true
	}
	return out
}

func TestLoadOrder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cove.yaml")
	content := "state_dir: /from/file\nlisten: 127.0.0.1:1\nidle_exit: 1m\nallowed_hosts: [a, b]\nquotas:\n  sandboxes: 3\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"COVE_LISTEN": "127.0.0.1:2", "COVE_IDLE_EXIT": "2m", "COVE_DEV": "1"}
	got, err := Load(Source{
		File:  file,
		Env:   func(name string) string { return env[name] },
		Flags: map[string]string{"idle-exit": "3m", "quota-memory-mib": "4096"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Default(noEnv)
	want.StateDir = "/from/file"
	want.Listen = "127.0.0.1:2"
	want.IdleExit = 3 * time.Minute
	want.Dev = true
	want.AllowedHosts = []string{"a", "b"}
	want.Quotas.Sandboxes, want.Quotas.MemoryMiB = 3, 4096
	if diff := cmp.Diff(want, got, seen); diff != "" {
		t.Errorf("loaded differs (-want +got):\n%s", diff)
	}
}

func TestEverySettingTakesEffect(t *testing.T) {
	values := map[string]string{
		"state-dir": "/x", "store": "postgres://cove@db/cove", "standby": "true", "objects": "s3://bucket/prefix", "objects-endpoint": "https://s3.example.com", "objects-region": "eu-west-1", "objects-path-style": "true", "objects-cache-mib": "1024", "objects-upload-mib": "50", "listen": "127.0.0.1:9", "socket": "/x/s", "dev": "true", "allowed-hosts": "a, b",
		"key-prefix": "k_", "user-ids": "1000000-2000000", "idle-exit": "7s", "drain-timeout": "8s", "log-level": "debug", "log-format": "json",
		"default-template": "debian", "default-lifetime": "2h", "default-idle-timeout": "3h", "default-checkpoint-interval": "4h", "default-dedicated": "true",
		"quota-sandboxes": "11", "quota-vcpus": "12", "quota-memory-mib": "13", "quota-disk-mib": "15", "quota-snapshots": "14", "warm": "5",
		"network": "none", "resolvers": "192.0.2.53:53, [2001:db8::1]:53", "extra-ca": "/x/ca.pem",
		"preview-domain": "preview.example.com", "preview-url": "https://{label}.preview.example.com",
		"dialect-port":           "microsandbox=5555,podflare=127.0.0.1:0",
		"webhooks-allow-private": "true", "orphan-retention": "50h", "template-paths": "/srv/images, /x", "mount-paths": "/srv/models, /srv/share:rw", "insecure-registries": "registry.lan:5000", "private-registries": "registry.lan",
		"nodes": "0.0.0.0:7780", "nodes-only": "true", "nodes-service-account": "cove/cove-node", "node-lease": "2m",
	}
	for _, s := range Settings() {
		value, ok := values[s.Flag]
		if !ok {
			t.Errorf("no value for --%s in this test", s.Flag)
			continue
		}
		base := Default(noEnv)
		for from, src := range map[string]Source{
			"flag": {Env: noEnv, Flags: map[string]string{s.Flag: value}},
			"environment": {Env: func(name string) string {
				if name == s.Env {
					return value
				}
				return noEnv(name)
			}},
		} {
			got, err := Load(src)
			if err != nil {
				t.Errorf("%s by %s: %v", s.Flag, from, err)
			} else if cmp.Equal(base, got, seen) {
				t.Errorf("%s by %s changes nothing", s.Flag, from)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"unknown key", "lisden: x\n", "lisden"},
		{"unknown nested key", "log:\n  colour: x\n", "colour"},
		{"two documents", "dev: true\n---\ndev: false\n", "more than one document"},
		{"not yaml", "\tx", "configuration file"},
		{"relative state", "state_dir: x\n", "state_dir"},
		{"long socket", "state_dir: /" + strings.Repeat("x", 200) + "\n", "socket"},
		{"listen", "listen: nowhere\n", "listen"},
		{"dev in the open", "dev: true\nlisten: 0.0.0.0:7777\n", "loopback"},
		{"dev on every address", "dev: true\nlisten: :7777\n", "loopback"},
		{"level", "log:\n  level: loud\n", "log.level"},
		{"format", "log:\n  format: xml\n", "log.format"},
		{"prefix", "key_prefix: 'a b'\n", "key_prefix"},
		{"lifetime", "defaults:\n  lifetime: -1s\n", "defaults.lifetime"},
		{"network", "network:\n  default: closed\n", "network.default"},
		{"unknown network key", "network:\n  dns: x\n", "dns"},
		{"resolver name", "network:\n  resolvers: ['dns.example:53']\n", "network.resolvers"},
		{"resolver without port", "network:\n  resolvers: ['192.0.2.1']\n", "network.resolvers"},
		{"relative authorities", "network:\n  extra_ca: ca.pem\n", "network.extra_ca"},
		{"preview domain", "previews:\n  domain: '.localhost'\n", "previews.domain"},
		{"preview domain with port", "previews:\n  domain: 'localhost:80'\n", "previews.domain"},
		{"preview URL without label", "previews:\n  url_format: https://example.com\n", "previews.url_format"},
		{"preview URL with a path", "previews:\n  url_format: 'https://{label}.example.com/x'\n", "previews.url_format"},
		{"preview URL of another scheme", "previews:\n  url_format: 'javascript://{label}.example.com'\n", "previews.url_format"},
		{"certificate without key", "tls:\n  cert: /x\n", "tls.key"},
		{"relative certificate", "tls:\n  cert: x\n  key: y\n", "absolute"},
		{"files and authority", "tls:\n  cert: /x\n  key: /y\n  acme:\n    hosts: [a.example.com]\n", "use one of them"},
		{"authority for a bad name", "tls:\n  acme:\n    hosts: ['*.example.com']\n", "tls.acme.hosts"},
		{"authority for nothing", "tls:\n  acme:\n    email: a@example.com\n", "tls.acme"},
		{"a dialect's port without a name", "dialect_ports: ['5555']\n", "dialect_ports"},
		{"a dialect's port that is none", "dialect_ports: [microsandbox=http]\n", "dialect_ports"},
		{"a dialect's port for all in dev", "dev: true\ndialect_ports: ['microsandbox=0.0.0.0:5555']\n", "dialect_ports"},
		{"relative path of mounts", "mounts:\n  allow_host: [srv:rw]\n", "mounts.allow_host"},
		{"relative path of templates", "templates:\n  allow_paths: [images]\n", "templates.allow_paths"},
		{"insecure registry with a scheme", "registries:\n  insecure: ['http://registry.lan']\n", "registries.insecure"},
		{"private registry with a path", "registries:\n  private: [registry.lan/x]\n", "registries.private"},
		{"mirror with a scheme", "registries:\n  mirrors: {docker.io: ['https://mirror.example.com']}\n", "registries.mirrors"},
		{"single sign-on without an issuer", "sso: {client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}]}\n", "needs an issuer"},
		{"single sign-on in dev", "dev: true\nsso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}]}\n", "sso does not work with dev"},
		{"an issuer over HTTP", "sso: {issuer: http://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}]}\n", "sso.issuer"},
		{"an issuer with a query", "sso: {issuer: 'https://login.example.com?a', client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}]}\n", "sso.issuer"},
		{"an issuer with a user", "sso: {issuer: 'https://a@login.example.com', client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}]}\n", "sso.issuer"},
		{"single sign-on without a client", "sso: {issuer: https://login.example.com, rules: [{claim: groups, value: a, team: red, scopes: [admin]}]}\n", "sso.client_id"},
		{"a relative client secret", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}], client_secret_file: secret}\n", "sso.client_secret_file"},
		{"people come back elsewhere", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}], redirect_url: https://cove.example.com/elsewhere}\n", "sso.redirect_url"},
		{"people come back over HTTP", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}], redirect_url: http://cove.example.com/console/sso/callback}\n", "sso.redirect_url"},
		{"single sign-on without openid", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}], request_scopes: [email]}\n", "sso.request_scopes"},
		{"a scope of two words", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}], request_scopes: [openid, 'a b']}\n", "sso.request_scopes"},
		{"people stay signed in for a month", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}], session_lifetime: 720h}\n", "sso.session_lifetime"},
		{"nobody may sign in", "sso: {issuer: https://login.example.com, client_id: cove, rules: []}\n", "sso.rules"},
		{"a rule without a value", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: '', team: red, scopes: [admin]}]}\n", "sso.rules"},
		{"a rule for a bad team", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: Red, scopes: [admin]}]}\n", "sso.rules"},
		{"a rule without scopes", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: []}]}\n", "sso.rules"},
		{"a rule with an unknown scope", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [root]}]}\n", "sandboxes:read"},
		{"a rule for an e-mail address of anybody", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: email, value: '*', team: red, scopes: [admin]}]}\n", "for the claim email"},
		{"a rule for all of some domains", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: email, value: '*@*.example.com', team: red, scopes: [admin]}]}\n", "for the claim email"},
		{"a name in two lines", "sso: {issuer: https://login.example.com, client_id: cove, rules: [{claim: groups, value: a, team: red, scopes: [admin]}], name: \"a\\nb\"}\n", "sso.name"},
		{"a webhook for a bad team", "webhooks: {approvals: [{team: Red, url: 'https://a.test'}]}\n", "webhooks.approvals"},
		{"a webhook twice", "webhooks: {approvals: [{team: red, url: 'https://a.test'}, {team: red, url: 'https://a.test'}]}\n", "twice"},
		{"a webhook with a relative secret", "webhooks: {approvals: [{team: red, url: 'https://a.test', secret_file: x}]}\n", "secret_file"},
		{"a bucket that is none", "objects: {url: 'http://bucket'}\n", "objects.url"},
		{"a bucket with a password", "objects: {url: 's3://user:secret@bucket'}\n", "credentials belong"},
		{"an endpoint with a path", "objects: {url: 's3://bucket', endpoint: 'https://s3.example.com/x'}\n", "endpoint"},
		{"a negative cache", "objects: {cache_mib: -1}\n", "objects must not"},
		{"quota", "quotas:\n  vcpus: -1\n", "quotas"},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "cove.yaml")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Load(Source{File: file, Env: noEnv})
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an invalid that names %q", err, c.want)
			}
		})
	}
	if _, err := Load(Source{File: "/no/such/file", Env: noEnv}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("missing file: %v", err)
	}
	_, err := Load(Source{Env: func(name string) string { return map[string]string{"COVE_DEV": "perhaps"}[name] }})
	if err == nil || !strings.Contains(err.Error(), `COVE_DEV="perhaps" is not valid: use true or false`) {
		t.Errorf("bad variable: %v", err)
	}
}

func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "127.9.9.9:1": true,
		"0.0.0.0:1": false, ":1": false, "[::]:1": false, "10.0.0.1:1": false, "example.com:1": false, "off": false,
	} {
		c := Config{Listen: address}
		if got := c.Loopback(); got != want {
			t.Errorf("%s: loopback %v, want %v", address, got, want)
		}
	}
}

func TestPreviewURL(t *testing.T) {
	for _, c := range []struct {
		previews Previews
		port     int
		want     string
	}{
		{Previews{Domain: "localhost"}, 7777, "http://80-x.localhost:7777"},
		{Previews{Domain: "localhost"}, 80, "http://80-x.localhost"},
		{Previews{Domain: "p.example.com"}, 0, "http://80-x.p.example.com"},
		{Previews{Domain: "p.example.com", URLFormat: "https://{label}.p.example.com:8443"}, 7777, "https://80-x.p.example.com:8443"},
	} {
		cfg := Config{Previews: c.previews}
		if got := cfg.PreviewURL("80-x", c.port); got != c.want {
			t.Errorf("%+v, port %d: %s, want %s", c.previews, c.port, got, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("dev: true\n"))
	f.Add([]byte("log: {level: info}\n"))
	f.Fuzz(func(_ *testing.T, data []byte) {
		cfg := Default(noEnv)
		if decode(data, &cfg) == nil {
			_ = cfg.Validate()
		}
	})
}

func TestDefaultStateDir(t *testing.T) {
	env := map[string]string{"HOME": "/home/u", "XDG_STATE_HOME": "/xdg"}
	get := func(name string) string { return env[name] }
	want := "/xdg/cove"
	if os.Geteuid() == 0 {
		want = "/var/lib/cove"
	}
	if got := DefaultStateDir(get); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUserIDRange(t *testing.T) {
	for text, want := range map[string][2]int64{
		"524288-1879048191": {524288, 1878523904}, "65536-131071": {65536, 65536},
		"off": {}, "": {}, "0-1000000": {}, "65536": {}, "65536-131070": {}, "131071-65536": {}, "65536-4294967295": {}, "-1-70000": {},
	} {
		c := Default(noEnv)
		c.UserIDs = text
		if first, count := c.UserIDRange(); first != want[0] || count != want[1] {
			t.Errorf("%q: %d ids from %d, want %d from %d", text, count, first, want[1], want[0])
		}
		if err := c.Validate(); (err == nil) != (want[1] > 0 || text == "off") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// The address of the store has a password, which nothing shows.
func TestStoreIsNotShown(t *testing.T) {
	const password = "hunter2hunter2"
	for _, address := range []string{"postgres://cove:" + password + "@db/cove", "mysql://cove:" + password + "@db/cove", "{" + password + ": x}"} {
		file := filepath.Join(t.TempDir(), "cove.yaml")
		if err := os.WriteFile(file, []byte("store: "+address+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for from, src := range map[string]Source{
			"file":        {File: file, Env: noEnv},
			"flag":        {Env: noEnv, Flags: map[string]string{"store": address}},
			"environment": {Env: func(name string) string { return map[string]string{"COVE_STORE": address, "HOME": "/home/user"}[name] }},
		} {
			cfg, err := Load(src)
			if ok := strings.HasPrefix(address, "postgres:"); ok != (err == nil) || ok && cfg.Store.Reveal() != address {
				t.Errorf("%s: %v", from, err)
			}
			text, yerr := yaml.Marshal(cfg)
			if yerr != nil {
				t.Fatal(yerr)
			}
			if said := fmt.Sprintf("%v %+v %#v %s %v", cfg, cfg, cfg, text, err); strings.Contains(said, password) {
				t.Errorf("%s: the password is shown: %s", from, said)
			}
		}
	}
}
