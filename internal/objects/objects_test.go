package objects_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/objects"
	"github.com/cove-sh/cove/internal/objects/objectstest"
	"github.com/cove-sh/cove/internal/testing/s3test"
)

func TestDirectory(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) objects.Bucket { return openDirectory(t, t.TempDir()) })
}

func openDirectory(t *testing.T, dir string) objects.Bucket {
	t.Helper()
	b, err := objects.Open("file://"+dir, objects.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestS3(t *testing.T) {
	objectstest.Run(t, func(t *testing.T) objects.Bucket { return s3test.Start(t).Open(t) })
}

// A directory that is gone, such as a network disk that is not mounted, is not made.
func TestDirectoryVanishes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "disk")
	b := openDirectory(t, dir)
	if err := b.Put(t.Context(), "a", nil); !errors.Is(err, objects.ErrNoBucket) {
		t.Errorf("put: %v", err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("the directory was made")
	}
	failed := false
	for _, err := range b.List(t.Context(), "a/") {
		failed = errors.Is(err, objects.ErrNoBucket)
	}
	if !failed {
		t.Error("the list of a directory that is gone is empty")
	}
}

// What goes wrong on the way is an error, never other content, and the next try works.
func TestFaults(t *testing.T) {
	s := s3test.Start(t)
	b := s.Open(t)
	if err := b.Put(t.Context(), "a/b", []byte("content")); err != nil {
		t.Fatal(err)
	}
	for name, fault := range map[string]s3test.Fault{
		"unavailable": s3test.Unavailable, "reset": s3test.Reset, "torn": s3test.TornUploads,
		"short": func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				return false
			}
			w.Header().Set("Content-Length", "7")
			_, _ = w.Write([]byte("con"))
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.Break(fault)
			perr := b.Put(t.Context(), "a/b", []byte("other"))
			data, gerr := b.Get(t.Context(), "a/b", 100)
			s.Break(nil)
			if name != "short" && perr == nil {
				t.Error("put succeeds")
			}
			if name != "torn" && gerr == nil {
				t.Errorf("get returns %q", data)
			}
			for _, err := range []error{perr, gerr} {
				if err != nil && (strings.Contains(err.Error(), s3test.SecretKey) || errors.Is(err, objects.ErrNotFound)) {
					t.Errorf("the error is %v", err)
				}
			}
			if err := b.Put(t.Context(), "a/b", []byte("content")); err != nil {
				t.Error(err)
			}
			if data, err := b.Get(t.Context(), "a/b", 100); err != nil || string(data) != "content" {
				t.Errorf("afterwards: %q, %v", data, err)
			}
		})
	}
	if err := os.RemoveAll(s.Dir); err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "a/b", nil); !errors.Is(err, objects.ErrNoBucket) {
		t.Errorf("put into a bucket that is gone: %v", err)
	}
}

// Wrong credentials are refused with an error that does not have them.
func TestCredentials(t *testing.T) {
	s := s3test.Start(t)
	b, err := objects.Open(s.Address(), objects.Options{Endpoint: s.Endpoint, Env: s3test.Variables([]string{"AWS_ACCESS_KEY_ID=" + s3test.AccessKey, "AWS_SECRET_ACCESS_KEY=wrong-s3cret"})})
	if err != nil {
		t.Fatal(err)
	}
	err = b.Put(t.Context(), "a", nil)
	if err == nil || strings.Contains(err.Error(), "wrong-s3cret") || !strings.Contains(err.Error(), "refuses the credentials") {
		t.Errorf("got %v", err)
	}
	// Those of a file.
	file := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(file, []byte("[team]\naws_access_key_id = "+s3test.AccessKey+"\naws_secret_access_key = "+s3test.SecretKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err = objects.Open(s.Address(), objects.Options{Env: s3test.Variables([]string{"AWS_ENDPOINT_URL=" + s.Endpoint, "AWS_SHARED_CREDENTIALS_FILE=" + file, "AWS_PROFILE=team"})})
	if err == nil {
		err = b.Put(t.Context(), "a", nil)
	}
	if err != nil {
		t.Error(err)
	}
}

func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"s3://bucket": "s3://bucket", "s3://bucket/": "s3://bucket", "s3://a.bucket/some/Prefix_1/": "s3://a.bucket/some/Prefix_1", "file:///mnt/x/../y": "file:///mnt/y",
	} {
		if a, err := objects.ParseAddress(address); err != nil || a.String() != want {
			t.Errorf("%s is %v, %v; want %s", address, a, err, want)
		}
	}
	for _, address := range []string{
		"", "bucket", "s3://", "s3://B", "s3://user:passw0rd@bucket/x", "s3://bucket/../x", "s3://bucket/a//b", "s3://bucket/x?y", "file://host/x", "file:x", "http://bucket/x", "s3://bucket/a b",
	} {
		if a, err := objects.ParseAddress(address); err == nil || strings.Contains(err.Error(), "passw0rd") {
			t.Errorf("%q is %v, %v", address, a, err)
		}
	}
	for _, endpoint := range []string{"s3.example.com", "ftp://s3.example.com", "https://", "https://a:b@s3.example.com", "https://s3.example.com/x"} {
		if _, err := objects.ParseEndpoint(endpoint); err == nil {
			t.Errorf("the endpoint %q is taken", endpoint)
		}
	}
}
