package control

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sh/cove/sandbox"
)

// builder is a service that builds at once, and fails as the test says.
type builder struct {
	templates
	state  sandbox.BuildState
	reason string
	events []sandbox.BuildEvent
	spec   *sandbox.TemplateSpec
	forced bool
	tags   []string
}

func (b *builder) StartBuild(_ context.Context, req sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	if !req.Force {
		return nil, sandbox.Errorf(sandbox.CodeConflict, "it is made of something else")
	}
	b.spec, b.forced = req.Spec, true
	return &sandbox.Build{ID: "bld-1"}, nil
}

func (b *builder) GetBuild(context.Context, string) (*sandbox.Build, error) {
	return &sandbox.Build{ID: "bld-1", State: b.state, Reason: b.reason, Version: 3}, nil
}

func (b *builder) FollowBuild(ctx context.Context, id string, sink func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	for _, e := range b.events {
		if err := sink(e); err != nil {
			return nil, err
		}
	}
	return b.GetBuild(ctx, id)
}

func (b *builder) AliasTemplate(_ context.Context, alias, name string) error {
	b.tags = append(b.tags, alias+" is "+name)
	return nil
}

// ask calls the plane as a caller who may build, and decodes the answer.
func ask(t *testing.T, h http.Handler, method, path, body string, into any) int {
	t.Helper()
	ctx := sandbox.WithCaller(t.Context(), sandbox.Caller{Team: "red", Scopes: []sandbox.Scope{sandbox.ScopeTemplatesWrite}})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body)))
	if into != nil {
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	return w.Code
}

func announceBuild(t *testing.T, h http.Handler) (at string) {
	t.Helper()
	var made announceAnswer
	if code := ask(t, h, "POST", "/v3/templates", `{"name":"app:v1","tags":["v2","default"]}`, &made); code != http.StatusAccepted || made.TemplateID != "app" {
		t.Fatalf("announced: %d %+v", code, made)
	}
	return "/templates/app/builds/" + made.BuildID
}

const steps = `{"fromTemplate":"app","steps":[{"type":"ENV","args":["A","b"]},{"type":"WORKDIR","args":["/w"]},{"type":"RUN","args":["make"]}]}`

// A build begins once. Its log is read in parts, whose lines name the client's own
// instructions. It is ready when it is tagged.
func TestBuildStatus(t *testing.T) {
	b := &builder{state: sandbox.BuildReady, events: []sandbox.BuildEvent{{Step: "begin"}, {Step: "1/3 files"}, {Step: "2/3 run: true"}, {Step: "3/3 run: c='make'", Log: "made\n"}, {Step: "3/3 run: c='make'", Log: "well\n"}}}
	h := New(Config{Service: b})
	at := announceBuild(t, h)
	if code := ask(t, h, "POST", "/v2"+at, steps, nil); code != http.StatusAccepted || !b.forced {
		t.Fatalf("begun: %d", code)
	}
	if code := ask(t, h, "POST", "/v2"+at, steps, nil); code != http.StatusBadRequest {
		t.Errorf("begun again: %d", code)
	}
	var got []string
	for _, path := range []string{"/status?limit=4", "/status?logsOffset=4", "/status?logsOffset=6"} {
		var s buildStatus
		ask(t, h, "GET", at+path, "", &s)
		if s.Status != "ready" || len(s.Entries) > 4 {
			t.Errorf("%s: %+v", path, s)
		}
		for _, e := range s.Entries {
			got = append(got, e.Step+" "+e.Message)
		}
	}
	if want := []string{" begin", " 1/3 files", "2 [2/3] WORKDIR /w", "3 [3/3] RUN make", "3 made", "3 well"}; !slices.Equal(got, want) {
		t.Errorf("the log is %q, want %q", got, want)
	}
	if want := []string{"app.v1 is app@3", "app.v2 is app@3"}; !slices.Equal(b.tags, want) {
		t.Errorf("tags %q, want %q", b.tags, want)
	}
}

// Attack: little is kept about each build, and a name or tag that no template can have is
// refused before anything is built.
func TestAnnouncedIsSmall(t *testing.T) {
	h := New(Config{Service: &builder{state: sandbox.BuildReady}})
	long := strings.Repeat("x", sandbox.MaxNameLength)
	for _, body := range []string{`{"name":"` + long + `y"}`, `{"name":"` + long + `:v1"}`, `{"name":"app","tags":["` + long + `"]}`} {
		if code := ask(t, h, "POST", "/v3/templates", body, nil); code != http.StatusBadRequest {
			t.Errorf("%s: %d", body, code)
		}
	}
	if code := ask(t, h, "POST", "/v3/templates", `{"name":"`+long+`"}`, nil); code != http.StatusAccepted {
		t.Errorf("the longest name: %d", code)
	}
	for _, text := range textsOf([]buildStep{{Type: "RUN", Args: []string{strings.Repeat(long, 100)}}, {Type: strings.Repeat(long, 100)}}) {
		if len(text) > maxStepText+len("…") {
			t.Errorf("of an instruction %d bytes are kept", len(text))
		}
	}
}

// The reason of a failure names the client's own instruction.
func TestBuildFails(t *testing.T) {
	for why, step := range map[string]string{
		"step 3 of 3 (run: c='make'): it failed": "3", "step 2 of 3 (run: true): it failed": "2", "step 1 of 3 (files): it failed": "base", "no such image": "base", "the start command is not ready": "finalize",
	} {
		b := &builder{state: sandbox.BuildFailed, reason: why, events: []sandbox.BuildEvent{{Step: "3/3 run", Log: why, Failed: true}}}
		h := New(Config{Service: b})
		at := announceBuild(t, h)
		ask(t, h, "POST", "/v2"+at, steps, nil)
		var s buildStatus
		ask(t, h, "GET", at+"/status", "", &s)
		if s.Status != "error" || s.Reason == nil || s.Reason.Step != step || s.Reason.Message != why {
			t.Errorf("%s: %+v, %+v", why, s, s.Reason)
		}
	}
}
