package hopx

import (
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// TestLogWindow reads a log of characters of three bytes window by window.
func TestLogWindow(t *testing.T) {
	piece := "a" + strings.Repeat("€", maxLogs/4) + "\n"
	want := strings.Repeat(piece, 3)
	got := ""
	for full := true; full; {
		w := &logWindow{skip: int64(len(got))}
		for range 3 {
			if w.take(sandbox.BuildEvent{Log: piece}) != nil {
				break
			}
		}
		if w.text.Len() > maxLogs || w.full != (len(got)+w.text.Len() < len(want)) {
			t.Fatalf("a window of %d bytes after %d of %d, full %v", w.text.Len(), len(got), len(want), w.full)
		}
		if strings.ToValidUTF8(w.text.String(), "") != w.text.String() {
			t.Errorf("the window after %d bytes cuts a character", len(got))
		}
		got, full = got+w.text.String(), w.full
	}
	if got != want {
		t.Errorf("windows have %d bytes together, want %d", len(got), len(want))
	}
}
