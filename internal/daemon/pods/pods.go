// Package pods asks the API server of a Kubernetes cluster which Pod a token belongs to and
// whether a Pod has ended, and has Pods end.
//
// It speaks the few calls that this needs itself: client-go adds 19 MB to a program, and 6 ms
// before main, which each sandbox would pay three times.
package pods

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// Audience is that of the tokens with which Pods join. A token for another audience,
	// such as the API server, is not accepted.
	Audience = "cove-nodes"
	// DefaultDir is where each Pod has the credentials of its ServiceAccount.
	DefaultDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	// Timeout bounds a call to the API server.
	Timeout = 10 * time.Second
	// maxAnswer bounds its answer, in bytes.
	maxAnswer = 1 << 20
)

// Account is the name of a ServiceAccount.
type Account struct{ Namespace, Name string }

// String returns NAMESPACE/NAME.
func (a Account) String() string { return a.Namespace + "/" + a.Name }

// Pod is a Pod that has proved who it is. Name is unique at each time, and UID for ever.
type Pod struct{ Name, UID string }

// Cluster is the API server of the cluster in which this process runs. Its methods are safe
// for concurrent use.
type Cluster struct {
	base *url.URL
	dir  string
	http *http.Client
	// account is whose Pods are accepted.
	account Account
}

// InCluster finds the API server by the variables and files that a Pod has. dir is usually
// [DefaultDir].
func InCluster(env func(string) string, dir string, account Account) (*Cluster, error) {
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "this server does not run in a Pod, so it cannot check tokens of Pods; leave out --nodes-service-account")
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("this Pod has no credentials for the cluster's API (%v); set automountServiceAccountToken: true for the server's Pod", err))
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(dir, "ca.crt"))
	}
	return &Cluster{
		base: &url.URL{Scheme: "https", Host: net.JoinHostPort(host, port)}, dir: dir, account: account,
		http: &http.Client{
			Transport:     &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}, DisableKeepAlives: true, ForceAttemptHTTP2: false},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// review is what is used of a TokenReview of authentication.k8s.io/v1.
type review struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Spec       reviewSpec   `json:"spec"`
	Status     reviewStatus `json:"status,omitzero"`
}

type reviewSpec struct {
	Token     string   `json:"token"`
	Audiences []string `json:"audiences"`
}

type reviewStatus struct {
	Authenticated bool     `json:"authenticated"`
	Audiences     []string `json:"audiences"`
	User          struct {
		Username string              `json:"username"`
		Extra    map[string][]string `json:"extra"`
	} `json:"user"`
}

