package rest_test

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

// changing returns the operations that have a body, as "METHOD /path", with
// their ids, as the document says.
func changing(t *testing.T) map[string]string {
	t.Helper()
	text, err := rest.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			OperationID string `yaml:"operationId"`
			RequestBody any    `yaml:"requestBody"`
		}
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for path, methods := range doc.Paths {
		for method, o := range methods {
			if o.RequestBody != nil {
				found[strings.ToUpper(method)+" "+path] = o.OperationID
			}
		}
	}
	if len(found) < 30 {
		t.Fatalf("only %d operations have a body", len(found))
	}
	return found
}

// do sends a request as a caller.
func do(t *testing.T, h http.Handler, c sandbox.Caller, operation, contentType, body string) (int, string) {
	t.Helper()
	method, path, _ := strings.Cut(operation, " ")
	path = regexp.MustCompile(`\{port\}|\{pid\}`).ReplaceAllString(path, "1")
	path = regexp.MustCompile(`\{[a-z]+\}`).ReplaceAllString(path, "none")
	r := httptest.NewRequestWithContext(sandbox.WithCaller(t.Context(), c), method, path, strings.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// A missing scope is reported before the body is read, and the required scope is the
// one that the service requires.
func TestScopeBeforeBody(t *testing.T) {
	svc := newService(t)
	var denied []string
	h := rest.New(rest.Config{Service: svc, Denied: func(ctx context.Context, operation string) {
		denied = append(denied, operation)
		svc.Denied(ctx, operation)
	}})
	missing := regexp.MustCompile(`lacks the scope \\"([a-z:]+)\\"`)
	operations := changing(t)
	for _, o := range slices.Sorted(maps.Keys(operations)) {
		nobody := sandbox.Caller{KeyID: "key-x", Team: "red", Scopes: []sandbox.Scope{"none"}}
		status, body := do(t, h, nobody, o, "application/json", `{"no such member":`)
		found := missing.FindStringSubmatch(body)
		if status != http.StatusForbidden || found == nil {
			t.Errorf("%s without a scope: %d %s", o, status, body)
			continue
		}
		nobody.Scopes = []sandbox.Scope{sandbox.Scope(found[1])}
		if status, body := do(t, h, nobody, o, "application/json", `{}`); status == http.StatusForbidden {
			t.Errorf("%s with %s, which it asks for: %s", o, found[1], body)
		}
	}
	if len(denied) != len(operations)-1 || slices.Contains(denied, "diff") {
		t.Errorf("%d operations were denied and told, of %d that change something: %v", len(denied), len(operations)-1, denied)
	}
	admin := sandbox.Caller{KeyID: "key-a", Team: "red", Scopes: []sandbox.Scope{sandbox.ScopeAdmin}}
	events, err := svc.Audit(sandbox.WithCaller(t.Context(), admin), sandbox.AuditRequest{Page: sandbox.Page{Limit: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(events.Items, func(e sandbox.AuditEvent) bool {
		return e.Action == "create-sandbox" && e.Code == sandbox.CodeForbidden && e.KeyID == "key-x"
	}) {
		t.Error("the audit record does not say that somebody without the scope tried to create a sandbox")
	}
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// Attack: a web page sends JSON with a type, or without one, that browsers send without
// a preflight request.
func TestBodiesSayThatTheyAreJSON(t *testing.T) {
	svc := newService(t)
	h := rest.New(rest.Config{Service: svc})
	for _, o := range slices.Sorted(maps.Keys(changing(t))) {
		raw := strings.HasSuffix(o, "/files/content") || strings.HasSuffix(o, "/stdin") || strings.HasSuffix(o, "/template-archives")
		for contentType, want := range map[string]bool{
			"": raw, "text/plain": raw, "text/plain;application/json": raw, "application/x-www-form-urlencoded": raw, "multipart/form-data; boundary=application/json": raw,
			"application/json": true, "application/json; charset=utf-8": true, "APPLICATION/JSON": true,
		} {
			if status, body := do(t, h, sandbox.LocalCaller(), o, contentType, `{}`); (status != http.StatusUnsupportedMediaType) != want {
				t.Errorf("%s with Content-Type %q: %d %.200s", o, contentType, status, body)
			}
		}
	}
	r := httptest.NewRequestWithContext(sandbox.WithCaller(t.Context(), sandbox.LocalCaller()), http.MethodPost, "/v1/sandboxes", unread{t})
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusUnsupportedMediaType || !strings.Contains(w.Body.String(), "Content-Type: application/json") {
		t.Errorf("no Content-Type: %d %s", w.Code, w.Body)
	}
	// Without a body there is nothing to say.
	if status, body := do(t, h, sandbox.LocalCaller(), "POST /v1/sandboxes/{sandbox}/pause", "", ""); status != http.StatusNotFound {
		t.Errorf("without a body: %d %s", status, body)
	}
}

// Attack: a member is there twice, and a filter in front of the server reads the other
// one.
func TestDuplicateMembers(t *testing.T) {
	h := rest.New(rest.Config{Service: newService(t)})
	for body, says := range map[string]string{
		`{"name":"a","name":"b"}`:                              `\"name\" is given twice`,
		`{"metadata":{"team":"a","\u0074eam":"b"}}`:            `\"team\" is given twice`,
		`{"network":{"mode":"none","mode":"open"},"name":"x"}`: `\"mode\" is given twice`,
	} {
		status, answer := do(t, h, sandbox.LocalCaller(), "POST /v1/sandboxes", "application/json", body)
		if status != http.StatusBadRequest || !strings.Contains(answer, says) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
}
