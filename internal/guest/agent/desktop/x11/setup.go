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

// Setup is what a server says of itself and its first screen.
type Setup struct {
	// Root is the root window, Depth its depth, Width and Height its size when
	// the connection began.
	Root          uint32
	Depth         byte
	Width, Height int
	// RootVisual has the masks of colours of the root window.
	Red, Green, Blue uint32
	// BitsPerPixel and Pad are those of images of the root's depth, in bits.
	BitsPerPixel, Pad int
	// BigEndian is the order of bytes in images.
	BigEndian bool
	// MinKeycode and MaxKeycode bound the codes of keys.
	MinKeycode, MaxKeycode byte
	// MaxRequest is how long a request may be, in bytes.
	MaxRequest int

	idBase, idMask uint32
}

// shakeHands asks for a connection without authorisation: who is in the sandbox
// may use its screen.
func shakeHands(nc net.Conn) (*Setup, error) {
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
	body := make([]byte, 4*int(binary.LittleEndian.Uint16(head[6:]))) // 256 KiB at most
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

// RefusedError is a server's refusal to be talked to.
type RefusedError struct{ Reason string }

// Error implements error.
func (e *RefusedError) Error() string { return "the X server refuses connections: " + e.Reason }

func printable(b []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, string(b)))
}

var errSetup = errors.New("the X server describes itself in a way that makes no sense")

// parseSetup reads the reply to the first message, without its first 8 bytes.
func parseSetup(b []byte) (*Setup, error) {
	if len(b) < 32 {
		return nil, errSetup
	}
	s := &Setup{
		idBase: binary.LittleEndian.Uint32(b[4:]), idMask: binary.LittleEndian.Uint32(b[8:]),
		MaxRequest: 4 * int(binary.LittleEndian.Uint16(b[18:])),
		BigEndian:  b[22] != 0, MinKeycode: b[26], MaxKeycode: b[27],
	}
	if s.MinKeycode < 8 || s.MaxKeycode < s.MinKeycode || s.MaxRequest < 4096 || s.idMask == 0 {
		return nil, errSetup
	}
	vendor := (int(binary.LittleEndian.Uint16(b[16:])) + 3) &^ 3
	formats := int(b[21])
	if b[20] == 0 || len(b) < 32+vendor+8*formats+40 {
		return nil, errSetup
	}
	list := b[32+vendor:][:8*formats]
	screen := b[32+vendor+8*formats:]
	s.Root, s.Depth = binary.LittleEndian.Uint32(screen), screen[38]
	s.Width, s.Height = int(binary.LittleEndian.Uint16(screen[20:])), int(binary.LittleEndian.Uint16(screen[22:]))
	for ; len(list) >= 8; list = list[8:] {
		if list[0] == s.Depth {
			s.BitsPerPixel, s.Pad = int(list[1]), int(list[2])
		}
	}
	if err := s.findVisual(screen[40:], int(screen[39]), binary.LittleEndian.Uint32(screen[32:])); err != nil {
		return nil, err
	}
	return s, s.check()
}

// findVisual reads the masks of the root's visual from a list of depths.
func (s *Setup) findVisual(b []byte, depths int, root uint32) error {
	for range depths {
		if len(b) < 8 {
			return errSetup
		}
		visuals := int(binary.LittleEndian.Uint16(b[2:]))
		if b = b[8:]; len(b) < 24*visuals {
			return errSetup
		}
		for range visuals {
			// Class 4 is TrueColor, 5 DirectColor.
			if binary.LittleEndian.Uint32(b) == root && (b[4] == 4 || b[4] == 5) {
				s.Red, s.Green, s.Blue = binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint32(b[16:])
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

// Stride is how many bytes a line of an image has that is width pixels wide.
func (s *Setup) Stride(width int) int {
	return (width*s.BitsPerPixel + s.Pad - 1) / s.Pad * s.Pad / 8
}

// idRange makes ids of resources.
type idRange struct {
	base, mask uint32

	mu   sync.Mutex
	last uint32 // guarded by mu
}

// NewID returns an id for a window or another resource. The few that this
// program uses begin again when the server's range is at its end.
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
