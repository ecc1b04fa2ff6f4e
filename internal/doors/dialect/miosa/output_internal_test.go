package miosa

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// TestManyLinesAreCheap checks that a program that writes millions of short lines is not
// held up: nearly all of them are only counted.
func TestManyLinesAreCheap(t *testing.T) {
	tell := newTeller(t.Context(), func(string) {})
	defer tell.end()
	out := newCollector(&lines{tell: tell.tell})
	const many = 10_000
	piece := sandbox.JobEvent{Stream: sandbox.Stdout, Data: bytes.Repeat([]byte("y\n"), many)}
	take := func() {
		if err := out.take(piece); err != nil {
			t.Fatal(err)
		}
		piece.Offset += int64(len(piece.Data))
	}
	take() // the beginning is kept
	if allocs := testing.AllocsPerRun(10, take); allocs > 2*many {
		t.Errorf("%.1f allocations for each line", allocs/many)
	}
}

// TestTellLargeLine checks that a line whose JSON exceeds a progress message is left out,
// and reported as such.
func TestTellLargeLine(t *testing.T) {
	var told []string
	tell := newTeller(t.Context(), func(s string) { told = append(told, s) })
	tell.tell(event{Type: "stdout", Line: strings.Repeat("\x01", maxLine)})
	tell.end()
	if len(told) != 1 || told[0] != `{"type":"truncated","line":"[… 1 line left out …]"}` {
		t.Errorf("told %q", told)
	}
}
