package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// wired is a service that records the arguments of the verbs of the network.
type wired struct {
	kept
	policy sandbox.NetworkPolicy
	events []sandbox.NetworkEvent
	values []string
	until  time.Time
}

func (w *wired) GetNetwork(context.Context, string) (*sandbox.NetworkPolicy, error) {
	p := w.policy
	return &p, nil
}

func (w *wired) SetNetwork(_ context.Context, name string, p sandbox.NetworkPolicy) (*sandbox.NetworkPolicy, error) {
	w.hear("SetNetwork", name, p)
	return &p, nil
}

func (w *wired) NetworkLog(_ context.Context, name string, req sandbox.NetworkLogRequest) (*sandbox.List[sandbox.NetworkEvent], error) {
	if req.Until != nil {
		w.until = *req.Until
	}
	req.Since, req.Until = nil, nil
	w.hear("NetworkLog", name, req)
	return &sandbox.List[sandbox.NetworkEvent]{Items: w.events}, nil
}

func (w *wired) FollowNetworkLog(ctx context.Context, _ string, _ sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	for _, ev := range []sandbox.NetworkEvent{{ID: 7, Protocol: "tcp"}, {ID: 8, Protocol: "tcp", Host: "later.example"}} {
		if err := sink(ev); err != nil {
			return err
		}
	}
	return nil
}

func (w *wired) CreateSecret(_ context.Context, req sandbox.CreateSecretRequest) (*sandbox.Secret, error) {
	w.values = append(w.values, req.Value.Reveal())
	w.hear("CreateSecret", req)
	return &sandbox.Secret{ID: "sec-1", Name: req.Name}, nil
}

func (w *wired) RotateSecret(_ context.Context, name string, req sandbox.RotateSecretRequest) (*sandbox.Secret, error) {
	w.values = append(w.values, req.Value.Reveal())
	return &sandbox.Secret{ID: "sec-1", Name: name, Version: 2}, nil
}

func (w *wired) GetSecret(_ context.Context, name string) (*sandbox.Secret, error) {
	s := &sandbox.Secret{ID: "sec-1", Name: name, Provider: "anthropic"}
	if name == "own" {
		s.Provider = ""
	}
	return s, nil
}

func (w *wired) DeleteSecret(_ context.Context, name string) error {
	w.hear("DeleteSecret", name)
	return nil
}

func (w *wired) ListProviders(context.Context) (*sandbox.List[sandbox.Provider], error) {
	return &sandbox.List[sandbox.Provider]{Items: []sandbox.Provider{{Name: "anthropic", Env: "ANTHROPIC_API_KEY"}}}, nil
}

func (w *wired) AttachSecret(_ context.Context, name, secret, env string) (*sandbox.Sandbox, error) {
	w.hear("AttachSecret", name, secret, env)
	return answer(name)
}

func (w *wired) DetachSecret(_ context.Context, name, env string) (*sandbox.Sandbox, error) {
	w.hear("DetachSecret", name, env)
	return answer(name)
}

func (w *wired) CreatePreview(_ context.Context, name string, req sandbox.CreatePreviewRequest) (*sandbox.NewPreview, error) {
	w.hear("CreatePreview", name, req)
	return &sandbox.NewPreview{Preview: sandbox.Preview{URL: "http://3000-sbx-a.localhost:7777", Access: req.Access}, Key: "pvk_1"}, nil
}

func (w *wired) LinkPreview(_ context.Context, name string, port int, req sandbox.PreviewLinkRequest) (*sandbox.PreviewLink, error) {
	w.hear("LinkPreview", name, port, req)
	return &sandbox.PreviewLink{URL: "http://link"}, nil
}

func (w *wired) DeletePreview(_ context.Context, name string, port int) error {
	w.hear("DeletePreview", name, port)
	return nil
}

func (w *wired) ListApprovals(_ context.Context, req sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	w.hear("ListApprovals", req)
	return &sandbox.List[sandbox.Approval]{Items: []sandbox.Approval{{ID: "apr-1", ApprovalSubject: sandbox.ApprovalSubject{Protocol: "tcp", Host: "a.example", Port: 1}}}}, nil
}

func (w *wired) GetApproval(_ context.Context, id string) (*sandbox.Approval, error) {
	w.hear("GetApproval", id)
	return &sandbox.Approval{ID: id}, nil
}

func (w *wired) AnswerApproval(_ context.Context, id string, req sandbox.AnswerApprovalRequest) (*sandbox.Approval, error) {
	w.hear("AnswerApproval", id, req)
	return &sandbox.Approval{ID: id}, nil
}

func TestNetworkCommandsPassEverythingOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"schema_version": 1, "preset": "none", "rules": [{"action": "allow", "to": "a.example"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ line, heard string }{
		{"create --network none --allow-out a.example,b.example --deny-out 0.0.0.0/0", `Create {"network":{"preset":"none","allow_out":["a.example","b.example"],"deny_out":["0.0.0.0/0"]}}`},
		{"create --network-file " + file, `Create {"network":{"preset":"none","rules":[{"action":"allow","to":"a.example"}]}}`},
		{"create --secret anthropic --secret KEY=own", `Create {"secrets":{"ANTHROPIC_API_KEY":"anthropic","KEY":"own"}}`},
		{"create --publish 8080:80 --publish 0.0.0.0:0:5432 --publish [::1]:1:2", `Create {"ports":[{"host":8080,"guest":80},{"host":0,"guest":5432,"address":"0.0.0.0"},{"host":1,"guest":2,"address":"::1"}]}`},
		{"egress allow a x.example *.y.example --port 443,8000-8999 --protocol tcp", `SetNetwork "a" {"preset":"packages","rules":[{"action":"allow","to":"x.example","protocol":"tcp","ports":["443","8000-8999"]},{"action":"allow","to":"*.y.example","protocol":"tcp","ports":["443","8000-8999"]},{"action":"deny","to":"old.example"}],"placeholders":"block"}`},
		{"egress deny a 10.0.0.0/8 --last", `SetNetwork "a" {"preset":"packages","rules":[{"action":"deny","to":"old.example"},{"action":"deny","to":"10.0.0.0/8"}],"placeholders":"block"}`},
		{"egress ask a x.example", `SetNetwork "a" {"preset":"packages","rules":[{"action":"ask","to":"x.example"},{"action":"deny","to":"old.example"}],"placeholders":"block"}`},
		{"approvals ls --sandbox a --all", `ListApprovals {"sandbox":"a","all":true,"limit":1000}`},
		{"approvals get apr-1", `GetApproval "apr-1"`},
		{"approvals allow apr-1", `AnswerApproval "apr-1" {"allow":true,"scope":"once"}`},
		{"approvals allow apr-1 --for sandbox", `AnswerApproval "apr-1" {"allow":true,"scope":"sandbox"}`},
		{"approvals deny apr-1 --for 90m", `AnswerApproval "apr-1" {"allow":false,"scope":"duration","seconds":5400}`},
		{"egress rm a old.example", `SetNetwork "a" {"preset":"packages","placeholders":"block"}`},
		{"egress set a none", `SetNetwork "a" {"preset":"none"}`},
		{"egress set a --allow-out x --deny-out y --placeholders block --max-connections 5 --connections-per-second 6 --bytes-per-second 7", `SetNetwork "a" {"allow_out":["x"],"deny_out":["y"],"placeholders":"block","max_connections":5,"connections_per_second":6,"bytes_per_second":7}`},
		{"egress set a -f " + file, `SetNetwork "a" {"preset":"none","rules":[{"action":"allow","to":"a.example"}]}`},
		{"netlog a --host *.x --verdict blocked --kind dns --since 10m -n 5", `NetworkLog "a" {"kind":"dns","verdict":"blocked","host":"*.x","limit":5}`},
		{"secret create s --provider anthropic", `CreateSecret {"name":"s","value":"[redacted]","provider":"anthropic"}`},
		{"secret create s --host a,b --header X-Key --prefix K", `CreateSecret {"name":"s","value":"[redacted]","hosts":["a","b"],"auth":{"type":"header","name":"X-Key","prefix":"K"}}`},
		{"secret create s --host a --basic me --body", `CreateSecret {"name":"s","value":"[redacted]","hosts":["a"],"auth":{"type":"basic","user":"me","body":true}}`},
		{"secret create s --host a --query key", `CreateSecret {"name":"s","value":"[redacted]","hosts":["a"],"auth":{"type":"query","name":"key"}}`},
		{"secret attach a anthropic", `AttachSecret "a" "anthropic" "ANTHROPIC_API_KEY"`},
		{"secret attach a K=own", `AttachSecret "a" "own" "K"`},
		{"secret detach a K", `DetachSecret "a" "K"`},
		{"secret rm s", `DeleteSecret "s"`},
		{"preview create a 3000", `CreatePreview "a" {"port":3000,"access":"private"}`},
		{"preview create a 3000 --public --wake --new-key --expires 1h", `CreatePreview "a" {"port":3000,"access":"public","wake":true,"expires_in_seconds":3600,"new_key":true}`},
		{"preview link a 3000 --expires 2h --path /x", `LinkPreview "a" 3000 {"expires_in_seconds":7200,"path":"/x"}`},
		{"preview rm a 3000", `DeletePreview "a" 3000`},
	} {
		w := &wired{policy: sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages, Placeholders: sandbox.PlaceholderBlock, Rules: []sandbox.NetworkRule{{Action: "deny", To: "old.example"}}}}
		got := lineWith(t, w, "value\n", strings.Fields(c.line)...)
		if got.Code != 0 || len(w.heard) != 1 || w.heard[0] != c.heard {
			t.Errorf("%s: code %d, %s\ngot  %s\nwant %s", c.line, got.Code, got.Errors, w.heard, c.heard)
		}
	}
}

