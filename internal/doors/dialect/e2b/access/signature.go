package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// The parameters of a signed link.
const (
	ParamSignature  = "signature"
	paramExpiration = "signature_expiration"
	signatureMark   = "v1_"
)

// maxSearch bounds the pairs of sandbox and key that a link without a sandbox is
// compared with.
const maxSearch = 100_000

func signatureError(text string) error {
	return sandbox.Errorf(sandbox.CodeUnauthenticated, "%s", text)
}

// signed is what a client has signed with a sandbox's token.
type signed struct{ path, operation, user, expiry, signature string }

// readSigned reads a signature, and refuses one that is over.
func readSigned(r *http.Request) (*signed, error) {
	query := r.URL.Query()
	s := &signed{path: query.Get("path"), user: query.Get("username"), expiry: query.Get(paramExpiration), signature: query.Get(ParamSignature)}
	switch {
	case s.signature == "":
		return nil, signatureError("missing signature query parameter")
	case twice(query, "path", "username", paramExpiration, ParamSignature):
		return nil, signatureError("invalid signature")
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		s.operation = "read"
	case http.MethodPost:
		s.operation = "write"
	default:
		return nil, signatureError("invalid signature")
	}
	if s.expiry == "" {
		return s, nil
	}
	until, err := strconv.ParseInt(s.expiry, 10, 64)
	if err != nil {
		return nil, signatureError("invalid signature")
	}
	if until < time.Now().Unix() {
		return nil, signatureError("signature is already expired")
	}
	s.expiry = strconv.FormatInt(until, 10)
	return s, nil
}

func twice(query url.Values, names ...string) bool {
	for _, name := range names {
		if len(query[name]) > 1 {
			return true
		}
	}
	return false
}

// by reports whether the signature was made with a token.
func (s *signed) by(token string) bool {
	text := strings.Join([]string{s.path, s.operation, s.user, token}, ":")
	if s.expiry != "" {
		text += ":" + s.expiry
	}
	sum := sha256.Sum256([]byte(text))
	want := signatureMark + base64.RawStdEncoding.EncodeToString(sum[:])
	return subtle.ConstantTimeCompare([]byte(want), []byte(s.signature)) == 1
}

// OpenSigned tells who has signed a request to the files of a sandbox.
func (g *Gate) OpenSigned(ctx context.Context, id string, r *http.Request) (sandbox.Caller, error) {
	s, err := readSigned(r)
	if err != nil {
		return sandbox.Caller{}, err
	}
	box, err := g.Look(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return sandbox.Caller{}, signatureError("invalid signature")
	}
	if err != nil {
		return sandbox.Caller{}, err
	}
	holders, err := g.holders(ctx, box.Team)
	if err != nil {
		return sandbox.Caller{}, err
	}
	for _, c := range holders {
		if s.by(g.Token(Envd, c, id)) {
			return narrow(c), nil
		}
	}
	return sandbox.Caller{}, signatureError("invalid signature")
}

// FindSigned finds the sandbox of a signed link that names none.
func (g *Gate) FindSigned(ctx context.Context, r *http.Request) (id string, _ sandbox.Caller, _ error) {
	s, err := readSigned(r)
	if err != nil {
		return "", sandbox.Caller{}, err
	}
	boxes, err := g.cfg.Sandboxes.Living(ctx)
	if err != nil {
		return "", sandbox.Caller{}, err
	}
	teams, left := map[string][]sandbox.Caller{}, maxSearch
	for _, box := range boxes {
		if err := ctx.Err(); err != nil {
			return "", sandbox.Caller{}, err
		}
		holders, ok := teams[box.Team]
		if !ok {
			if holders, err = g.holders(ctx, box.Team); err != nil {
				return "", sandbox.Caller{}, err
			}
			teams[box.Team] = holders
		}
		if left -= len(holders); left < 0 {
			break
		}
		for _, c := range holders {
			if s.by(g.Token(Envd, c, box.ID)) {
				return box.ID, narrow(c), nil
			}
		}
	}
	return "", sandbox.Caller{}, signatureError("invalid signature")
}

// holders are those who may have a token of a sandbox of a team.
func (g *Gate) holders(ctx context.Context, team string) ([]sandbox.Caller, error) {
	callers, err := g.cfg.Keys.CallersOf(ctx, team)
	if local := sandbox.LocalCaller(); team == local.Team {
		callers = append(callers, local)
	}
	return callers, err
}
