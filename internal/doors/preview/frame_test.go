package preview

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Attack: the page of one sandbox shows the private preview of another in a frame, and
// its visitor clicks on something that they do not see.
func TestPrivatePreviewsAreNotFramed(t *testing.T) {
	_, front := newHarness(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", "img-src 'self'")
		w.Header().Set("Vary", "Accept-Language")
		_, _ = w.Write([]byte("inside"))
	}))
	cookie := []string{"Cookie", cookieName + "=" + encodeCookie(credential{key: goodKey}), "Sec-Fetch-Mode", "navigate", "Accept", "text/html"}
	const (
		self   = "frame-ancestors 'self'"
		varies = "Origin, Referer, Sec-Fetch-Dest, Sec-Fetch-Mode, Sec-Fetch-Site"
	)
	for _, dest := range []string{"iframe", "frame", "embed", "object", "fencedframe"} {
		for _, c := range []struct {
			name, site, referer string
			want                int
			policy              string
		}{
			{"another sandbox", "same-site", "http://3001-sbx-evil.localhost/", 403, ""},
			{"another sandbox that hides where it is", "same-site", "", 403, ""},
			{"another site", "cross-site", "http://evil.test/", 403, ""},
			{"a name like the sandbox's", "same-site", "http://x.3000-sbx-abc.localhost/", 403, ""},
			{"the preview itself", "same-origin", at + "/", 200, self + " " + at},
			{"the user", "none", "", 200, self},
			{"another port of the sandbox", "same-site", "http://3001-sbx-abc.localhost/page", 200, self + " http://3001-sbx-abc.localhost"},
		} {
			got := get(t, browser(t, front), at+"/", append([]string{"Sec-Fetch-Dest", dest, "Sec-Fetch-Site", c.site, "Referer", c.referer}, cookie...)...)
			if got.status != c.want {
				t.Errorf("%s in %s: %d, want %d", c.name, dest, got.status, c.want)
			}
			policies := got.header["Content-Security-Policy"]
			if c.policy != "" && !slices.Equal(policies, []string{"img-src 'self'", c.policy}) {
				t.Errorf("%s in %s: the policies are %q, want %q beside the application's", c.name, dest, policies, c.policy)
			}
			if vary := got.header["Vary"]; c.want == 200 && !slices.Equal(vary, []string{"Accept-Language", varies}) {
				t.Errorf("%s in %s: the response varies by %q", c.name, dest, vary)
			}
		}
	}
	// Browsers without Sec-Fetch-Dest go by the policy, and public previews may
	// be shown anywhere.
	if got := get(t, browser(t, front), at+"/", keyHeader, goodKey); !slices.Contains(got.header["Content-Security-Policy"], self) {
		t.Errorf("by key: %v", got.header)
	}
	if got := get(t, browser(t, front), "http://3001-sbx-abc.localhost/"); !slices.Equal(got.header["Content-Security-Policy"], []string{"img-src 'self'"}) {
		t.Errorf("a public one: %v", got.header)
	}
}

// Attack: a credential whose name is spelled with escapes opens the preview and
// is repeated by the browser in Referer, where nobody recognizes it.
func TestCredentialsInOtherSpellings(t *testing.T) {
	inside := new(seen)
	_, front := newHarness(t, inside)
	for _, name := range []string{"cove%5Fpreview", "%63ove_preview", "cove%5fpreview_key", "COVE_PREVIEW", "cove_preview%5fkey"} {
		value := goodLink
		if strings.Contains(name, "key") {
			value = goodKey
		}
		if got := get(t, browser(t, front), at+"/?"+name+"="+value, "Accept", "text/html"); got.status != 401 {
			t.Errorf("%s opens it: %+v", name, got)
		}
		for _, referer := range []string{
			at + "/?" + name + "=" + value, at + "/?a=b&" + name + "=" + value, at + "/x;" + name + "=" + value, at + "/#" + name + "=" + value,
			at + "/?to=%2F%3F" + strings.ReplaceAll(name, "%", "%25") + "%3D" + value, at + "/%zz?" + name + "=" + value, at + "/?%zz&" + name + "=" + value,
			"http://[::1/?" + name + "=" + value,
		} {
			if got := get(t, browser(t, front), at+"/", keyHeader, goodKey, "Referer", referer); got.body != "inside" {
				t.Fatalf("%+v", got)
			}
			if got := inside.request(t).Header.Values("Referer"); len(got) > 0 {
				t.Errorf("the sandbox saw the Referer %q", got)
			}
		}
		// A visitor with a cookie opens such a link once more.
		get(t, browser(t, front), at+"/?x=1&"+name+"="+value, keyHeader, goodKey)
		if got := inside.request(t).RequestURI; name != "COVE_PREVIEW" && got != "/?x=1" {
			t.Errorf("%s: the sandbox saw %s", name, got)
		}
	}
	for _, referer := range []string{at + "/", at + "/a%20b?x=%2F&y=a+b#z", "http://3001-sbx-evil.localhost/"} {
		get(t, browser(t, front), at+"/", keyHeader, goodKey, "Referer", referer)
		if got := inside.request(t).Header.Get("Referer"); got != referer {
			t.Errorf("the Referer %s came as %q", referer, got)
		}
	}
}
