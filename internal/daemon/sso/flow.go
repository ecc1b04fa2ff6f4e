package sso

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"maps"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// flowTime is how long a person may spend at the identity provider.
	flowTime = 10 * time.Minute
	// maxUsed bounds the completed sign-ins that are remembered.
	maxUsed = 10_000

	randomBytes = 32
	timeBytes   = 8
)

// flows bind each sign-in to the browser that began it. The browser has a token in a
// cookie; state, nonce and PKCE verifier are derived from that token with a key that only
// this process has. So a sign-in that has only begun takes no memory, and none outlives the
// process. A sign-in that succeeded is remembered until it expires, so that it cannot be
// replayed. It is safe for concurrent use.
type flows struct {
	key []byte

	mu   sync.Mutex
	used map[string]time.Time // guarded by mu; expiry times of flows, by token
}

// flow is a sign-in in progress.
type flow struct {
	token                  string
	state, nonce, verifier string
	expires                time.Time
}

func newFlows() *flows {
	key := make([]byte, sha256.Size)
	rand.Read(key)
	return &flows{key: key, used: map[string]time.Time{}}
}

// begin starts a sign-in.
func (f *flows) begin() flow {
	b := make([]byte, randomBytes, randomBytes+timeBytes)
	rand.Read(b)
	b = binary.BigEndian.AppendUint64(b, uint64(time.Now().Add(flowTime).Unix()))
	return f.of(base64.RawURLEncoding.EncodeToString(b), b)
}

func (f *flows) of(token string, b []byte) flow {
	derive := func(what string) string {
		mac := hmac.New(sha256.New, f.key)
		mac.Write([]byte(what + "\x00" + token))
		return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	return flow{
		token: token, state: derive("state"), nonce: derive("nonce"), verifier: derive("verifier"),
		expires: time.Unix(int64(binary.BigEndian.Uint64(b[randomBytes:])), 0),
	}
}

// end accepts, once, the sign-in that came back with this state to the browser with this
// token.
func (f *flows) end(token, state string) (flow, error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) != randomBytes+timeBytes {
		return flow{}, sandbox.Errorf(sandbox.CodeForbidden, "this browser has not begun to sign in, or takes no cookies; begin at the console's own page, and do not follow links that sign you in")
	}
	found := f.of(token, b)
	if !hmac.Equal([]byte(found.state), []byte(state)) {
		return flow{}, sandbox.Errorf(sandbox.CodeForbidden, "this answer belongs to a sign-in of another browser or tab, or of before the server's last start; sign in again")
	}
	now := time.Now()
	if !now.Before(found.expires) {
		return flow{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the sign-in took longer than %d minutes; sign in again", int(flowTime.Minutes()))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, again := f.used[token]; again {
		return flow{}, sandbox.Errorf(sandbox.CodeForbidden, "this answer was used already, and counts once; sign in again")
	}
	if len(f.used) >= maxUsed {
		maps.DeleteFunc(f.used, func(_ string, expires time.Time) bool { return !now.Before(expires) })
	}
	if len(f.used) >= maxUsed {
		return flow{}, sandbox.Errorf(sandbox.CodeQuotaExceeded, "%d people have signed in within the last minutes, which is the most; wait a few", maxUsed)
	}
	f.used[token] = found.expires
	return found, nil
}

// forget removes a sign-in that did not succeed from memory: anybody can cause these, and
// they must not take the space of the others.
func (f *flows) forget(token string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.used, token)
}
