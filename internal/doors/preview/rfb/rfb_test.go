package rfb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
)

func be(parts ...any) []byte {
	var b bytes.Buffer
	for _, p := range parts {
		if err := binary.Write(&b, binary.BigEndian, p); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

var (
	pixelFormat = be(uint8(0), make([]byte, 19))
	request     = be(uint8(3), uint8(1), uint16(0), uint16(0), uint16(10), uint16(10))
	key         = be(uint8(4), uint8(1), uint16(0), uint32('a'))
	pointer     = be(uint8(5), uint8(1), uint16(7), uint16(8))
	cut         = be(uint8(6), make([]byte, 3), int32(5), []byte("paste"))
	qemuKey     = be(uint8(255), uint8(0), uint16(1), uint32('a'), uint32(30))
	continuous  = be(uint8(150), uint8(1), make([]byte, 8))
	aFence      = be(uint8(248), make([]byte, 3), uint32(1), uint8(2), []byte("xy"))
)

func TestFilter(t *testing.T) {
	join := func(all ...[]byte) []byte { return bytes.Join(all, nil) }
	for _, test := range []struct {
		name           string
		in             []byte
		watch, control []byte // what reaches the server; nil is nothing
		ends           bool   // with an error
	}{
		{name: "looking", in: join(pixelFormat, request, continuous, aFence), watch: join(pixelFormat, request, continuous, aFence), control: join(pixelFormat, request, continuous, aFence)},
		{name: "input", in: join(request, key, pointer, cut, qemuKey, request), watch: join(request, request), control: join(request, key, pointer, cut, qemuKey, request)},
		{name: "encodings", in: be(uint8(2), uint8(0), uint16(6), int32(7), int32(-239), int32(-316), int32(-309), uint32(0xc0a1e5ce), int32(-26)),
			watch: be(uint8(2), uint8(0), uint16(2), int32(7), int32(-26)), control: be(uint8(2), uint8(0), uint16(3), int32(7), int32(-239), int32(-26))},
		{name: "extended clipboard", in: join(be(uint8(6), make([]byte, 3), int32(-4), uint32(1)), request), watch: request, control: request},
		{name: "another size", in: join(be(uint8(251), uint8(0), uint16(9999), uint16(9999), uint8(1), uint8(0), make([]byte, 16)), request), watch: request, control: request},
		{name: "power", in: join(be(uint8(250), uint8(0), uint8(1), uint8(2)), request), watch: request, control: request},
		{name: "eighth button", in: be(uint8(5), uint8(0x81), uint16(1), uint16(1)), control: be(uint8(5), uint8(1), uint16(1), uint16(1))},
		{name: "unknown type", in: join(request, []byte{7}, key), watch: request, control: request, ends: true},
		{name: "unknown QEMU message", in: be(uint8(255), uint8(1), make([]byte, 10)), ends: true},
		{name: "too long a clipboard", in: be(uint8(6), make([]byte, 3), int32(maxCut+1)), ends: true},
		{name: "the longest negative clipboard", in: be(uint8(6), make([]byte, 3), uint32(1<<31)), ends: true},
		{name: "too long a fence", in: be(uint8(248), make([]byte, 7), uint8(65)), ends: true},
		{name: "too many encodings", in: be(uint8(2), uint8(0), uint16(maxEncodings+1)), ends: true},
		{name: "half a message", in: key[:3], ends: true},
	} {
		for _, control := range []bool{false, true} {
			want := test.watch
			if control {
				want = test.control
			}
			var got bytes.Buffer
			used := 0
			err := Rights{Control: control, Used: func() { used++ }}.Filter(bytes.NewReader(test.in), &got)
			if test.ends != errors.Is(err, ErrProtocol) || !test.ends && err != nil {
				t.Errorf("%s (control %v): %v", test.name, control, err)
			}
			// Messages before the bad one may or may not have been passed on.
			if !bytes.Equal(got.Bytes(), want) && !(test.ends && bytes.HasPrefix(want, got.Bytes())) {
				t.Errorf("%s (control %v): the server gets %x, want %x", test.name, control, got.Bytes(), want)
			}
			if !control && used > 0 {
				t.Errorf("%s: watching is told as use", test.name)
			}
		}
	}
}

// Attack: a watcher sends the longest clipboards, which go nowhere.
func TestWatchersTakeNoMemory(t *testing.T) {
	long := be(uint8(6), make([]byte, 3), int32(maxCut), make([]byte, maxCut))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := (Rights{}).Filter(bytes.NewReader(long), io.Discard); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > maxCut/4 {
		t.Errorf("a clipboard that is dropped took %d bytes", took)
	}
}

// vnc is a server that accepts any client and reports the messages that it gets.
func vnc(t *testing.T, hello string, kinds []byte) (net.Conn, <-chan []byte) {
	here, there := net.Pipe()
	heard := make(chan []byte, 1)
	go func() {
		defer there.Close()
		var buf [12]byte
		_, _ = io.WriteString(there, hello)
		if _, err := io.ReadFull(there, buf[:]); err != nil {
			return
		}
		_, _ = there.Write(append([]byte{byte(len(kinds))}, kinds...))
		if _, err := io.ReadFull(there, buf[:1]); err != nil {
			return
		}
		_, _ = there.Write(make([]byte, 4))
		if _, err := io.ReadFull(there, buf[:1]); err != nil { // shared
			return
		}
		_, _ = io.WriteString(there, "screen")
		all, _ := io.ReadAll(there)
		heard <- append(buf[:1:1], all...)
	}()
	t.Cleanup(func() { here.Close() })
	return here, heard
}

func TestJoin(t *testing.T) {
	server, heard := vnc(t, version, []byte{2, 1})
	if err := Greet(server); err != nil {
		t.Fatal(err)
	}
	client, visitor := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- Join(client, server, Rights{}) }()
	step := func(send []byte, want string) {
		t.Helper()
		if _, err := visitor.Write(send); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(visitor, got); err != nil || string(got) != want {
			t.Fatalf("got %q (%v), want %q", got, err, want)
		}
	}
	hello := make([]byte, 12)
	if _, err := io.ReadFull(visitor, hello); err != nil || string(hello) != version {
		t.Fatalf("%q, %v", hello, err)
	}
	step([]byte(version), "\x01\x01")
	step([]byte{1}, "\x00\x00\x00\x00")
	step([]byte{0}, "screen") // and not for itself alone, as it says
	for _, m := range [][]byte{key, request, pointer} {
		if _, err := visitor.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	visitor.Close()
	if err := <-done; err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	select {
	case got := <-heard:
		if want := append([]byte{1}, request...); !bytes.Equal(got, want) {
			t.Errorf("the server heard %x, want %x", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatal("the server's connection was left open")
	}
}

func TestGreetRefuses(t *testing.T) {
	for name, server := range map[string]net.Conn{
		"an old one":      first(vnc(t, "RFB 003.003\n", []byte{1})),
		"another program": first(vnc(t, "SSH-2.0-Ope\n", []byte{1})),
		"one that asks":   first(vnc(t, version, []byte{2})),
		"one that has no": first(vnc(t, version, nil)),
	} {
		if err := Greet(server); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		server.Close()
	}
}

func first(c net.Conn, _ <-chan []byte) net.Conn { return c }

// Attack: messages of any bytes. Whatever a watcher sends, its server gets only
// messages that control nothing.
func FuzzFilter(f *testing.F) {
	for _, seed := range [][]byte{pixelFormat, request, key, pointer, cut, qemuKey, continuous, aFence, be(uint8(2), uint8(0), uint16(1), int32(7))} {
		f.Add(seed)
	}
	f.Add([]byte(strings.Repeat("\x04", 100)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got bytes.Buffer
		_ = Rights{}.Filter(bytes.NewReader(data), &got)
		if got.Len() > len(data) {
			t.Fatalf("%d bytes became %d", len(data), got.Len())
		}
		for b := got.Bytes(); len(b) > 0; {
			n := 0
			switch b[0] {
			case setPixelFormat, updateRequest, continuousUpdates:
				n = 1 + fixed[b[0]]
			case setEncodings:
				n = 4 + 4*int(binary.BigEndian.Uint16(b[2:]))
			case fence:
				n = 9 + int(b[8])
			default:
				t.Fatalf("a message of type %d came through", b[0])
			}
			b = b[n:]
		}
	})
}
