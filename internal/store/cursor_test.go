package store

import (
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

func TestCursorRoundTrip(t *testing.T) {
	for _, c := range []Cursor{
		{At: time.Unix(0, 0).UTC(), ID: "sbx-a"},
		{At: time.Unix(1700000000, 123456789).UTC(), ID: "key-b c"},
		{At: time.Unix(0, -1).UTC(), ID: "7"},
	} {
		got, err := ParseCursor(c.String())
		if err != nil || got != c {
			t.Errorf("ParseCursor(%v.String()) = %v, %v", c, got, err)
		}
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add("")
	f.Add(Cursor{At: time.Unix(5, 0), ID: "sbx-a"}.String())
	f.Add("MSA5OTk5OTk5OTk5OTk5OTk5OTk5OTk5IHg")
	f.Add(strings.Repeat("A", 300))
	f.Add("'; DROP TABLE sandboxes; --")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCursor(s)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Fatalf("ParseCursor(%q): code %q, want invalid", s, sandbox.CodeOf(err))
			}
			return
		}
		again, err := ParseCursor(c.String())
		if err != nil || again != c {
			t.Fatalf("ParseCursor(%q) = %v, which comes back as %v, %v", s, c, again, err)
		}
	})
}
