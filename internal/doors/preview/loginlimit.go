package preview

import (
	"crypto/sha256"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// tooManyAttempts is the error for a source whose attempts failed too often. Its
// credentials are not checked.
type tooManyAttempts struct{ wait time.Duration }

func (e *tooManyAttempts) Error() string {
	return fmt.Sprintf("too many keys and links that are not valid came from this address; try again in %d s", e.seconds())
}

func (e *tooManyAttempts) seconds() int { return max(1, int(math.Ceil(e.wait.Seconds()))) }

func (e *tooManyAttempts) problem() problem {
	return problem{status: http.StatusTooManyRequests, code: string(sandbox.CodeQuotaExceeded), title: "Too many attempts", detail: sentence(e.Error()), again: e.seconds()}
}

// attempt is an attempt to open a preview or live view, with the credentials sent.
type attempt struct {
	by   limits.Source
	hash [sha256.Size]byte // of the credentials
	none bool              // no credentials were sent, which is not counted
}

func attemptAt(r *http.Request, place, key, link string) attempt {
	return attempt{
		by:   limits.Source{Target: place, Address: limits.Address(r.RemoteAddr)},
		hash: sha256.Sum256([]byte(place + "\x00" + key + "\x00" + link)),
		none: key == "" && link == "",
	}
}

// allow returns an error if the attempt must not be made now.
func (p *Proxy) allow(a attempt) error {
	if a.none || p.accepted.Has(a.hash) {
		return nil
	}
	if wait := p.limiter.Wait(a.by); wait > 0 {
		return &tooManyAttempts{wait}
	}
	return nil
}

// note counts the attempt if it failed, and remembers its credentials if they were
// accepted.
func (p *Proxy) note(a attempt, err error) {
	switch code := sandbox.CodeOf(err); {
	case a.none:
	case code == sandbox.CodeForbidden, code == sandbox.CodeUnauthenticated:
		p.accepted.Forget(a.hash)
		p.limiter.Failed(a.by)
	case err == nil:
		p.accepted.Add(a.hash)
	}
}
