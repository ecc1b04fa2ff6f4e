package microsandbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

// KeyFile has the key that keys of this dialect are signed with, in the state
// directory. Whoever has keys of a server of the product's can go on using them
// with that server's server.key in its place.
const KeyFile = "microsandbox.key"

const (
	keyPrefix = "msb_"
	// maxKey bounds a key of the dialect, in bytes.
	maxKey = 4096
	leeway = time.Minute
	// callerPrefix begins the id of a caller with such a key; the namespace
	// that it is for follows.
	callerPrefix = "microsandbox:"
)

type claims struct {
	Namespace string `json:"namespace"`
	// Images says that the key builds templates of the images that it is asked
	// for. The product's own keys do not say so.
	Images bool `json:"cove_images,omitempty"`
	jwt.RegisteredClaims
}

// ServerKey returns the key in a state directory. It is not_found if there is
// none.
func ServerKey(dir string) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(dir, KeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, sandbox.Wrap(sandbox.CodeNotFound, err, "there are no keys of microsandbox yet; make one with: cove key microsandbox")
	}
	if err != nil {
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("%s cannot be read; run this as the user of the server", filepath.Join(dir, KeyFile)))
	}
	key := []byte(strings.TrimSpace(string(data)))
	if len(key) < 16 {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "%s is too short for a key; remove it, and make another with: cove key microsandbox", filepath.Join(dir, KeyFile))
	}
	return key, nil
}

// MakeServerKey makes a key for a state directory unless it has one, or, with
// reset, in any case: all keys signed with the old one end then.
func MakeServerKey(dir string, reset bool) ([]byte, error) {
	if key, err := ServerKey(dir); !reset && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return key, err
	}
	// 32 characters, as the product's.
	key := []byte(rand.Text() + rand.Text())[:32]
	// A loss of power must not bring the old key back, whose end is told now.
	if err := durable.WriteFile(filepath.Join(dir, KeyFile), key); err != nil {
		return nil, fmt.Errorf("write the key: %w", err)
	}
	return key, nil
}

// Grant is what a key is good for.
type Grant struct {
	// Namespace is the one that the key is for; "*" is all.
	Namespace string
	// Images lets the key build templates of images, which all teams of the
	// server see and which fill its disk.
	Images bool
}

// NewKey returns a key that is good until a time.
func NewKey(serverKey []byte, grant Grant, now, expires time.Time) (string, error) {
	namespace := grant.Namespace
	if namespace != wildcard {
		if err := checkName("Namespace", namespace); err != nil {
			return "", err
		}
	}
	token := jwt.NewWithClaims(jwt.SigningMethodHS256, claims{namespace, grant.Images, jwt.RegisteredClaims{
		ExpiresAt: jwt.NewNumericDate(expires), IssuedAt: jwt.NewNumericDate(now),
	}})
	text, err := token.SignedString(serverKey)
	return keyPrefix + text, err
}

// readKey returns what a key is for.
func readKey(serverKey []byte, key string) (claims, error) {
	if len(key) > maxKey {
		return claims{}, jwt.ErrTokenMalformed
	}
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"HS256"}), jwt.WithLeeway(leeway), jwt.WithExpirationRequired())
	var c claims
	if _, err := parser.ParseWithClaims(strings.TrimPrefix(key, keyPrefix), &c, func(*jwt.Token) (any, error) { return serverKey, nil }); err != nil {
		return claims{}, err
	}
	if c.Namespace != wildcard && checkName("Namespace", c.Namespace) != nil {
		return claims{}, jwt.ErrTokenInvalidClaims
	}
	return c, nil
}

// callerFor is who has a key. What its namespace bounds is bounded by this
// package, so such a caller must get nowhere else.
func callerFor(c claims) sandbox.Caller {
	caller := sandbox.Caller{
		KeyID: callerPrefix + c.Namespace, Team: sandbox.DefaultTeam,
		Scopes: []sandbox.Scope{sandbox.ScopeSandboxesRead, sandbox.ScopeSandboxesWrite},
	}
	if c.Images {
		caller.Scopes = append(caller.Scopes, sandbox.ScopeTemplatesWrite)
	}
	return caller
}

// namespaceOf returns the namespace that the caller's key is for, if it is one
// of this dialect.
func namespaceOf(ctx context.Context) (namespace string, ok bool) {
	caller, _ := sandbox.CallerOf(ctx)
	return strings.CutPrefix(caller.KeyID, callerPrefix)
}

// errDenied is about a namespace that a key is not for.
var errDenied error = sandbox.Errorf(sandbox.CodeForbidden, "Access denied")

// permit refuses a namespace that the caller's key is not for.
func permit(ctx context.Context, namespace string) error {
	bound, ok := namespaceOf(ctx)
	if ok && bound != wildcard && bound != namespace {
		return errDenied
	}
	return nil
}

// ParseExpiry reads how long a key is good for as the product's command does: a
// number and s, m, h, d, w, mo (30 days) or y (365 days); without a unit it is
// hours.
func ParseExpiry(s string) (time.Duration, error) {
	digits := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyz")
	unit, ok := map[string]time.Duration{
		"": time.Hour, "s": time.Second, "m": time.Minute, "h": time.Hour,
		"d": 24 * time.Hour, "w": 7 * 24 * time.Hour, "mo": 30 * 24 * time.Hour, "y": 365 * 24 * time.Hour,
	}[s[len(digits):]]
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || !ok || n <= 0 || n > int64(100*365*24*time.Hour/unit) {
		return 0, dialect.Invalid("%.32q is not how long a key is good for; write a number with s, m, h, d, w, mo or y, such as 24h or 3mo, and at most 100y", s)
	}
	return time.Duration(n) * unit, nil
}
