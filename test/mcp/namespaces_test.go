package mcp

import (
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// inNamespace is a client of a daemon that works in a namespace, or says nothing
// of it.
func inNamespace(d *covetest.Daemon, namespace string) door {
	args := []string{"--toolsets", "all"}
	if namespace != "" {
		args = append(args, "--namespace", namespace)
	}
	return door{"stdio", sessionRevision, func() mcp.Transport { return &mcp.CommandTransport{Command: coveMCP(d, args...)} }}
}

// Only clients in the same namespace see, use or end what a client in a namespace
// makes. The command line sees everything.
func TestNamespaces(t *testing.T) {
	d := daemon(t, covetest.Options{Dev: true})
	owner := inNamespace(d, "claude").open(t)
	box := owner.ok("sandbox_create", map[string]any{"name": "secret"}).text("id")
	job := owner.ok("sandbox_exec", map[string]any{"sandbox": box, "shell": "echo hidden | tee file"}).text("job_id")
	uri := owner.ok("file_read", map[string]any{"sandbox": box, "path": "file"}).text("uri")
	plain := d.Client // of the whole team

	overHTTP := func(namespace string) door {
		client := &http.Client{Transport: headers{"Cove-Namespace": namespace}}
		if namespace == "" {
			client = nil
		}
		return door{"HTTP", sessionRevision, func() mcp.Transport {
			return &mcp.StreamableClientTransport{Endpoint: d.URL + "/mcp" + everything, HTTPClient: client}
		}}
	}
	// Each makes a sandbox with the same name, in its own namespace.
	for name, o := range map[string]door{"another": inNamespace(d, "cursor"), "none": inNamespace(d, ""), "another over HTTP": overHTTP("zed")} {
		t.Run(name, func(t *testing.T) { testStranger(t, o.open(t), box, job, uri) })
	}
	overHTTP("").open(t).refused("sandbox_kill", map[string]any{"sandbox": box}, "not_found", "there is no sandbox")
	for name, o := range map[string]door{
		"the same": inNamespace(d, "claude"), "all": inNamespace(d, "*"), "the same over HTTP": overHTTP("claude"), "all over HTTP": overHTTP("*"),
	} {
		t.Run(name, func(t *testing.T) {
			got := o.open(t).ok("sandbox_exec", map[string]any{"sandbox": "secret", "shell": "cat file"}).text("stdout")
			if got != "hidden\n" {
				t.Errorf("the file holds %q", got)
			}
		})
	}

	other := inNamespace(d, "").open(t).ok("sandbox_create", map[string]any{"name": "secret"}).text("id")
	ls := func(args ...string) string {
		t.Helper()
		out, err := d.Command(t.Context(), append([]string{"ls"}, args...)...).Output()
		needs.NoError(t, err)
		return string(out)
	}
	if all := ls(); !strings.Contains(all, box) || !strings.Contains(all, other) || !strings.Contains(all, "NAMESPACE") || !strings.Contains(all, "claude") {
		t.Errorf("cove ls says\n%s", all)
	}
	if own := ls("--namespace", "default"); strings.Contains(own, box) || !strings.Contains(own, other) || strings.Contains(own, "NAMESPACE") {
		t.Errorf("cove ls --namespace default says\n%s", own)
	}
	// A session stays where it began.
	stay(t, d, box)

	inNamespace(d, "claude").open(t).ok("sandbox_kill", map[string]any{"sandbox": "secret"})
	if sb, err := plain.Get(t.Context(), box); err != nil || !sb.State.Final() {
		t.Errorf("afterwards it is %+v, %v", sb, err)
	}
	if sb, err := plain.Get(t.Context(), other); err != nil || sb.State.Final() {
		t.Errorf("the other is %+v, %v", sb, err)
	}
}

// stay uses a session of one namespace from another.
func stay(t *testing.T, d *covetest.Daemon, box string) {
	t.Helper()
	w := &web{t: t, url: d.URL + "/mcp", headers: map[string]string{"Cove-Namespace": "cursor"}}
	first, _, _ := strings.Cut(hello, "\n")
	res := w.do(t.Context(), http.MethodPost, first)
	id := res.Header.Get("Mcp-Session-Id")
	if res.StatusCode != http.StatusOK || id == "" {
		t.Fatalf("%s, session %q", res.Status, id)
	}
	w.headers = map[string]string{"Cove-Namespace": "claude", "Mcp-Session-Id": id}
	res = w.do(t.Context(), http.MethodPost, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"sandbox_kill","arguments":{"sandbox":"`+box+`"}}}`)
	if res.StatusCode < 400 {
		t.Errorf("a session of another namespace answers %s", res.Status)
	}
}

// headers are sent with each request.
type headers map[string]string

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range h {
		r.Header.Set(name, value)
	}
	return http.DefaultTransport.RoundTrip(r)
}
