package door

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

const (
	one = "sbx-abcdefghijklmnopqrstuvwxyz"
	two = "sbx-00000000000000000000000000"
)

func newDoor(domain string, names ...string) *Door {
	return New(Config{
		Domain: domain, Names: names, Gate: NewGate(gate.Config{Secret: make([]byte, 32)}), Trusted: func(*http.Request) bool { return false },
		Address: func() (string, string) { return domain + ":7000", "http://127.0.0.1:7000" + Prefix },
	})
}

func TestFind(t *testing.T) {
	token := tokenPrefix + one + ".cst_x_00"
	for _, c := range []struct {
		name, url, token string
		socket           bool
		claims, byHost   bool
		want             target
	}{
		{name: "the control plane", url: "http://127.0.0.1/hopx/v1/sandboxes", claims: true, want: target{"", "/v1/sandboxes"}},
		{name: "an agent", url: "http://127.0.0.1/hopx/vm/" + one + "/files/read", claims: true, want: target{one, "/files/read"}},
		{name: "an agent's root", url: "http://127.0.0.1/hopx/vm/" + one, claims: true, want: target{one, "/"}},
		{name: "an escaped path", url: "http://127.0.0.1/hopx/vm/" + one + "/execute/kill/a%2Fb", claims: true, want: target{one, "/execute/kill/a%2Fb"}},
		{name: "no sandbox", url: "http://127.0.0.1/hopx/vm/other/env", claims: true, want: target{"", "/vm/other/env"}},
		{name: "a sandbox in capitals", url: "http://127.0.0.1/hopx/vm/" + strings.ToUpper(one) + "/env", claims: true, want: target{"", "/vm/" + strings.ToUpper(one) + "/env"}},
		{name: "an escaped prefix", url: "http://127.0.0.1/%68opx/v1/sandboxes", claims: true, want: target{"", "/%68opx/v1/sandboxes"}},
		{name: "an escaped sandbox", url: "http://127.0.0.1/hopx/vm%2F" + one + "/env", claims: true, want: target{"", "/vm%2F" + one + "/env"}},
		{name: "another path", url: "http://127.0.0.1/hopxx/v1", want: target{"", "/hopxx/v1"}},
		{name: "a stream", url: "http://127.0.0.1/terminal", token: token, socket: true, claims: true, want: target{one, "/terminal"}},
		{name: "a stream without a token", url: "http://127.0.0.1/terminal", socket: true, want: target{"", "/terminal"}},
		{name: "the path of a stream", url: "http://127.0.0.1/terminal", token: token, want: target{"", "/terminal"}},
		{name: "the product's name", url: "https://api.hopx.dev/v1/sandboxes", byHost: true, want: target{"", "/v1/sandboxes"}},
		{name: "a sandbox's name", url: "https://7777-" + one + ".local.vms.hopx.dev/env", byHost: true, want: target{one, "/env"}},
		{name: "a sandbox's name with a port", url: "https://7777-" + one + ".LOCAL.vms.hopx.dev.:8443/env", byHost: true, want: target{one, "/env"}},
		{name: "another port of it", url: "https://3000-" + one + ".local.vms.hopx.dev/env", want: target{"", "/env"}},
		{name: "another's stream by name", url: "https://7777-" + two + ".local.vms.hopx.dev/terminal", token: token, socket: true, claims: true, byHost: true, want: target{two, "/terminal"}},
	} {
		d := newDoor("local.vms.hopx.dev", "api.hopx.dev")
		r := httptest.NewRequest(http.MethodGet, c.url, nil)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		if c.socket {
			r.Header.Set("Upgrade", "WebSocket")
		}
		if got := d.find(r); got != c.want || d.Claims(r) != c.claims || d.ClaimsHost(r) != c.byHost {
			t.Errorf("%s: %+v, claims %v and by host %v", c.name, got, d.Claims(r), d.ClaimsHost(r))
		}
	}
}

