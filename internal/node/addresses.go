package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// tryTimeout bounds how long an address may take to take a connection, and all of its try if
	// there are others.
	tryTimeout = 5 * time.Second
	// tryAgain is for how long addresses are tried again, and tryPause about how long a pause is
	// between the tries.
	tryAgain = 3 * time.Second
	tryPause = 100 * time.Millisecond
)

// maxAddresses bounds the addresses of a server, and the IP addresses of each.
const maxAddresses = 64

// addresses are where a server may listen. Of several servers, one does, so each is tried.
type addresses struct {
	all    []string // as host:port
	lookup func(ctx context.Context, host string) ([]string, error)

	mu   sync.Mutex
	last string // where it listened last; guarded by mu
}

func parseAddresses(server string) (all []string, err error) {
	for text := range strings.SplitSeq(server, ",") {
		text = strings.TrimSpace(text)
		host, port, err := net.SplitHostPort(text)
		if err != nil || host == "" || port == "" {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "%.200q is not the address of a server; give host:port, or several separated by commas", text)
		}
		all = append(all, text)
	}
	if len(all) > maxAddresses {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "there are more than %d addresses of the server; give fewer, or a name that has them all", maxAddresses)
	}
	return all, nil
}

// String is for people.
func (a *addresses) String() string { return strings.Join(a.all, ", ") }

// candidates returns all addresses, with the one that was right last first and the others in
// any order.
func (a *addresses) candidates(ctx context.Context) (found []string, err error) {
	for _, address := range a.all {
		host, port, splitErr := net.SplitHostPort(address)
		if splitErr != nil {
			return nil, splitErr
		}
		ips, lookupErr := a.lookup(ctx, host)
		if lookupErr != nil {
			err = errors.Join(err, lookupErr)
			continue
		}
		for _, ip := range ips[:min(len(ips), maxAddresses)] {
			if at := net.JoinHostPort(ip, port); !slices.Contains(found, at) {
				found = append(found, at)
			}
		}
	}
	rand.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(found, a.last); i > 0 {
		found[0], found[i] = found[i], found[0]
	}
	if len(found) > 0 {
		err = nil
	}
	return found, err
}

// forget has the next dial try all addresses in any order: what is at the last one drives
// nobody.
func (a *addresses) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = ""
}

// dial connects to the first address at which the server proves who it is. What leads to one
// of several servers, such as a load balancer or a Service of Kubernetes, may lead to one that
// does not listen, and next time to the one that does: if no address takes a connection, all
// are tried again for a while.
func (a *addresses) dial(ctx context.Context, cfg *tls.Config) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for began := time.Now(); ; {
		c, taken, err := a.tryAll(ctx, cfg)
		if err == nil || taken || ctx.Err() != nil || time.Since(began) > tryAgain {
			return c, err
		}
		pause(ctx, tryPause/2+rand.N(tryPause))
	}
}

// tryAll tries all addresses once. Taken reports whether one of them has taken a connection.
func (a *addresses) tryAll(ctx context.Context, cfg *tls.Config) (_ *tls.Conn, taken bool, err error) {
	all, err := a.candidates(ctx)
	if err != nil {
		return nil, false, err
	}
	var errs []error
	for i, address := range all {
		limit := callTimeout
		if i < len(all)-1 {
			limit = tryTimeout
		}
		try, done := context.WithTimeout(ctx, limit)
		c, err := a.try(try, address, cfg, &taken)
		done()
		if err == nil {
			return c, true, nil
		}
		if len(all) > 1 {
			err = fmt.Errorf("%s: %w", address, err)
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, taken, errors.Join(errs...)
}

// try tries one address. It sets taken if that has taken the connection.
func (a *addresses) try(ctx context.Context, address string, cfg *tls.Config, taken *bool) (*tls.Conn, error) {
	plain, err := (&net.Dialer{Timeout: tryTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	*taken = true
	c := tls.Client(plain, cfg)
	if err := c.HandshakeContext(ctx); err != nil {
		plain.Close()
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = address
	return c, nil
}
