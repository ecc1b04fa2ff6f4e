package native

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Output is sent as it comes, in whole characters, each stream separately.
func TestOutputStreamer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []dialect.Output
		w := newOutputStreamer(t.Context(), func(o dialect.Output) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, o)
		})
		expect := func(want ...dialect.Output) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(want, told); diff != "" {
				t.Error(diff)
			}
			told = nil
		}
		w.write(sandbox.Stdout, []byte("a"))
		w.write(sandbox.Stderr, []byte("e\n"))
		w.write(sandbox.Stdout, []byte("b\xf0\x9f"))
		expect()
		time.Sleep(outputInterval)
		expect(dialect.Output{Stream: sandbox.Stdout, Text: "ab"}, dialect.Output{Stream: sandbox.Stderr, Text: "e\n"})
		time.Sleep(10 * outputInterval)
		expect()
		w.write(sandbox.Stdout, []byte("\x99\x82\xf0"))
		time.Sleep(outputInterval)
		expect(dialect.Output{Stream: sandbox.Stdout, Text: "🙂"})
		w.end()
		expect(dialect.Output{Stream: sandbox.Stdout, Text: "\ufffd"})
	})
}

// The output that a call sends is bounded, at once and in all, and omitted output is
// counted.
func TestOutputStreamerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []dialect.Output
		w := newOutputStreamer(t.Context(), func(o dialect.Output) { told = append(told, o) })
		var wrote int64
		line := []byte(strings.Repeat("é", 999) + "\n")
		for range 100 {
			for range 100 {
				w.write(sandbox.Stdout, line)
				wrote += int64(len(line))
			}
			time.Sleep(outputInterval)
		}
		w.end()
		var sum, omitted int64
		for i, o := range told {
			if len(o.Text) > maxOutputPiece || strings.Contains(o.Text, "\ufffd") {
				t.Errorf("piece %d has %d bytes: %.20q", i, len(o.Text), o.Text)
			}
			sum, omitted = sum+int64(len(o.Text)), omitted+o.Omitted
		}
		if sum > maxOutputSent || sum < maxOutputSent-maxOutputPiece || sum+omitted != wrote {
			t.Errorf("told %d bytes and left out %d of %d", sum, omitted, wrote)
		}
		if last := told[len(told)-1]; last.Text != "" || last.Omitted == 0 {
			t.Errorf("the last piece is %.20q after %d bytes", last.Text, last.Omitted)
		}
	})
}

// A stream of bytes that are not text is reported as such.
func TestOutputStreamerBinary(t *testing.T) {
	var told []dialect.Output
	w := newOutputStreamer(t.Context(), func(o dialect.Output) { told = append(told, o) })
	w.write(sandbox.Stdout, bytes.Repeat([]byte{0xff, 0x80, 0x00}, 10*maxOutputPiece))
	w.end()
	var sum int64
	for _, o := range told {
		sum += o.Omitted
	}
	if len(told) != 2 || told[0].Text != "\ufffd" || sum < 29*maxOutputPiece-4 {
		t.Errorf("told %+v", told)
	}
}
