// Package s3test runs a real S3 server on loopback for tests. The server is the program
// test/objects/server, a module of its own. What tests have go wrong goes wrong on the way
// to it: [Server] is a proxy that can break every request.
package s3test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sh/cove/internal/objects"
	"github.com/cove-sh/cove/internal/testing/covetest"
)

// AccessKey and SecretKey are the credentials of the server, Bucket the bucket that it has.
const (
	AccessKey = "cove-access"
	SecretKey = "cove-s3cret-of-the-bucket"
	Bucket    = "checkpoints"
)

// Server is a running S3 server behind a proxy.
type Server struct {
	// Endpoint is the address of the proxy.
	Endpoint string
	// Dir is the directory of the bucket.
	Dir string

	fault atomic.Pointer[Fault]
}

// Fault makes a request go wrong. It returns whether it has answered the request itself.
type Fault func(w http.ResponseWriter, r *http.Request) (answered bool)

// program is an open file of the server, which is built once and has no name any more.
var program = sync.OnceValues(func() (*os.File, error) {
	root, err := covetest.Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "cove-s3-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "server")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Dir = filepath.Join(root, "test", "objects", "server")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the S3 server: %w\n%s", err, out)
	}
	return os.Open(path)
})

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	file, err := program()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{}
	root := t.TempDir()
	s.Dir = filepath.Join(root, Bucket)
	if err := os.Mkdir(s.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), "-dir", root, "-access", AccessKey)
	cmd.Env = append(os.Environ(), "SECRET="+SecretKey)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // it ends with that
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(out)
	addr, found := "", false
	for !found {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the S3 server does not start: %v", err)
		}
		addr, found = strings.CutPrefix(line, "listening ")
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	target := &url.URL{Scheme: "http", Host: strings.TrimSpace(addr)}
	s.await(t, target)
	front := httptest.NewServer(s.handler(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}))
	t.Cleanup(front.Close)
	s.Endpoint = front.URL
	return s
}

// await waits until the server answers.
func (s *Server) await(t testing.TB, at *url.URL) {
	ok := covetest.Eventually(time.Minute, func() bool {
		req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, at.String(), http.NoBody)
		if err != nil {
			return false
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		return res.Body.Close() == nil
	})
	if !ok {
		t.Fatal("the S3 server does not answer")
	}
}

func (s *Server) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := s.fault.Load(); f != nil && (*f)(w, r) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Break makes requests go wrong from now on; nil ends that.
func (s *Server) Break(f Fault) {
	if f == nil {
		s.fault.Store(nil)
		return
	}
	s.fault.Store(&f)
}

// Unavailable answers every request with an error of the server.
func Unavailable(w http.ResponseWriter, _ *http.Request) bool {
	http.Error(w, "<Error><Code>SlowDown</Code><Message>busy</Message></Error>", http.StatusServiceUnavailable)
	return true
}

// SlowChunks delays the answers to requests for chunks of checkpoints.
func SlowChunks(_ http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/chunks/") {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-r.Context().Done():
		}
	}
	return false
}

// Reset breaks every connection.
func Reset(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }

// TornUploads takes half of what is uploaded and then breaks the connection.
func TornUploads(_ http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodPut {
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2)
		panic(http.ErrAbortHandler)
	}
	return false
}

// OtherContent answers reads with as many bytes of something else.
func OtherContent(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || r.URL.RawQuery != "" {
		return false
	}
	data := bytes.Repeat([]byte("x"), 100)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
	_, _ = w.Write(data)
	return true
}

// Env returns the environment of a program that uses the server.
func (s *Server) Env() []string {
	return []string{
		"COVE_OBJECTS=" + s.Address(), "AWS_ENDPOINT_URL_S3=" + s.Endpoint, "AWS_ACCESS_KEY_ID=" + AccessKey, "AWS_SECRET_ACCESS_KEY=" + SecretKey,
	}
}

// Address is that of the bucket, with a prefix.
func (s *Server) Address() string { return "s3://" + Bucket + "/test" }

// Open returns the bucket.
func (s *Server) Open(t testing.TB) objects.Bucket {
	t.Helper()
	b, err := objects.Open(s.Address(), objects.Options{Endpoint: s.Endpoint, Env: Variables(s.Env())})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Variables returns a function that looks up variables.
func Variables(env []string) func(string) string {
	return func(name string) string {
		for _, v := range env {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	}
}
