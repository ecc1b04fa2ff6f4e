package lazyregexp

import "testing"

func TestNew(t *testing.T) {
	r := New(`^a(b+)c$`)
	if got := r.FindStringSubmatch("abbc"); len(got) != 2 || got[1] != "bb" {
		t.Errorf("submatch of abbc: %q", got)
	}
	if r.MatchString("ac") {
		t.Error("matches ac")
	}
}

// An expression that is none fails in the tests of its package, not when it is used.
func TestInvalid(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	New(`(`)
}