func TestUpdateChangesOnlyWhatIsGiven(t *testing.T) {
	w := &wired{policy: sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages, AllowOut: []string{"a.example"}, MaxConnections: 5}}
	got := lineWith(t, w, "", "update", "a", "--history", "3", "--deny-out", "10.0.0.0/8")
	want := []string{`Update "a" {"history":3}`, `SetNetwork "sbx-a" {"preset":"packages","allow_out":["a.example"],"deny_out":["10.0.0.0/8"],"max_connections":5}`}
	if diff := cmp.Diff(want, w.heard); got.Code != 0 || diff != "" {
		t.Errorf("code %d, %s\n%s", got.Code, got.Errors, diff)
	}
}

func TestPolicyFileNamesItsFields(t *testing.T) {
	for policy, says := range map[string]string{
		`{"rules": [{"to": "a.example", "ports": "443"}]}`: "rules.ports takes a list; found: string",
		"rules: [a.example]":       "rules takes an object; found: string",
		"preset: [none]":           "preset takes text; found: array",
		`{"max_connections": "5"}`: "max_connections takes a whole number; found: string",
		`{"max_connections": 1.5}`: "max_connections takes a whole number; found: number 1.5",
	} {
		_, err := readPolicy(strings.NewReader(policy), "-")
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", policy, err, says)
		}
	}
}

func TestNetworkCommandsRefuse(t *testing.T) {
	for command, says := range map[string]string{
		"create --publish 80":                          "[ADDRESS:]HOST:GUEST",
		"create --publish 80:0":                        "[ADDRESS:]HOST:GUEST",
		"create --publish name:80:80":                  "[ADDRESS:]HOST:GUEST",
		"create --publish 80:99999":                    "[ADDRESS:]HOST:GUEST",
		"create --secret =x":                           "not of the form ENV=NAME",
		"create --secret X=":                           "not of the form ENV=NAME",
		"create --secret own":                          "ENV=own",
		"create --secret A=x --secret A=y":             "both",
		"egress":                                       "missing argument",
		"egress a b":                                   "unexpected",
		"egress allow a":                               "missing argument",
		"egress set a":                                 "give a preset",
		"egress set a none -f x":                       "--file has the whole policy",
		"create --network-file /no/such/file":          "no such file",
		"create --network-file x --deny-out y":         "whole policy",
		"egress rm a nothing.example":                  "no entry for nothing.example",
		"netlog a --since yesterday":                   "--since",
		"netlog a --until tomorrow":                    "--until",
		"netlog a -f --until 1h":                       "--until does not work with -f",
		"secret create s":                              "--provider or --host",
		"secret create s --host a --query q --basic b": "one place",
		"secret create s value --host a":               `unexpected argument "value"`,
		"preview create a 0":                           "not a port number",
		"preview create a http":                        "not a port number",
		"preview rm a":                                 "missing argument",
		"port-forward a":                               "missing argument",
		"port-forward a 80:x":                          "[LOCAL:]REMOTE",
		"port-forward a 1:2:3":                         "[LOCAL:]REMOTE",
	} {
		w := &wired{}
		if got := lineWith(t, w, "x", strings.Fields(command)...); got.Code == 0 || !strings.Contains(got.Errors, says) || len(w.heard) > 0 {
			t.Errorf("%s: code %d, %q, heard %s; want %q", command, got.Code, got.Errors, w.heard, says)
		}
	}
}

// A value is read from standard input, without one final line end, and is shown
// nowhere.
func TestSecretValues(t *testing.T) {
	for in, want := range map[string]string{"key\n": "key", "key\r\n": "key", "key": "key", "two\nlines\n": "two\nlines", " spaces \n": " spaces ", "a\n\n": "a\n"} {
		w := &wired{}
		got := lineWith(t, w, in, "secret", "create", "s", "--provider", "anthropic", "--json")
		if got.Code != 0 || len(w.values) != 1 || w.values[0] != want {
			t.Errorf("%q: code %d, %s, value %q; want %q", in, got.Code, got.Errors, w.values, want)
		}
		if strings.Contains(got.Out+got.Errors, strings.TrimSpace(want)+`"`) {
			t.Errorf("%q shows in %s%s", want, got.Out, got.Errors)
		}
	}
	for _, in := range []string{"", "\n", strings.Repeat("x", sandbox.MaxSecretBytes+1)} {
		w := &wired{}
		if got := lineWith(t, w, in, "secret", "create", "s", "--provider", "anthropic"); got.Code != 1 || len(w.values) != 0 {
			t.Errorf("%d bytes: code %d, %s", len(in), got.Code, got.Errors)
		}
	}
	w := &wired{}
	if got := lineWith(t, w, "new\n", "secret", "rotate", "s"); got.Code != 0 || len(w.values) != 1 || w.values[0] != "new" {
		t.Errorf("rotate: %+v, %q", got, w.values)
	}
}

