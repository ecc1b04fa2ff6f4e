package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
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

// maxSearch bounds the pairs of sandbox and key that are tried for a link that names no
// sandbox.
const maxSearch = 100_000

func signatureError(text string) error {
	return sandbox.Errorf(sandbox.CodeUnauthenticated, "%s", text)
}

var errSignature = signatureError("invalid signature")

// signed is a request that a client has signed with a sandbox's token.
type signed struct{ path, operation, user, expiry, signature string }

// readSigned parses a signature, and refuses an expired one.
func readSigned(r *http.Request) (*signed, error) {
	query := r.URL.Query()
	s := &signed{path: query.Get("path"), user: query.Get("username"), expiry: query.Get(paramExpiration), signature: query.Get(ParamSignature)}
	switch {
	case s.signature == "":
		return nil, signatureError("missing signature query parameter")
	case repeated(query, "path", "username", paramExpiration, ParamSignature):
		return nil, errSignature
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		s.operation = "read"
	case http.MethodPost:
		s.operation = "write"
	default:
		return nil, errSignature
	}
	if s.expiry == "" {
		return s, nil
	}
	until, err := strconv.ParseInt(s.expiry, 10, 64)
	if err != nil {
		return nil, errSignature
	}
	if until < time.Now().Unix() {
		return nil, signatureError("signature is already expired")
	}
	s.expiry = strconv.FormatInt(until, 10)
	return s, nil
}

func repeated(query url.Values, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return len(query[name]) > 1 })
}

// signedWith reports whether the signature was made with a token.
func (s *signed) signedWith(token string) bool {
	text := strings.Join([]string{s.path, s.operation, s.user, token}, ":")
	if s.expiry != "" {
		text += ":" + s.expiry
	}
	sum := sha256.Sum256([]byte(text))
	want := signatureMark + base64.RawStdEncoding.EncodeToString(sum[:])
	return subtle.ConstantTimeCompare([]byte(want), []byte(s.signature)) == 1
}

// OpenSigned returns the caller who has signed a request to the files of a sandbox.
func (g *Gate) OpenSigned(ctx context.Context, id string, r *http.Request) (sandbox.Caller, error) {
	s, err := readSigned(r)
	if err != nil {
		return sandbox.Caller{}, err
	}
	caller, ok, err := g.Signer(ctx, Envd, id, s.signedWith)
	if err == nil && !ok {
		err = errSignature
	}
	return caller, err
}

// FindSigned finds the sandbox and the caller of a signed link that names no sandbox.
func (g *Gate) FindSigned(ctx context.Context, r *http.Request) (id string, _ sandbox.Caller, _ error) {
	s, err := readSigned(r)
	if err != nil {
		return "", sandbox.Caller{}, err
	}
	boxes, err := g.Living(ctx)
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
			if holders, err = g.Holders(ctx, box.Team); err != nil {
				return "", sandbox.Caller{}, err
			}
			teams[box.Team] = holders
		}
		if left -= len(holders); left < 0 {
			break
		}
		for _, c := range holders {
			if s.signedWith(g.Token(Envd, c, box.ID)) {
				return box.ID, c, nil
			}
		}
	}
	return "", sandbox.Caller{}, errSignature
}
