package pods_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/pods"
	"github.com/cove-sh/cove/sandbox"
)

var account = pods.Account{Namespace: "cove", Name: "cove-node"}

// own is the server's token for the API.
const own = "token-of-the-server"

// cluster returns a cluster whose API server is a handler.
func cluster(t *testing.T, api http.HandlerFunc) *pods.Cluster {
	t.Helper()
	s := httptest.NewTLSServer(api)
	t.Cleanup(s.Close)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "ca.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	write(t, filepath.Join(dir, "token"), own+"\n")
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pods.InCluster(func(name string) string {
		return map[string]string{"KUBERNETES_SERVICE_HOST": u.Hostname(), "KUBERNETES_SERVICE_PORT": u.Port()}[name]
	}, dir, account)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// good is the status of a review of a Pod of the pool.
const good = `{"authenticated": true, "audiences": ["cove-nodes"], "user": {"username": "system:serviceaccount:cove:cove-node", "extra": {
	"authentication.kubernetes.io/pod-name": ["cove-node-0"], "authentication.kubernetes.io/pod-uid": ["uid-1"]}}}`

func TestProve(t *testing.T) {
	const token = "token-of-a-pod"
	answer := func(w http.ResponseWriter, status string) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"kind": "TokenReview", "status": `+status+`}`)
	}
	tests := map[string]struct {
		api  http.HandlerFunc
		code sandbox.Code // "" if the Pod is proved
		want string
	}{
		"a Pod of the pool": {api: func(w http.ResponseWriter, r *http.Request) {
			var asked struct {
				APIVersion, Kind string
				Spec             struct {
					Token     string
					Audiences []string
				}
			}
			if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
				t.Error(err)
			}
			if r.Method != http.MethodPost || r.URL.Path != "/apis/authentication.k8s.io/v1/tokenreviews" || r.Header.Get("Authorization") != "Bearer "+own ||
				asked.APIVersion != "authentication.k8s.io/v1" || asked.Kind != "TokenReview" || asked.Spec.Token != token || len(asked.Spec.Audiences) != 1 || asked.Spec.Audiences[0] != pods.Audience {
				t.Errorf("the API was asked %s %s %+v", r.Method, r.URL, asked)
			}
			answer(w, good)
		}},
		"expired": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, `{"authenticated": false, "error": "token has expired"}`)
		}, sandbox.CodeUnauthenticated, "must not have expired"},
		"for another audience": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, strings.Replace(good, "cove-nodes", "vault", 1))
		}, sandbox.CodeUnauthenticated, "for the audience cove-nodes"},
		"without an audience": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, strings.Replace(good, `"cove-nodes"`, "", 1))
		}, sandbox.CodeUnauthenticated, "for the audience cove-nodes"},
		"of another namespace": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, strings.Replace(good, "cove:cove-node", "other:cove-node", 1))
		}, sandbox.CodeUnauthenticated, "only Pods of the ServiceAccount cove/cove-node"},
		"of another ServiceAccount": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, strings.Replace(good, "cove:cove-node", "cove:default", 1))
		}, sandbox.CodeUnauthenticated, "only Pods of the ServiceAccount cove/cove-node"},
		"of no Pod": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, strings.Replace(good, "pod-uid", "node-uid", 1))
		}, sandbox.CodeUnauthenticated, "not bound to a Pod"},
		"of two Pods": {func(w http.ResponseWriter, _ *http.Request) {
			answer(w, strings.Replace(good, `"cove-node-0"`, `"cove-node-0", "cove-node-1"`, 1))
		}, sandbox.CodeUnauthenticated, "not bound to a Pod"},
		"the server may not ask": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"message": "tokenreviews is forbidden"}`, http.StatusForbidden)
		}, sandbox.CodeUnavailable, "cannot check the Pod's token now"},
		"not JSON": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<html>")
		}, sandbox.CodeUnavailable, "cannot check the Pod's token now"},
		"without end": {func(w http.ResponseWriter, _ *http.Request) {
			for range 3 << 10 {
				if _, err := w.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		}, sandbox.CodeUnavailable, "cannot check the Pod's token now"},
		"elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://192.0.2.1/", http.StatusTemporaryRedirect)
		}, sandbox.CodeUnavailable, "cannot check the Pod's token now"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod, err := cluster(t, test.api).Prove(t.Context(), token)
			if test.code == "" {
				if err != nil || pod != (pods.Pod{Name: "cove-node-0", UID: "uid-1"}) {
					t.Errorf("got %+v, %v", pod, err)
				}
				return
			}
			if sandbox.CodeOf(err) != test.code || !strings.Contains(sandbox.MessageOf(err), test.want) {
				t.Errorf("got %v (%s), want %s: %s", err, sandbox.CodeOf(err), test.code, test.want)
			}
			if strings.Contains(err.Error(), token) || strings.Contains(err.Error(), own) {
				t.Errorf("a token is in the error %v", err)
			}
		})
	}
}

// TestSilentAPI asks an API server that does not answer.
func TestSilentAPI(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	c := cluster(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		cancel()
		<-r.Context().Done()
		close(ended)
	})
	if _, err := c.Prove(ctx, "token"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("got %v", err)
	}
	<-ended
}

