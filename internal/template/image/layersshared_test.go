package image

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSharedLayersFinishConcurrently finishes templates that share layers at the same time.
func TestSharedLayersFinishConcurrently(t *testing.T) {
	p := newProvider(t, "")
	info, err := p.addLayer(t.Context(), "", "", opener(archive(t, file("f", "x"))))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if err := writeLayerInfo(p.layers.layerDir(info.Digest), info, ""); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	left, err := filepath.Glob(filepath.Join(p.layers.layerDir(info.Digest), "*.new*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestLayerOfAnotherSource checks that a source which claims to have a layer, but never
// finishes sending it or sends another, does not affect other sources.
func TestLayerOfAnotherSource(t *testing.T) {
	p := newProvider(t, "")
	data := archive(t, file("f", "x"))
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := p.addLayer(ctx, digestOf(data), "registry.example/slow", func(ctx context.Context) (io.ReadCloser, error) {
			close(begun)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the slow one: %v", err)
		}
	})
	<-begun
	if _, err := p.addLayer(t.Context(), digestOf(data), "registry.example/good", opener(data)); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
}

// TestSparseFile checks that a few bytes do not fill the disk.
func TestSparseFile(t *testing.T) {
	p := newProvider(t, "")
	const size = 256 << 20
	info, err := p.addLayer(t.Context(), "", "", opener(sparseFile(t, size)))
	if err != nil || info.Bytes != size {
		t.Fatalf("%+v, %v", info, err)
	}
	var st unix.Stat_t
	f := filepath.Join(p.layers.layerDir(info.Digest), layerFilesDir, storedName(0))
	if err := unix.Stat(f, &st); err != nil || st.Size != size || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes take %d, %v", st.Size, st.Blocks*512, err)
	}
	w, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// Data stays at its offset.
	content := append(make([]byte, 200<<10), "end"...)
	r, pw := io.Pipe()
	go func() { _, err := pw.Write(content); pw.CloseWithError(err) }()
	if n, err := fillFile(w, holes{r}, int64(len(content))); err != nil || n != int64(len(content)) {
		t.Errorf("%d, %v", n, err)
	}
	if got, err := os.ReadFile(w.Name()); err != nil || string(got) != string(content) {
		t.Errorf("%d bytes are not what was written, %v", len(got), err)
	}
}
