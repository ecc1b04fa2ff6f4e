package store

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

func TestCursorRoundTrip(t *testing.T) {
	for _, p := range []Place{
		PlaceAt(time.Unix(0, 0), "sbx-a"), PlaceAt(time.Unix(1700000000, 123456789), "key-b c"), PlaceAt(time.Unix(0, -1), "7"), {Number: 80}, {Text: "ü"}, {},
	} {
		got, err := ParseCursor("things", p.Cursor("things"))
		if err != nil || got != p {
			t.Errorf("the cursor of %v comes back as %v, %v", p, got, err)
		}
	}
}

// A cursor is of one listing, and the error of any other says what to do.
func TestCursorOfAnotherListing(t *testing.T) {
	for _, cursor := range []string{Place{Number: 1, Text: "a"}.Cursor("jobs"), "zz", "MSAxIGE", strings.Repeat("A", maxCursorBytes+1)} {
		_, err := ParseCursor("snapshots", cursor)
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "start over without a cursor") {
			t.Errorf("the cursor %.20q gives %v", cursor, err)
		}
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add("")
	f.Add(PlaceAt(time.Unix(5, 0), "sbx-a").Cursor("things"))
	f.Add(PlaceAt(time.Unix(5, 0), "sbx-a").Cursor("others"))
	f.Add("MSA5OTk5OTk5OTk5OTk5OTk5OTk5OTk5IHg")
	f.Add(strings.Repeat("A", 300))
	f.Add("'; DROP TABLE sandboxes; --")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParseCursor("things", s)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Fatalf("ParseCursor(%q): code %q, want invalid", s, sandbox.CodeOf(err))
			}
			return
		}
		again, err := ParseCursor("things", p.Cursor("things"))
		if err != nil || again != p {
			t.Fatalf("ParseCursor(%q) = %v, which comes back as %v, %v", s, p, again, err)
		}
	})
}

// pages reads a listing in parts of limit and calls between after each.
func pages(t *testing.T, all *[]string, limit int, between func()) (parts [][]string) {
	t.Helper()
	p := sandbox.Page{Limit: limit}
	for range 100 {
		items, next, err := PageOf("things", slices.Clone(*all), p, func(s *string) Place { return Place{Text: *s} })
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, items)
		if next == "" {
			return parts
		}
		p.Cursor = next
		between()
	}
	t.Fatal("the listing has no end")
	return nil
}

func TestPagesOfMemory(t *testing.T) {
	for limit, want := range map[int]string{
		1: "[[a] [b] [c] [d]]", 2: "[[a b] [c d]]", 3: "[[a b c] [d]]", 4: "[[a b c d]]", 5: "[[a b c d]]",
	} {
		all := []string{"c", "a", "d", "b"}
		if got := fmt.Sprint(pages(t, &all, limit, func() {})); got != want {
			t.Errorf("in parts of %d: %s, want %s", limit, got, want)
		}
	}
	var none []string
	if got := fmt.Sprint(pages(t, &none, 1, func() {})); got != "[[]]" {
		t.Errorf("nothing is %s", got)
	}
}

// What is made or removed between two pages, also what a cursor stands for, does
// not repeat or hide others.
func TestPagesOfMemoryWhileItChanges(t *testing.T) {
	all := []string{"b", "d", "f", "h"}
	changes := [][]string{{"a", "c", "d", "f", "h"}, {"f", "g", "h"}, {"g"}}
	got := fmt.Sprint(pages(t, &all, 1, func() {
		if len(changes) > 0 {
			all, changes = changes[0], changes[1:]
		}
	}))
	if got != "[[b] [c] [f] [g]]" {
		t.Errorf("pages are %s", got)
	}
}

func TestPageOfRefusesLimits(t *testing.T) {
	for _, limit := range []int{-1, sandbox.MaxPageSize + 1} {
		_, _, err := PageOf("things", []string{"a"}, sandbox.Page{Limit: limit}, func(s *string) Place { return Place{Text: *s} })
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("a limit of %d gives %v", limit, err)
		}
	}
}
