package control

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// templates is a service that has a template app, a snapshot, and an archive of the hash
// "sent".
type templates struct{ sandbox.Service }

func (templates) GetTemplate(_ context.Context, name string) (*sandbox.Template, error) {
	if name != "app" {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no template %s", name)
	}
	return &sandbox.Template{Name: name, State: sandbox.TemplateReady, Version: 1, User: "dev", WorkDir: "/app", Env: map[string]string{"BASE": "b"}}, nil
}

func (templates) GetSnapshot(_ context.Context, name string) (*sandbox.Snapshot, error) {
	if name != "snap-1" {
		return nil, sandbox.Errorf(sandbox.CodeNotFound, "no snapshot %s", name)
	}
	return &sandbox.Snapshot{ID: name}, nil
}

func (templates) LinkUpload(_ context.Context, req sandbox.UploadLinkRequest) (*sandbox.UploadLink, error) {
	return &sandbox.UploadLink{Archive: "upload-of-" + req.Name, Present: req.Name == "sent"}, nil
}

func recipeFrom(t *testing.T, text string) (*recipe, error) {
	t.Helper()
	var body buildBody
	if err := json.Unmarshal([]byte(text), &body); err != nil {
		t.Fatal(err)
	}
	p := &plane{cfg: Config{Service: templates{}}}
	return p.recipeOf(t.Context(), &body, sandbox.Resources{VCPUs: 2})
}

// Instructions are in effect for those after them: user, directory and variables.
func TestRecipe(t *testing.T) {
	r, err := recipeFrom(t, `{"fromImage":"example.com/x:1","startCmd":"serve","readyCmd":"ready","steps":[
		{"type":"RUN","args":["one"]},
		{"type":"ENV","args":["A","$BASE/${A:-x}","B","$A \\$A ${HOME} ${PATH}"]},
		{"type":"WORKDIR","args":["work"]},
		{"type":"RUN","args":["it's","root"]},
		{"type":"USER","args":["dev","true"]},
		{"type":"COPY","args":["src","dst/","",""],"filesHash":"sent","forceUpload":true,"resolveSymlinks":false,"gzip":true},
		{"type":"COPY","args":["a","~/b","root:root","0711"],"filesHash":"sent"},
		{"type":"COPY","args":["a","/c","me:them",""],"filesHash":"sent"},
		{"type":"USER","args":["root"]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"A": "/x", "B": "/x $A /home/user " + guestPath}
	copied := func(source, to, owner, mode string) sandbox.TemplateStep {
		return sandbox.TemplateStep{Copy: &sandbox.TemplateCopy{Archive: "upload-of-sent", Sources: []string{source}, To: to, Owner: owner, Mode: mode}}
	}
	want := &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Image: "example.com/x:1"}, Resources: sandbox.Resources{VCPUs: 2}, Env: env, WorkDir: "/home/user/work", User: "root",
		BuildNetwork: &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen},
		Start:        &sandbox.StartCommand{Command: shellOf("serve"), Ready: shellOf("ready"), TimeoutMS: sandbox.MaxStartTimeout.Milliseconds()},
		Run: []sandbox.TemplateStep{
			{Run: "unset A B\n" + shellOf("one"), User: "user", WorkDir: "/home/user", Env: map[string]string{}},
			{Run: "true", User: "user", WorkDir: "/home/user/work", Env: env},
			{Run: shellOf("it's"), WorkDir: "/home/user/work", Env: env},
			{Run: dialect.MakeUser("dev", true), WorkDir: "/"},
			copied("src", "/home/user/work/dst/", "dev", ""), copied("a", "/home/dev/b", "root:root", "0711"), copied("a", "/c", "me:them", ""),
		},
	}
	if diff := cmp.Diff(want, r.spec); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]int{1, 3, 4, 5, 6, 7, 8}, r.of); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(shellOf("it's"), `'it'\''s'`) {
		t.Error("a command is not quoted")
	}
}

