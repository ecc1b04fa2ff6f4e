package client_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// A login prints as [redacted], but both ways to build send it to the server unchanged.
// A build without a login does not mention one.
func TestBuildLogin(t *testing.T) {
	var got map[string]any
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = nil
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	t.Cleanup(srv.Close)
	c, err := client.New(client.Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	req := sandbox.BuildTemplateRequest{Name: "x", Login: &sandbox.RegistryLogin{Username: "me", Password: sandbox.NewSecretValue("hunter2")}}
	for name, build := range map[string]func(sandbox.BuildTemplateRequest){
		"start": func(r sandbox.BuildTemplateRequest) { _, _ = c.StartBuild(t.Context(), r) },
		"build": func(r sandbox.BuildTemplateRequest) { _, _ = c.BuildTemplate(t.Context(), r, nil) },
	} {
		build(req)
		login, _ := got["registry_login"].(map[string]any)
		if login["username"] != "me" || login["password"] != "hunter2" || got["name"] != "x" {
			t.Errorf("%s: the body is %v", name, got)
		}
		if build(sandbox.BuildTemplateRequest{Name: "y"}); got["registry_login"] != nil || got["name"] != "y" {
			t.Errorf("%s: the body is %v", name, got)
		}
	}
}
