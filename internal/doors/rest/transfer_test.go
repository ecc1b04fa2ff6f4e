package rest

import "testing"

// Names of files are those that a browser may save them under: nothing in them is unseen,
// leads elsewhere, or makes an ending look like another one.
func TestPlainName(t *testing.T) {
	for name, want := range map[string]string{
		"file.txt": "file.txt", "größe 漢字.md": "größe 漢字.md", ".bashrc": ".bashrc", "a\u202egnp.exe": "a_gnp.exe",
		"a\nb\x00c\x7f": "a_b_c_", `a\b:c`: "a_b_c", "a\xffb": "a_b", "": "download", "..": "download", "/": "download", "a\u200bb": "a_b",
	} {
		if got := plainName(name); got != want {
			t.Errorf("%q is saved as %q, want %q", name, got, want)
		}
	}
}
