package kernel

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

func FuzzParseMessage(f *testing.F) {
	f.Add([]byte(`{"t":"ready"}`))
	f.Add([]byte(`{"t":"done","run":1,"exit":-1,"cwd":"/x","error":{"name":"E","message":"m","traceback":"t"}}`))
	f.Add([]byte(`{"t":"rich","run":1,"data":{"text/plain":"x","application/json":"{"},"binary":{"image/png":"AAAA","a/b":"!"},"meta":{"a/b":"1"},"files":{"a/b":"/tmp/x"}}`))
	f.Add([]byte(`{"t":"rich","data":{"":"x"," / ":"y","a/b;c=d":"z"}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := parseMessage(data)
		if err != nil {
			return
		}
		if m.Exit < 0 || m.Exit > 255 {
			t.Errorf("exit %d", m.Exit)
		}
		if p := m.codeError(); p != nil && !(utf8.ValidString(p.GetName()) && utf8.ValidString(p.GetTraceback())) {
			t.Error("an error that is not UTF-8")
		}
		out := m.rich()
		size := 0
		for mime, data := range out.GetData() {
			size += len(data)
			if !validMIME(mime) || isJSON(mime) && !json.Valid(data) {
				t.Errorf("%q: %q", mime, data)
			}
		}
		if size > maxRich {
			t.Errorf("%d bytes", size)
		}
	})
}

func FuzzReadFrame(f *testing.F) {
	f.Add(frame([]byte("{}")))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 0, 9, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := readFrame(bytes.NewReader(data))
		if err == nil && !bytes.Equal(frame(got), data[:4+len(got)]) {
			t.Errorf("got %q of %q", got, data)
		}
	})
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("ready\x00"))
	f.Add([]byte("done\x001\x000\x00/tmp\x00"))
	f.Add([]byte("refused\x001\x00x\x00\x00"))
	f.Add(bytes.Repeat([]byte("a"), 2*maxField))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := (&lines{}).read(bufio.NewReader(bytes.NewReader(data)))
		if err == nil && (m.Exit < 0 || m.Exit > 255 || len(m.Dir) > maxField+1) {
			t.Errorf("%+v", m)
		}
	})
}

func TestFrameTooLarge(t *testing.T) {
	if _, err := readFrame(strings.NewReader("\x7f\xff\xff\xffx")); !errors.Is(err, errFrameSize) {
		t.Errorf("got %v", err)
	}
}

func TestQuote(t *testing.T) {
	if got := quote(`it's $x`); got != `'it'\''s $x'` {
		t.Errorf("got %s", got)
	}
	for name, want := range map[string]bool{"A": true, "_a1": true, "1a": false, "a-b": false, "": false, "a.b": false} {
		if shellName(name) != want {
			t.Errorf("%q: got %v", name, !want)
		}
	}
}

// FuzzOutbox writes in pieces and expects whole characters, in order, and no more than is
// kept.
func FuzzOutbox(f *testing.F) {
	f.Add([]byte("a🙂é"), uint8(1), uint16(100))
	f.Add([]byte("🙂🙂🙂"), uint8(3), uint16(7))
	f.Add([]byte("\xf0\x9f\xff\xc3"), uint8(2), uint16(100))
	f.Fuzz(func(t *testing.T, data []byte, piece uint8, keep uint16) {
		keep = max(keep, 1)
		o := NewOutbox(int64(keep))
		for rest := data; len(rest) > 0; {
			n := min(len(rest), int(piece)+1)
			o.Write(0, rest[:n])
			rest = rest[n:]
		}
		o.Close(&agentv1.CodeResult{})
		o.Write(0, []byte("late"))
		events, last := o.Take()
		var got []byte
		for _, e := range events {
			if out := e.GetOutput(); out != nil {
				if out.GetOffset() != int64(len(got)) {
					t.Fatalf("offset %d, want %d", out.GetOffset(), len(got))
				}
				got = append(got, out.GetData()...)
			}
		}
		if !last || !bytes.HasPrefix(data, got) || len(got) > int(keep) {
			t.Fatalf("got %q of %q, keep %d", got, data, keep)
		}
		if len(data) <= int(keep) && len(got) != len(data) {
			t.Fatalf("got %q of %q", got, data)
		}
		if len(got) < len(data) && utf8.Valid(data) && !utf8.Valid(got) {
			t.Fatalf("a broken character in %q", got)
		}
		if r := events[len(events)-1].GetResult(); r.GetStdoutBytes() != int64(len(data)) {
			t.Fatalf("counted %d of %d", r.GetStdoutBytes(), len(data))
		}
	})
}

func TestOutboxBounds(t *testing.T) {
	o := NewOutbox(10)
	for i := range sandbox.MaxOutputs + 1 {
		if o.Add(&agentv1.CodeOutput{}) != (i < sandbox.MaxOutputs) {
			t.Errorf("output %d", i)
		}
	}
	o = NewOutbox(10)
	big := &agentv1.CodeOutput{Data: map[string][]byte{"a/b": make([]byte, sandbox.MaxOutputsBytes/2+1)}}
	if !o.Add(big) || o.Add(big) {
		t.Error("outputs are not bounded together")
	}
	o.Write(1, []byte("0123456789more"))
	o.Note("note\n")
	events, _ := o.Take()
	if got := string(events[len(events)-1].GetOutput().GetData()); got != "0123456789note\n" {
		t.Errorf("got %q", got)
	}
	if o.total[1] != 19 {
		t.Errorf("counted %d", o.total[1])
	}
}

// TestOutboxPieces checks that long output is split at character boundaries.
func TestOutboxPieces(t *testing.T) {
	o := NewOutbox(1 << 20)
	o.Write(0, []byte(strings.Repeat("é€🙂", 30_000)))
	events, _ := o.Take()
	if len(events) < 4 {
		t.Fatalf("%d events", len(events))
	}
	for _, e := range events {
		if data := e.GetOutput().GetData(); !utf8.Valid(data) || len(data) > pieceBytes {
			t.Errorf("a piece of %d bytes, valid %v", len(data), utf8.Valid(data))
		}
	}
}
