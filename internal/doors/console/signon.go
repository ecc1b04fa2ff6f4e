package console

import (
	"bytes"
	"context"
	_ "embed" // the page
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// SignOnPath begins a sign-in by an identity provider: POST, answered with a
	// [SignOnStart].
	SignOnPath = Path + "sso"
	// SignOnReturnPath is where the identity provider sends people back.
	SignOnReturnPath = SignOnPath + "/callback"

	// maxFailedSignOns bounds the refused answers in a row from one address; every
	// signOnRefill allows one more.
	maxFailedSignOns = 60
	signOnRefill     = time.Second
)

// SignOn is single sign-on by an identity provider.
type SignOn interface {
	// Name returns the provider's name for people.
	Name() string
	// RedirectURL returns the one address to which people come back; "" if there is
	// none.
	RedirectURL() string
	// Begin begins a sign-in. It returns the address to which the browser goes, and a
	// token that the browser keeps until the given time.
	Begin(ctx context.Context) (to string, token auth.Secret, until time.Time, err error)
	// Finish returns who has signed in, from the token and the answer with which their
	// browser comes back.
	Finish(ctx context.Context, token string, answer url.Values) (*sandbox.Person, error)
}

// SignOnState is what the sign-in page knows about single sign-on.
type SignOnState struct {
	// Name is the identity provider's name for people; empty if there is none.
	Name string `json:"name"`
}

// SignOnStart is the answer to POST /console/sso.
type SignOnStart struct {
	// URL is where the browser must go.
	URL string `json:"url"`
}

func newSignOnLimiter() *limits.LoginLimiter {
	return limits.NewLoginLimiter(limits.LoginLimiterConfig{Burst: maxFailedSignOns, Refill: signOnRefill})
}

func (d *Door) showSignOn(w http.ResponseWriter, r *http.Request) {
	var state SignOnState
	if d.cfg.SignOn != nil {
		state.Name = d.cfg.SignOn.Name()
	}
	if err := answer(w, state); err != nil {
		d.fail(w, r, err)
	}
}

// beginSignOn sends a browser to the identity provider.
func (d *Door) beginSignOn(w http.ResponseWriter, r *http.Request) {
	start, err := d.signOnStart(w, r)
	if err == nil {
		err = answer(w, start)
	}
	if err != nil {
		d.fail(w, r, err)
	}
}

func (d *Door) signOnStart(w http.ResponseWriter, r *http.Request) (*SignOnStart, error) {
	// A page of another site must not begin a sign-in of its visitor.
	if err := auth.FromOwnPage(r); err != nil {
		return nil, err
	}
	back, err := d.signOnReturn()
	if err != nil {
		return nil, err
	}
	// The cookie is for this host name only.
	if !strings.EqualFold(back.Host, r.Host) {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "people come back from %s to another address; open the console at %s://%s%s", d.cfg.SignOn.Name(), back.Scheme, back.Host, Path)
	}
	to, token, until, err := d.cfg.SignOn.Begin(r.Context())
	if err != nil {
		return nil, err
	}
	d.replace(r)
	auth.SetSignOnCookie(w, back.Scheme == "https", token, until)
	return &SignOnStart{URL: to}, nil
}

// signOnReturn returns where people come back.
func (d *Door) signOnReturn() (*url.URL, error) {
	if d.cfg.SignOn == nil {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "this server has no single sign-on; sign in with an API key")
	}
	back, err := url.Parse(d.cfg.SignOn.RedirectURL())
	if err != nil || back.Host == "" {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the server does not know at which address browsers reach it; who runs it has to set sso.redirect_url")
	}
	return back, nil
}

// endSignOn signs in somebody who comes back from the identity provider. The request is
// a navigation from another site, so a refusal is shown as a page.
func (d *Door) endSignOn(w http.ResponseWriter, r *http.Request) {
	back, err := d.signOnReturn()
	if err == nil {
		err = d.signOn(w, r, back.Scheme == "https")
	}
	if err != nil {
		d.refuseSignOn(w, r, err)
		return
	}
	http.Redirect(w, r, Path, http.StatusSeeOther)
}

func (d *Door) signOn(w http.ResponseWriter, r *http.Request, https bool) error {
	by := limits.Source{Target: "sign-ons", Address: limits.Address(r.RemoteAddr)}
	if wait := d.signOns.Wait(by); wait > 0 {
		err := sandbox.Errorf(sandbox.CodeQuotaExceeded, "too many sign-ins from this address have failed; try again in a moment")
		err.RetryAfter = max(wait, time.Second)
		return err
	}
	token := auth.SignOnToken(r, https)
	auth.EndSignOnCookie(w, https)
	person, err := d.cfg.SignOn.Finish(r.Context(), token, r.URL.Query())
	if err != nil {
		d.signOns.Failed(by)
		return err
	}
	cookie, s, err := d.cfg.Sessions.BeginPerson(r.Context(), person, r.UserAgent())
	if err != nil {
		return err
	}
	if err := d.audit(r.Context(), s.Caller, "console.sign_in", fmt.Sprintf("%s, subject %s of %s", s.ID, person.Subject, person.Issuer)); err != nil {
		return err
	}
	auth.SetSessionCookie(w, https, cookie, s.CreatedAt.Add(auth.SessionLifetime))
	return nil
}

//go:embed refused.html
var refusedPage string

var refusedTemplate = template.Must(template.New("refused").Parse(refusedPage))

// refuseSignOn shows why somebody is not signed in.
func (d *Door) refuseSignOn(w http.ResponseWriter, r *http.Request, err error) {
	if sandbox.CodeOf(err) == sandbox.CodeInternal {
		d.cfg.Log.ErrorContext(r.Context(), "console sign-on failed", "error", err)
		err = sandbox.Errorf(sandbox.CodeInternal, "the server failed; its see the server's log for details")
	}
	message := sandbox.MessageOf(err)
	var page bytes.Buffer
	if failed := refusedTemplate.Execute(&page, map[string]string{"Message": strings.ToUpper(message[:1]) + message[1:] + ".", "Console": Path}); failed != nil {
		d.fail(w, r, fmt.Errorf("write the page of a sign-on that failed: %w", failed))
		return
	}
	w.Header().Set("Content-Type", kinds[".html"])
	w.WriteHeader(d.cfg.Status(err))
	_, _ = page.WriteTo(w) // the browser may be gone
}
