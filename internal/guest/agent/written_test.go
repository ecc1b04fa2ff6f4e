package agent

import "testing"

// A watch learns of the agent's writes below it, each for one event. An undone write
// counts for none, and the number that is kept is bounded.
func TestWritten(t *testing.T) {
	var all written
	w, other, root := &watch{root: "/a"}, &watch{root: "/ab"}, &watch{root: "/"}
	all.announce("/a/f", true) // nobody watches
	leave := all.join(w)
	for _, w := range []*watch{other, root} {
		defer all.join(w)()
	}
	all.announce("/a/f", true)
	all.announce("/a/f", false)
	all.announce("/a/g", true)()
	for _, want := range [][2]bool{{true, true}, {false, true}, {false, false}} {
		if created, own := all.seen(w, "/a/f"); created != want[0] || own != want[1] {
			t.Errorf("created %v, own %v, want %v", created, own, want)
		}
	}
	for path, watch := range map[string]*watch{"/a/g": w, "/a/f": other} {
		if _, own := all.seen(watch, path); own {
			t.Errorf("%s is awaited", path)
		}
	}
	if _, own := all.seen(root, "/a/f"); !own {
		t.Error("the root's watch was not told")
	}
	for range 2 * maxAwaited {
		all.announce("/a/f", true)
	}
	if n := all.watches[w].count; n != maxAwaited {
		t.Errorf("%d writes are awaited", n)
	}
	leave()
	if _, own := all.seen(w, "/a/f"); own {
		t.Error("a watch that is gone awaits something")
	}
}
