package service

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// A login reaches the code that pulls the image, and is stored nowhere: not in the log,
// the records, the build's own log or the audit record.
func TestBuildLogin(t *testing.T) {
	const password = "hunter2-for-one-build"
	login := &sandbox.RegistryLogin{Username: "me", Password: sandbox.NewSecretValue(password)}
	var log bytes.Buffer
	w := newHarness(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	w.templates.OnBase = func(_ context.Context, spec *sandbox.TemplateSpec, _ func(string, float64, string)) error {
		if spec.From.Image == "private:bad" {
			return sandbox.Errorf(sandbox.CodeForbidden, "no")
		}
		return nil
	}
	spec := func(image string) *sandbox.TemplateSpec {
		return &sandbox.TemplateSpec{From: sandbox.TemplateSource{Image: image}}
	}
	for _, req := range []sandbox.BuildTemplateRequest{
		{Name: "good", Spec: spec("private:1"), Login: login}, {Name: "bad", Spec: spec("private:bad"), Login: login}, {Name: "other", Spec: spec("public:1")},
	} {
		if b, _, _ := w.follow(w.beginBuild(req).ID); (b.State == sandbox.BuildReady) != (req.Name != "bad") {
			t.Errorf("%s: %+v", req.Name, b)
		}
	}
	got := w.templates.Logins()
	if len(got) != 2 || got[0].Username != "me" || got[0].Password.Reveal() != password {
		t.Fatalf("the logins are %v", got)
	}
	audit, err := w.Audit(asRed(t), sandbox.AuditRequest{})
	must(t, err)
	shown, err := json.Marshal([]any{audit, got, sandbox.BuildTemplateRequest{Login: login}})
	must(t, err)
	for where, text := range map[string]string{"the log": log.String(), "JSON": string(shown), "%+v": fmt.Sprintf("%+v %#v %v", got, got, *login)} {
		if strings.Contains(text, password) {
			t.Errorf("%s has the password", where)
		}
	}
	err = filepath.WalkDir(filepath.Dir(w.path), func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(file)
		if bytes.Contains(data, []byte(password)) {
			t.Errorf("%s has the password", file)
		}
		return err
	})
	must(t, err)
}

func TestBuildLoginRefused(t *testing.T) {
	w := newHarness(t)
	for name, l := range map[string]sandbox.RegistryLogin{
		"no user": {Password: sandbox.NewSecretValue("p")}, "no password": {Username: "me"}, "a colon": {Username: "me:you", Password: sandbox.NewSecretValue("p")},
		"a line": {Username: "me\nyou", Password: sandbox.NewSecretValue("p")}, "a long name": {Username: strings.Repeat("x", 257), Password: sandbox.NewSecretValue("p")},
		"a long password": {Username: "me", Password: sandbox.NewSecretValue(strings.Repeat("secret", sandbox.MaxSecretBytes))}, "no text": {Username: "me", Password: sandbox.NewSecretValue("secret\xff")},
	} {
		_, err := w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "x", Spec: &sandbox.TemplateSpec{From: sandbox.TemplateSource{Image: "a:1"}}, Login: &l})
		wantCode(t, err, sandbox.CodeInvalid)
		if strings.Contains(fmt.Sprint(err), "secret") || strings.Contains(fmt.Sprint(err), "you") {
			t.Errorf("%s: it repeats what it was given: %v", name, err)
		}
	}
	_, err := w.StartBuild(asRed(t), sandbox.BuildTemplateRequest{Name: "x", Spec: steps("true"), Login: &sandbox.RegistryLogin{Username: "me", Password: sandbox.NewSecretValue("p")}})
	wantCode(t, err, sandbox.CodeInvalid)
	if len(w.templates.Logins()) > 0 {
		t.Error("a login was used")
	}
}