// A template begins with one thing: an image, another template, a snapshot, or what stands
// in the place of E2B's own.
func TestRecipeFrom(t *testing.T) {
	for text, want := range map[string]sandbox.TemplateSource{
		`{"fromTemplate":"app"}`: {Template: "app"}, `{"fromTemplate":"snap-1"}`: {Snapshot: "snap-1"}, `{"fromTemplate":"base"}`: {Host: true}, `{"fromImage":"e2bdev/base"}`: {Host: true},
	} {
		r, err := recipeFrom(t, text)
		if err != nil || r.spec.From != want {
			t.Errorf("%s: %+v, %v", text, r, err)
		}
		if dir := map[bool]string{true: "/app", false: homeDir}[want.Template == "app"]; err == nil && r.spec.WorkDir != dir {
			t.Errorf("%s begins in %s", text, r.spec.WorkDir)
		}
	}
	forced, err := recipeFrom(t, `{"fromTemplate":"base","steps":[{"type":"COPY","args":["a","b"],"filesHash":"sent","force":true}]}`)
	if err != nil || len(forced.spec.Run) != 2 || !strings.HasPrefix(forced.spec.Run[1].Run, "# ") {
		t.Errorf("a forced copy: %+v, %v", forced, err)
	}
}

// Attack: invalid instructions and names, and templates and uploads that do not exist for
// the caller.
func TestRecipeRefuses(t *testing.T) {
	step := func(text string) string { return `{"fromImage":"a","steps":[` + text + `]}` }
	for text, says := range map[string]string{
		`{}`: "exactly one", `{"fromImage":"a","fromTemplate":"b"}`: "exactly one", `{"fromTemplate":"none"}`: "not found", `{"fromTemplate":"other/app"}`: "not found",
		step(`{"type":"CMD","args":["x"]}`): "CMD", step(`{"type":"RUN","args":[]}`): "RUN", step(`{"type":"RUN","args":["a","b","c"]}`): "RUN",
		step(`{"type":"ENV","args":["A"]}`): "ENV", step(`{"type":"ENV","args":["A;id","b"]}`): "A;id", step(`{"type":"USER","args":["a;id"]}`): "USER",
		step(`{"type":"WORKDIR","args":[""]}`): "WORKDIR", step(`{"type":"COPY","args":["a","b"]}`): "filesHash", step(`{"type":"COPY","args":["a"],"filesHash":"sent"}`): "COPY",
		step(`{"type":"COPY","args":["a","b"],"filesHash":"unsent"}`):                                             "unsent",
		step(strings.TrimSuffix(strings.Repeat(`{"type":"RUN","args":["x"]},`, sandbox.MaxTemplateSteps+1), ",")): "steps",
	} {
		if _, err := recipeFrom(t, text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.200s: %v", text, err)
		}
	}
	// What grows with each step, and would be in memory with each of them.
	env := func(names, value func(i int) string) string {
		var list []string
		for i := range 10_000 {
			list = append(list, strconv.Quote(names(i)), strconv.Quote(value(i)))
		}
		return `{"type":"ENV","args":[` + strings.Join(list, ",") + `]}`
	}
	same := func(s string) func(int) string { return func(int) string { return s } }
	each := func(i int) string { return "A" + strconv.Itoa(i) }
	for name, text := range map[string]string{
		"a bomb":         env(same("A"), same("$A$A x")),
		"one expansion":  step(`{"type":"ENV","args":["A","` + strings.Repeat("x", 200_000) + `"]},{"type":"ENV","args":["B","` + strings.Repeat("$A", 100_000) + `"]}`),
		"many variables": env(each, same("x")), "large ones": step(`{"type":"ENV","args":["A","` + strings.Repeat("x", 200_000) + `","B","` + strings.Repeat("x", 100_000) + `"]}`),
		"a long path": step(strings.Repeat(`{"type":"WORKDIR","args":["`+strings.Repeat("x/", 1000)+`"]},`, 2) + `{"type":"WORKDIR","args":["` + strings.Repeat("x/", 1000) + `"]}`),
	} {
		if !strings.HasPrefix(text, `{"from`) {
			text = step(text)
		}
		if _, err := recipeFrom(t, text); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for text, says := range map[string]string{`{"type":"aws"}`: "AWS", `{"type":"x"}`: "type"} {
		var registry imageRegistry
		if err := json.Unmarshal([]byte(text), &registry); err != nil {
			t.Fatal(err)
		}
		if _, err := registry.login(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
