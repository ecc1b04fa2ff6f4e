// Package rfb joins a visitor's VNC client with the VNC server of a computer, as
// RFC 6143 says, and decides what of the client reaches the server: one that may
// only watch sends no keys, no pointer and no clipboard, whatever its program
// does.
//
// Both sides are hostile: the server is in a sandbox, the client is anybody with
// a link. Each handshake is done here and not passed through, so that neither
// side can have the other speak something that is not understood here; what the
// client sends is read message by message, bounded, and written anew.
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
	// securityNone is the only way in: the server listens inside a sandbox, and
	// who may come in is decided before.
	securityNone = 1
	// handshakeTime bounds the wait for either side at the beginning.
	handshakeTime = 15 * time.Second
	// maxEncodings bounds those of one message, maxCut a clipboard in bytes, and
	// maxFence what a fence carries.
	maxEncodings = 512
	maxCut       = 1 << 20
	maxFence     = 64
)

// ErrProtocol is what a connection ends with on which something else than this
// package's part of the protocol is spoken.
var ErrProtocol = errors.New("not what a VNC connection says here")

func protocol(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// Rights say what a client may do.
type Rights struct {
	// Control lets it use pointer, keyboard and clipboard.
	Control bool
	// Used, if not nil, is called when it does.
	Used func()
}

// Greet does the handshake with a server, up to where it waits for the client's
// first message.
func Greet(server net.Conn) error {
	if err := server.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	var hello [len(version)]byte
	if _, err := io.ReadFull(server, hello[:]); err != nil {
		return err
	}
	if string(hello[:8]) != version[:8] || string(hello[8:]) < version[8:] {
		return protocol("the server says %q", hello)
	}
	if _, err := io.WriteString(server, version); err != nil {
		return err
	}
	var count [1]byte
	if _, err := io.ReadFull(server, count[:]); err != nil {
		return err
	}
	kinds := make([]byte, count[0])
	if _, err := io.ReadFull(server, kinds); err != nil {
		return err
	}
	if !slices.Contains(kinds, securityNone) {
		return protocol("the server asks for a password")
	}
	if _, err := server.Write([]byte{securityNone}); err != nil {
		return err
	}
	var result [4]byte
	if _, err := io.ReadFull(server, result[:]); err != nil {
		return err
	}
	if result != [4]byte{} {
		return protocol("the server refuses")
	}
	return server.SetDeadline(time.Time{})
}

// welcome does the handshake with a client.
func welcome(client net.Conn) error {
	if err := client.SetDeadline(time.Now().Add(handshakeTime)); err != nil {
		return err
	}
	if _, err := io.WriteString(client, version); err != nil {
		return err
	}
	var hello [len(version)]byte
	if _, err := io.ReadFull(client, hello[:]); err != nil {
		return err
	}
	if string(hello[:]) != version {
		return protocol("the client says %q", hello)
	}
	if _, err := client.Write([]byte{1, securityNone}); err != nil {
		return err
	}
	var choice [1]byte
	if _, err := io.ReadFull(client, choice[:]); err != nil {
		return err
	}
	if choice[0] != securityNone {
		return protocol("the client chooses %d", choice[0])
	}
	if _, err := client.Write(make([]byte, 4)); err != nil {
		return err
	}
	var shared [1]byte
	if _, err := io.ReadFull(client, shared[:]); err != nil {
		return err
	}
	return client.SetDeadline(time.Time{})
}

// Join carries a session between a client and a server that was greeted, until
// one of them ends it or says what it must not. It closes both.
func Join(client, server net.Conn, rights Rights) error {
	defer server.Close()
	defer client.Close()
	if err := welcome(client); err != nil {
		return err
	}
	// Others may watch too, whatever the client says.
	if _, err := server.Write([]byte{1}); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(client, server)
		ended <- err
		// The other direction waits for a client who may never say more.
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

// fixed are the lengths of messages that have one, in bytes after the type.
var fixed = map[byte]int{
	setPixelFormat: 19, updateRequest: 9, keyEvent: 7, pointerEvent: 5, continuousUpdates: 9, powerOperation: 3,
}

// Filter passes what a client may say to a server, after the handshake, until
// the client ends or says what is not known here.
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

// message reads one message of a type, and passes it on or not.
func (f *filter) message(kind byte) error {
	if n, ok := fixed[kind]; ok {
		body, err := f.read(n)
		if err != nil {
			return err
		}
		switch kind {
		case powerOperation:
			return nil // nobody turns a computer off from here
		case keyEvent:
			return f.input(kind, body)
		case pointerEvent:
			// The eighth button would announce a longer message, which nobody has
			// asked for.
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

func (f *filter) read(n int) ([]byte, error) {
	body := make([]byte, n)
	_, err := io.ReadFull(f.in, body)
	return body, err
}

func (f *filter) pass(kind byte, body []byte) error {
	if err := f.out.WriteByte(kind); err != nil {
		return err
	}
	_, err := f.out.Write(body)
	return err
}

// input passes what uses the computer, for those who may.
func (f *filter) input(kind byte, body []byte) error {
	if !f.Control {
		return nil
	}
	if f.Used != nil {
		f.Used()
	}
	return f.pass(kind, body)
}

// cut passes a clipboard. The extended form has a negative length; it is not
// asked for, and a server that does not know it would take it for a long one.
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
		// Not kept in memory, of which each watcher could take that much.
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

// desktopSize drops a wish for another size of the screen: whoever else uses the
// computer counts on the one it has.
func (f *filter) desktopSize() error {
	head, err := f.read(7)
	if err != nil {
		return err
	}
	_, err = f.read(16 * int(head[5]))
	return err
}

// The encodings of pictures, and what is called encodings and is none.
const (
	cursorEncoding = -239
	vmwareCursor   = 0x574d5664
)

// known are the encodings that change nothing of what a client may send.
var known = []int32{
	0, 1, 2, 5, 6, 7, 16, 21, -260, // pictures
	-223, -224, -308, // sizes
	-258, -261, -307, -312, -313, // keys, LEDs, name, fences, continuous updates
	cursorEncoding, vmwareCursor,
}

// allowed reports whether an encoding is asked for. Who only watches gets the
// pointer painted into the picture: it is not theirs.
func (f *filter) allowed(encoding int32) bool {
	switch {
	case encoding >= -32 && encoding <= -23, encoding >= -256 && encoding <= -247:
		return true // how much to compress
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
