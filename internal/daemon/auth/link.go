package auth

import (
	"context"
	"crypto/sha256"
	"maps"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// LinkLifetime is how long a link to the console is valid.
	LinkLifetime = time.Minute
	// linkMemory is how long a link is remembered, to explain why it no longer works.
	linkMemory = 10 * time.Minute
	// maxLinks bounds the links that are remembered.
	maxLinks = 1000
)

// Links are one-time links with which the user who runs the daemon signs in to the console.
// They are kept in memory and do not outlive the daemon. The zero value is not usable.
// Links is safe for concurrent use.
type Links struct {
	tries *LoginLimiter

	mu   sync.Mutex
	made map[[sha256.Size]byte]link // guarded by mu
}

type link struct {
	expires time.Time
	used    bool
}

// NewLinks returns no links.
func NewLinks() *Links {
	return &Links{tries: newLoginLimiter("links"), made: make(map[[sha256.Size]byte]link)}
}

// Make makes a link's token. The error is quota_exceeded if too many links were made
// recently.
func (l *Links) Make() (Secret, time.Time, error) {
	token := newToken()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(l.made, func(_ [sha256.Size]byte, old link) bool { return now.Sub(old.expires) > linkMemory })
	if len(l.made) >= maxLinks {
		return Secret{}, time.Time{}, sandbox.Errorf(sandbox.CodeQuotaExceeded, "there were %d links to the console within the last minutes, which is the most; wait a few", maxLinks)
	}
	expires := now.Add(LinkLifetime)
	l.made[[sha256.Size]byte(Hash(token.Reveal()))] = link{expires: expires}
	return token, expires, nil
}

// Use consumes a link's token. It succeeds once per link; otherwise the error is
// unauthenticated, or quota_exceeded after too many attempts from one address.
func (l *Links) Use(ctx context.Context, token string) error {
	if len(token) > maxToken {
		token = ""
	}
	hash := Hash(token)
	if err := l.tries.allow(ctx, hash); err != nil {
		return err
	}
	err := l.use([sha256.Size]byte(hash))
	if err != nil {
		l.tries.unknown(ctx)
	}
	return err
}

func (l *Links) use(hash [sha256.Size]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	found, ok := l.made[hash]
	switch {
	case !ok:
		return sandbox.Errorf(sandbox.CodeUnauthenticated, "the link is not known to this server; make a new one with: cove console")
	case found.used:
		return sandbox.Errorf(sandbox.CodeUnauthenticated, "the link was used already, and works once; make a new one with: cove console, and end the session of whoever used it if that was not you")
	case !time.Now().Before(found.expires):
		return sandbox.Errorf(sandbox.CodeUnauthenticated, "the link has expired; it is good for %d s: make a new one with: cove console", int(LinkLifetime.Seconds()))
	}
	found.used = true
	l.made[hash] = found
	return nil
}
