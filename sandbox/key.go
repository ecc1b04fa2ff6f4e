package sandbox

import (
	"context"
	"slices"
	"time"
)

// Scope is a right that a key carries.
type Scope string

// The scopes. Admin implies all others and is needed for keys and the audit
// record; sandboxes:write implies sandboxes:read.
const (
	ScopeSandboxesRead  Scope = "sandboxes:read"
	ScopeSandboxesWrite Scope = "sandboxes:write"
	ScopeFilesWrite     Scope = "files:write"
	ScopeComputersWrite Scope = "computers:write"
	ScopeSecretsWrite   Scope = "secrets:write"
	ScopeTemplatesWrite Scope = "templates:write"
	ScopeAdmin          Scope = "admin"
)

// Scopes lists all scopes.
func Scopes() []Scope {
	return []Scope{ScopeSandboxesRead, ScopeSandboxesWrite, ScopeFilesWrite, ScopeComputersWrite, ScopeSecretsWrite, ScopeTemplatesWrite, ScopeAdmin}
}

// Caller is who makes a request. The zero value has no rights.
type Caller struct {
	// KeyID is the key used, "local" for a caller trusted as the user that runs the
	// daemon, or what [Person.Actor] returns for somebody who signed in by single
	// sign-on.
	KeyID string
	Team  string
	// Namespace is the one namespace of the team that the caller works in; it sees
	// nothing of the others. Empty is the whole team.
	Namespace string
	Scopes    []Scope
}

// DefaultTeam is the team of local callers.
const DefaultTeam = "default"

// LocalCaller is the user who runs the daemon: all rights in [DefaultTeam].
func LocalCaller() Caller {
	return Caller{KeyID: "local", Team: DefaultTeam, Scopes: []Scope{ScopeAdmin}}
}

// Has reports whether the caller has the scope.
func (c Caller) Has(s Scope) bool {
	if s == ScopeSandboxesRead && slices.Contains(c.Scopes, ScopeSandboxesWrite) {
		return true // a command reads what it likes
	}
	return slices.Contains(c.Scopes, s) || slices.Contains(c.Scopes, ScopeAdmin)
}

// Need returns a forbidden error if the caller lacks the scope.
func (c Caller) Need(s Scope) error {
	if c.Has(s) {
		return nil
	}
	return Errorf(CodeForbidden, "the API key lacks the scope %q; ask an administrator for a key that has it", s)
}

type callerKey struct{}

// WithCaller returns a context with the caller of a request.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerOf returns the caller of the request, and false if ctx has none.
func CallerOf(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// Key is an API key without its secret.
type Key struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	Team string `json:"team"`
	// Hint is the visible start of the secret.
	Hint       string     `json:"hint"`
	Scopes     []Scope    `json:"scopes"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	RevokedAt  *time.Time `json:"revoked_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"`
}

// CreateKeyRequest describes a key to be made.
type CreateKeyRequest struct {
	Name string `json:"name"`
	// Team defaults to the caller's.
	Team string `json:"team,omitempty"`
	// Scopes default to all except admin.
	Scopes []Scope `json:"scopes,omitempty"`
	// ExpiresInSeconds 0 is never.
	ExpiresInSeconds int64 `json:"expires_in_seconds,omitempty"`
}

// NewKey is a key with its secret, which is shown only once.
type NewKey struct {
	Key
	Secret string `json:"secret"`
}

// AuditEvent is one entry of the record of who did what.
type AuditEvent struct {
	ID   int64     `json:"id"`
	Time time.Time `json:"time"`
	Team string    `json:"team"`
	// KeyID is the caller's key, "local", "sso:" and a person's e-mail address, or
	// "system" for Cove itself.
	KeyID     string `json:"key_id"`
	Action    string `json:"action"`
	SandboxID string `json:"sandbox_id,omitempty"`
	// Detail is a short text without secrets or contents.
	Detail string `json:"detail,omitempty"`
	// Code is the code of the error, empty if the action succeeded.
	Code Code `json:"code,omitempty"`
}

// AuditRequest selects audit events of the caller's team.
type AuditRequest struct {
	SandboxID string `json:"sandbox_id,omitempty" query:"sandbox_id" doc:"Only events of this sandbox; needs admin when absent."`
	Page
}
