package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"time"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	maxSignIn = 4 << 10
	// signInTime bounds the wait for the body of a sign-in, which anybody can begin.
	signInTime = 10 * time.Second
)

// SignIn is the body of POST /console/session. Exactly one field is set.
type SignIn struct {
	// Key is an API key.
	Key string `json:"key,omitempty"`
	// Link is the token of a link, from the fragment of its URL.
	Link string `json:"link,omitempty"`
}

// SessionState is what a page knows about its session.
type SessionState struct {
	// ID is empty in development mode, where there are no sessions.
	ID string `json:"id"`
	// KeyID and KeyName are those of the key, or stand for somebody who signed in by
	// single sign-on. The user who runs the daemon has no key: Local is true, and the
	// name is empty.
	KeyID   string          `json:"key_id"`
	KeyName string          `json:"key_name"`
	Local   bool            `json:"local"`
	Team    string          `json:"team"`
	Scopes  []sandbox.Scope `json:"scopes"`
	// ExpiresAt is when the session ends unless it is used before that; nil is never.
	ExpiresAt *time.Time `json:"expires_at"`
	// Version is the server's version.
	Version string `json:"version"`
}

// Link is the answer to POST /console/links.
type Link struct {
	URL       string    `json:"url"`
	ExpiresAt time.Time `json:"expires_at"`
}

func (d *Door) state(s *auth.Session) SessionState {
	state := SessionState{
		ID: s.ID, KeyID: s.Caller.KeyID, KeyName: s.KeyName, Local: s.Caller.KeyID == sandbox.LocalCaller().KeyID,
		Team: s.Caller.Team, Scopes: s.Caller.Scopes, Version: d.cfg.Version,
	}
	if !s.ExpiresAt.IsZero() {
		state.ExpiresAt = &s.ExpiresAt
	}
	return state
}

// bySession serves only requests that have a session.
func (d *Door) bySession(serve func(http.ResponseWriter, *http.Request, *auth.Session) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s, err := d.session(r)
		if err == nil {
			err = serve(w, r, s)
		}
		if err != nil {
			d.fail(w, r, err)
		}
	}
}

func (d *Door) session(r *http.Request) (*auth.Session, error) {
	if d.cfg.Open {
		return &auth.Session{Caller: sandbox.LocalCaller()}, nil
	}
	if err := auth.FromOwnPage(r); err != nil {
		return nil, err
	}
	s, err := d.cfg.Sessions.Of(r)
	if err == nil && s == nil {
		err = sandbox.Errorf(sandbox.CodeUnauthenticated, "nobody is signed in; sign in with an API key, or open the link that is printed by: cove console")
	}
	return s, err
}

func (d *Door) fail(w http.ResponseWriter, r *http.Request, err error) {
	if sandbox.CodeOf(err) == sandbox.CodeInternal {
		d.cfg.Log.ErrorContext(r.Context(), "console request failed", "path", r.URL.Path, "error", err)
		err = sandbox.Errorf(sandbox.CodeInternal, "the server failed; its see the server's log for details")
	}
	d.cfg.Refuse(w, r, err)
}

func answer(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode an answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // the browser may be gone
	return nil
}

// signIn begins a session.
func (d *Door) signIn(w http.ResponseWriter, r *http.Request) {
	token, s, err := d.begin(w, r)
	if err != nil {
		d.fail(w, r, err)
		return
	}
	auth.SetSessionCookie(w, auth.OverHTTPS(r), token, s.CreatedAt.Add(auth.SessionLifetime))
	if err := answer(w, d.state(s)); err != nil {
		d.fail(w, r, err)
	}
}

func (d *Door) begin(w http.ResponseWriter, r *http.Request) (auth.Secret, *auth.Session, error) {
	var none auth.Secret
	// A page of another site must not sign its visitor in as somebody else.
	if err := auth.FromOwnPage(r); err != nil {
		return none, nil, err
	}
	req, err := readSignIn(w, r)
	if err != nil {
		return none, nil, err
	}
	caller, err := d.callerOf(r.Context(), req)
	if err != nil {
		return none, nil, err
	}
	token, s, err := d.cfg.Sessions.Begin(r.Context(), caller, r.UserAgent())
	if err == nil {
		d.replace(r)
		err = d.audit(r.Context(), s.Caller, "console.sign_in", s.ID)
	}
	return token, s, err
}

// replace ends the browser's previous session, whose cookie the new one replaces.
func (d *Door) replace(r *http.Request) {
	old, err := d.cfg.Sessions.Of(r)
	if err != nil || old == nil {
		return
	}
	if err := d.cfg.Store.EndSession(r.Context(), old.Caller.Team, "", old.ID); err != nil {
		d.cfg.Log.WarnContext(r.Context(), "end the session of a browser that signs in anew", "session", old.ID, "error", err)
	}
}

