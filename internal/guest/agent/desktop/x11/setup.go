package x11

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
)

// Setup describes a server and its first screen.
type Setup struct {
	// Root is the root window, Depth its depth, Width and Height its size when
	// the connection began.
	Root          uint32
	Depth         byte
	Width, Height int
	// Red, Green and Blue are the colour masks of the root window's visual.
	Red, Green, Blue uint32
	// BitsPerPixel and Pad describe images of the root's depth. Lines are padded to a
	// multiple of Pad bits.
	BitsPerPixel, Pad int
	// BigEndian is the byte order of images.
	BigEndian bool
	// MinKeycode and MaxKeycode bound the key codes.
	MinKeycode, MaxKeycode byte
	// MaxRequest is the maximum length of a request, in bytes.
	MaxRequest int

	idBase, idMask uint32
}

// handshake requests a connection without authorisation: everything in the sandbox may use
// its screen.
func handshake(nc net.Conn) (*Setup, error) {
	hello := make([]byte, 12)
	hello[0] = 'l' // little endian
	binary.LittleEndian.PutUint16(hello[2:], 11)
	if _, err := nc.Write(hello); err != nil {
		return nil, err
	}
	head := make([]byte, 8)
	if _, err := io.ReadFull(nc, head); err != nil {
		return nil, err
	}
	body := make([]byte, 4*int(get16(head, 6))) // 256 KiB at most
	if _, err := io.ReadFull(nc, body); err != nil {
		return nil, err
	}
	switch head[0] {
	case 1:
		return parseSetup(body)
	case 0:
		return nil, &RefusedError{Reason: printable(body[:min(int(head[1]), len(body))])}
	}
	return nil, &RefusedError{Reason: "it asks for an authentication"}
}

// RefusedError is the error for a server that refuses the connection.
type RefusedError struct{ Reason string }

// Error returns the server's reason.
func (e *RefusedError) Error() string { return "the X server refuses connections: " + e.Reason }

func printable(b []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, string(b)))
}

var errSetup = errors.New("the X server sent an invalid description of itself")

// parseSetup parses the reply to the first message, without its first 8 bytes.
func parseSetup(b []byte) (*Setup, error) {
	if len(b) < 32 {
		return nil, errSetup
	}
	s := &Setup{
		idBase: get32(b, 4), idMask: get32(b, 8),
		MaxRequest: 4 * int(get16(b, 18)),
		BigEndian:  b[22] != 0, MinKeycode: b[26], MaxKeycode: b[27],
	}
	if s.MinKeycode < 8 || s.MaxKeycode < s.MinKeycode || s.MaxRequest < 4096 || s.idMask == 0 {
		return nil, errSetup
	}
	vendor := (int(get16(b, 16)) + 3) &^ 3
	formats := int(b[21])
	if b[20] == 0 || len(b) < 32+vendor+8*formats+40 {
		return nil, errSetup
	}
	list := b[32+vendor:][:8*formats]
	screen := b[32+vendor+8*formats:]
	s.Root, s.Depth = get32(screen, 0), screen[38]
	s.Width, s.Height = int(get16(screen, 20)), int(get16(screen, 22))
	for ; len(list) >= 8; list = list[8:] {
		if list[0] == s.Depth {
			s.BitsPerPixel, s.Pad = int(list[1]), int(list[2])
		}
	}
	if err := s.findVisual(screen[40:], int(screen[39]), get32(screen, 32)); err != nil {
		return nil, err
	}
	return s, s.check()
}

// findVisual finds the masks of the root's visual in a list of depths.
func (s *Setup) findVisual(b []byte, depths int, root uint32) error {
	for range depths {
		if len(b) < 8 {
			return errSetup
		}
		visuals := int(get16(b, 2))
		if b = b[8:]; len(b) < 24*visuals {
			return errSetup
		}
		for range visuals {
			// Class 4 is TrueColor, 5 DirectColor.
			if get32(b, 0) == root && (b[4] == 4 || b[4] == 5) {
				s.Red, s.Green, s.Blue = get32(b, 8), get32(b, 12), get32(b, 16)
			}
			b = b[24:]
		}
	}
	return nil
}

func (s *Setup) check() error {
	switch {
	case s.Width < 1 || s.Height < 1:
		return errSetup
	case s.BitsPerPixel != 16 && s.BitsPerPixel != 24 && s.BitsPerPixel != 32, s.Red == 0 || s.Green == 0 || s.Blue == 0:
		return fmt.Errorf("the X server's screen has a depth of %d, which is not supported; use 24, or 16", s.Depth)
	case s.Pad != 8 && s.Pad != 16 && s.Pad != 32:
		return errSetup
	}
	return nil
}

// Stride returns the length of a line in an image that is width pixels wide, in bytes.
func (s *Setup) Stride(width int) int {
	return (width*s.BitsPerPixel + s.Pad - 1) / s.Pad * s.Pad / 8
}

// idRange allocates ids of resources.
type idRange struct {
	base, mask uint32

	mu   sync.Mutex
	last uint32 // guarded by mu
}

// NewID returns an id for a window or another resource. Ids wrap around at the end of the
// server's range; this program uses few at a time.
func (c *Conn) NewID() uint32 {
	r := &c.ids
	r.mu.Lock()
	defer r.mu.Unlock()
	step := r.mask & -r.mask
	r.last = (r.last + step) & r.mask
	if r.last == 0 {
		r.last = step
	}
	return r.base | r.last
}
