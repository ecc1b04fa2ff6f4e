package console

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/oidctest"
)

// Somebody signs in by an identity provider, in a browser that respects SameSite and the
// page's content policy. Somebody whom no rule admits gets an error.
func TestSignOn(t *testing.T) {
	p := oidctest.Start(t)
	file := filepath.Join(t.TempDir(), "cove.yaml")
	config := fmt.Sprintf("sso:\n  name: Example\n  issuer: %s\n  client_id: cove\n  rules: [{claim: groups, value: platform, team: research, scopes: [admin]}]\n", p.Issuer)
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	d := covetest.Start(t, covetest.Options{Args: []string{"--config", file}, Env: []string{"COVE_SSO_CLIENT_SECRET=" + oidctest.Secret}})
	chrome := browser(t)
	signOn := func(user string) *tab {
		t.Helper()
		page := openTab(t, chrome, d.URL)
		page.visit("/keys")
		page.sees("Sign in with Example")
		page.accessible("signing in with " + user)
		page.click("Sign in with Example")
		page.sees("Username:")
		page.fill("Username:", user)
		page.fill("Password:", oidctest.Password)
		page.click("Login")
		return page
	}
	alice := signOn("alice")
	alice.sees("Sandboxes that fork")
	alice.waitFor(`!!document.querySelector("nav.side")`)
	var cookies string
	alice.eval(`document.cookie`, &cookies)
	if cookies != "" {
		t.Errorf("scripts see the cookies %q", cookies)
	}
	var key string
	alice.eval(`fetch("/console/session", {headers: {"Cove-Console": "1"}}).then((r) => r.json()).then((s) => s.key_id + " " + s.team)`, &key)
	if key != "sso:alice@example.com research" {
		t.Errorf("signed in as %q", key)
	}
	// After a reload, the page is still signed in.
	alice.run(chromedp.Reload())
	alice.sees("Sandboxes that fork")

	bob := signOn("bob")
	bob.sees("no rule of this server lets in")
	bob.sees(`groups (which is "staff")`)
	bob.accessible("the page of a refusal")
	bob.click("Back to the console")
	bob.sees("Sign in with Example")
	t.Run("every action", everyAction)
}
