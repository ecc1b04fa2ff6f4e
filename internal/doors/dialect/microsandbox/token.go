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

// KeyFile is the file in the state directory with the key that signs keys of this dialect.
// To keep using keys of a server of the product, put that server's server.key in its place.
const KeyFile = "microsandbox.key"

const (
	keyPrefix = "msb_"
	// maxKey bounds a key of the dialect, in bytes.
	maxKey = 4096
	leeway = time.Minute
	// callerPrefix is the prefix of the id of a caller with such a key; the key's namespace
	// follows.
	callerPrefix = "microsandbox:"
)

type claims struct {
	Namespace string `json:"namespace"`
	// Images is set if the key may build templates of images. The product's own keys do not
	// have it.
	Images bool `json:"cove_images,omitempty"`
	jwt.RegisteredClaims
}

// ServerKey returns the key in a state directory. The error is not_found if there is none.
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

// MakeServerKey makes a key for a state directory, if it has none or if reset is set. A
// reset invalidates all keys signed with the old one.
func MakeServerKey(dir string, reset bool) ([]byte, error) {
	if key, err := ServerKey(dir); !reset && sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return key, err
	}
	// 32 characters, as in the product.
	key := []byte(rand.Text() + rand.Text())[:32]
	// A loss of power must not bring the old key back, since the caller is told that it is
	// invalid.
	if err := durable.WriteFile(filepath.Join(dir, KeyFile), key); err != nil {
		return nil, fmt.Errorf("write the key: %w", err)
	}
	return key, nil
}

// Grant is the rights of a key.
type Grant struct {
	// Namespace is the key's namespace; "*" is all.
	Namespace string
	// Images allows building templates of images, which all teams of the server see and
	// which fill its disk.
	Images bool
}

// NewKey returns a key that is valid until expires.
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

// readKey returns the claims of a key.
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

// callerFor returns the caller with a key's claims. Only this package enforces the key's
// namespace, so such a caller must reach nothing else.
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

// namespaceOf returns the namespace of the caller's key, if it is a key of this dialect.
func namespaceOf(ctx context.Context) (namespace string, ok bool) {
	caller, _ := sandbox.CallerOf(ctx)
	return strings.CutPrefix(caller.KeyID, callerPrefix)
}

// errDenied is the error for a namespace that the key does not cover.
var errDenied error = sandbox.Errorf(sandbox.CodeForbidden, "Access denied")

// permit refuses a namespace that the caller's key does not cover.
func permit(ctx context.Context, namespace string) error {
	bound, ok := namespaceOf(ctx)
	if ok && bound != wildcard && bound != namespace {
		return errDenied
	}
	return nil
}

// ParseExpiry parses a key's lifetime as the product's command does: a number and s, m, h,
// d, w, mo (30 days) or y (365 days); without a unit, hours.
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
