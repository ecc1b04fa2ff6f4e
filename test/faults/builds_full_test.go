package faults

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// bigFile is the size of a file in an image or written by a step.
const bigFile = 48 << 20

// bigArchive writes an image with one big file.
func bigArchive(t *testing.T, path string) {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "opt/big", Mode: 0o644, Size: bigFile})
	if err == nil {
		_, err = io.CopyN(w, rand.Reader, bigFile)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil }
	l, err := tarball.LayerFromOpener(open, tarball.WithCompressionLevel(1))
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		t.Fatal(err)
	}
	conf, err := img.ConfigFile()
	if err == nil {
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, RootFS: conf.RootFS})
	}
	if err == nil {
		err = tarball.WriteToFile(path, name.MustParseReference("big:1"), img)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The directories in which a daemon keeps and builds templates.
func templateFiles(t *testing.T, state string) []string {
	t.Helper()
	var list []string
	for _, dir := range []string{"tmp", "layers", "rootfs", "manifests", "cache"} {
		entries, err := os.ReadDir(filepath.Join(state, "templates", dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, dir+"/"+e.Name())
		}
	}
	return list
}

// The disk of the server becomes full during a build, while an image is
// unpacked and while the changes of a step are kept, or is full before: the
// build fails and says why, nothing of it is left, sandboxes live on, and with
// room the same build succeeds.
func TestDiskFullInBuild(t *testing.T) {
	needs.GVisor(t)
	needs.Root(t) // for a file system of a size
	dir, images := smallDisk(t, "", 512), t.TempDir()
	archive := filepath.Join(images, "big.tar")
	bigArchive(t, archive)
	d := covetest.Start(t, covetest.Options{StateDir: dir, Args: []string{"--warm", "0", "--template-paths", images}})
	small := sandbox.Resources{VCPUs: 1, MemoryMiB: 256}
	host := sandbox.TemplateSource{Host: true}
	start := func(spec sandbox.TemplateSpec, told func()) *sandbox.Build {
		t.Helper()
		spec.Resources = small
		b, err := d.Client.StartBuild(t.Context(), sandbox.BuildTemplateRequest{Name: "big", Spec: &spec})
		if err != nil {
			t.Fatal(err)
		}
		b, err = d.Client.FollowBuild(t.Context(), b.ID, func(sandbox.BuildEvent) error { told(); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// What every build makes is made.
	if b := start(sandbox.TemplateSpec{From: host, Run: []sandbox.TemplateStep{{Run: "echo first"}}}, func() {}); b.State != sandbox.BuildReady {
		t.Fatalf("the first build: %+v", b)
	}
	if err := d.Client.DeleteTemplate(t.Context(), "big"); err != nil {
		t.Fatal(err)
	}
	other := d.Create(t, covetest.Small())
	step := sandbox.TemplateSpec{From: host, Run: []sandbox.TemplateStep{{Run: "head -c 48M /dev/urandom > /opt/big; echo written"}}}
	for _, c := range []struct {
		name string
		spec sandbox.TemplateSpec
		left int
	}{
		{"image", sandbox.TemplateSpec{From: sandbox.TemplateSource{Archive: archive}}, 24 << 20},
		{"step", step, 24 << 20},
		{"command", sandbox.TemplateSpec{From: host, Run: []sandbox.TemplateStep{{Run: "head -c 48M /dev/urandom > /opt/big && echo all"}}}, 24 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := templateFiles(t, dir)
			var groups []string
			fill(t, dir, c.left)
			b := start(c.spec, func() { groups = append(groups, d.Groups()...) })
			t.Logf("%s: %s", b.State, b.Reason)
			if b.State != sandbox.BuildFailed || !strings.Contains(b.Reason, "disk is full") || strings.Contains(b.Reason, dir) {
				t.Errorf("%s: %q, want one that failed since the disk is full", b.State, b.Reason)
			}
			if err := d.Tidy(t.Context(), groups, time.Minute); err != nil {
				t.Error(err)
			}
			if after := templateFiles(t, dir); !slices.Equal(before, after) {
				t.Errorf("there were %v, and after the build %v", before, after)
			}
			d.Shows(t, other.ID, "echo here", "here")
			fill(t, dir, -1)
			now, err := d.Client.GetBuild(t.Context(), b.ID)
			if err != nil || now.State != sandbox.BuildFailed || now.Reason != b.Reason {
				t.Errorf("the record is %+v, %v", now, err)
			}
			if b = start(c.spec, func() {}); b.State != sandbox.BuildReady {
				t.Fatalf("with room again: %+v", b)
			}
			if c.spec.From.Host {
				s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Template = "big" }))
				d.Shows(t, s.ID, "wc -c < /opt/big", "50331648")
				if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
					t.Error(err)
				}
			}
			if err := d.Client.DeleteTemplate(context.WithoutCancel(t.Context()), "big"); err != nil {
				t.Error(err)
			}
		})
	} // A build that ends on a full disk, which has no room for its record either.
	t.Run("end", func(t *testing.T) {
		waits := sandbox.TemplateSpec{From: host, Resources: small, Run: []sandbox.TemplateStep{{Run: "echo begun; sleep 600"}}}
		b, err := d.Client.StartBuild(t.Context(), sandbox.BuildTemplateRequest{Name: "waits", Spec: &waits})
		if err != nil {
			t.Fatal(err)
		}
		enough := errors.New("enough")
		_, err = d.Client.FollowBuild(t.Context(), b.ID, func(e sandbox.BuildEvent) error {
			if strings.Contains(e.Log, "begun") {
				return enough
			}
			return nil
		})
		if err != enough {
			t.Fatal(err)
		}
		groups := d.Groups()
		fill(t, dir, 0)
		_, cancelled := d.Client.CancelBuild(t.Context(), b.ID)
		now, err := d.Client.GetBuild(t.Context(), b.ID)
		fill(t, dir, -1)
		if cancelled != nil || err != nil || now.State != sandbox.BuildCancelled {
			t.Errorf("cancelled on a full disk: %v; it is %+v, %v", cancelled, now, err)
		}
		if err := d.Tidy(t.Context(), groups, time.Minute); err != nil {
			t.Error(err)
		}
		// With room the record is written, without anybody's doing.
		recorded := func() bool {
			state, err := buildState(t.Context(), dir, b.ID)
			return err == nil && state == sandbox.BuildCancelled
		}
		if !covetest.Eventually(time.Minute, recorded) {
			t.Error("the end of the build is not recorded")
		}
	})
}

// buildState reads the state of a build from the database of a daemon.
func buildState(ctx context.Context, dir, id string) (state sandbox.BuildState, err error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "cove.db")+"?_busy_timeout=10000")
	if err != nil {
		return "", err
	}
	defer db.Close()
	err = db.QueryRowContext(ctx, "SELECT state FROM builds WHERE id = ?", id).Scan(&state)
	return state, err
}
