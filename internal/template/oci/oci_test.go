package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	kgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/cove-sh/cove/sandbox"
)

// tarOf makes a layer's content.
func tarOf(t testing.TB, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))})
		if err == nil {
			_, err = io.WriteString(w, files[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gz(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := kgzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zst(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(data, nil)
}

// layerOf is a layer whose content is served in some encoding.
type layerOf struct {
	v1.Layer
	diff v1.Hash
}

func (l layerOf) DiffID() (v1.Hash, error) { return l.diff, nil }

func hashOf(data []byte) v1.Hash {
	h := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h[:])}
}

func newLayer(plain, sent []byte, mt types.MediaType) v1.Layer {
	return layerOf{static.NewLayer(sent, mt), hashOf(plain)}
}

// imageOf makes an image with a layer in each form, for a platform.
func imageOf(t testing.TB, arch string) (v1.Image, []string) {
	t.Helper()
	noise := make([]byte, 300<<10)
	_, _ = rand.Read(noise)
	contents := [][]byte{tarOf(t, map[string]string{"a": "1 " + arch, "noise": string(noise)}), tarOf(t, map[string]string{"b": "2"}), tarOf(t, map[string]string{"c": "3"})}
	img, err := mutate.AppendLayers(empty.Image,
		newLayer(contents[0], gz(t, contents[0]), types.DockerLayer), newLayer(contents[1], zst(t, contents[1]), types.OCILayerZStd), newLayer(contents[2], contents[2], types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	conf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	conf = conf.DeepCopy()
	conf.OS, conf.Architecture = "linux", arch
	conf.Config = v1.Config{Env: []string{"PATH=/x", "A=b=c", "novalue"}, WorkingDir: "srv/../app/", User: "1000:1000",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "53/udp": {}, "9": {}, "x/tcp": {}, "70000/tcp": {}}}
	if img, err = mutate.ConfigFile(img, conf); err != nil {
		t.Fatal(err)
	}
	var plain []string
	for _, c := range contents {
		plain = append(plain, string(c))
	}
	return img, plain
}

// harness is a registry that lets a test intercept requests.
type harness struct {
	*httptest.Server
	host string
	mu   sync.Mutex
	// under mu
	asked   []string
	meddle  func(w http.ResponseWriter, r *http.Request) bool
	account string
}

func newHarness(t testing.TB, secure bool) *harness {
	t.Helper()
	w := &harness{}
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithReferrersSupport(true))
	w.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		meddle, account := w.meddle, w.account
		w.asked = append(w.asked, r.Method+" "+r.URL.Path)
		w.mu.Unlock()
		if user, pass, _ := r.BasicAuth(); account != "" && user+":"+pass != account {
			rw.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			http.Error(rw, "who are you?", http.StatusUnauthorized)
			return
		}
		if meddle == nil || !meddle(rw, r) {
			real.ServeHTTP(rw, r)
		}
	}))
	w.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		w.StartTLS()
	} else {
		w.Start()
	}
	t.Cleanup(w.Close)
	w.host = strings.TrimPrefix(strings.TrimPrefix(w.URL, "https://"), "http://")
	return w
}

func (w *harness) set(meddle func(http.ResponseWriter, *http.Request) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.meddle = meddle
}

func (w *harness) authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.Certificate().Raw})
}

