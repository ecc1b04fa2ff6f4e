package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// A golden checkpoint that was half written when the power was lost costs the next sandbox a
// boot, and is made again. In "make test", TestDamagedCheckpoint of package cells and
// TestGoldenThatDoesNotStart of package service stand for it.
func TestMoreDamagedGoldenCheckpoint(t *testing.T) {
	needs.GVisor(t)
	d := covetest.Start(t, covetest.Options{})
	golden := func() (dir string) {
		found, err := filepath.Glob(filepath.Join(d.StateDir, "engine/checkpoints/golden-*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			return ""
		}
		return found[0]
	}
	for _, name := range []string{"pages.img", "checkpoint.img"} {
		if !covetest.Eventually(2*time.Minute, func() bool { return golden() != "" }) { // as WaitGolden
			t.Fatal("no golden checkpoint is made")
		}
		if err := d.Stop(); err != nil {
			t.Fatal(err)
		}
		dir := golden()
		path := filepath.Join(dir, name)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		half := len(data) / 2
		copy(data[half:], bytes.Repeat([]byte{0}, len(data)-half))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := d.Create(t, sandbox.CreateRequest{})
		d.Shows(t, s.ID, "echo it lives", "it lives")
		if !covetest.Eventually(covetest.DetectionLimit, func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) }) {
			t.Errorf("the golden checkpoint with a damaged %s is kept", name)
		}
		if err := d.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := d.Run(t.Context()); err != nil { // this makes it again
			t.Fatal(err)
		}
	}
	if !covetest.Eventually(2*time.Minute, func() bool { return golden() != "" }) {
		t.Error("no golden checkpoint is made anew")
	}
	s := d.Create(t, sandbox.CreateRequest{})
	d.Shows(t, s.ID, "echo it lives", "it lives")
}