// TestProductNamesNeedOperator checks that the product's host names are ignored unless the
// operator has said that they lead here.
func TestProductNamesNeedOperator(t *testing.T) {
	for _, d := range []*Door{newDoor("localhost"), newDoor("vms.hopx.dev"), newDoor("cove.test", "other.test")} {
		for _, host := range []string{"api.hopx.dev", "7777-" + one + ".vms.hopx.dev", "7777-" + one + ".localhost", "7777-" + one} {
			if r := httptest.NewRequest(http.MethodGet, "http://"+host+"/v1/sandboxes", nil); d.ClaimsHost(r) {
				t.Errorf("%s is claimed with the domain %q", host, d.cfg.Domain)
			}
		}
	}
}

func TestTokens(t *testing.T) {
	d := newDoor("localhost")
	whole := d.token(sandbox.Caller{KeyID: "key-a", Team: "red"}, one)
	if id, rest, ok := parseToken(whole); !ok || id != one || rest == "" {
		t.Errorf("%s is of %q", whole, id)
	}
	for _, c := range []struct {
		values []string
		want   string
	}{
		{[]string{"Bearer " + whole}, whole},
		{[]string{"bearer " + whole}, whole},
		{[]string{"Basic " + whole}, ""},
		{[]string{whole}, ""},
		{[]string{"Bearer " + whole, "Bearer " + whole}, ""},
		{[]string{"Bearer hopx_" + one}, ""},
		{[]string{"Bearer hopx_sbx-1.x"}, ""},
		{[]string{"Bearer hopx_" + one + "." + strings.Repeat("0", 1000)}, ""},
		{[]string{"Bearer cove_key"}, ""},
		{nil, ""},
	} {
		if got := tokenOf(http.Header{"Authorization": c.values}); got != c.want {
			t.Errorf("%.80v: %.80q", c.values, got)
		}
	}
}

func TestAgentURL(t *testing.T) {
	for _, c := range []struct{ domain, url, want string }{
		{"localhost", "http://127.0.0.1:7000/hopx/v1/sandboxes", "http://127.0.0.1:7000/hopx/vm/" + one},
		{"localhost", "http://cove.example:80/hopx/v1/sandboxes", "http://cove.example:80/hopx/vm/" + one},
		{"local.vms.hopx.dev", "https://api.hopx.dev/v1/sandboxes", "https://7777-" + one + ".local.vms.hopx.dev:7000"},
	} {
		x := &exchange{d: newDoor(c.domain), r: httptest.NewRequest(http.MethodGet, c.url, nil)}
		if got := x.agentURL(one); got != c.want {
			t.Errorf("%s: %s, want %s", c.url, got, c.want)
		}
	}
}

// TestOutput checks that output is sent in order as frames of whole characters, and as few
// frames if much is waiting.
func TestOutput(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		c := (&exchange{w: w, r: r}).connection(conn)
		defer c.workers.Wait()
		defer c.cancel()
		c.workers.Go(c.read)
		write, done := c.output(func(stream sandbox.Stream, text string) any { return [2]string{string(stream), text} })
		for _, p := range []struct {
			stream sandbox.Stream
			data   string
		}{{sandbox.Stdout, "a\xc3"}, {sandbox.Stdout, "\xa4"}, {sandbox.Stdout, "b"}, {sandbox.Stderr, "e\xff"}, {sandbox.Stdout, "c\xe2\x82"}} {
			if err := write(p.stream, []byte(p.data)); err != nil {
				t.Error(err)
			}
		}
		if err := done(); err != nil {
			t.Error(err)
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}))
	defer srv.Close()
	conn, _, err := websocket.Dial(t.Context(), srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	text := map[string]string{}
	for {
		_, data, err := conn.Read(t.Context())
		if err != nil {
			break
		}
		var frame [2]string
		if err := json.Unmarshal(data, &frame); err != nil {
			t.Fatal(err)
		}
		text[frame[0]] += frame[1]
	}
	if text["stdout"] != "aäbc\uFFFD" || text["stderr"] != "e\uFFFD" {
		t.Errorf("the output is %q", text)
	}
}