// Prove returns the Pod that a token was issued to. The API server checks that the token is
// valid, and that the Pod exists. Tokens of other ServiceAccounts are refused, and those
// that belong to no Pod.
func (c *Cluster) Prove(ctx context.Context, token string) (Pod, error) {
	var answer review
	err := c.call(ctx, http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", "application/json", review{
		APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview", Spec: reviewSpec{token, []string{Audience}},
	}, &answer)
	if err != nil {
		return Pod{}, sandbox.Wrap(sandbox.CodeUnavailable, err, "the cluster's API cannot check the Pod's token now; the server's log says why")
	}
	s := &answer.Status
	if !s.Authenticated || !slices.Contains(s.Audiences, Audience) {
		return Pod{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the cluster does not accept the Pod's token; it must be of a Pod that exists, must not have expired, and must be for the audience %s", Audience)
	}
	if want := "system:serviceaccount:" + c.account.Namespace + ":" + c.account.Name; s.User.Username != want {
		return Pod{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the token is that of %.200q, but only Pods of the ServiceAccount %s can join", s.User.Username, c.account)
	}
	pod := Pod{one(s.User.Extra["authentication.kubernetes.io/pod-name"]), one(s.User.Extra["authentication.kubernetes.io/pod-uid"])}
	if pod.Name == "" || pod.UID == "" {
		return Pod{}, sandbox.Errorf(sandbox.CodeUnauthenticated, "the token is not bound to a Pod; use one that is projected into the Pod")
	}
	return pod, nil
}

func one(values []string) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// Publish writes a value into a ConfigMap that exists, in the namespace of the
// ServiceAccount, for Pods to mount.
func (c *Cluster) Publish(ctx context.Context, configMap, key, value string) error {
	path := "/api/v1/namespaces/" + c.account.Namespace + "/configmaps/" + configMap
	return c.call(ctx, http.MethodPatch, path, "application/merge-patch+json", map[string]any{"data": map[string]string{key: value}}, nil)
}

// Exists reports whether a Pod exists, whatever its state.
func (c *Cluster) Exists(ctx context.Context, pod Pod) (bool, error) {
	exists, _, err := c.look(ctx, pod)
	return exists, err
}

// Gone reports whether a Pod has ended for good: it does not exist any more, or its containers
// are not started again.
func (c *Cluster) Gone(ctx context.Context, pod Pod) (bool, error) {
	exists, phase, err := c.look(ctx, pod)
	return err == nil && (!exists || phase == "Failed" || phase == "Succeeded"), err
}

// look returns whether a Pod exists, and its phase.
func (c *Cluster) look(ctx context.Context, pod Pod) (exists bool, phase string, err error) {
	var answer struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
		Status struct {
			Phase string `json:"phase"`
		} `json:"status"`
	}
	err = c.call(ctx, http.MethodGet, c.podPath(pod), "application/json", nil, &answer)
	if is(err, http.StatusNotFound) {
		return false, "", nil
	}
	return err == nil && answer.Metadata.UID == pod.UID, answer.Status.Phase, err
}

// Delete has a Pod end, with the time that it may take for that. Another Pod that has its name
// by now stays. That the Pod does not exist is not an error.
func (c *Cluster) Delete(ctx context.Context, pod Pod) error {
	type preconditions struct {
		UID string `json:"uid"`
	}
	err := c.call(ctx, http.MethodDelete, c.podPath(pod), "application/json", struct {
		APIVersion    string        `json:"apiVersion"`
		Kind          string        `json:"kind"`
		Preconditions preconditions `json:"preconditions"`
	}{"v1", "DeleteOptions", preconditions{pod.UID}}, nil)
	switch {
	case is(err, http.StatusNotFound):
		return nil
	case is(err, http.StatusConflict): // another Pod has the name, or somebody changes this one
		if gone, gerr := c.Gone(ctx, pod); gerr == nil && gone {
			return nil
		}
	}
	return err
}

func (c *Cluster) podPath(pod Pod) string {
	return "/api/v1/namespaces/" + c.account.Namespace + "/pods/" + pod.Name
}

// refusal is an answer of the API server other than that all is well.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string {
	return fmt.Sprintf("the cluster's API answers %d %s: %s", r.status, http.StatusText(r.status), r.message)
}

// is reports whether an error is an answer with this status.
func is(err error, status int) bool {
	r, ok := errors.AsType[*refusal](err)
	return ok && r.status == status
}

// call makes a request with the Pod's own token, which the kubelet replaces from time to
// time. The error never has the request in it.
func (c *Cluster) call(ctx context.Context, method, path, kind string, body, answer any) error {
	own, err := os.ReadFile(filepath.Join(c.dir, "token"))
	if err != nil {
		return err
	}
	var data []byte
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base.JoinPath(path).String(), bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(own)))
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Accept", "application/json")
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask the cluster's API: %w", err)
	}
	defer res.Body.Close()
	data, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("read the answer of the cluster's API: %w", err)
	}
	if len(data) > maxAnswer {
		return errors.New("the answer of the cluster's API is too large")
	}
	if res.StatusCode/100 != 2 {
		return &refusal{res.StatusCode, message(data)}
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("the answer of the cluster's API is not valid: %w", err)
	}
	return nil
}

// message returns the sentence in a Status of the API.
func message(data []byte) string {
	var status struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(data, &status)
	return fmt.Sprintf("%.300q", status.Message)
}
