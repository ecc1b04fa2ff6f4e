package cli

import "testing"

// Node's options keep what they contain, and load the shim once.
func TestWithImport(t *testing.T) {
	const file = "/state dir/" + shimFile
	const want = "--import=file:///state%20dir/" + shimFile
	for options, wanted := range map[string]string{
		"":                               want,
		"--max-old-space-size=100":       "--max-old-space-size=100 " + want,
		"--import=file:///a/" + shimFile: want,
		"--import=./a.mjs " + want + " ": "--import=./a.mjs " + want,
	} {
		if got := withImport(options, file); got != wanted {
			t.Errorf("%q became %q, want %q", options, got, wanted)
		}
	}
}
