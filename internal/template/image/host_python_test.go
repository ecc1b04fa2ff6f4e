package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHostHasPython checks that sandboxes have python even if the machine has only python3,
// and that the machine's own python takes precedence.
func TestHostHasPython(t *testing.T) {
	for name, tt := range map[string]struct {
		programs []string
		alias    bool
	}{
		"no Python":    {nil, false},
		"python3":      {[]string{"python3"}, true},
		"python too":   {[]string{"python3", "python"}, false},
		"python alone": {[]string{"python"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			machine := fakeMachine(t)
			for _, program := range tt.programs {
				if err := os.WriteFile(filepath.Join(machine, "usr/bin", program), []byte("#!"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			root, template, err := newProvider(t, machine).Root(t.Context(), Host)
			if err != nil {
				t.Fatal(err)
			}
			to, err := os.Readlink(filepath.Join(root.Dir, aliasDir, "python"))
			if has := err == nil && to == "/usr/bin/python3"; has != tt.alias {
				t.Errorf("the link is %q, %v; want one: %t", to, err, tt.alias)
			}
			if on := strings.HasSuffix(template.Env["PATH"], ":/"+aliasDir); on != tt.alias {
				t.Errorf("PATH is %s", template.Env["PATH"])
			}
		})
	}
}
