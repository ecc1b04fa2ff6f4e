package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// takeTimeout bounds how long an address may take to take a connection, and tryTimeout all
	// of its try, if there are others.
	takeTimeout = 2 * time.Second
	tryTimeout  = 5 * time.Second
	// againFor is for how long addresses are tried again, and againFirst and againMost about how
	// long a pause is between the tries: at first, and at most.
	againFor              = 6 * time.Second
	againFirst, againMost = 50 * time.Millisecond, 800 * time.Millisecond
)

// maxAddresses bounds the addresses of a server, and the IP addresses of each.
const maxAddresses = 64

// addresses are where a server may listen. Of several servers, one does, so each is tried.
type addresses struct {
	all    []string // as host:port
	lookup func(ctx context.Context, host string) ([]string, error)
	again  time.Duration // for how long they are tried again

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
// does not listen or is dead, and next time to the one that does: if nobody answers, all
// addresses are tried again for a while.
func (a *addresses) dial(ctx context.Context, cfg *tls.Config) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	wait := againFirst
	for began := time.Now(); ; wait = min(2*wait, againMost) {
		c, answered, err := a.tryAll(ctx, cfg)
		if err == nil || answered || time.Since(began) >= a.again {
			return c, err
		}
		if pause(ctx, wait/2+rand.N(wait)); ctx.Err() != nil {
			return nil, err
		}
	}
}

// tryAll tries all addresses once. Answered reports whether somebody has answered at one.
func (a *addresses) tryAll(ctx context.Context, cfg *tls.Config) (_ *tls.Conn, answered bool, err error) {
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
		c, err := a.try(try, address, cfg)
		done()
		if err == nil {
			return c, true, nil
		}
		answered = answered || !isSilent(err)
		if len(all) > 1 {
			err = fmt.Errorf("%s: %w", address, err)
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, answered, errors.Join(errs...)
}

// try tries one address.
func (a *addresses) try(ctx context.Context, address string, cfg *tls.Config) (*tls.Conn, error) {
	plain, err := (&net.Dialer{Timeout: takeTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
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

// isSilent reports whether nobody has answered: the connection was not taken, or was closed at
// once, as by a load balancer without a server.
func isSilent(err error) bool {
	op := (*net.OpError)(nil)
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.As(err, &op) && op.Op == "dial"
}
