package cloud

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// minimal returns a description as the product's program sends it, with one member
// replaced.
func minimal(t *testing.T, member, value string) *spec {
	t.Helper()
	all := map[string]json.RawMessage{
		"name": []byte(`"x"`), "image": []byte(`{"type":"oci","reference":"alpine"}`), "resources": []byte(`{"vcpus":1,"memory_mib":512}`),
		"runtime": []byte(`{"workdir":null,"shell":null,"scripts":{},"entrypoint":null,"cmd":null,"user":null,"log_level":null}`),
		"env":     []byte(`[]`), "labels": []byte(`{}`), "rlimits": []byte(`[]`), "mounts": []byte(`[]`), "patches": []byte(`[]`),
		"network": []byte(`{"enabled":true,"strict":false}`), "init": []byte(`null`), "pull_policy": []byte(`"if_missing"`), "security_profile": []byte(`"default"`),
		"lifecycle": []byte(`{"ephemeral":false,"max_duration_secs":null,"idle_timeout_secs":null}`),
	}
	if member != "" {
		all[member] = []byte(value)
	}
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	var s spec
	if err := decodeJSON(data, &s); err != nil {
		t.Fatalf("%s %s: %v", member, value, err)
	}
	return &s
}

func TestDescriptionOfTheProductsOwn(t *testing.T) {
	s := minimal(t, "", "")
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	req, err := s.request()
	if err != nil {
		t.Fatal(err)
	}
	want := &sandbox.CreateRequest{
		Metadata: map[string]string{tagImage: "alpine"}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 512}, Env: map[string]string{},
		LifetimeSeconds: new(int64), IdleTimeoutSeconds: new(int64),
	}
	if diff := cmp.Diff(want, req); diff != "" {
		t.Error(diff)
	}
}

// TestRefusals checks that what Cove does not enforce is refused by name.
func TestRefusals(t *testing.T) {
	for _, c := range []struct{ member, value, says string }{
		{"name", `"sbx-x"`, "name"}, {"name", `"a\u0000b"`, "name"}, {"name", `"` + strings.Repeat("a", 129) + `"`, "name"},
		{"image", `{"type":"bind","path":"/x"}`, "image"}, {"image", `{"type":"oci","reference":""}`, "image"},
		{"runtime", `{"scripts":{"a":"b"}}`, "runtime.scripts"}, {"runtime", `{"log_level":"debug"}`, "runtime.log_level"},
		{"rlimits", `[{"resource":"nofile","soft":1,"hard":1}]`, "rlimits"}, {"init", `{"cmd":"/sbin/init"}`, "init"},
		{"security_profile", `"restricted"`, "security_profile"}, {"slug", `"x"`, "slug"}, {"labels", `{"cove.e2b.x":"y"}`, "labels"},
		{"registry", `{"mode":"inline","username":"u","password":"p"}`, "registry"},
		{"mounts", `[{"type":"bind","host":"/etc","guest":"/x"}]`, "mounts"}, {"mounts", `[{"type":"disk_image","host":"/d","guest":"/x","format":"raw"}]`, "mounts"},
		{"mounts", `[{"type":"named","name":"v","guest":"/x","options":{"noexec":true}}]`, "mounts.options"},
		{"mounts", `[{"type":"named","name":"v","guest":"/x","stat_virtualization":"off"}]`, "stat_virtualization"},
		{"lifecycle", `{"max_duration_secs":0}`, "max_duration_secs"}, {"env", `[{"key":"a","value":"1"},{"key":"a","value":"2"}]`, "env"},
		{"network", `{"enabled":true,"strict":true}`, "network.strict"},
		{"network", `{"enabled":true,"policy":{"default_egress":"deny","default_ingress":"deny","rules":[{"direction":"ingress","destination":"any","action":"allow"}]}}`, "direction"},
		{"network", `{"enabled":true,"policy":{"default_egress":"deny","default_ingress":"deny","rules":[{"direction":"egress","destination":{"group":"host"},"action":"allow"}]}}`, "the host"},
		{"network", `{"enabled":true,"policy":{"default_egress":"deny","default_ingress":"deny","rules":[{"direction":"egress","destination":{"group":"metadata"},"action":"allow"}]}}`, "metadata"},
		{"network", `{"enabled":true,"policy":{"default_egress":"deny","default_ingress":"deny","rules":[{"direction":"egress","destination":{"cidr":"1.2.3.4/32","domain":"x"},"action":"allow"}]}}`, "destination"},
		{"network", `{"enabled":true,"policy":{"default_egress":"deny","default_ingress":"deny","rules":[{"direction":"egress","destination":{"domain":"x.test","path":"/only"},"action":"allow"}]}}`, "path"},
		{"network", `{"enabled":true,"policy":{"default_egress":"maybe","default_ingress":"deny"}}`, "default_egress"},
	} {
		s := minimal(t, c.member, c.value)
		err := s.check()
		if err == nil {
			_, err = s.request()
		}
		if err == nil || !strings.Contains(sandbox.MessageOf(err), c.says) || kindOf(err).code != "invalid_sandbox_config" {
			t.Errorf("%s %s: %v", c.member, c.value, err)
		}
	}
}

