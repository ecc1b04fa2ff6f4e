package x11

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// setupReply is the first message of an honest server.
func setupReply() []byte {
	b := make([]byte, 32+8+40+8+24)
	le := binary.LittleEndian
	le.PutUint32(b[4:], 0x200000)
	le.PutUint32(b[8:], 0x1fffff)
	le.PutUint16(b[18:], 0xffff)
	b[20], b[21], b[26], b[27] = 1, 1, 8, 255
	format := b[32:]
	format[0], format[1], format[2] = 24, 32, 32
	screen := b[40:]
	le.PutUint32(screen, 0x50d)
	le.PutUint16(screen[20:], 1280)
	le.PutUint16(screen[22:], 800)
	le.PutUint32(screen[32:], 33)
	screen[38], screen[39] = 24, 1
	depth := screen[40:]
	depth[0] = 24
	le.PutUint16(depth[2:], 1)
	visual := depth[8:]
	le.PutUint32(visual, 33)
	visual[4] = 4
	le.PutUint32(visual[8:], 0xff0000)
	le.PutUint32(visual[12:], 0xff00)
	le.PutUint32(visual[16:], 0xff)
	head := []byte{1, 0, 11, 0, 0, 0, 0, 0}
	le.PutUint16(head[6:], uint16(len(b)/4))
	return append(head, b...)
}

// reply makes a reply to the request with a number.
func reply(seq uint16, more uint32, body ...byte) []byte {
	b := make([]byte, 32)
	b[0] = 1
	binary.LittleEndian.PutUint16(b[2:], seq)
	binary.LittleEndian.PutUint32(b[4:], more)
	return append(b, body...)
}

// talk connects to a server that, after a correct setup, answers every request with says.
func talk(t testing.TB, says []byte, thenCloses bool) (*Conn, func()) {
	t.Helper()
	near, far := net.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer far.Close()
		hello := make([]byte, 12)
		if _, err := io.ReadFull(far, hello); err != nil {
			return
		}
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_, _ = io.Copy(io.Discard, far)
		}()
		if _, err := far.Write(setupReply()); err != nil {
			return
		}
		if _, err := far.Write(says); err != nil || thenCloses {
			return
		}
		<-closed
	}()
	c, err := Connect(context.Background(), near, func(*Event) {})
	if err != nil {
		t.Fatal(err)
	}
	return c, func() {
		c.Close()
		far.Close()
		<-ended
	}
}

func TestServerThatBreaksTheProtocol(t *testing.T) {
	for name, says := range map[string][]byte{
		"garbage":                    bytes.Repeat([]byte{1, 0xff, 0xff, 0xff}, 64),
		"text":                       []byte(strings.Repeat("HTTP/1.1 400 Bad Request\r\n", 10)),
		"a reply of 16 GiB":          reply(1, 0xffffffff),
		"a reply of 64 MiB":          reply(1, 16<<20),
		"a reply to no request":      reply(9, 0),
		"a reply from the past":      reply(0xfff0, 0),
		"an error for no request":    {0, 3, 9, 0, 31: 0},
		"an endless generic event":   {35, 0, 1, 0, 0xff, 0xff, 0xff, 0x7f, 31: 0},
		"two replies to one request": append(reply(1, 0), reply(1, 0)...),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, end := talk(t, says, false)
				defer end()
				r := c.QueryPointer()
				_, first := r.Wait(t.Context())
				_, second := c.QueryPointer().Wait(t.Context())
				if first == nil && second == nil || c.Err() == nil {
					t.Errorf("a server that says this is believed: %v, %v", first, second)
				}
			})
		})
	}
}

