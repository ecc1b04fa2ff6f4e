// Package rfb connects a visitor's VNC client with the VNC server of a computer (RFC 6143)
// and filters the client's messages: a client that may only watch cannot send keys,
// pointer events or clipboard text to the server.
//
// Both sides may be hostile: the server is in a sandbox, the client is anybody with a
// link. Both handshakes are performed here and not passed through, so that the two sides
// cannot negotiate a protocol that this package does not understand. The client's
// messages are parsed one by one, bounded, and written anew.
package rfb

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

const (
	version = "RFB 003.008\n"
	// securityNone is the only accepted security type: the server listens inside a
	// sandbox, and visitors are admitted before.
	securityNone = 1
	// handshakeTime bounds each handshake.
	handshakeTime = 15 * time.Second
	// maxEncodings bounds the encodings in a message, maxCut the text of a clipboard and
	// maxFence the payload of a fence, both in bytes.
	maxEncodings = 512
	maxCut       = 1 << 20
	maxFence     = 64
)

// ErrProtocol is the error for data outside this package's subset of the protocol.
var ErrProtocol = errors.New("not what a VNC connection says here")

func protocol(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// Rights are the rights of a client.
type Rights struct {
	// Control permits use of the pointer, keyboard and clipboard.
	Control bool
	// Used, if not nil, is called when the client uses them.
	Used func()
}

// Greet performs the handshake with a server, up to the client's first message.
func Greet(server net.Conn) error {
	if err := server.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	hello, err := read(server, len(version))
	if err != nil {
		return err
	}
	if string(hello[:8]) != version[:8] || string(hello[8:]) < version[8:] {
		return protocol("the server says %q", hello)
	}
	if _, err := io.WriteString(server, version); err != nil {
		return err
	}
	count, err := read(server, 1)
	if err != nil {
		return err
	}
	kinds, err := read(server, int(count[0]))
	if err != nil {
		return err
	}
	if !slices.Contains(kinds, securityNone) {
		return protocol("the server asks for a password")
	}
	if _, err := server.Write([]byte{securityNone}); err != nil {
		return err
	}
	result, err := read(server, 4)
	if err != nil {
		return err
	}
	if [4]byte(result) != [4]byte{} {
		return protocol("the server refuses")
	}
	return server.SetDeadline(time.Time{})
}

// read reads n bytes.
func read(r io.Reader, n int) ([]byte, error) {
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}

// welcome performs the handshake with a client.
func welcome(client net.Conn) error {
	if err := client.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	if _, err := io.WriteString(client, version); err != nil {
		return err
	}
	hello, err := read(client, len(version))
	if err != nil {
		return err
	}
	if string(hello) != version {
		return protocol("the client says %q", hello)
	}
	if _, err := client.Write([]byte{1, securityNone}); err != nil {
		return err
	}
	choice, err := read(client, 1)
	if err != nil {
		return err
	}
	if choice[0] != securityNone {
		return protocol("the client chooses %d", choice[0])
	}
	if _, err := client.Write(make([]byte, 4)); err != nil {
		return err
	}
	if _, err := read(client, 1); err != nil { // whether it shares the desktop
		return err
	}
	return client.SetDeadline(time.Time{})
}

// Join relays a session between a client and a server, after [Greet], until one of them
// ends it or breaks the protocol. It closes both.
func Join(client, server net.Conn, rights Rights) error {
	defer server.Close()
	defer client.Close()
	if err := welcome(client); err != nil {
		return err
	}
	// Share the desktop with other viewers, whatever the client asked for.
	if _, err := server.Write([]byte{1}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(client, server)
		ended <- err
		// End the other direction, which waits for the client.
		_ = client.Close()
	}()
	err := rights.Filter(client, server)
	_ = server.Close()
	_ = client.Close()
	if serr := <-ended; err == nil {
		err = serr
	}
	return err
}

// The types of a client's messages.
const (
	setPixelFormat    = 0
	setEncodings      = 2
	updateRequest     = 3
	keyEvent          = 4
	pointerEvent      = 5
	cutText           = 6
	continuousUpdates = 150
	fence             = 248
	powerOperation    = 250
	setDesktopSize    = 251
	qemuMessage       = 255
)

// fixed are the lengths of messages with a fixed length, in bytes after the type.
var fixed = map[byte]int{
	setPixelFormat: 19, updateRequest: 9, keyEvent: 7, pointerEvent: 5, continuousUpdates: 9, powerOperation: 3,
}

// Filter passes the permitted messages of a client to a server, after the handshake, until
// the client ends the connection or sends an unknown message.
func (r Rights) Filter(client io.Reader, server io.Writer) error {
	f := &filter{Rights: r, in: bufio.NewReaderSize(client, 16<<10), out: bufio.NewWriterSize(server, 16<<10)}
	for {
		if f.in.Buffered() == 0 {
			if err := f.out.Flush(); err != nil {
				return err
			}
		}
		kind, err := f.in.ReadByte()
		if errors.Is(err, io.EOF) {
			return f.out.Flush()
		}
		if err != nil {
			return err
		}
		if err := f.message(kind); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return protocol("half a message")
			}
			return err
		}
	}
}

