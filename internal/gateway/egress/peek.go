package egress

import (
	"errors"
	"net"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

var (
	errSilent = errors.New("it sent nothing")
	errSlow   = errors.New("its first bytes took too long to show its destination")
)

// peek reads ahead until the protocol of the connection is clear. wait is how long it
// waits for the first byte; 0 means no limit.
func (f *flow) peek(guest *guestConn, wait time.Duration) (hello, error) {
	defer guest.SetReadDeadline(time.Time{})
	if len(guest.peeked) == 0 {
		var deadline time.Time
		if wait > 0 {
			deadline = time.Now().Add(wait)
		}
		_ = guest.SetReadDeadline(deadline) // reading shows whether the connection is gone
		if !guest.more() {
			if guest.err != nil {
				return hello{language: other}, nil
			}
			return hello{}, errSilent
		}
	}
	_ = guest.SetReadDeadline(time.Now().Add(sniffWait))
	var seen records
	for {
		h, err := seen.first(guest.peeked)
		if err != nil || h.language != unknown {
			return h, err
		}
		if len(guest.peeked) >= maxSniff {
			return hello{language: other}, nil
		}
		if !guest.more() {
			if guest.err == nil {
				return h, errSlow
			}
			return hello{language: other}, nil // the client closed it halfway
		}
	}
}

// protocol refuses a connection whose protocol cannot be judged.
func (f *flow) protocol(guest *guestConn, why string) {
	f.refuse(Decision{Match: sandbox.MatchProtocol, Reason: why})
	guest.reset()
}

// silent serves a connection that its address alone allows, and on which the server may
// speak first.
func (f *flow) silent(guest *guestConn) {
	remote, w, err := f.dialAddr(f.ctx)
	if err != nil {
		guest.reset()
		return
	}
	defer f.leave(w)
	if len(guest.peeked) > 0 { // it spoke while waiting for an answer
		f.leave(w)
		f.spoke(guest)
		return
	}
	first := make(chan []byte, 1)
	_ = guest.SetReadDeadline(time.Time{}) // before the goroutine sets one
	go func() {
		buf := make([]byte, smallBuffer)
		n, _ := remote.Read(buf) // the next read returns the error again
		_ = guest.SetReadDeadline(past)
		first <- buf[:n]
	}()
	if guest.more() || guest.err != nil {
		// The sandbox spoke first after all, or at the same time as the server: its bytes are
		// judged, and the server must be one that waits for them.
		select {
		case early := <-first:
			f.serverFirst(guest, &earlyConn{Conn: remote, early: early})
		default:
			f.leave(w)
			<-first
			_ = guest.SetReadDeadline(time.Time{})
			f.spoke(guest)
		}
		return
	}
	f.serverFirst(guest, &earlyConn{Conn: remote, early: <-first})
}

func (f *flow) spoke(guest *guestConn) {
	h, err := f.peek(guest, sniffWait)
	if err != nil {
		f.protocol(guest, err.Error())
		return
	}
	f.known(guest, h)
}

// serverFirst relays, and checks that the sandbox's first bytes show no name: in TLS and
// HTTP, servers never speak first.
func (f *flow) serverFirst(guest *guestConn, remote net.Conn) {
	relay(guest, remote, func() error {
		h, err := f.peek(guest, 0)
		if err == nil && h.language == other {
			return nil
		}
		f.refuse(Decision{Match: sandbox.MatchProtocol,
			Reason: "TLS or HTTP began after the server had spoken, when its name can no longer be checked"})
		guest.reset()
		return errClosed
	})
}
