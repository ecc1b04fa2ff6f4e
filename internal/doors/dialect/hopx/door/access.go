package door

import (
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// agentPurpose is the purpose of tokens for the agent of a sandbox.
	agentPurpose gate.Purpose = "agent"
	// tokenPrefix is the prefix of a token, which names its sandbox: "hopx_ID.TOKEN".
	tokenPrefix = "hopx_"
	maxToken    = 512
)

var errToken = sandbox.Errorf(sandbox.CodeUnauthenticated, "the token is not one of this sandbox; get one with POST /v1/sandboxes/ID/token/refresh")

// token returns a caller's token for a sandbox. It is valid as long as the sandbox and the
// API key are: clients keep using the first one that they get.
func (d *Door) token(c sandbox.Caller, id string) string {
	return tokenPrefix + id + "." + d.cfg.Gate.Token(agentPurpose, c, id)
}

// parseToken splits a token into the sandbox's id and the rest.
func parseToken(token string) (id, rest string, ok bool) {
	body, ok := strings.CutPrefix(token, tokenPrefix)
	id, rest, found := strings.Cut(body, ".")
	if !ok || !found || len(token) > maxToken || !sdkdoor.ValidID(id) {
		return "", "", false
	}
	return id, rest, true
}

// tokenOf returns the sandbox token in a request, or "" if there is not exactly one.
func tokenOf(h http.Header) string {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if _, _, ok := parseToken(token); !ok || !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return token
}

// caller authenticates a request: by an API key or, for an agent, by the token of its
// sandbox. The result is nil for a request that needs neither.
func (x *exchange) caller() (*sandbox.Caller, error) {
	c := sandbox.LocalCaller()
	switch token := tokenOf(x.r.Header); {
	case x.at.sandbox == "" && x.at.path == "/health":
		return nil, nil
	case x.at.sandbox != "" && token != "":
		id, rest, _ := parseToken(token)
		if id != x.at.sandbox {
			return nil, errToken
		}
		c, err := x.d.cfg.Gate.Open(x.r.Context(), agentPurpose, id, rest)
		return &c, err
	case x.d.cfg.Trusted(x.r):
		return &c, nil
	}
	c, err := x.d.cfg.Gate.Bearer(x.r)
	return &c, err
}
