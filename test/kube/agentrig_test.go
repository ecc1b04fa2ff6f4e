//go:build kube

package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/kubetest"
	"github.com/cove-sh/cove/sandbox"
)

// agentRig is the controller of agents.x-k8s.io between a real Kubernetes, without nodes,
// and a real server of Cove on this machine. It has the rights that the manifests give it.
type agentRig struct {
	*kubetest.Cluster
	test       *testing.T // the whole one
	cove       *covetest.Daemon
	dir        string
	kubeconfig string
	keyFile    string
	coveURL    string
	steps      *steps
	controller *exec.Cmd
	ended      chan struct{}
	log        *bytes.Buffer
	args       []string
	image      string // of a registry, with the program pause
}

// steps counts what the controller changes, in Kubernetes and in Cove. At the one that is
// asked for, the controller is killed: the step is done, and the controller does not know.
type steps struct {
	mu   sync.Mutex
	left int // 0 kills no more
	kill func()
}

func (s *steps) arm(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = n
}

// done counts a step, and reports whether the controller was killed at it.
func (s *steps) done(method string) bool {
	if method == http.MethodGet || method == http.MethodHead {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 {
		return false
	}
	if s.left--; s.left > 0 {
		return false
	}
	s.kill()
	return true
}

// proxy leads to a server, and counts the steps on the way back. Like the server, it speaks
// TLS or not: clients of Kubernetes send tokens by TLS only.
func (r *agentRig) proxy(t *testing.T, target string, transport http.RoundTripper) *httptest.Server {
	t.Helper()
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	p := &httputil.ReverseProxy{
		Rewrite:       func(req *httputil.ProxyRequest) { req.SetURL(to) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ModifyResponse: func(res *http.Response) error {
			if r.steps.done(res.Request.Method) {
				return errors.New("the controller was killed")
			}
			return nil
		},
	}
	server := httptest.NewUnstartedServer(p)
	if to.Scheme == "https" {
		server.StartTLS()
	} else {
		server.Start()
	}
	r.test.Cleanup(func() {
		server.CloseClientConnections() // of watches, which have no end
		server.Close()
	})
	return server
}

func startAgents(t *testing.T, args ...string) *agentRig {
	t.Helper()
	ctx := t.Context()
	root, err := covetest.Root()
	if err != nil {
		t.Fatal(err)
	}
	programs, err := kubetest.Build(ctx, root)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "cove-kube-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	images := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(images.Close)
	host := strings.TrimPrefix(images.URL, "http://")
	r := &agentRig{test: t, dir: dir, cove: covetest.Start(t, covetest.Options{Args: []string{"--insecure-registries", host}}), image: host + "/pause:1", steps: &steps{}, log: new(bytes.Buffer), args: args}
	r.steps.kill = func() { _ = r.controller.Process.Kill() }
	if r.Cluster, err = kubetest.Start(ctx, kubetest.Config{Programs: programs, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			var out bytes.Buffer
			_ = r.Kubectl(context.WithoutCancel(ctx), nil, &out, "get", "sandboxes,sandboxclaims,sandboxwarmpools", "-A", "-o", "yaml")
			t.Logf("the controller said:\n%s\n%s", r.log, out.String())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "cove-kubernetes"), ".")
	build.Dir = filepath.Join(root, "deploy/controller")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the controller: %v\n%s", err, out)
	}
	r.push(t, filepath.Join(programs, "pause.tar"))
	r.install(t, root)
	return r
}

// push puts the image that a file has into the registry.
func (r *agentRig) push(t *testing.T, file string) {
	t.Helper()
	img, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(r.image)
	if err == nil {
		err = remote.Write(ref, img, remote.WithContext(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// install applies the manifests, and makes what the controller needs to know.
func (r *agentRig) install(t *testing.T, root string) {
	t.Helper()
	deploy, err := filepath.Rel(r.dir, filepath.Join(root, "deploy/kustomize"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(r.dir, "kustomization.yaml"), "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: ["+deploy+"/base]\ncomponents: ["+deploy+"/components/agents]\n")
	r.kubectl(t, "apply", "-k", r.dir)
	r.kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=2m")
	key, err := r.cove.Client.CreateKey(t.Context(), sandbox.CreateKeyRequest{Name: "kubernetes", Scopes: []sandbox.Scope{sandbox.ScopeSandboxesWrite, sandbox.ScopeFilesWrite, sandbox.ScopeTemplatesWrite}})
	if err != nil {
		t.Fatal(err)
	}
	r.keyFile = filepath.Join(r.dir, "key")
	write(t, r.keyFile, key.Secret+"\n")
	token := r.kubectl(t, "-n", "cove", "create", "token", "cove-kubernetes", "--duration=2h")
	ca, err := os.ReadFile(filepath.Join(r.dir, "pki", "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	api := r.proxy(t, "https://10.88.0.1:6443", &http.Transport{DialContext: r.Dial, TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true})
	r.coveURL = r.proxy(t, r.cove.URL, http.DefaultTransport).URL
	r.kubeconfig = filepath.Join(r.dir, "controller.kubeconfig")
	write(t, r.kubeconfig, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %q}}]
users: [{name: test, user: {token: %q}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
current-context: test
`, api.URL, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})), token))
}

// start starts the controller.
func (r *agentRig) start(t *testing.T) {
	t.Helper()
	args := append([]string{"--kubeconfig", r.kubeconfig, "--cove-url", r.coveURL, "--cove-key-file", r.keyFile}, r.args...)
	cmd := exec.Command(filepath.Join(r.dir, "cove-kubernetes"), args...)
	cmd.Stdout, cmd.Stderr = r.log, r.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	r.controller, r.ended = cmd, ended
}

// kill kills the controller, if it runs.
func (r *agentRig) kill() {
	if r.controller != nil {
		_ = r.controller.Process.Kill()
		<-r.ended
	}
}

// dead reports whether the controller has ended.
func (r *agentRig) dead() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

func (r *agentRig) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := r.Kubectl(t.Context(), nil, &out, args...); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

func (r *agentRig) apply(t *testing.T, manifest string) {
	t.Helper()
	if err := r.Kubectl(t.Context(), strings.NewReader(manifest), io.Discard, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// object is what tests read of any object.
type object struct {
	Metadata struct {
		Name, UID           string
		Annotations, Labels map[string]string
	}
	Status struct {
		Conditions              []condition
		Sandbox                 struct{ Name string }
		Replicas, ReadyReplicas int
	}
}

type condition struct{ Type, Status, Reason, Message string }

func (o *object) condition(kind string) condition {
	for _, c := range o.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return condition{}
}

// list returns objects of a kind in the namespace default.
func (r *agentRig) list(t *testing.T, args ...string) []object {
	t.Helper()
	var list struct{ Items []object }
	if err := json.Unmarshal([]byte(r.kubectl(t, append([]string{"get", "-o", "json"}, args...)...)), &list); err != nil {
		t.Fatal(err)
	}
	return list.Items
}

func (r *agentRig) get(t *testing.T, kind, name string) (o object) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.kubectl(t, "get", kind, name, "-o", "json")), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

const slow = 3 * time.Minute

// await waits until an object has a condition.
func (r *agentRig) await(t *testing.T, kind, name, is, status, reason string) object {
	t.Helper()
	var o object
	if !covetest.Eventually(slow, func() bool {
		o = r.get(t, kind, name)
		c := o.condition(is)
		return c.Status == status && (reason == "" || c.Reason == reason)
	}) {
		t.Fatalf("%s %s: not %s=%s (%s): %+v", kind, name, is, status, reason, o.Status)
	}
	return o
}

// made returns the sandboxes of Cove that were ever made for an object.
func (r *agentRig) made(t *testing.T, uid string) []sandbox.Sandbox {
	t.Helper()
	list, err := r.cove.Client.List(t.Context(), sandbox.ListRequest{
		Metadata: map[string]string{"kubernetes.uid": uid},
		States:   []sandbox.State{sandbox.StateCreating, sandbox.StateRunning, sandbox.StatePaused, sandbox.StateStopping, sandbox.StateKilled, sandbox.StateFailed},
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}