func TestNetworkLogUntil(t *testing.T) {
	for value, want := range map[string]time.Time{"2026-01-02T15:04:05Z": time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC), "1h": time.Now().Add(-time.Hour)} {
		w := &wired{}
		got := lineWith(t, w, "", "netlog", "a", "--until", value)
		if off := w.until.Sub(want).Abs(); got.Code != 0 || off > time.Minute {
			t.Errorf("%s: code %d, %s, until %v; want %v", value, got.Code, got.Errors, w.until, want)
		}
	}
}

func TestNetworkLogTable(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := &wired{events: []sandbox.NetworkEvent{
		{ID: 5, Time: at, Kind: "connection", Connection: 1, Protocol: "tcp", Host: "a.example", Address: "198.51.100.1", Port: 443, Verdict: "allowed", BytesOut: 10, BytesIn: 2048, DurationMS: 1500, Rule: "preset open"},
		{ID: 4, Time: at, Kind: "request", Protocol: "tcp", Host: "a.example", Method: "GET", Path: "/x", Status: 200, Secret: "s", Verdict: "allowed", Match: "secret"},
		{ID: 3, Time: at, Kind: "dns", Protocol: "udp", Host: "forged\n.example", Question: "A", Answers: []string{"198.51.100.1"}, Verdict: "allowed"},
		{ID: 2, Time: at, Kind: "connection", Connection: 2, Open: true, Protocol: "tcp", Address: "10.0.0.1", Port: 80, Verdict: "allowed"},
		{ID: 1, Time: at, Kind: "connection", Connection: 1, Open: true, Protocol: "tcp", Address: "198.51.100.1", Port: 443, Verdict: "allowed"},
	}}
	got := lineWith(t, w, "", "netlog", "a")
	lines := strings.Split(strings.TrimSpace(got.Out), "\n")
	if got.Code != 0 || len(lines) != 5 {
		t.Fatalf("code %d, %s\n%s", got.Code, got.Errors, got.Out)
	}
	for i, want := range []string{"VERDICT", "open", `A forged\n.example`, "GET a.example/x", "a.example (198.51.100.1)  443   10 B  2.0 KiB  1.5s  [preset open]"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("line %d lacks %q: %s", i, want, lines[i])
		}
	}
	// What was seen before is not shown again.
	w.events = []sandbox.NetworkEvent{{ID: 7, Time: at, Protocol: "tcp", Host: "before.example"}}
	got = lineWith(t, w, "", "netlog", "-f", "--json", "a")
	var ids []int64
	for _, l := range strings.Split(strings.TrimSpace(got.Out), "\n") {
		var ev struct {
			SchemaVersion int `json:"schema_version"`
			sandbox.NetworkEvent
		}
		if err := json.Unmarshal([]byte(l), &ev); err != nil || ev.SchemaVersion != schemaVersion {
			t.Fatalf("%v in %q", err, l)
		}
		ids = append(ids, ev.ID)
	}
	if diff := cmp.Diff([]int64{7, 8}, ids); got.Code != 0 || diff != "" {
		t.Errorf("code %d, %s: %s", got.Code, got.Errors, diff)
	}
	if got := lineWith(t, w, "", "netlog", "-f", "a"); !strings.Contains(got.Out, "later.example") || strings.Count(got.Out, "VERDICT") != 1 {
		t.Errorf("followed: %s", got.Out)
	}
}

func TestPreviewKeyIsNoResult(t *testing.T) {
	got := lineWith(t, &wired{}, "", "preview", "create", "a", "3000")
	if got.Out != "http://3000-sbx-a.localhost:7777\n" || !strings.Contains(got.Errors, "pvk_1") {
		t.Errorf("%+v", got)
	}
}

func TestEgressForgetsHeaders(t *testing.T) {
	p := sandbox.NetworkPolicy{Headers: []sandbox.HeaderRule{{To: "x.example"}, {To: "y.example"}}}
	if err := forgetTargets(&call{args: []string{"a", "x.example"}}, &p); err != nil || len(p.Headers) != 1 || p.Headers[0].To != "y.example" {
		t.Errorf("%+v, %v", p, err)
	}
}
