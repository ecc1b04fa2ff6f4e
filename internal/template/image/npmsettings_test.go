package image

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNPMSettings checks that the environment takes precedence over the user's file, and
// that over the machine's, and that tokens and passwords are not returned.
func TestNPMSettings(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := write("ca.pem", "an authority")
	user := write("user", "; of the user\nregistry = \"https://me:secret@npm.example.com/team/\"\n//npm.example.com/:_authToken=token\ncafile=${HERE}/ca.pem\n")
	machine := write("machine", "registry=https://elsewhere.example.com/\nhttps-proxy=http://u:p@proxy.example.com:3128\nproxy=not an address\n")
	for name, c := range map[string]struct {
		files []string
		env   map[string]string
		want  NPMSettings
	}{
		"none":  {nil, nil, NPMSettings{}},
		"files": {[]string{user, filepath.Join(dir, "missing"), machine}, map[string]string{"HERE": dir}, NPMSettings{Registry: "https://npm.example.com/team/", HTTPSProxy: "http://proxy.example.com:3128", Authorities: []byte("an authority")}},
		"environment": {[]string{user}, map[string]string{"npm_config_registry": "http://127.0.0.1:4873", "HTTPS_PROXY": "http://proxy.example.com", "NODE_EXTRA_CA_CERTS": ca}, NPMSettings{
			Registry: "http://127.0.0.1:4873", HTTPSProxy: "http://proxy.example.com", Authorities: []byte("an authority"),
		}},
		"a directory for certificates": {nil, map[string]string{"NODE_EXTRA_CA_CERTS": dir, "npm_config_registry": "ftp://example.com"}, NPMSettings{}},
	} {
		if diff := cmp.Diff(c.want, npmSettings(c.files, func(name string) string { return c.env[name] })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
