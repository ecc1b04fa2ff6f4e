package storetest

import (
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// testObjectKey checks that of several that make or replace the key, one succeeds.
func testObjectKey(t *testing.T, open Opener) {
	s := open(t)
	want := func(want string) {
		t.Helper()
		if got, err := s.ObjectKey(t.Context()); err != nil || string(got) != want {
			t.Errorf("the key is %q, %v; want %q", got, err, want)
		}
	}
	want("")
	must(t, s.SetObjectKey(t.Context(), nil, []byte("one")))
	if err := s.SetObjectKey(t.Context(), nil, []byte("two")); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a second key: %v", err)
	}
	want("one")
	must(t, s.SetObjectKey(t.Context(), []byte("one"), []byte("three")))
	if err := s.SetObjectKey(t.Context(), []byte("one"), []byte("four")); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("a key in place of another: %v", err)
	}
	want("three")
}
