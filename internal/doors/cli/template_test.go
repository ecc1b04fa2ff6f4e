package cli

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Everything that is known about a template is shown.
func TestTemplateShowsAll(t *testing.T) {
	built := time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)
	full := &sandbox.Template{
		Name: "app", Description: "of a test", Source: "debian", State: sandbox.TemplateReady, Reason: "a reason", Version: 3, Versions: []int{3, 2}, Aliases: []string{"stable"},
		Digest: "sha256-1", SizeBytes: 3 << 20, BuiltAt: &built, User: "me", WorkDir: "/srv", Env: map[string]string{"A": "b"},
		Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 1024, DiskMiB: 2048, MaxPIDs: 99}, Packages: []string{"jq"},
		Warm: map[string]string{"python": "import pandas", "javascript": "let a\nlet b"}, WarmBytes: 5 << 20,
		Start: &sandbox.StartCommand{Command: "serve", Ready: "curl localhost"}, Desktop: &sandbox.Desktop{Width: 800, Height: 600}, Ports: []int{80, 443},
		Network: &sandbox.NetworkPolicy{Preset: sandbox.NetworkNone, AllowOut: []string{"a.example"}}, BuildNetwork: &sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages},
	}
	lines := map[string]string{
		"Name": "name: app", "Description": "description: of a test", "Source": "source: debian", "State": "state: ready", "Reason": "reason: a reason", "Version": "version: 3",
		"Versions": "versions: 3 2", "Aliases": "aliases: stable", "Digest": "digest: sha256-1", "SizeBytes": "size: 3.0 MiB", "BuiltAt": "built: " + stamp(&built),
		"User": "user: me", "WorkDir": "workdir: /srv", "Env": "env: A=b", "Resources": "resources: 2 processors, 1024 MiB of memory, 2048 MiB of disk, 99 processes",
		"Packages": "packages: jq", "Warm": "warm: javascript: let a (and 1 more lines; see --json); python: import pandas", "WarmBytes": "checkpoint: 5.0 MiB",
		"Start": "start: serve", "Desktop": "screen: 800x600", "Ports": "ports: 80 443", "Network": "network: none, 1 allow_out", "BuildNetwork": "build network: packages",
	}
	var out bytes.Buffer
	if err := templateDetails(&call{app: &app{Program: Program{Stdout: &out}}}, full); err != nil {
		t.Fatal(err)
	}
	var shown []string
	for line := range strings.Lines(out.String()) {
		shown = append(shown, strings.Join(strings.Fields(line), " "))
	}
	text := "\n" + strings.Join(shown, "\n") + "\n"
	for f := range reflect.TypeFor[sandbox.Template]().Fields() {
		if want := lines[f.Name]; want == "" || !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("%s: %q is not in\n%s", f.Name, want, text)
		}
	}
}
