package intercept

import (
	"encoding/base64"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// TestSwapInHeaders tries every header in which a client may put a token, in both
// versions of HTTP.
func TestSwapInHeaders(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost, "deep.sub.wild.example")
	for _, version := range []int{1, 2} {
		c := w.client(version)
		for _, test := range []struct{ name, send, want string }{
			{"X-Api-Key", placeholder, value},
			{"Authorization", "Bearer " + placeholder, "Bearer " + value},
			{"Authorization", "token " + placeholder, "token " + value},
			{"Authorization", basic("me", placeholder), basic("me", value)},
			// Not with another user, which the sandbox chose.
			{"Authorization", basic("another", placeholder), basic("another", placeholder)},
			{"Authorization", basic(placeholder, ""), basic(placeholder, "")},
			{"Authorization", basic("me", placeholder+"more"), basic("me", placeholder+"more")},
			{"Authorization", strings.TrimRight(strings.ToLower(basic("", "")[:6])+basic("me", placeholder)[6:], "="), "basic " + basic("me", value)[6:]},
			{"Private-Token", placeholder, value},
			{"Cookie", "a=b; session=" + placeholder, "a=b; session=" + value},
			{"X-Custom", "k=" + placeholder + ",again=" + placeholder, "k=" + value + ",again=" + value},
			// Not in headers that servers show.
			{"User-Agent", "me/" + placeholder, "me/" + placeholder},
			{"Referer", "https://x/" + placeholder, "https://x/" + placeholder},
			{"X-Forwarded-For", placeholder, placeholder},
			// Not for text that only resembles a placeholder.
			{"X-Api-Key", placeholder[:len(placeholder)-1], placeholder[:len(placeholder)-1]},
			{"Authorization", "Basic !!!" + placeholder, "Basic !!!" + placeholder},
			{"Authorization", basic("a", "b"), basic("a", "b")},
		} {
			for _, host := range []string{apiHost, "deep.sub.wild.example"} {
				res, body := do(t, c, "GET", "https://"+host+"/v1/models", "", test.name+": "+test.send)
				if res.StatusCode != 200 || body != "fine" || res.ProtoMajor != version {
					t.Fatalf("HTTP/%d %s %s: %v %q", version, host, test.name, res, body)
				}
				r, _, _ := g.request()
				if r.Header.Get(test.name) != test.want {
					t.Errorf("HTTP/%d %s: %s: %q came as %q, want %q", version, host, test.name, test.send, r.Header.Get(test.name), test.want)
				}
				if r.ProtoMajor != version {
					t.Errorf("HTTP/%d became HTTP/%d", version, r.ProtoMajor)
				}
			}
		}
	}
}

func TestRequestIsOtherwiseUnchanged(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost)
	do(t, w.client(1), "PUT", "https://"+apiHost+"/a%2Fb/../c;d?x=1;y&&z=%zz&q=a+b%20c", "hello",
		"X-Multi: 1", "X-Multi: 2", "Forwarded: for=1.2.3.4", "X-Forwarded-Proto: gopher", "Accept-Encoding: br", "User-Agent: me", "X-Api-Key: "+placeholder)
	r, body, _ := g.request()
	if r.Method != "PUT" || r.RequestURI != "/a%2Fb/../c;d?x=1;y&&z=%zz&q=a+b%20c" || body != "hello" || r.Host != apiHost {
		t.Errorf("got %s %s %q for %s", r.Method, r.RequestURI, body, r.Host)
	}
	want := http.Header{
		"X-Multi": {"1", "2"}, "Forwarded": {"for=1.2.3.4"}, "X-Forwarded-Proto": {"gopher"}, "User-Agent": {"me"},
		"X-Api-Key": {value}, "Accept-Encoding": {"identity"}, "Content-Length": {"5"},
	}
	if d := cmp.Diff(want, r.Header); d != "" {
		t.Error(d)
	}
	// A host without a secret gets the client's request unchanged.
	var o got
	w.host(&o, otherHost)
	do(t, w.client(1), "GET", "https://"+otherHost+"/", "", "Accept-Encoding: br", "User-Agent: me")
	r, _, _ = o.request()
	if d := cmp.Diff(http.Header{"Accept-Encoding": {"br"}, "User-Agent": {"me"}}, r.Header); d != "" {
		t.Error(d)
	}
}

