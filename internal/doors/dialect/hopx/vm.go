package hopx

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// home is the default directory of code and commands.
const home = "/workspace"

// vmDomain is the suffix of sandbox addresses. No public resolver knows its zone: an
// address names a sandbox here, and is not a place to connect to.
const vmDomain = ".local.vms.cove.internal"

// directURL returns the address of a sandbox, in the product's form.
func directURL(id string) string { return "https://7777-" + id + vmDomain }

// tokenHead is the head of an unsigned token.
var tokenHead = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`))

// authToken returns the token that clients pass back with the address. It grants nothing,
// since the caller's rights come from the server's key; it only says which sandbox is
// meant.
func authToken(id string) string {
	claims, err := json.Marshal(map[string]string{"sub": id})
	if err != nil {
		panic(err) // a string can always be encoded
	}
	return tokenHead + "." + base64.RawURLEncoding.EncodeToString(claims) + "."
}

// target names the sandbox that a call works in. Generations differ in which of the two
// arguments they send.
type target struct {
	VMURL     string `json:"vm_url"`
	AuthToken string `json:"auth_token"`
	SandboxID string `json:"sandbox_id"`
}

// sandbox returns the id or name by which the service knows the sandbox.
func (t *target) sandbox() string {
	if t.VMURL == "" {
		return sandboxOf(t.SandboxID)
	}
	return sandboxOf(t.VMURL)
}

// sandboxOf returns the sandbox of an address: a URL with the sandbox in its host or path,
// a host, or an id or name.
func sandboxOf(address string) string {
	s := strings.TrimSpace(address)
	_, rest, isURL := strings.Cut(s, "://")
	if !isURL {
		rest = s
	}
	host, path, _ := strings.Cut(rest, "/")
	if _, id, ok := strings.Cut("/"+path, "/vm/"); ok {
		id, _, _ = strings.Cut(id, "/")
		return id
	}
	host = strings.ToLower(host)
	if !isURL && !strings.Contains(host, ".vms.") {
		return strings.TrimRight(s, "/")
	}
	label, _, _ := strings.Cut(host, ".")
	label, _, _ = strings.Cut(label, ":")
	port, id, ok := strings.Cut(label, "-")
	if ok && port != "" && strings.Trim(port, "0123456789") == "" {
		return id
	}
	return label
}

// vm is a sandbox that a call works in.
type vm struct {
	*dialect.Call
	id  string
	box *sandbox.Sandbox
	url string // as the client named it
}

// open finds the sandbox of a call, which must be running, and checks the token if there is
// one.
func (t *target) open(ctx context.Context, c *dialect.Call) (*vm, error) {
	id := t.sandbox()
	m := &vm{Call: c, id: id, url: t.VMURL}
	if !strings.Contains(m.url, "://") {
		m.url = directURL(id)
	}
	if id == "" {
		return nil, m.failed("", dialect.Invalid("vm_url names no sandbox; give the direct_url of create_sandbox"))
	}
	s, err := c.Service.Get(ctx, id)
	if err == nil {
		m.box, m.id = s, s.ID
		err = m.usable(t.AuthToken)
	}
	if err != nil {
		return nil, m.gone(err)
	}
	return m, nil
}

func (m *vm) usable(token string) error {
	switch m.box.State {
	case sandbox.StateKilled, sandbox.StateStopping, sandbox.StateFailed:
		return sandbox.Errorf(sandbox.CodeNotFound, "sandbox %s does not exist any more; make another with create_sandbox", m.id)
	case sandbox.StatePaused:
		return sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s is paused; continue it with resume_sandbox", m.id)
	case sandbox.StateCreating:
		f := failed(true, m.url, sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s is not ready; try again in a moment", m.id))
		f.code = "SANDBOX_CREATING"
		return f
	}
	if token != "" && token != authToken(m.id) {
		f := failed(true, m.url, sandbox.Errorf(sandbox.CodeUnauthenticated, "auth_token is not of sandbox %s; give the one that create_sandbox has returned with its direct_url, or none", m.id))
		return f
	}
	return nil
}

// gone returns the failure for an error about the sandbox itself.
func (m *vm) gone(err error) error {
	f := failed(true, m.url, err)
	f.sandbox = m.id
	if f.code == "NOT_FOUND" {
		f.code = "SANDBOX_NOT_FOUND"
	}
	return f
}

// failed returns the failure of a request to the sandbox's agent. If the sandbox has ended
// meanwhile, the failure says so.
func (m *vm) failed(route string, err error) error {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotRunning:
		return m.gone(err)
	}
	f := failed(true, strings.TrimRight(m.url, "/")+route, err)
	f.sandbox = m.id
	return f
}

// missing returns the failure of a request about something in the sandbox; code is the
// failure's code if that does not exist.
func (m *vm) missing(ctx context.Context, route, code string, err error) error {
	f, ok := m.failed(route, err).(*failure)
	if !ok || f.code != "NOT_FOUND" {
		return m.failed(route, err)
	}
	if s, getErr := m.Service.Get(ctx, m.id); sandbox.CodeOf(getErr) == sandbox.CodeNotFound || getErr == nil && s.State.Final() {
		return m.gone(sandbox.Errorf(sandbox.CodeNotFound, "sandbox %s does not exist any more; make another with create_sandbox", m.id))
	}
	f.code = code
	return f
}

// read returns the first bytes of a file.
func (m *vm) read(ctx context.Context, p string, limit int64) ([]byte, error) {
	data, _, err := dialect.ReadFile(ctx, m.Service, m.id, p, limit)
	return data, err
}

// query returns a route with a query of one value.
func query(route, key, value string) string {
	return route + "?" + url.Values{key: {clip.Text(value, maxShown)}}.Encode()
}