// push puts something into the registry and returns its reference.
func (w *harness) push(t testing.TB, repo string, what remote.Taggable) string {
	t.Helper()
	ref, err := name.ParseReference(w.host+"/"+repo, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	tr := http.DefaultTransport
	if w.TLS != nil {
		tr = w.Client().Transport
	}
	opts := []remote.Option{remote.WithTransport(tr)}
	if user, pass, ok := strings.Cut(w.account, ":"); ok {
		opts = append(opts, remote.WithAuth(&authn.Basic{Username: user, Password: pass}))
	}
	switch what := what.(type) {
	case v1.Image:
		err = remote.Write(ref, what, opts...)
	case v1.ImageIndex:
		err = remote.WriteIndex(ref, what, opts...)
	default:
		err = remote.Put(ref, what, opts...)
	}
	if err != nil {
		t.Fatal(err)
	}
	return w.host + "/" + repo
}

func noProxy(*http.Request) (*url.URL, error) { return nil, nil }

func client(t testing.TB, cfg Config) *Registries {
	t.Helper()
	if cfg.Proxy == nil {
		cfg.Proxy = noProxy
	}
	cfg.Backoff = time.Millisecond
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// read reads all layers of an image and compares.
func read(t testing.TB, img *Image, want []string) {
	t.Helper()
	if len(img.Layers) != len(want) {
		t.Fatalf("%d layers, want %d", len(img.Layers), len(want))
	}
	for i := range img.Layers {
		got, err := readLayer(t.Context(), &img.Layers[i])
		if err != nil || got != want[i] {
			t.Errorf("layer %d: %d bytes, want %d; %v", i, len(got), len(want[i]), err)
		}
		if img.Layers[i].DiffID != hashOf([]byte(want[i])).String() {
			t.Errorf("layer %d is %s", i, img.Layers[i].DiffID)
		}
	}
}

func readLayer(ctx context.Context, l *Layer) (string, error) {
	r, err := l.Open(ctx, func(int64) {})
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return string(data), err
}

var wantSettings = Settings{Env: map[string]string{"PATH": "/x", "A": "b=c"}, WorkDir: "/app", User: "1000:1000", Ports: []int{9, 8080}}

func wantCode(t testing.TB, err error, code sandbox.Code, text string) {
	t.Helper()
	if sandbox.CodeOf(err) != code || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("got %v (%s), want %s with %q", err, sandbox.CodeOf(err), code, text)
	}
}

func TestRegistry(t *testing.T) {
	w := newHarness(t, true)
	w.account = "me:secret"
	img, plain := imageOf(t, platform.Architecture)
	other, _ := imageOf(t, "s390x")
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}},
		mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: platform.Architecture}}},
		mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}},
	)
	refs := map[string]string{
		"tag": w.push(t, "org/app:1", img), "index": w.push(t, "org/many:latest", index),
		"digest": w.host + "/org/app@" + digest.String(), "no tag": w.host + "/org/many",
	}
	foreign := w.push(t, "org/foreign:1", other)
	onlyForeign := w.push(t, "org/foreign:2", mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: other, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "s390x"}}}))
	artifact := w.push(t, "org/chart:1", mutate.ConfigMediaType(img, "application/vnd.cncf.helm.config.v1+json"))

	// Credentials are those of a Docker configuration.
	dir := t.TempDir()
	conf := fmt.Sprintf(`{"auths":{%q:{"username":"me","password":"secret"}}}`, w.host)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	r := client(t, Config{Private: []string{w.host}, ExtraCA: w.authority()})
	for name, ref := range refs {
		t.Run(name, func(t *testing.T) {
			got, err := r.Resolve(t.Context(), ref, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.Digest != digest.String() {
				t.Errorf("digest %s, want %s", got.Digest, digest)
			}
			if d := cmp.Diff(wantSettings, got.Config); d != "" {
				t.Errorf("configuration (-want +got):\n%s", d)
			}
			read(t, got, plain)
		})
	}
	resolve := func(r *Registries, ref string) error {
		_, err := r.Resolve(t.Context(), ref, nil)
		return err
	}
	wantCode(t, resolve(r, foreign), sandbox.CodeInvalid, "it is for linux/s390x, not for linux/")
	wantCode(t, resolve(r, onlyForeign), sandbox.CodeInvalid, "it is for linux/s390x")
	wantCode(t, resolve(r, artifact), sandbox.CodeInvalid, "not a container image")
	wantCode(t, resolve(r, w.host+"/org/none:1"), sandbox.CodeNotFound, "has no image")
	wantCode(t, resolve(r, w.host+"/org/app@sha256:"+strings.Repeat("0", 64)), sandbox.CodeNotFound, "has no image")
	for _, ref := range []string{"", "UPPER/x:1", "a b", "x@sha256:12", strings.Repeat("x", 1000), "../x", "http://x/y", "x:y:z"} {
		wantCode(t, resolve(r, ref), sandbox.CodeInvalid, "image")
	}

	// Clients that do not trust the certificate, have no login, or may not reach the
	// address.
	wantCode(t, resolve(client(t, Config{Private: []string{w.host}}), refs["tag"]), sandbox.CodeUnavailable, "certificate")
	wantCode(t, resolve(client(t, Config{ExtraCA: w.authority()}), refs["tag"]), sandbox.CodeForbidden, "registries.private")
	if err := resolve(client(t, Config{Insecure: []string{w.host}}), refs["tag"]); err != nil {
		t.Errorf("a certificate that nobody vouches for, of an insecure registry: %v", err)
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	wantCode(t, resolve(client(t, Config{Private: []string{w.host}, ExtraCA: w.authority()}), refs["tag"]), sandbox.CodeForbidden, "docker login")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Resolve(ctx, refs["tag"], nil); sandbox.CodeOf(err) != sandbox.CodeCancelled {
		t.Errorf("cancelled: %v", err)
	}
}

// TestInternalAddresses checks that nothing leads to the server's own network, whoever
// points there.
func TestInternalAddresses(t *testing.T) {
	metadata := newHarness(t, false) // must not be reachable
	w := newHarness(t, false)
	img, plain := imageOf(t, platform.Architecture)
	ref := w.push(t, "app:1", img)
	_, port, _ := net.SplitHostPort(metadata.host)
	r := client(t, Config{Insecure: []string{w.host}})
	resolve := func(ref string) error {
		got, err := r.Resolve(t.Context(), ref, nil)
		if err == nil {
			_, err = readLayer(t.Context(), &got.Layers[0])
		}
		return err
	}
	for _, host := range []string{metadata.host, "localhost:" + port, "[::1]:" + port, "[::ffff:127.0.0.1]:" + port, "169.254.169.254", "10.0.0.1", "0.0.0.0:" + port, "192.168.0.1:80", "[fd00::1]:5000"} {
		if err := resolve(host + "/app:1"); sandbox.CodeOf(err) != sandbox.CodeForbidden && sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", host, err)
		}
	}
	// A plain HTTP registry that is not listed as insecure.
	wantCode(t, func() error {
		_, err := client(t, Config{Private: []string{w.host}}).Resolve(t.Context(), ref, nil)
		return err
	}(), sandbox.CodeForbidden, "registries.insecure")
	ways := map[string]func(http.ResponseWriter, *http.Request) bool{
		"redirect of a manifest": func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/manifests/") {
				http.Redirect(rw, r, metadata.URL+"/latest", http.StatusTemporaryRedirect)
				return true
			}
			return false
		},
		"redirect of a blob": func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(rw, r, "http://localhost:"+port+"/latest", http.StatusTemporaryRedirect)
				return true
			}
			return false
		},
		"redirect of the greeting": func(rw http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/" {
				http.Redirect(rw, r, metadata.URL, http.StatusFound)
				return true
			}
			return false
		},
		"token server": func(rw http.ResponseWriter, r *http.Request) bool {
			rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="http://localhost:%s/token",service="x"`, port))
			http.Error(rw, "", http.StatusUnauthorized)
			return true
		},
		"another scheme": func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "/blobs/") {
				http.Redirect(rw, r, "file:///etc/passwd", http.StatusTemporaryRedirect)
				return true
			}
			return false
		},
	}
	for name, meddle := range ways {
		w.set(meddle)
		if err := resolve(ref); err == nil {
			t.Errorf("%s: the image was read", name)
		}
	}
	w.set(nil)
	metadata.mu.Lock()
	asked := metadata.asked
	metadata.mu.Unlock()
	if len(asked) > 0 {
		t.Errorf("what nobody may reach was asked: %v", asked)
	}

	// The same holds through a proxy, and public names go through it.
	var viaProxy []string
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		viaProxy = append(viaProxy, r.Host)
		http.Error(rw, "no", http.StatusBadGateway)
	}))
	defer proxy.Close()
	at, _ := url.Parse(proxy.URL)
	p := client(t, Config{Proxy: func(*http.Request) (*url.URL, error) { return at, nil }})
	p.transport.lookup = func(_ context.Context, _, host string) (addrs []netip.Addr, err error) {
		return map[string][]netip.Addr{"rebound.example.com": {netip.MustParseAddr("127.0.0.1")}}[host], nil
	}
	for _, host := range []string{"169.254.169.254", "localhost:80", "metadata.google.internal", "printer.local", "2130706433:80", "rebound.example.com", "x.localhost"} {
		_, err := p.Resolve(t.Context(), host+"/app:1", nil)
		if code := sandbox.CodeOf(err); code != sandbox.CodeForbidden && code != sandbox.CodeInvalid {
			t.Errorf("%s by a proxy: %v", host, err)
		}
	}
	if len(viaProxy) > 0 {
		t.Errorf("the proxy was asked for %v", viaProxy)
	}
	_, err := p.Resolve(t.Context(), "registry.example.com/app:1", nil)
	if len(viaProxy) == 0 {
		t.Errorf("the proxy was not asked for a public name: %v", err)
	}
	_ = plain
}

func TestMirrors(t *testing.T) {
	origin, first, second := newHarness(t, false), newHarness(t, false), newHarness(t, false)
	img, plain := imageOf(t, platform.Architecture)
	ref := origin.push(t, "org/app:1", img)
	second.push(t, "cache/org/app:1", img)
	r := client(t, Config{
		Mirrors:  map[string][]string{origin.host: {first.host, second.host + "/cache/"}},
		Insecure: []string{origin.host, first.host, second.host},
	})
	got, err := r.Resolve(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := len(origin.asked)
	read(t, got, plain)
	if len(origin.asked) != before || !slices.Contains(first.asked, "GET /v2/org/app/manifests/1") {
		t.Errorf("the registry was asked %v, the mirror %v", origin.asked, first.asked)
	}
	// A mirror that loses a layer, or stops, is replaced by the next.
	second.set(func(rw http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.NotFound(rw, r)
		}
		return strings.Contains(r.URL.Path, "/blobs/")
	})
	read(t, got, plain)
	second.Close()
	if got, err = r.Resolve(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	read(t, got, plain)

	hub := client(t, Config{Mirrors: map[string][]string{"docker.io": {origin.host}}, Insecure: []string{origin.host}})
	origin.push(t, "library/busybox:1", img)
	if got, err = hub.Resolve(t.Context(), "busybox:1", nil); err != nil {
		t.Fatal(err)
	}
	read(t, got, plain)
	for _, m := range []string{"https://x", "", "a b"} {
		if _, err := New(Config{Mirrors: map[string][]string{"x.example": {m}}}); err == nil {
			t.Errorf("the mirror %q was accepted", m)
		}
	}
}

// TestBrokenAnswers serves something other than what was stored.
func TestBrokenAnswers(t *testing.T) {
	w := newHarness(t, false)
	img, plain := imageOf(t, platform.Architecture)
	ref := w.push(t, "app:1", img)
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	first := manifest.Layers[0].Digest.String()
	r := client(t, Config{Insecure: []string{w.host}})
	answer := func(part string, body func(rw http.ResponseWriter, r *http.Request)) error {
		w.set(func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, part) && r.Method == http.MethodGet {
				body(rw, r)
				return true
			}
			return false
		})
		defer w.set(nil)
		got, err := r.Resolve(t.Context(), ref, nil)
		if err == nil {
			_, err = readLayer(t.Context(), &got.Layers[0])
		}
		return err
	}
	bytesOf := func(data []byte) func(http.ResponseWriter, *http.Request) {
		return func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(data) }
	}
	altered := *manifest.DeepCopy()
	altered.Layers[0].Size = 1 << 50
	huge, _ := json.Marshal(altered)
	altered = *manifest.DeepCopy()
	altered.Layers = altered.Layers[:1]
	few, _ := json.Marshal(altered)
	altered = *manifest.DeepCopy()
	altered.Layers[0].Digest.Algorithm = "md5"
	weak, _ := json.Marshal(altered)
	sent := gz(t, []byte(plain[0]))
	bad := bytes.Clone(sent)
	bad[len(bad)/2] ^= 1
	for name, err := range map[string]error{
		"layer with a changed byte":    answer(first, bytesOf(bad)),
		"another layer":                answer(first, bytesOf(gz(t, []byte(plain[1])))),
		"longer layer":                 answer(first, bytesOf(append(bytes.Clone(sent), make([]byte, 1000)...))),
		"configuration of another":     answer(manifest.Config.Digest.Hex, bytesOf([]byte("{}"))),
		"configuration without an end": answer(manifest.Config.Digest.Hex, bytesOf(bytes.Repeat([]byte(" "), maxConfig+10))),
		"manifest of a huge layer":     answer("/manifests/", bytesOf(huge)),
		"manifest of too few layers":   answer("/manifests/", bytesOf(few)),
		"manifest with weak digests":   answer("/manifests/", bytesOf(weak)),
		"manifest without an end":      answer("/manifests/", bytesOf(bytes.Repeat([]byte(" "), maxManifest+10))),
		"manifest of nonsense":         answer("/manifests/", bytesOf([]byte(`{"layers": 5}`))),
		"index without an end":         answer("/manifests/", bytesOf([]byte(`{"manifests":[]}`))),
	} {
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantCode(t, answer("/manifests/", func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "", http.StatusTooManyRequests) }), sandbox.CodeUnavailable, "limits")

	// A connection that breaks repeatedly is resumed where it broke; if the server does not
	// support that, the error is temporary.
	ranges := 0
	breaking := func(honourRange bool) func(http.ResponseWriter, *http.Request) {
		return func(rw http.ResponseWriter, req *http.Request) {
			var from int
			if _, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-", &from); err == nil && honourRange {
				ranges++
				rw.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(sent)-1, len(sent)))
			} else {
				from = 0
			}
			rw.Header().Set("Content-Length", fmt.Sprint(len(sent)-from))
			if from > 0 {
				rw.WriteHeader(http.StatusPartialContent)
			}
			_, _ = rw.Write(sent[from:min(len(sent), from+100<<10)])
			if from+100<<10 < len(sent) {
				panic(http.ErrAbortHandler)
			}
		}
	}
	if err := answer(first, breaking(true)); err != nil || ranges != 3 {
		t.Errorf("taken up %d times: %v", ranges, err)
	}
	if err := answer(first, breaking(false)); !Temporary(err) {
		t.Errorf("%v is not temporary", err)
	}

	// A server that stops sending is given up.
	r = client(t, Config{Insecure: []string{w.host}, Stall: 100 * time.Millisecond, Backoff: time.Millisecond})
	hanging := func(rw http.ResponseWriter, req *http.Request) {
		rw.Header().Set("Content-Length", fmt.Sprint(len(sent)))
		_, _ = rw.Write(sent[:100])
		_ = http.NewResponseController(rw).Flush()
		<-req.Context().Done()
	}
	if err := answer(first, hanging); !Temporary(err) {
		t.Errorf("one that hangs: %v is not temporary", err)
	}
	wantCode(t, answer("/manifests/", hanging), sandbox.CodeUnavailable, "in time")
}