func TestPolicies(t *testing.T) {
	const dns = `{"direction":"egress","destination":{"group":"host"},"protocols":["udp","tcp"],"ports":[{"start":53,"end":53}],"action":"allow"}`
	const public = `{"direction":"egress","destination":{"group":"public"},"protocols":[],"ports":[],"action":"allow"}`
	for name, c := range map[string]struct {
		network string
		want    *sandbox.NetworkPolicy
	}{
		"the server's own": {`{"enabled":true}`, nil},
		"none":             {`{"enabled":false}`, &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}},
		"--no-net":         {`{"enabled":true,"policy":{"default_egress":"deny","default_ingress":"deny"}}`, &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone}},
		"public":           {`{"enabled":true,"policy":{"default_egress":"deny","default_ingress":"allow","rules":[` + dns + `,` + public + `]}}`, &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}},
		"but some": {`{"enabled":true,"max_connections":9,"policy":{"default_egress":"allow","default_ingress":"allow","rules":[{"direction":"egress","destination":{"domain_suffix":"x.test"},"protocols":["tcp","udp"],"ports":[{"start":1,"end":2},{"start":9,"end":9}],"action":"deny"}]}}`,
			&sandbox.NetworkPolicy{MaxConnections: 9, Rules: []sandbox.NetworkRule{
				{Action: "deny", To: "x.test", Protocol: "tcp", Ports: []string{"1-2", "9"}}, {Action: "deny", To: "x.test", Protocol: "udp", Ports: []string{"1-2", "9"}},
				{Action: "deny", To: "*.x.test", Protocol: "tcp", Ports: []string{"1-2", "9"}}, {Action: "deny", To: "*.x.test", Protocol: "udp", Ports: []string{"1-2", "9"}},
			}}},
		"one domain": {`{"enabled":true,"policy":{"default_egress":"deny","default_ingress":"deny","rules":[` + dns + `,{"direction":"egress","destination":{"domain":"a.test"},"protocols":["icmpv4","icmpv6"],"action":"allow"}]}}`,
			&sandbox.NetworkPolicy{Preset: sandbox.NetworkNone, Rules: []sandbox.NetworkRule{{Action: "allow", To: "a.test", Protocol: "icmp"}}}},
	} {
		got, err := minimal(t, "network", c.network).Network.mapped()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestUnknownFields(t *testing.T) {
	var s spec
	if err := decodeJSON([]byte(`{"name":"x","new":null,"newer":[],"init":null,"network":{"enabled":true,"newest":{}}}`), &s); err != nil {
		t.Errorf("what says nothing: %v", err)
	}
	for _, body := range []string{`{"new":1}`, `{"network":{"new":"x"}}`, `{"newer":{"a":[]}}`, `{"name":"x"} more`, `{"name":"x","name":"y"}`, `[`} {
		if err := decodeJSON([]byte(body), &s); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestSecretsOfADescription(t *testing.T) {
	mine := &sandbox.Secret{Name: "KK", Hosts: []string{"api.x.com"}, Auth: sandbox.SecretAuth{Type: "header", User: "x"}}
	read := func(text string) *secretEntry {
		var e secretEntry
		if err := decodeJSON([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		return &e
	}
	good := `"env_var":"KK","placeholder":"$MSB_KK","injection":{"headers":true,"basic_auth":true,"query_params":false,"body":false},"require_tls_identity":true`
	host := `"allowed_hosts":[{"type":"exact","value":"api.x.com"}]`
	for name, c := range map[string]struct{ text, refused string }{
		"of the program":   {`{` + good + `,` + host + `,"value":"","source":{"type":"env","var":"KK"}}`, ""},
		"of the store":     {`{` + good + `,` + host + `,"source":{"type":"store","reference":"KK"}}`, ""},
		"a value":          {`{` + good + `,` + host + `,"value":"v"}`, "value"},
		"no source":        {`{` + good + `,` + host + `}`, "source"},
		"a placeholder":    {`{"env_var":"KK","placeholder":"mine",` + host + `,"source":{"type":"env","var":"KK"}}`, "placeholders"},
		"any host":         {`{` + good + `,"allowed_hosts":[{"type":"any"}],"source":{"type":"env","var":"KK"}}`, "allowed_hosts"},
		"a host less":      {`{` + good + `,"source":{"type":"env","var":"KK"}}`, "allowed_hosts"},
		"a host more":      {`{` + good + `,"allowed_hosts":[{"type":"exact","value":"api.x.com"},{"type":"exact","value":"evil.test"}],"source":{"type":"env","var":"KK"}}`, "allowed_hosts"},
		"the body":         {`{"env_var":"KK","injection":{"body":true},` + host + `,"source":{"type":"env","var":"KK"}}`, "injection"},
		"no basic":         {`{"env_var":"KK","injection":{"basic_auth":false},` + host + `,"source":{"type":"env","var":"KK"}}`, "injection"},
		"without identity": {`{"env_var":"KK","require_tls_identity":false,` + host + `,"source":{"type":"env","var":"KK"}}`, "require_tls_identity"},
	} {
		e := read(c.text)
		secret, err := e.check("block_and_log")
		if err == nil && secret != "KK" {
			t.Errorf("%s: the secret %q", name, secret)
		}
		if err == nil {
			err = e.matches(mine)
		}
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPatchContent(t *testing.T) {
	var p patch
	if err := json.Unmarshal([]byte(`{"type":"file","path":"/a","content":[0,255]}`), &p); err != nil || string(p.Content) != "\x00\xff" {
		t.Errorf("%q, %v", p.Content, err)
	}
	if err := json.Unmarshal([]byte(`{"type":"file","path":"/a","content":[256]}`), &p); err == nil {
		t.Error("256 was accepted as a byte")
	}
	for _, bad := range []patch{{Type: "copy_file", Src: "/etc/passwd", Dst: "/x"}, {Type: "text", Path: "a"}, {Type: "symlink", Target: "/a"}, {Type: "new", Path: "/a"}} {
		if err := checkPatches([]patch{bad}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