// TestOutsideOfCluster starts a server that is in no Pod, or in one without credentials.
func TestOutsideOfCluster(t *testing.T) {
	if _, err := pods.InCluster(func(string) string { return "" }, t.TempDir(), account); !strings.Contains(sandbox.MessageOf(err), "does not run in a Pod") {
		t.Errorf("got %v", err)
	}
	if _, err := pods.InCluster(func(string) string { return "1" }, t.TempDir(), account); !strings.Contains(sandbox.MessageOf(err), "automountServiceAccountToken") {
		t.Errorf("got %v", err)
	}
}

// TestPublish writes what Pods mount.
func TestPublish(t *testing.T) {
	var got string
	c := cluster(t, func(_ http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		got = r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + string(data)
	})
	if err := c.Publish(t.Context(), "cove-nodes", "key", "value"); err != nil {
		t.Fatal(err)
	}
	if want := `PATCH /api/v1/namespaces/cove/configmaps/cove-nodes application/merge-patch+json {"data":{"key":"value"}}`; got != want {
		t.Errorf("the API was asked %s", got)
	}
}

// theirs is a Pod of a node.
var theirs = pods.Pod{Name: "cove-node-0", UID: "uid-1"}

// TestGone checks of which answers a Pod is believed to have ended for good.
func TestGone(t *testing.T) {
	answer := func(uid, phase string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kind": "Pod", "metadata": {"name": "cove-node-0", "uid": "`+uid+`"}, "status": {"phase": "`+phase+`"}}`)
		}
	}
	refuse := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"kind": "Status", "message": "that is why"}`, status)
		}
	}
	for name, tt := range map[string]struct {
		api  http.HandlerFunc
		gone bool
		want string // in the error; "" is none
	}{
		"running":                {api: answer("uid-1", "Running")},
		"pending":                {api: answer("uid-1", "Pending")},
		"failed":                 {api: answer("uid-1", "Failed"), gone: true},
		"succeeded":              {api: answer("uid-1", "Succeeded"), gone: true},
		"another with its name":  {api: answer("uid-2", "Running"), gone: true},
		"none":                   {api: refuse(http.StatusNotFound), gone: true},
		"the server may not ask": {refuse(http.StatusForbidden), false, `403 Forbidden: "that is why"`},
		"the API is broken":      {refuse(http.StatusInternalServerError), false, `500 Internal Server Error: "that is why"`},
		"not JSON": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<html>")
		}, false, "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			c := cluster(t, func(w http.ResponseWriter, r *http.Request) {
				asked++
				if data, _ := io.ReadAll(r.Body); r.Method != http.MethodGet || r.URL.String() != "/api/v1/namespaces/cove/pods/cove-node-0" || r.Header.Get("Authorization") != "Bearer "+own || len(data) > 0 {
					t.Errorf("the API was asked %s %s with %q", r.Method, r.URL, data)
				}
				tt.api(w, r)
			})
			exists, eerr := c.Exists(t.Context(), theirs)
			if want := tt.want == "" && (!tt.gone || name == "failed" || name == "succeeded"); exists != want || (eerr == nil) != (tt.want == "") {
				t.Errorf("exists is %t, %v, want %t", exists, eerr, want)
			}
			gone, err := c.Gone(t.Context(), theirs)
			if gone != tt.gone || (err == nil) != (tt.want == "") || asked != 2 {
				t.Errorf("gone is %t, %v, after %d requests, want %t", gone, err, asked, tt.gone)
			}
			if err != nil && (!strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), own)) {
				t.Errorf("the error is %v, want %q", err, tt.want)
			}
		})
	}
}

// TestDeleteConflict checks that a Pod counts as deleted if another has its name by now, and not if
// the API refuses for another reason.
func TestDeleteConflict(t *testing.T) {
	for uid, ok := range map[string]bool{"uid-1": false, "uid-2": true} {
		c := cluster(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				_, _ = io.WriteString(w, `{"metadata": {"uid": "`+uid+`"}, "status": {"phase": "Running"}}`)
				return
			}
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"kind": "Status", "message": "somebody changes it"}`)
		})
		if err := c.Delete(t.Context(), theirs); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "somebody changes it") {
			t.Errorf("the Pod of the name has the UID %s: %v", uid, err)
		}
	}
}

// TestDelete checks that one Pod is deleted and not another that has its name, and which
// answers are failures.
func TestDelete(t *testing.T) {
	for status, want := range map[int]string{ // in the error; "" is none
		http.StatusOK: "", http.StatusAccepted: "", http.StatusNotFound: "",
		http.StatusForbidden: `403 Forbidden: "pods is forbidden"`, http.StatusInternalServerError: `500 Internal Server Error: "pods is forbidden"`,
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			asked := 0
			c := cluster(t, func(w http.ResponseWriter, r *http.Request) {
				asked++
				data, _ := io.ReadAll(r.Body)
				got := r.Method + " " + r.URL.String() + " " + r.Header.Get("Authorization") + " " + r.Header.Get("Content-Type") + " " + string(data)
				if want := `DELETE /api/v1/namespaces/cove/pods/cove-node-0 Bearer ` + own + ` application/json {"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":"uid-1"}}`; got != want {
					t.Errorf("the API was asked %s, want %s", got, want)
				}
				w.WriteHeader(status)
				_, _ = io.WriteString(w, `{"kind": "Status", "message": "pods is forbidden"}`)
			})
			err := c.Delete(t.Context(), theirs)
			if (err == nil) != (want == "") || asked != 1 {
				t.Errorf("after %d requests: %v, want %q", asked, err, want)
			}
			if err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), own)) {
				t.Errorf("the error is %v, want %q", err, want)
			}
		})
	}
}
