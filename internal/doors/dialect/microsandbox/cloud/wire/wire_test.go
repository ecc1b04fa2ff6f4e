package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect/microsandbox/cloud/wire"
)

// TestHello checks the first bytes: the id range, as from the product's relay, and the
// frame that says that the guest is ready.
func TestHello(t *testing.T) {
	hello, err := wire.Hello(wire.Ready{Version: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(hello[:8]); got != "0000000101ffffff" {
		t.Errorf("it begins with %s", got)
	}
	f, err := wire.Read(bytes.NewReader(hello[8:]))
	if err != nil || f.Type != wire.TypeReady || f.ID != 0 || f.Flags != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	var ready wire.Ready
	if err := f.Decode(&ready); err != nil || ready.Version != "x" {
		t.Errorf("%+v, %v", ready, err)
	}
}

// TestAppend compares frames byte for byte with those of the product's agent.
func TestAppend(t *testing.T) {
	got, err := wire.Append(nil, 7, wire.FlagTerminal, wire.TypeExited, wire.Exited{Code: -1})
	if err != nil {
		t.Fatal(err)
	}
	want := "00000026" + "00000007" + "01" + "a3" + "6176" + "07" + "6174" + "70" + hex.EncodeToString([]byte(wire.TypeExited)) + "6170" + "47" + "a1" + "64636f6465" + "20"
	if hex.EncodeToString(got) != want {
		t.Errorf("got  %x\nwant %s", got, want)
	}
}

func TestReadFindsFrames(t *testing.T) {
	var stream []byte
	for _, p := range []any{wire.Data{Data: []byte("one")}, nil, wire.Exec{Cmd: "sh", Args: []string{"-c", "true"}}} {
		var err error
		if stream, err = wire.Append(stream, 3, 0, wire.TypeStdin, p); err != nil {
			t.Fatal(err)
		}
	}
	r := &slow{stream}
	var types []string
	for {
		f, err := wire.Read(r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, f.Type)
	}
	if diff := cmp.Diff([]string{wire.TypeStdin, wire.TypeStdin, wire.TypeStdin}, types); diff != "" {
		t.Error(diff)
	}
}

// slow returns one byte at a time.
type slow struct{ data []byte }

func (s *slow) Read(p []byte) (int, error) {
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	p[0] = s.data[0]
	s.data = s.data[1:]
	return 1, nil
}

func frame(body string) []byte {
	data := binary.BigEndian.AppendUint32(nil, uint32(5+len(body)))
	return append(append(data, 0, 0, 0, 1, 0), body...)
}

func TestReadRefuses(t *testing.T) {
	huge := binary.BigEndian.AppendUint32(nil, wire.MaxFrame+1)
	for name, c := range map[string]struct {
		data      []byte
		malformed bool
		is        error
	}{
		"a short length":    {data: []byte{0, 0, 0, 4, 1, 2, 3, 4}, is: wire.ErrLength},
		"a huge length":     {data: huge, is: wire.ErrLength},
		"an end in a frame": {data: []byte{0, 0, 0, 9, 0}, is: io.ErrUnexpectedEOF},
		"no CBOR":           {data: frame(""), malformed: true},
		"another value":     {data: frame("\x01"), malformed: true},
		"more after it":     {data: frame("\xa1\x61t\x61x\x01"), malformed: true},
		"a tag":             {data: frame("\xa1\x61t\xc1\x61x"), malformed: true},
		"a long type":       {data: frame("\xa1\x61t\x78\x60" + strings.Repeat("a", 0x60)), malformed: true},
		"deep nesting":      {data: frame("\xa1\x61x" + strings.Repeat("\x81", 100) + "\x01"), malformed: true},
		"a long array":      {data: frame("\xa1\x61x\x9a\x00\x10\x00\x00"), malformed: true},
		"a key twice":       {data: frame("\xa2\x61t\x61x\x61t\x61y"), malformed: true},
	} {
		_, err := wire.Read(bytes.NewReader(c.data))
		if _, bad := errors.AsType[wire.Malformed](err); bad != c.malformed || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAnnouncedLengthTakesNoMemory checks that memory depends on the data sent, not on the
// announced length.
func TestAnnouncedLengthTakesNoMemory(t *testing.T) {
	head := append(binary.BigEndian.AppendUint32(nil, wire.MaxFrame), make([]byte, 100)...)
	result := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			_, _ = wire.Read(bytes.NewReader(head))
		}
	})
	if result.AllocedBytesPerOp() > 64<<10 {
		t.Errorf("it costs %d bytes", result.AllocedBytesPerOp())
	}
}

func TestPayloadsIgnoreNewKeys(t *testing.T) {
	// {"cmd": "true", "new": {"a": [1]}}
	f := wire.Frame{Payload: []byte("\xa2\x63cmd\x64true\x63new\xa1\x61a\x81\x01")}
	var m wire.Exec
	if err := f.Decode(&m); err != nil || m.Cmd != "true" {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestTooLongFrame(t *testing.T) {
	before := []byte("before")
	got, err := wire.Append(before, 1, 0, wire.TypeStdout, wire.Data{Data: make([]byte, wire.MaxFrame)})
	if !errors.Is(err, wire.ErrLength) || string(got) != "before" {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// FuzzRead checks that reading any input ends and takes no more memory than the frame, and
// that what was read can be written and read again.
func FuzzRead(f *testing.F) {
	for _, p := range []any{
		nil, wire.Data{Data: []byte("x")}, wire.Exec{Cmd: "sh", Args: []string{"-c", "true"}, Env: []string{"A=b"}, TTY: true, Rows: 24},
		wire.FS{Op: wire.Op{Stat: &wire.PathOp{Path: "/a"}}}, wire.FS{Op: wire.Op{OpenFile: &wire.OpenOp{Path: "/a", Options: wire.OpenOptions{Read: true}}}},
		wire.FS{Op: wire.Op{Write: &wire.HandleOp{Handle: 1, Offset: 2}}}, wire.TCPConnect{Host: "localhost", Port: 80}, wire.Signal{Signal: 9}, wire.Resize{Rows: 1, Cols: 2},
	} {
		data, err := wire.Append(nil, 1, wire.FlagStart, wire.TypeExec, p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add(frame("\xbf\x61t\x61x\xff")) // an indefinite length
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			got, err := wire.Read(r)
			if _, bad := errors.AsType[wire.Malformed](err); bad {
				continue
			}
			if err != nil {
				return
			}
			for _, v := range []any{&wire.Exec{}, &wire.Data{}, &wire.Resize{}, &wire.Signal{}, &wire.FS{}, &wire.TCPConnect{}} {
				_ = got.Decode(v)
			}
			again, err := wire.Append(nil, got.ID, got.Flags, got.Type, nil)
			if err != nil {
				t.Fatal(err)
			}
			if back, err := wire.Read(bytes.NewReader(again)); err != nil || back.Type != got.Type || back.ID != got.ID {
				t.Fatalf("%+v became %+v, %v", got, back, err)
			}
		}
	})
}