type filter struct {
	Rights
	in  *bufio.Reader
	out *bufio.Writer
}

// message reads a message of a type, and passes or drops it.
func (f *filter) message(kind byte) error {
	if n, ok := fixed[kind]; ok {
		body, err := f.read(n)
		if err != nil {
			return err
		}
		switch kind {
		case powerOperation:
			return nil // viewers may not turn a computer off
		case keyEvent:
			return f.input(kind, body)
		case pointerEvent:
			// The eighth bit would announce an extended message, which was not
			// negotiated.
			body[0] &^= 0x80
			return f.input(kind, body)
		}
		return f.pass(kind, body)
	}
	switch kind {
	case setEncodings:
		return f.encodings()
	case cutText:
		return f.cut()
	case fence:
		return f.fence()
	case setDesktopSize:
		return f.desktopSize()
	case qemuMessage:
		body, err := f.read(11)
		if err != nil {
			return err
		}
		if body[0] != 0 {
			return protocol("a QEMU message of type %d", body[0])
		}
		return f.input(kind, body)
	}
	return protocol("a message of type %d", kind)
}

func (f *filter) read(n int) ([]byte, error) { return read(f.in, n) }

func (f *filter) pass(kind byte, body []byte) error {
	if err := f.out.WriteByte(kind); err != nil {
		return err
	}
	_, err := f.out.Write(body)
	return err
}

// input passes a message that controls the computer, if the client has that right.
func (f *filter) input(kind byte, body []byte) error {
	if !f.Control {
		return nil
	}
	if f.Used != nil {
		f.Used()
	}
	return f.pass(kind, body)
}

// cut passes a clipboard. The extended form has a negative length. It was not negotiated,
// and a server that does not know it would take it for a very long text.
func (f *filter) cut() error {
	head, err := f.read(7)
	if err != nil {
		return err
	}
	length := int64(int32(binary.BigEndian.Uint32(head[3:])))
	size := max(length, -length)
	if size > maxCut {
		return protocol("a clipboard of %d bytes", size)
	}
	if length < 0 || !f.Control {
		// Not read into memory, since every viewer could take that much.
		_, err := f.in.Discard(int(size))
		return err
	}
	body, err := f.read(int(size))
	if err != nil {
		return err
	}
	return f.input(cutText, append(head, body...))
}

func (f *filter) fence() error {
	head, err := f.read(8)
	if err != nil {
		return err
	}
	if head[7] > maxFence {
		return protocol("a fence of %d bytes", head[7])
	}
	body, err := f.read(int(head[7]))
	if err != nil {
		return err
	}
	return f.pass(fence, append(head, body...))
}

// desktopSize drops a request to change the size of the screen, on which other users of
// the computer rely.
func (f *filter) desktopSize() error {
	head, err := f.read(7)
	if err != nil {
		return err
	}
	_, err = f.read(16 * int(head[5]))
	return err
}

// Pseudo-encodings for cursors.
const (
	cursorEncoding = -239
	vmwareCursor   = 0x574d5664
)

// known are the encodings and pseudo-encodings that do not extend what a client may send.
var known = []int32{
	0, 1, 2, 5, 6, 7, 16, 21, -260, // pictures
	-223, -224, -308, // sizes
	-258, -261, -307, -312, -313, // keys, LEDs, name, fences, continuous updates
	cursorEncoding, vmwareCursor,
}

// allowed reports whether an encoding is passed to the server. A client that only watches
// gets the pointer as a part of the picture, since it does not control it.
func (f *filter) allowed(encoding int32) bool {
	switch {
	case encoding >= -32 && encoding <= -23, encoding >= -256 && encoding <= -247:
		return true // levels of compression
	case encoding == cursorEncoding, encoding == vmwareCursor:
		return f.Control
	}
	return slices.Contains(known, encoding)
}

func (f *filter) encodings() error {
	head, err := f.read(3)
	if err != nil {
		return err
	}
	count := int(binary.BigEndian.Uint16(head[1:]))
	if count > maxEncodings {
		return protocol("%d encodings", count)
	}
	body, err := f.read(4 * count)
	if err != nil {
		return err
	}
	kept := make([]byte, 3, 3+len(body))
	for i := 0; i < len(body); i += 4 {
		if f.allowed(int32(binary.BigEndian.Uint32(body[i:]))) {
			kept = append(kept, body[i:i+4]...)
		}
	}
	binary.BigEndian.PutUint16(kept[1:], uint16((len(kept)-3)/4))
	return f.pass(setEncodings, kept)
}
