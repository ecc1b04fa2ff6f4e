package checkpoints

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// A state directory that was moved while no server ran serves sandboxes from the same template
// and the same golden checkpoint. In "make test", nothing stands for it.
func TestMoreMovedStateDirectory(t *testing.T) {
	needs.GVisor(t)
	parent := t.TempDir()
	here, there := filepath.Join(parent, "here"), filepath.Join(parent, "there")
	first, err := covetest.Launch(t.Context(), covetest.Options{StateDir: here})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(first.Kill)
	before, err := first.WaitGolden(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, first.Output())
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(here, there); err != nil {
		t.Fatal(err)
	}
	d := covetest.Start(t, covetest.Options{StateDir: there})
	if after, err := d.WaitGolden(t.Context()); err != nil || after.Digest != before.Digest {
		t.Fatalf("the template is %+v, and was %+v: %v", after, before, err)
	}
	s := d.Create(t, sandbox.CreateRequest{})
	if got := d.Sh(t, s.ID, "echo moved"); got != "moved\n" {
		t.Errorf("the sandbox says %q", got)
	}
	for _, made := range []string{"host template made", "golden checkpoint", "make a standby"} {
		if strings.Contains(d.Output(), made) {
			t.Errorf("the server made something anew:\n%s", d.Output())
		}
	}
}