func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, end := talk(t, nil, false)
		defer end()
		if _, err := c.QueryPointer().Wait(t.Context()); !errors.Is(err, ErrSilent) {
			t.Errorf("got %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, end := talk(t, reply(1, 1000, 1, 2, 3), false) // stops in the middle
		defer end()
		if _, err := c.GetImage(0, 0, 10, 10, make([]byte, 4000)).Wait(t.Context()); err == nil {
			t.Error("half a reply was accepted")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		if _, err := Connect(t.Context(), near, nil); err == nil {
			t.Error("connected to a server that says nothing")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, end := talk(t, nil, true)
		defer end()
		if _, err := c.QueryPointer().Wait(t.Context()); err == nil {
			t.Error("a closed connection returned an answer")
		}
	})
}

// TestManyRequests sends more requests than a message can number, to a server that only
// answers requests that have a reply.
func TestManyRequests(t *testing.T) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		_, _ = io.ReadFull(far, make([]byte, 12))
		_, _ = far.Write(setupReply())
		answers := make(chan []byte, 1<<20)
		defer close(answers)
		go func() {
			for a := range answers {
				if _, err := far.Write(a); err != nil {
					return
				}
			}
		}()
		head := make([]byte, 4)
		for seq := uint16(1); ; seq++ {
			if _, err := io.ReadFull(far, head); err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, far, 4*int64(binary.LittleEndian.Uint16(head[2:]))-4); err != nil {
				return
			}
			if head[0] == 43 {
				answers <- reply(seq, 0)
			}
		}
	}()
	c, err := Connect(t.Context(), near, func(*Event) {})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range 100_000 {
		c.MapWindow(7)
		if i%1000 == 999 {
			if err := c.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// FuzzServer lets a server send anything in answer to requests of all kinds.
func FuzzServer(f *testing.F) {
	f.Add(reply(1, 0))
	f.Add(reply(1, 2, 0, 0, 0, 0, 0, 0, 0, 0))
	f.Add(append(append(reply(1, 0), reply(2, 0)...), reply(3, 0)...))
	f.Add([]byte{0, 3, 1, 0, 31: 0})
	f.Add([]byte{35, 0, 1, 0, 1, 0, 0, 0, 35: 0})
	f.Fuzz(func(t *testing.T, says []byte) {
		c, end := talk(t, says, true)
		defer end()
		ctx := t.Context()
		c.ids.last = c.ids.mask // so that ids go round
		replies := []*Reply{c.GetGeometry(1), c.QueryPointer(), c.GetProperty(1, 2, 100, true), c.GetImage(0, 0, 4, 4, make([]byte, 64)), c.CursorImage(Extension{Opcode: 130}), c.GetShmImage(Extension{Opcode: 133}, 0, 0, 4, 4, 9)}
		_, check := c.WatchDamage(Extension{Opcode: 131}, 1)
		for _, r := range append(replies, check) {
			b, err := r.Wait(ctx)
			if err == nil && r != check && len(b) < 32 {
				t.Errorf("a reply of %d bytes", len(b))
			}
		}
		_, _ = c.KeyboardMapping(ctx)
		_, _ = c.ModifierMapping(ctx)
		_, _, _ = c.QueryTree(ctx, 1)
		_, _ = c.QueryExtensions(ctx, "XTEST")
		_, _ = c.InternAtoms(ctx, "A")
		_ = c.ChangeKeys(ctx, Extension{Opcode: 132}, map[byte]uint32{9: 1})
	})
}

// FuzzParse reads replies of any content.
func FuzzParse(f *testing.F) {
	f.Add(setupReply()[8:])
	f.Add(reply(1, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseSetup(b); err == nil {
			if s.Width < 1 || s.Red == 0 || s.Stride(100) < 200 {
				t.Errorf("an impossible screen: %+v", s)
			}
		}
		if len(b) < 32 {
			return
		}
		if p, err := ParseProperty(b); err == nil {
			p.Uint32s()
		}
		if k, err := ParseCursor(b); err == nil && len(k.Pixels) != k.Width*k.Height {
			t.Errorf("a cursor of %d pixels", len(k.Pixels))
		}
		ParseGeometry(b)
		ParseShown(b)
		ParseTranslated(b)
		ParsePointer(b)
		ImageSize(b)
		ShmImageSize(b)
		if keys, err := parseKeyMaps(b, 9, 3); err == nil && len(keys) != 3 {
			t.Errorf("%d keys", len(keys))
		}
	})
}
