package runsc

import "testing"

// TestParseOwner parses what a sandbox may have written as a file's owner.
func TestParseOwner(t *testing.T) {
	for text, want := range map[string]struct {
		uid, gid uint32
		ok       bool
	}{
		"1000:100":              {1000, 100, true},
		"0:0":                   {0, 0, true},
		"4294967294:1":          {4294967294, 1, true},
		"4294967295:1":          {},
		"1:4294967295":          {},
		"4294967296:1":          {},
		"-1:1":                  {},
		"1:":                    {},
		"1":                     {},
		"":                      {},
		"1:2:3":                 {},
		"0x1:1":                 {},
		" 1:1":                  {},
		"99999999999999999999:": {},
	} {
		if uid, gid, ok := parseOwner(text); uid != want.uid || gid != want.gid || ok != want.ok {
			t.Errorf("parseOwner(%q) = %d, %d, %v, want %+v", text, uid, gid, ok, want)
		}
	}
}
