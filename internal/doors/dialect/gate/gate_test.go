package gate_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// keys are callers by the ids of their keys.
type keys map[string]sandbox.Caller

func (k keys) Authenticate(context.Context, string) (sandbox.Caller, error) {
	return sandbox.Caller{}, errors.New("not asked")
}

func (k keys) CallerOf(_ context.Context, id string) (sandbox.Caller, error) {
	c, ok := k[id]
	if !ok {
		return c, sandbox.Errorf(sandbox.CodeUnauthenticated, "no such key")
	}
	return c, nil
}

func (k keys) CallersOf(_ context.Context, team string) ([]sandbox.Caller, error) {
	var all []sandbox.Caller
	for _, c := range k {
		if c.Team == team {
			all = append(all, c)
		}
	}
	return all, nil
}

// boxes are the teams of sandboxes by id.
type boxes map[string]string

func (b boxes) Look(_ context.Context, id string) (*sandbox.Sandbox, error) {
	team, ok := b[id]
	if !ok {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no such sandbox")
	}
	return &sandbox.Sandbox{ID: id, Team: team}, nil
}

func (b boxes) Living(context.Context) ([]sandbox.Sandbox, error) {
	return nil, errors.New("not asked")
}

var errRefused = sandbox.Errorf(sandbox.CodeUnauthenticated, "refused")

func newGate(product string, k keys) *gate.Gate {
	return gate.New(gate.Config{
		Product: product, Keys: k, Sandboxes: boxes{"sbx-1": "red", "sbx-2": "red", "sbx-3": "blue"}, Secret: []byte(strings.Repeat("s", 32)), Refusal: errRefused,
	})
}

var (
	ann = sandbox.Caller{KeyID: "key-ann", Team: "red", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead, sandbox.ScopeTemplatesWrite}, Namespace: "n"}
	bob = sandbox.Caller{KeyID: "key-bob", Team: "blue", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead}}
)

// A token is good for one product, purpose, sandbox and key, while the key is, and gives
// no more than its holder's rights on sandboxes.
func TestOpen(t *testing.T) {
	k := keys{ann.KeyID: ann, bob.KeyID: bob}
	g := newGate("one", k)
	good := g.Token("work", ann, "sbx-1")
	forged := []byte(good)
	forged[len(forged)-1] = "10"[forged[len(forged)-1]&1] // another digit
	c, err := g.Open(t.Context(), "work", "sbx-1", good)
	if err != nil || c.KeyID != ann.KeyID || c.Team != "red" || c.Namespace != "" || !slices.Equal(c.Scopes, []sandbox.Scope{sandbox.ScopeSandboxesRead}) {
		t.Errorf("%+v, %v", c, err)
	}
	for name, token := range map[string]string{
		"none": "", "of another sandbox": g.Token("work", ann, "sbx-2"), "of another purpose": g.Token("play", ann, "sbx-1"), "of another product": newGate("two", k).Token("work", ann, "sbx-1"),
		"of another key under this one's id": strings.Replace(g.Token("work", bob, "sbx-1"), "bob", "ann", 1), "of no key": strings.Replace(good, "ann", "eve", 1),
		"cut": good[:len(good)-2], "forged": string(forged), "without its mark": strings.TrimPrefix(good, "cst_"), "long": good + strings.Repeat("0", 300),
	} {
		if _, err := g.Open(t.Context(), "work", "sbx-1", token); !errors.Is(err, errRefused) {
			t.Errorf("a token %s: %v", name, err)
		}
	}
	delete(k, ann.KeyID)
	if _, err := g.Open(t.Context(), "work", "sbx-1", good); !errors.Is(err, errRefused) {
		t.Errorf("the token of a revoked key: %v", err)
	}
}

// A request is signed by a holder of the sandbox's own team, with the token for it.
func TestSigner(t *testing.T) {
	g := newGate("one", keys{ann.KeyID: ann, bob.KeyID: bob})
	for _, c := range []struct {
		name, id, token, want string
	}{
		{"ann's own", "sbx-1", g.Token("files", ann, "sbx-1"), ann.KeyID},
		{"for another sandbox", "sbx-2", g.Token("files", ann, "sbx-1"), ""},
		{"of another purpose", "sbx-1", g.Token("work", ann, "sbx-1"), ""},
		{"of another team's key", "sbx-1", g.Token("files", bob, "sbx-1"), ""},
		{"of a sandbox that does not exist", "sbx-9", g.Token("files", ann, "sbx-9"), ""},
	} {
		got, ok, err := g.Signer(t.Context(), "files", c.id, func(token string) bool { return token == c.token })
		if err != nil || ok != (c.want != "") || got.KeyID != c.want {
			t.Errorf("%s: %+v, %v, %v", c.name, got, ok, err)
		}
	}
}