func (d *Door) callerOf(ctx context.Context, req SignIn) (sandbox.Caller, error) {
	if req.Link == "" {
		return d.cfg.Keys.Authenticate(ctx, req.Key)
	}
	if err := d.cfg.Links.Use(ctx, req.Link); err != nil {
		return sandbox.Caller{}, err
	}
	return sandbox.LocalCaller(), nil
}

// readSignIn reads the body of a sign-in.
func readSignIn(w http.ResponseWriter, r *http.Request) (SignIn, error) {
	var req SignIn
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return req, sandbox.Errorf(sandbox.CodeInvalid, "the body is JSON and must say so; send the header Content-Type: application/json")
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(signInTime)) // if it cannot be set, the usual bound on a body's rate applies
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSignIn))
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return req, sandbox.Errorf(sandbox.CodeTooLarge, "the body has more than %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return req, sandbox.Wrap(sandbox.CodeInvalid, err, "the body could not be read; send it again")
	}
	_ = control.SetReadDeadline(time.Time{})
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := errors.Join(limits.CheckJSON(data), dec.Decode(&req)); err != nil || dec.More() {
		return req, sandbox.Errorf(sandbox.CodeInvalid, `the body is not {"key": "..."} or {"link": "..."}`) // the body is not quoted: it may be a key
	}
	if (req.Key == "") == (req.Link == "") {
		return req, sandbox.Errorf(sandbox.CodeInvalid, "the body has to have a key or a link, and not both")
	}
	return req, nil
}

func (d *Door) showSession(w http.ResponseWriter, _ *http.Request, s *auth.Session) error {
	return answer(w, d.state(s))
}

func (d *Door) signOut(w http.ResponseWriter, r *http.Request, s *auth.Session) error {
	if s.ID != "" {
		if err := d.end(r.Context(), s, "", s.ID, "console.sign_out"); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return err
		}
	}
	auth.EndSessionCookie(w, auth.OverHTTPS(r))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// reach returns the key whose sessions a caller can see and end; "" is the whole team.
func reach(c sandbox.Caller) (keyID string) {
	if c.Has(sandbox.ScopeAdmin) {
		return ""
	}
	return c.KeyID
}

func (d *Door) listSessions(w http.ResponseWriter, r *http.Request, s *auth.Session) error {
	var page sandbox.Page
	query := r.URL.Query()
	page.Cursor = query.Get("cursor")
	if text := query.Get("limit"); text != "" {
		var err error
		if page.Limit, err = strconv.Atoi(text); err != nil || page.Limit < 1 {
			return sandbox.Errorf(sandbox.CodeInvalid, "limit is not a number from 1 to %d", sandbox.MaxPageSize)
		}
	}
	found, err := d.cfg.Store.ListSessions(r.Context(), s.Caller.Team, reach(s.Caller), page)
	if err != nil {
		return err
	}
	return answer(w, found)
}

func (d *Door) endSession(w http.ResponseWriter, r *http.Request, s *auth.Session) error {
	if err := d.end(r.Context(), s, reach(s.Caller), r.PathValue("id"), "console.end_session"); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// end ends a session of the caller's team, and of one key unless keyID is empty.
func (d *Door) end(ctx context.Context, by *auth.Session, keyID, id, action string) error {
	err := d.cfg.Store.EndSession(ctx, by.Caller.Team, keyID, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no such session; list the sessions to see which exist")
	}
	if err != nil {
		return err
	}
	return d.audit(ctx, by.Caller, action, id)
}

func (d *Door) audit(ctx context.Context, c sandbox.Caller, action, session string) error {
	return d.cfg.Audit(ctx, sandbox.AuditEvent{Time: time.Now().UTC(), Team: c.Team, KeyID: c.KeyID, Action: action, Detail: session})
}

// makeLink makes a link that works once, for the user who runs the daemon.
func (d *Door) makeLink(w http.ResponseWriter, r *http.Request) {
	link, err := d.link(r)
	if err == nil {
		err = answer(w, link)
	}
	if err != nil {
		d.fail(w, r, err)
	}
}

func (d *Door) link(r *http.Request) (*Link, error) {
	if !d.cfg.Trusted(r) {
		return nil, sandbox.Errorf(sandbox.CodeForbidden, "links to the console are made over the server's Unix socket only; run on its machine: cove console")
	}
	address := d.cfg.Address()
	if address == "" {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the server has no TCP address that a browser reaches; start it with: cove serve --listen 127.0.0.1:7777")
	}
	token, expires, err := d.cfg.Links.Make()
	if err != nil {
		return nil, err
	}
	return &Link{URL: address + Path + LinkFragment + token.Reveal(), ExpiresAt: expires.UTC()}, nil
}
