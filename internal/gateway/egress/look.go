package egress

import (
	"errors"
	"net"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

var (
	errSilent = errors.New("it sent nothing")
	errSlow   = errors.New("its first bytes took too long to show where it goes")
)

// look reads ahead until it is clear what the connection speaks. wait bounds
// the time until the first byte; 0 is no bound.
func (f *flow) look(guest *guestConn, wait time.Duration) (hello, error) {
	defer guest.SetReadDeadline(time.Time{})
	if len(guest.peeked) == 0 {
		var deadline time.Time
		if wait > 0 {
			deadline = time.Now().Add(wait)
		}
		_ = guest.SetReadDeadline(deadline) // a connection that is gone says so on reading
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
			return hello{language: other}, nil // it ended half-way
		}
	}
}

// protocol refuses a connection that cannot be judged.
func (f *flow) protocol(guest *guestConn, why string) {
	f.refuse(Decision{Match: sandbox.MatchProtocol, Reason: why})
	guest.reset()
}

// silent serves a connection on which the server may be the first to speak,
// and which its address alone allows.
func (f *flow) silent(guest *guestConn) {
	remote, w, err := f.dialAddr(f.ctx)
	if err != nil {
		guest.reset()
		return
	}
	defer f.leave(w)
	first := make(chan []byte, 1)
	_ = guest.SetReadDeadline(time.Time{}) // before the goroutine sets one
	go func() {
		buf := make([]byte, smallBuffer)
		n, _ := remote.Read(buf) // an error comes again when it is read on
		_ = guest.SetReadDeadline(past)
		first <- buf[:n]
	}()
	if guest.more() || guest.err != nil {
		// The sandbox spoke first after all, or at the same time: its bytes
		// are judged, and the server is one that waits for them.
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
	h, err := f.look(guest, sniffWait)
	if err != nil {
		f.protocol(guest, err.Error())
		return
	}
	f.known(guest, h)
}

// serverFirst copies, after it has made sure that the sandbox's first bytes
// show no name: no server of TLS or HTTP speaks first.
func (f *flow) serverFirst(guest *guestConn, remote net.Conn) {
	relay(guest, remote, func() error {
		h, err := f.look(guest, 0)
		if err == nil && h.language == other {
			return nil
		}
		f.refuse(Decision{Match: sandbox.MatchProtocol,
			Reason: "TLS or HTTP came after the server had spoken, when its name can no longer be judged"})
		guest.reset()
		return errClosed
	})
}
