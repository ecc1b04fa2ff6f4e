package access

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// The parameters of a signed link to a file.
const (
	ParamSignature = "signature"
	paramExpires   = "expires"
	paramPath      = "path"
	signatureMark  = "v1_"
)

// signedPaths are the routes of the toolbox that links can be signed for, by method.
var signedPaths = map[string]string{http.MethodGet: "/files/download", http.MethodPost: "/files/upload-v2"}

// OpenSigned returns the caller who has signed a request for one file of a sandbox. The
// request's path is relative to the toolbox.
func OpenSigned(ctx context.Context, g *gate.Gate, id string, r *http.Request) (sandbox.Caller, error) {
	query := r.URL.Query()
	if signedPaths[r.Method] != r.URL.Path || r.URL.Path == "" ||
		slices.ContainsFunc([]string{ParamSignature, paramExpires, paramPath}, func(name string) bool { return len(query[name]) != 1 }) {
		return sandbox.Caller{}, ErrToken
	}
	expires, err := strconv.ParseInt(query.Get(paramExpires), 10, 64)
	if err != nil || strconv.FormatInt(expires, 10) != query.Get(paramExpires) || expires != 0 && expires < time.Now().Unix() {
		return sandbox.Caller{}, ErrToken
	}
	caller, ok, err := g.Signer(ctx, Files, id, func(token string) bool {
		want := Sign(token, r.Method, query.Get(paramPath), expires)
		return hmac.Equal([]byte(want), []byte(query.Get(ParamSignature)))
	})
	if err == nil && !ok {
		err = ErrToken
	}
	return caller, err
}

// Sign returns the signature of a link to a file, until a time in Unix seconds; 0 is
// for ever.
func Sign(key, method, path string, expires int64) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte("v1:files:" + method + ":" + path + ":" + strconv.FormatInt(expires, 10)))
	return signatureMark + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
