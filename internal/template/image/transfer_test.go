package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

const transferred = "sha256-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestTransfer checks that a root is the same on another machine.
func TestTransfer(t *testing.T) {
	from, to := newProvider(t, ""), newProvider(t, "")
	dir := from.rootfsDir(transferred)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755), os.Mkdir(filepath.Join(dir, "locked"), 0o700),
		os.WriteFile(filepath.Join(dir, "usr/bin/tool"), []byte("#!/bin/sh\n"), 0o755), os.Chmod(filepath.Join(dir, "usr/bin/tool"), 0o755|fs.ModeSetuid),
		os.Link(filepath.Join(dir, "usr/bin/tool"), filepath.Join(dir, "usr/bin/alias")), os.Symlink("/etc/passwd", filepath.Join(dir, "usr/link")),
		os.WriteFile(filepath.Join(dir, "locked/large"), bytes.Repeat([]byte("x"), 3<<20), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var stream bytes.Buffer
	if err := from.PackRoot(t.Context(), transferred, &stream); err != nil {
		t.Fatal(err)
	}
	damaged := errors.New("damaged")
	if err := to.UnpackRoot(t.Context(), transferred, bytes.NewReader(stream.Bytes()), func() error { return damaged }); !errors.Is(err, damaged) || to.HasRoot(transferred) {
		t.Errorf("a root that is not the right one: %v", err)
	}
	if err := to.UnpackRoot(t.Context(), transferred, bytes.NewReader(stream.Bytes()[:stream.Len()/2]), func() error { return nil }); err == nil || to.HasRoot(transferred) {
		t.Errorf("half a root: %v", err)
	}
	if err := to.UnpackRoot(t.Context(), transferred, bytes.NewReader(stream.Bytes()), func() error { return nil }); err != nil || !to.HasRoot(transferred) {
		t.Fatal(err)
	}
	copied := to.rootfsDir(transferred)
	info, err := os.Stat(filepath.Join(copied, "usr/bin/tool"))
	if err != nil || info.Mode() != 0o755|fs.ModeSetuid {
		t.Errorf("the tool: %v, %v", info.Mode(), err)
	}
	if alias, err := os.Stat(filepath.Join(copied, "usr/bin/alias")); err != nil || !os.SameFile(info, alias) {
		t.Errorf("the other name: %v", err)
	}
	if link, err := os.Readlink(filepath.Join(copied, "usr/link")); link != "/etc/passwd" {
		t.Errorf("the link: %q, %v", link, err)
	}
	if locked, err := os.Stat(filepath.Join(copied, "locked")); err != nil || locked.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", locked.Mode(), err)
	}
	if large, err := os.ReadFile(filepath.Join(copied, "locked/large")); len(large) != 3<<20 {
		t.Errorf("the large file has %d bytes, %v", len(large), err)
	}
	if removed, err := to.Collect(map[string]bool{transferred: true}); err != nil || len(removed) > 0 {
		t.Errorf("collected in use: %v, %v", removed, err)
	}
	to.recent = 0
	to.used = map[string]time.Time{}
	if removed, err := to.Collect(nil); err != nil || len(removed) != 1 {
		t.Errorf("not collected: %v, %v", removed, err)
	}
}

// TestTransferHostile checks digests and archives that no server of ours sends.
func TestTransferHostile(t *testing.T) {
	p := newProvider(t, "")
	for _, digest := range []string{"", "../../etc", "sha256-xyz", transferred} {
		if err := p.PackRoot(t.Context(), digest, new(bytes.Buffer)); sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("PackRoot %q: %v", digest, err)
		}
	}
	if err := p.UnpackRoot(t.Context(), "../../etc", strings.NewReader(""), func() error { return nil }); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("UnpackRoot: %v", err)
	}
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	if err := tw.WriteHeader(&tar.Header{Name: "../outside", Typeflag: tar.TypeReg}); err != nil {
		t.Fatal(err)
	}
	if err := p.UnpackRoot(t.Context(), transferred, &out, func() error { return nil }); sandbox.CodeOf(err) != sandbox.CodeInvalid || p.HasRoot(transferred) {
		t.Errorf("UnpackRoot of an archive that leads out: %v", err)
	}
}

// TestBound checks that directories of a machine are taken only from where they are on it.
func TestBound(t *testing.T) {
	p := newProvider(t, fakeMachine(t))
	if _, err := p.Locate(t.Context(), transferred, []engine.Bind{{Target: "/nowhere"}}); sandbox.CodeOf(err) != sandbox.CodeUnsupported {
		t.Errorf("Locate: %v", err)
	}
}
