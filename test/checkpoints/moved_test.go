package checkpoints

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// A state directory that was moved while no server ran serves sandboxes from the same
// template and the same golden checkpoint.
func TestMovedStateDirectory(t *testing.T) {
	needs.GVisor(t)
	parent := t.TempDir()
	here, there := filepath.Join(parent, "here"), filepath.Join(parent, "there")
	first, err := covetest.Launch(t.Context(), covetest.Options{StateDir: here})
	if err != nil {
		t.Fatal(err)
	}
	before := golden(t, first)
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(here, there); err != nil {
		t.Fatal(err)
	}
	d := covetest.Start(t, covetest.Options{StateDir: there})
	if after := golden(t, d); after.Digest != before.Digest {
		t.Errorf("the template is %s, and was %s", after.Digest, before.Digest)
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

// golden waits until the template host has its golden checkpoint, and returns it.
func golden(t *testing.T, d *covetest.Daemon) *sandbox.Template {
	t.Helper()
	var host *sandbox.Template
	ready := covetest.Eventually(2*time.Minute, func() bool {
		var err error
		host, err = d.Client.GetTemplate(t.Context(), "host")
		return err == nil && host.WarmBytes > 0
	})
	if !ready {
		t.Fatalf("no golden checkpoint: %+v\n%s", host, d.Output())
	}
	return host
}