func TestSwapInQuery(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost)
	b := secret()
	b.Auth = sandbox.SecretAuth{Type: "query", Name: "key"}
	w.set(b, value)
	escaped := url.QueryEscape(value)
	for send, want := range map[string]string{
		"key=" + placeholder:                                   "key=" + escaped,
		"a=%zz&key=" + placeholder + "&b=1;c":                  "a=%zz&key=" + escaped + "&b=1;c",
		"k%65y=%73" + placeholder[1:]:                          "k%65y=" + escaped,
		"key=" + placeholder + "&key=" + placeholder:           "key=" + escaped + "&key=" + escaped,
		"other=" + placeholder:                                 "other=" + placeholder,
		placeholder + "=key":                                   placeholder + "=key",
		"key=" + strings.ReplaceAll(placeholder, "-", "%2D"):   "key=" + escaped,
		"other=" + strings.ReplaceAll(placeholder, "-", "%2D"): "other=" + strings.ReplaceAll(placeholder, "-", "%2D"),
	} {
		do(t, w.client(1), "GET", "https://"+apiHost+"/v1?"+send, "")
		if r, _, _ := g.request(); r.URL.RawQuery != want {
			t.Errorf("%s came as %s, want %s", send, r.URL.RawQuery, want)
		}
	}
	// Not for a secret that is sent in a header.
	w.set(secret(), value)
	do(t, w.client(1), "GET", "https://"+apiHost+"/v1?x-api-key="+placeholder, "")
	if r, _, _ := g.request(); strings.Contains(r.URL.RawQuery, "live") {
		t.Errorf("query is %s", r.URL.RawQuery)
	}
}

func TestSwapInBody(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost, otherHost)
	awkward := `va"lue\with+quote&more=é` + value
	b := secret()
	w.set(b, awkward)
	do(t, w.client(1), "POST", "https://"+apiHost+"/", placeholder, "Content-Type: text/plain")
	if _, body, _ := g.request(); body != placeholder {
		t.Errorf("without Auth.Body the body is %q", body)
	}
	b.Auth.Body = true
	w.set(b, awkward)
	big := strings.Repeat("x", sandbox.MaxSecretBody-len(placeholder))
	for _, version := range []int{1, 2} {
		for _, test := range []struct{ kind, send, want string }{
			{"text/plain", "a " + placeholder + " b " + placeholder, "a " + awkward + " b " + awkward},
			{"application/json; charset=utf-8", `{"k":"` + placeholder + `"}`, `{"k":"va\"lue\\with+quote&more=é` + value + `"}`},
			{"application/x-www-form-urlencoded", "k=" + placeholder, "k=" + url.QueryEscape(awkward)},
			{"text/plain", big + placeholder, big + awkward},
			{"text/plain", "nothing", "nothing"},
		} {
			do(t, w.client(version), "POST", "https://"+apiHost+"/", test.send, "Content-Type: "+test.kind)
			r, body, _ := g.request()
			if body != test.want || r.ContentLength != int64(len(test.want)) {
				t.Errorf("HTTP/%d %s: got %.200q (%d), want %.200q", version, test.kind, body, r.ContentLength, test.want)
			}
		}
		// A body of unknown length, in pieces.
		pr, pw := io.Pipe()
		go func() {
			_, _ = io.WriteString(pw, "one "+placeholder[:10])
			_, _ = io.WriteString(pw, placeholder[10:]+" two")
			pw.Close()
		}()
		r, err := http.NewRequestWithContext(t.Context(), "POST", "https://"+apiHost+"/", pr)
		if err != nil {
			t.Fatal(err)
		}
		res, err := w.client(version).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if _, body, _ := g.request(); body != "one "+awkward+" two" {
			t.Errorf("HTTP/%d in pieces: %q", version, body)
		}
		// A body that is too long is sent unchanged, and so is one for another host.
		res, body := do(t, w.client(version), "POST", "https://"+apiHost+"/", placeholder+strings.Repeat("x", sandbox.MaxSecretBody), "Content-Type: text/plain")
		if _, sent, _ := g.request(); res.StatusCode != 200 || body != "fine" || !strings.HasPrefix(sent, placeholder+"xx") {
			t.Errorf("HTTP/%d too long by its length: %d", version, res.StatusCode)
		}
		do(t, w.client(version), "POST", "https://"+otherHost+"/", placeholder)
		if _, body, _ := g.request(); body != placeholder {
			t.Errorf("to another host the body is %q", body)
		}
	}
}

func TestPlaceholderEvents(t *testing.T) {
	w := newHarness(t)
	w.host(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }), apiHost, otherHost)
	c := w.client(2)
	do(t, c, "GET", "https://"+apiHost+"/without", "")
	do(t, c, "POST", "https://"+apiHost+"/v1/messages?q=1", "", "x-api-key: "+placeholder)
	do(t, c, "GET", "https://"+otherHost+"/gist", "", "x-api-key: "+placeholder)
	do(t, c, "GET", "https://"+apiHost+"/p/"+placeholder, "")
	events := w.requests(3)
	base := sandbox.NetworkEvent{
		Kind: sandbox.NetworkRequest, Protocol: "https", Host: apiHost, Verdict: sandbox.NetworkAllowed, Match: sandbox.MatchSecret,
		Rule: "secret anthropic", Secret: "anthropic", Status: 418,
	}
	want := []sandbox.NetworkEvent{base, base, base}
	want[0].Method, want[0].Path = "POST", "/v1/messages"
	want[1].Method, want[1].Path, want[1].Host = "GET", "/gist", otherHost
	want[1].Reason = "the placeholder was sent unchanged: the secret is not for this host"
	want[2].Method, want[2].Path = "GET", "/p/"+placeholder
	want[2].Reason = "the placeholder was sent unchanged: it is in the path, where this secret is not put"
	if d := cmp.Diff(want, events, cmpopts.IgnoreFields(sandbox.NetworkEvent{}, "Time", "DurationMS")); d != "" {
		t.Error(d)
	}
	if len(w.requests(3)) != 3 {
		t.Errorf("there are %d events", len(events))
	}
}

