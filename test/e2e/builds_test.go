package e2e

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// While templates are built, other sandboxes come, work and go, and neither
// notices the other.
// In "make test-all", TestTemplateBuilds and TestMoreManyClients stand for it.
func TestSoakBuildsBesideSandboxes(t *testing.T) {
	covetest.Shared(t, func(t *testing.T, d *covetest.Daemon) {
		const builds = sandbox.MaxTeamBuilds
		var begun, ended sync.WaitGroup
		var building atomic.Int32
		building.Store(builds)
		begun.Add(builds)
		for n := range builds {
			template := fmt.Sprintf("beside-%d", n)
			spec := sandbox.TemplateSpec{
				From: sandbox.TemplateSource{Host: true}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 256},
				Run: []sandbox.TemplateStep{
					{Run: fmt.Sprintf("echo begun; mkdir /opt/d; for i in $(seq 100); do echo $i of %d > /opt/d/$i; done", n)},
					{Run: "head -c 4M /dev/urandom > /opt/big; sha256sum /opt/big > /opt/sum"},
				},
			}
			ended.Go(func() {
				defer building.Add(-1)
				tell := sync.OnceFunc(begun.Done)
				defer tell()
				b, err := d.Client.StartBuild(t.Context(), sandbox.BuildTemplateRequest{Name: template, Spec: &spec})
				if err == nil {
					b, err = d.Client.FollowBuild(t.Context(), b.ID, func(e sandbox.BuildEvent) error {
						if strings.Contains(e.Log, "begun") {
							tell()
						}
						return nil
					})
				}
				if err != nil || b.State != sandbox.BuildReady {
					t.Errorf("%s: %+v, %v", template, b, err)
				}
			})
		}
		begun.Wait()
		var beside atomic.Int32
		for range 2 {
			ended.Go(func() {
				for round := 0; round == 0 || building.Load() > 0; round++ {
					s, err := d.Client.Create(t.Context(), covetest.Small())
					if err != nil {
						t.Errorf("create: %v", err)
						return
					}
					res, err := d.Exec(t.Context(), s.ID, sandbox.ExecRequest{Shell: "echo $((6 * 7)); ls /opt"})
					if err != nil || res.Stdout != "42\ncove\n" && res.Stdout != "42\n" {
						t.Errorf("exec: %+v, %v", res, err)
					}
					if _, err := d.Client.Kill(t.Context(), s.ID); err != nil {
						t.Errorf("kill: %v", err)
					}
					beside.Add(1)
				}
			})
		}
		ended.Wait()
		t.Logf("%d sandboxes beside the builds", beside.Load())
		for n := range builds {
			template := fmt.Sprintf("beside-%d", n)
			s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Template = template }))
			d.Shows(t, s.ID, "sha256sum --quiet -c /opt/sum; cat /opt/d/100; ls /opt/d | wc -l", fmt.Sprintf("100 of %d\n100", n))
			if err := d.Client.DeleteTemplate(t.Context(), template); err != nil {
				t.Error(err)
			}
		}
		nothingOfBuilds(t, d)
	})
}

// stalling is a registry that sends half of each large blob of some repositories
// and no more.
type stalling struct {
	registry http.Handler
	mu       sync.Mutex
	hit      map[string]chan struct{} // by repository, closed when one stalls; guarded by mu
}

// stall has the blobs of a repository stall, until release.
func (s *stalling) stall(repo string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hit[repo] = make(chan struct{})
	return s.hit[repo]
}

func (s *stalling) release(repo string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.hit, repo)
}

// ServeHTTP implements [http.Handler].
func (s *stalling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	repo, _, isBlob := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/"), "/blobs/")
	s.mu.Lock()
	hit := s.hit[repo]
	s.mu.Unlock()
	if !isBlob || r.Method != http.MethodGet || hit == nil {
		s.registry.ServeHTTP(w, r)
		return
	}
	rec := httptest.NewRecorder()
	s.registry.ServeHTTP(rec, r)
	body := rec.Body.Bytes()
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(rec.Code)
	if len(body) < 64<<10 {
		_, _ = w.Write(body)
		return
	}
	_, _ = w.Write(body[:len(body)/2])
	w.(http.Flusher).Flush()
	s.mu.Lock()
	if s.hit[repo] == hit {
		select {
		case <-hit:
		default:
			close(hit)
		}
	}
	s.mu.Unlock()
	<-r.Context().Done()
}

