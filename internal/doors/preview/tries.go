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

// triedTooOften is the error for who has brought too much in vain: it is not
// even looked at.
type triedTooOften struct{ wait time.Duration }

func (e *triedTooOften) Error() string {
	return fmt.Sprintf("too many keys and links that are not valid came from this address; try again in %d s", e.seconds())
}

func (e *triedTooOften) seconds() int { return max(1, int(math.Ceil(e.wait.Seconds()))) }

func (e *triedTooOften) problem() problem {
	return problem{status: http.StatusTooManyRequests, code: string(sandbox.CodeQuotaExceeded), title: "Too many attempts", detail: sentence(e.Error()), again: e.seconds()}
}

// attempt is one try of somebody to get in somewhere, with what they bring.
type attempt struct {
	by   limits.Try
	what [sha256.Size]byte
	none bool // nothing was brought, which is no try
}

func attemptAt(r *http.Request, place, key, link string) attempt {
	return attempt{
		by:   limits.Try{Place: place, Who: limits.Address(r.RemoteAddr)},
		what: sha256.Sum256([]byte(place + "\x00" + key + "\x00" + link)),
		none: key == "" && link == "",
	}
}

// allow returns an error if a try must not be made now.
func (p *Proxy) allow(a attempt) error {
	if a.none || p.known.Has(a.what) {
		return nil
	}
	if wait := p.tries.Wait(a.by); wait > 0 {
		return &triedTooOften{wait}
	}
	return nil
}

// note takes note of how a try went.
func (p *Proxy) note(a attempt, err error) {
	switch code := sandbox.CodeOf(err); {
	case a.none:
	case code == sandbox.CodeForbidden, code == sandbox.CodeUnauthenticated:
		p.known.Forget(a.what)
		p.tries.Failed(a.by)
	case err == nil:
		p.known.Add(a.what)
	}
}
