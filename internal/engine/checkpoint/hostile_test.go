package checkpoint

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

// Attack: a manifest names files elsewhere, or something that is not a file, to have it
// read, or a program elsewhere, to have it started.
func TestHostileManifest(t *testing.T) {
	for what, change := range map[string]func(dir string, m *Manifest){
		"a file above":      func(_ string, m *Manifest) { m.Files[0].Name = "../secret" },
		"the directory":     func(_ string, m *Manifest) { m.Files[0].Name = "." },
		"the one above":     func(_ string, m *Manifest) { m.Files[0].Name = ".." },
		"an absolute file":  func(_ string, m *Manifest) { m.Files[0].Name = "/etc/passwd" },
		"no name":           func(_ string, m *Manifest) { m.Files[0].Name = "" },
		"a program above":   func(_ string, m *Manifest) { m.Program = "../cells/x/writes" },
		"the program above": func(_ string, m *Manifest) { m.Program = ".." },
		"a link": func(dir string, m *Manifest) {
			name := filepath.Join(dir, m.Files[0].Name)
			must(t, os.Rename(name, name+".real"))
			must(t, os.Symlink(name+".real", name))
		},
	} {
		d := open(t)
		m := write(t, d, "ckp-x", false)
		change(d.Path("ckp-x"), &m)
		data, err := json.Marshal(m)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(d.Path("ckp-x"), manifestFile), data, 0o600))
		if _, err := d.Manifest("ckp-x"); err == nil {
			t.Errorf("a manifest with %s is taken", what)
		}
	}
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"format":1,"id":"ckp-x","program":"cove-1","files":[{"name":"state.img","size":9}]}`))
	f.Add([]byte(`{"format":1,"id":"ckp-x","program":"..","files":[{"name":"../../../etc/passwd","size":-1,"crc32c":0,"summed":9223372036854775807}]}`))
	f.Add([]byte(`{"format":1,"id":"ckp-x","files":[{"name":"state.img","size":9,"crc32c":1,"summed":-1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := Dir{path: t.TempDir()}
		must(t, os.Mkdir(d.Path("ckp-x"), 0o700))
		must(t, os.WriteFile(filepath.Join(d.Path("ckp-x"), "state.img"), []byte("the state"), 0o600))
		must(t, os.WriteFile(filepath.Join(d.Path("ckp-x"), manifestFile), data, 0o600))
		m, err := d.Manifest("ckp-x")
		if err != nil {
			return
		}
		for _, file := range m.Files {
			if file.Name != "state.img" && file.Name != manifestFile {
				t.Errorf("the file %q is taken", file.Name)
			}
		}
		if filepath.Join("programs", m.Program) != "programs" && filepath.Dir(filepath.Join("programs", m.Program)) != "programs" {
			t.Errorf("the program %q is taken", m.Program)
		}
		_ = d.Verify(&m)
	})
}