func TestTwoSecretsInOneRequest(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost)
	other := secret()
	other.Placeholder, other.Secret = "cove_0123456789012345678901234567890123456789012", "second"
	err := w.x.Set(&engine.Network{Bindings: []engine.Binding{secret(), other}}, valuesOf(map[string]string{placeholder: value, other.Placeholder: "second-value"}))
	if err != nil {
		t.Fatal(err)
	}
	do(t, w.client(2), "GET", "https://"+apiHost+"/", "", "X-Both: "+placeholder+" "+other.Placeholder, "Authorization: "+basic(placeholder, other.Placeholder))
	r, _, _ := g.request()
	if r.Header.Get("X-Both") != value+" second-value" || r.Header.Get("Authorization") != basic(placeholder, other.Placeholder) {
		t.Errorf("got %q", r.Header)
	}
	if n := len(w.requests(2)); n != 2 {
		t.Errorf("%d events", n)
	}
}

// TestSwapIsBounded checks that values in place of very many placeholders do not fill the
// memory.
func TestSwapIsBounded(t *testing.T) {
	w := newHarness(t)
	var g got
	w.host(&g, apiHost)
	b := secret()
	b.Auth.Body = true
	w.set(b, strings.Repeat("v", sandbox.MaxSecretBytes))
	res, body := do(t, w.client(1), "GET", "https://"+apiHost+"/", "", "X-Many: "+strings.Repeat(placeholder, 1000))
	if res.StatusCode != http.StatusRequestEntityTooLarge || res.Header.Get(HeaderReason) != "body_too_large" {
		t.Errorf("header: %d %s", res.StatusCode, body)
	}
	res, body = do(t, w.client(1), "POST", "https://"+apiHost+"/", strings.Repeat(placeholder, 10_000), "Content-Type: text/plain")
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("body: %d %s", res.StatusCode, body)
	}
	if _, _, n := g.request(); n != 0 {
		t.Errorf("the host was asked %d times", n)
	}
}

func FuzzSwap(f *testing.F) {
	f.Add("Authorization", basic("a", placeholder), "key="+placeholder, "body "+placeholder, "application/json")
	f.Add("X", placeholder+placeholder, "k%65y=%73"+placeholder[1:]+"&b", "", "")
	f.Add("User-Agent", placeholder, "&;=;&key", placeholder[:5], "application/x-www-form-urlencoded")
	f.Fuzz(func(t *testing.T, name, header, query, body, kind string) {
		b := &binding{Binding: secret(), value: newSecretValue([]byte(value))}
		b.Auth = sandbox.SecretAuth{Type: "query", Name: "key", Body: true}
		bs := &bindings{list: []*binding{b}}
		r := &http.Request{Header: http.Header{http.CanonicalHeaderKey(name): {header}}, URL: &url.URL{Path: "/", RawQuery: query}}
		found := bs.find(r)
		if len(found) == 0 && (strings.Contains(header, placeholder) || strings.Contains(query, placeholder)) {
			t.Fatalf("not found in %q, %q", header, query)
		}
		had := strings.Contains(header, value) || strings.Contains(query, url.QueryEscape(value))
		err := swap(r, found)
		if err != nil {
			return
		}
		now := r.Header.Get(name)
		if len(found) == 0 && (now != header || r.URL.RawQuery != query) {
			t.Fatalf("changed without a placeholder: %q → %q, %q → %q", header, now, query, r.URL.RawQuery)
		}
		if !had && b.find(&http.Request{Header: r.Header, URL: r.URL})&(inHeader|inQuery) != 0 && !strings.Contains(value, placeholder) {
			// No placeholder that could be replaced is left.
			t.Fatalf("left: %q, %q", now, r.URL.RawQuery)
		}
		// What the values became is masked again.
		ms := masksOf([]*binding{b})
		ms.header(r.Header)
		if strings.Contains(r.Header.Get(name), value) {
			t.Fatalf("not masked: %q", r.Header)
		}
		ms.release()
		out, err := swapBody([]byte(body), kind, []finding{{b, inBody}})
		if err == nil && strings.Contains(string(out), placeholder) {
			t.Fatalf("left in the body: %q", out)
		}
		b.value.release()
		if b.value.bytes != nil {
			t.Fatal("the value was not wiped")
		}
	})
}