// shellImage makes an image of the machine's own shell, and further empty files.
func shellImage(t *testing.T, more ...string) v1.Image {
	t.Helper()
	dir := t.TempDir()
	machineRoot(t, dir)
	var headers []tar.Header
	var contents [][]byte
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		headers = append(headers, tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(path, dir+"/"), Mode: 0o755})
		contents = append(contents, data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range more {
		headers = append(headers, tar.Header{Typeflag: tar.TypeReg, Name: f, Mode: 0o644})
	}
	return ociImage(t, v1.Config{}, headers, contents...)
}

// The daemon is killed in the middle of the download of an image, and in the middle of a step.
// The next one says that the build has failed, nothing is left of it, and the same template can
// be built. In "make test", TestBuildLost of package service, and TestTemplateBuilds, which
// cancels a build, stand for it.
func TestMoreDaemonDiesInBuild(t *testing.T) {
	reg := &stalling{registry: registry.New(registry.Logger(log.New(io.Discard, "", 0))), hit: map[string]chan struct{}{}}
	server := httptest.NewServer(reg)
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	hangs, ready := shellImage(t, "hang"), shellImage(t)
	covetest.Own(t, func(t *testing.T, d *covetest.Daemon) {
		repo := strings.ToLower(filepath.Base(t.Name()))
		push := func(img v1.Image) {
			ref, err := name.ParseReference(host+"/"+repo+":1", name.Insecure)
			if err == nil {
				err = remote.Write(ref, img)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		spec := sandbox.TemplateSpec{
			From: sandbox.TemplateSource{Image: host + "/" + repo + ":1"}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 256},
			Run: []sandbox.TemplateStep{{Run: "echo begun; while test -e /hang; do :; done; echo built > /made"}},
		}
		start := func() string {
			t.Helper()
			b, err := d.Client.StartBuild(t.Context(), sandbox.BuildTemplateRequest{Name: "cut-off", Spec: &spec})
			if err != nil {
				t.Fatal(err)
			}
			return b.ID
		}
		dies := func(id string) {
			t.Helper()
			d.Kill()
			if err := d.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			b, err := d.Client.GetBuild(t.Context(), id)
			if err != nil || b.State != sandbox.BuildFailed || !strings.Contains(b.Reason, "build it again") || b.EndedAt == nil {
				t.Errorf("after the restart: %+v, %v", b, err)
			}
			nothingOfBuilds(t, d)
			_, err = d.Client.GetTemplate(t.Context(), "cut-off")
			covetest.WantCode(t, err, sandbox.CodeNotFound)
		}

		push(hangs)
		stalled := reg.stall(repo)
		id := start()
		select {
		case <-stalled:
		case <-time.After(2 * time.Minute):
			t.Fatal("the image is not fetched")
		}
		dies(id)
		reg.release(repo)

		id = start()
		enough := errors.New("enough")
		_, err := d.Client.FollowBuild(t.Context(), id, func(e sandbox.BuildEvent) error {
			if strings.Contains(e.Log, "begun") {
				return enough
			}
			return nil
		})
		if err != enough {
			t.Fatalf("follow until the step runs: %v", err)
		}
		groups := d.Groups()
		dies(id)
		if err := d.Tidy(t.Context(), groups, time.Minute); err != nil {
			t.Error(err)
		}

		push(ready)
		mustBuild(t, d, "cut-off", spec)
		s := d.Create(t, covetest.Small(func(r *sandbox.CreateRequest) { r.Template = "cut-off" }))
		d.Shows(t, s.ID, "read a < /made; echo $a", "built")
	}, "--insecure-registries", host, "--warm", "0")
}
