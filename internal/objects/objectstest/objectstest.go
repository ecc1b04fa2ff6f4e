// Package objectstest is the test suite of [objects.Bucket], which every implementation
// must pass.
package objectstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/objects"
)

// Run runs the suite. fresh returns an empty bucket.
func Run(t *testing.T, fresh func(t *testing.T) objects.Bucket) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, objects.Bucket)
	}{
		{"PutAndGet", testPutAndGet},
		{"Replace", testReplace},
		{"Absent", testAbsent},
		{"TooLarge", testTooLarge},
		{"Names", testNames},
		{"List", testList},
		{"Concurrent", testConcurrent},
		{"Cancelled", testCancelled},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, fresh(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, b objects.Bucket, name, want string) {
	t.Helper()
	got, err := b.Get(t.Context(), name, int64(len(want)))
	if err != nil || string(got) != want {
		t.Errorf("%s is %.40q, %v; want %.40q", name, got, err, want)
	}
}

func testPutAndGet(t *testing.T, b objects.Bucket) {
	for name, data := range map[string]string{"a": "one", "a-dir/b/c-1": strings.Repeat("x", 3<<20), "empty": ""} {
		// Several times, so that requests follow each other on one connection.
		for range 5 {
			must(t, b.Put(t.Context(), name, []byte(data)))
			get(t, b, name, data)
		}
		before := time.Now().Add(-time.Minute)
		must(t, b.Put(t.Context(), name, []byte(data)))
		get(t, b, name, data)
		info, err := b.Stat(t.Context(), name)
		if err != nil || info.Name != name || info.Size != int64(len(data)) || info.Modified.Before(before) {
			t.Errorf("%s is %+v, %v", name, info, err)
		}
	}
}

func testReplace(t *testing.T, b objects.Bucket) {
	must(t, b.Put(t.Context(), "a/b", []byte("the long old one")))
	must(t, b.Put(t.Context(), "a/b", []byte("new")))
	get(t, b, "a/b", "new")
}

func testAbsent(t *testing.T, b objects.Bucket) {
	if _, err := b.Get(t.Context(), "a/none", 10); !errors.Is(err, objects.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	if _, err := b.Stat(t.Context(), "a/none"); !errors.Is(err, objects.ErrNotFound) {
		t.Errorf("stat: %v", err)
	}
	must(t, b.Delete(t.Context(), []string{"a/none"}))
	must(t, b.Put(t.Context(), "a/one", []byte("1")))
	must(t, b.Delete(t.Context(), []string{"a/none", "a/one"}))
	if _, err := b.Get(t.Context(), "a/one", 10); !errors.Is(err, objects.ErrNotFound) {
		t.Errorf("get of a removed object: %v", err)
	}
}

func testTooLarge(t *testing.T, b objects.Bucket) {
	must(t, b.Put(t.Context(), "a", bytes.Repeat([]byte("x"), 1000)))
	if _, err := b.Get(t.Context(), "a", 999); !errors.Is(err, objects.ErrTooLarge) {
		t.Errorf("get of 1000 bytes with a limit of 999: %v", err)
	}
}

// Attack: names that lead elsewhere.
func testNames(t *testing.T, b objects.Bucket) {
	for _, name := range []string{"", "/a", "a/", "../a", "a/../b", ".a", "A", "a b", "a\x00", strings.Repeat("a", objects.MaxName+1)} {
		if err := b.Put(t.Context(), name, nil); err == nil {
			t.Errorf("put takes the name %.20q", name)
		}
		if _, err := b.Get(t.Context(), name, 1); err == nil || errors.Is(err, objects.ErrNotFound) {
			t.Errorf("get takes the name %.20q: %v", name, err)
		}
		if err := b.Delete(t.Context(), []string{name}); err == nil {
			t.Errorf("delete takes the name %.20q", name)
		}
	}
}

func list(t *testing.T, b objects.Bucket, prefix string) []string {
	t.Helper()
	var names []string
	for info, err := range b.List(t.Context(), prefix) {
		must(t, err)
		if info.Size != 1 || info.Modified.IsZero() {
			t.Errorf("listed as %+v", info)
		}
		names = append(names, info.Name)
	}
	slices.Sort(names)
	return names
}

func testList(t *testing.T, b objects.Bucket) {
	var want []string
	for i := range 1010 { // more than one page
		want = append(want, fmt.Sprintf("many/%02x/%d", i%256, i))
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, name := range append(want, "manyothers/1", "other") {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := b.Put(t.Context(), name, []byte("1")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	slices.Sort(want)
	if got := list(t, b, "many/"); !slices.Equal(got, want) {
		t.Errorf("%d of %d objects are listed", len(got), len(want))
	}
	if got := list(t, b, "none/"); len(got) > 0 {
		t.Errorf("listed: %v", got)
	}
	for range b.List(t.Context(), "many/") {
		break // which is allowed
	}
}

func testConcurrent(t *testing.T, b objects.Bucket) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 5 {
				if err := b.Put(t.Context(), "same", bytes.Repeat([]byte{byte('a' + i)}, 100)); err != nil {
					t.Error(err)
				}
				data, err := b.Get(t.Context(), "same", 100)
				if err != nil || len(data) != 100 || !bytes.Equal(data, bytes.Repeat(data[:1], 100)) {
					t.Errorf("got a mixture: %q, %v", data, err)
				}
			}
		})
	}
	wg.Wait()
}

func testCancelled(t *testing.T, b objects.Bucket) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Put(ctx, "a", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("put: %v", err)
	}
	if _, err := b.Get(ctx, "a", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("get: %v", err)
	}
	failed := false
	for _, err := range b.List(ctx, "a/") {
		failed = failed || errors.Is(err, context.Canceled)
	}
	if !failed {
		t.Error("a cancelled list looks complete")
	}
}
