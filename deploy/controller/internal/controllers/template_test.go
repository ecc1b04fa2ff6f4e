package controllers

import (
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/cove-sh/cove/deploy/controller/internal/plan"
	"github.com/cove-sh/cove/sandbox"
)

// TestResolve looks up images in a registry.
func TestResolve(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	image := strings.TrimPrefix(server.URL, "http://") + "/app:1"
	push := func(cmd string) {
		t.Helper()
		img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: v1.Config{Entrypoint: []string{"/app"}, Cmd: []string{cmd}}})
		if err != nil {
			t.Fatal(err)
		}
		ref, err := name.ParseReference(image)
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(ref, img, remote.WithContext(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	push("serve")
	for _, c := range []struct {
		command, args []string
		want          string
	}{
		{nil, nil, "/app serve"},
		{nil, []string{"check"}, "/app check"},
		{[]string{"sh"}, nil, "sh"},
		{[]string{"sh"}, []string{"-c", "true"}, "sh -c true"},
	} {
		rec, err := resolve(t.Context(), &plan.Plan{Image: image, Command: c.command, Args: c.args})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(rec.Command, " "); got != c.want {
			t.Errorf("%v %v: the command is %q, not %q", c.command, c.args, got, c.want)
		}
	}

	first, err := resolve(t.Context(), &plan.Plan{Image: image})
	if err != nil {
		t.Fatal(err)
	}
	push("other")
	second, err := resolve(t.Context(), &plan.Plan{Image: image})
	if err != nil || first.Image == second.Image || first.Template == second.Template {
		t.Errorf("a tag that has moved is %+v, and was %+v, %v", second, first, err)
	}
	if !strings.Contains(second.Image, "/app@sha256:") || len(second.Template) > sandbox.MaxNameLength {
		t.Errorf("the record is %+v", second)
	}
	var refused *plan.Error
	if _, err := resolve(t.Context(), &plan.Plan{Image: "NOT an image"}); !errors.As(err, &refused) {
		t.Errorf("an image that cannot be: %v", err)
	}
	if _, err := resolve(t.Context(), &plan.Plan{Image: image + "-missing"}); err == nil || !strings.Contains(err.Error(), "look up the image") {
		t.Errorf("an image that is not there: %v", err)
	}
	if rec, err := resolve(t.Context(), &plan.Plan{Template: "host", Image: image, Command: []string{"a"}, Args: []string{"b"}}); err != nil || rec.Template != "host" || rec.Image != "" || len(rec.Command) != 2 {
		t.Errorf("with a template: %+v, %v", rec, err)
	}
}

func TestCheckUser(t *testing.T) {
	for user, ok := range map[string]bool{"": false, "root": false, "0": false, "0:0": false, "1000": true, "app": true} {
		if err := checkUser(&plan.Plan{NonRoot: true}, &sandbox.Template{User: user}); (err == nil) != ok {
			t.Errorf("user %q: %v", user, err)
		}
	}
	if err := checkUser(&plan.Plan{NonRoot: true, Request: sandbox.CreateRequest{User: "1000"}}, &sandbox.Template{}); err != nil {
		t.Error(err)
	}
}
