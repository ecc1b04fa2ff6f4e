package hopx_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

// call calls the control plane's API by call_api.
func call(t *testing.T, svc sandbox.Service, method, path, body string) map[string]any {
	t.Helper()
	args := map[string]any{"method": method, "path": path}
	if body != "" {
		args["body"] = json.RawMessage(body)
	}
	data, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	return answer(t, first, svc, "call_api", string(data))
}

const (
	buildPath = "/v1/templates/build"
	least     = `"name":"mine","from_image":"python:3.12","cpu":1,"memory":512,"diskGB":1`
)

// TestBuild checks that each step of a build affects the steps after it.
func TestBuild(t *testing.T) {
	svc := newImaginary()
	got := call(t, svc, "POST", buildPath, `{`+least+`,"skipCache":true,"startCmd":"python -m http.server 8000","readyCmd":{"type":"port","port":8000,"timeout":30000,"interval":500},"steps":[
		{"type":"RUN","args":["apt-get update"]},
		{"type":"ENV","args":["A","1"]},
		{"type":"env","key":"B","value":"2"},
		{"type":"workdir","path":"/app"},
		{"type":"RUN","args":["pip install","flask"]},
		{"type":"USER","args":["nobody"]},
		{"type":"ENV","args":["C=3=4","D="]},
		{"type":"RUN","args":["true"]},
		{"type":"CMD","args":["ignored"]}]}`)
	if got["build_id"] != "bld-1" || got["template_id"] != "mine" || got["status"] != "building" || got["logs_url"] != buildPath+"/bld-1/logs" {
		t.Errorf("the answer is %v", got)
	}
	ab := map[string]string{"A": "1", "B": "2"}
	all := map[string]string{"A": "1", "B": "2", "C": "3=4", "D": ""}
	want := []sandbox.BuildTemplateRequest{{Name: "mine", Force: true, Spec: &sandbox.TemplateSpec{
		From: sandbox.TemplateSource{Image: "python:3.12"}, Resources: sandbox.Resources{VCPUs: 1, MemoryMiB: 512, DiskMiB: 1024},
		Run: []sandbox.TemplateStep{
			{Run: "apt-get update"}, {Run: "pip install flask", WorkDir: "/app", Env: ab}, {Run: "true", User: "nobody", WorkDir: "/app", Env: all},
		},
		Env: all, WorkDir: "/app", User: "nobody",
		Start: &sandbox.StartCommand{Command: "python -m http.server 8000", Ready: "bash -c '</dev/tcp/127.0.0.1/8000'", TimeoutMS: 30000},
	}}}
	if diff := cmp.Diff(want, svc.built); diff != "" {
		t.Errorf("built (-want +got):\n%s", diff)
	}
	for ready, want := range map[string]string{
		`{"type":"url","url":"http://localhost:1/it's"}`: `curl -fsS -o /dev/null -- 'http://localhost:1/it'\''s'`,
		`{"type":"file","path":"/tmp/ready"}`:            `test -e '/tmp/ready'`,
		`{"type":"process","processName":"nginx"}`:       `pgrep -f -- 'nginx'`,
		`{"type":"process","name":"nginx"}`:              `pgrep -f -- 'nginx'`,
		`{"type":"command","command":"true && true"}`:    `true && true`,
	} {
		svc := newImaginary()
		call(t, svc, "POST", buildPath, `{`+least+`,"steps":[{"type":"CMD","args":["server"]}],"readyCmd":`+ready+`}`)
		if len(svc.built) != 1 || svc.built[0].Spec.Start.Ready != want || svc.built[0].Spec.Start.Command != "server" {
			t.Errorf("%s: %+v", ready, svc.built)
		}
	}
}

// TestBuildCopies checks that files are uploaded to a link first, and that COPY names them
// by the client's hash.
func TestBuildCopies(t *testing.T) {
	svc := newImaginary()
	for hash, present := range map[string]bool{"there": true, "new": false} {
		got := call(t, svc, "POST", "/v1/templates/files/upload-link", `{"files_hash":"`+hash+`","content_length":7}`)
		if got["present"] != present || got["upload_url"] != "http://127.0.0.1:1/7" || got["files_hash"] != hash || got["expires_at"] != "2026-07-01T12:00:00.000Z" {
			t.Errorf("the link is %v", got)
		}
	}
	for _, body := range []string{``, `{}`, `{"files_hash":"x"}`, `{"files_hash":"x","content_length":0}`, `{"files_hash":"","content_length":1}`, `{"files_hash":1,"content_length":1}`, `{"files_hash":"x","content_length":17179869185}`} {
		if got := call(t, svc, "POST", "/v1/templates/files/upload-link", body); got["status_code"] != 400.0 {
			t.Errorf("%s: %v", body, got)
		}
	}
	call(t, svc, "POST", buildPath, `{`+least+`,"steps":[
		{"type":"COPY","args":["app.py","/app/app.py"],"filesHash":"there"},
		{"type":"COPY","args":["a.txt, b/,","conf/","",""],"filesHash":"there"},
		{"type":"WORKDIR","args":["/srv"]},
		{"type":"copy","args":["src/","."],"filesHash":"there"},
		{"type":"COPY","args":["src","/"],"filesHash":"there","skipCache":true},
		{"type":"COPY","args":["run","/srv/run"],"filesHash":"there","owner":"app:web","permissions":"0711"}]}`)
	copied := func(to string, sources ...string) sandbox.TemplateStep {
		return sandbox.TemplateStep{Copy: &sandbox.TemplateCopy{Archive: "upload-of-there", Sources: sources, To: to}}
	}
	want := []sandbox.TemplateStep{copied("/app/app.py", "app.py"), copied("/workspace/conf/", "a.txt", "b/"), copied("/srv/", "src/"), copied("/", "src"), copied("/srv/run", "run")}
	want[4].Copy.Owner, want[4].Copy.Mode = "app:web", "0711"
	if len(svc.built) != 1 || !svc.built[0].Force {
		t.Fatalf("built %+v", svc.built)
	}
	if diff := cmp.Diff(want, svc.built[0].Spec.Run); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// TestBuildCredentials checks that credentials are used for one build, at the registry that
// they are for.
func TestBuildCredentials(t *testing.T) {
	body := func(image, credentials string) string {
		return `{` + strings.Replace(least, "python:3.12", image, 1) + `,"registry_credentials":` + credentials + `}`
	}
	for _, tt := range []struct{ image, credentials, user, password string }{
		{"a.example/x:1", `{"type":"basic","username":"u","password":"p"}`, "u", "p"},
		{"x", `{"username":"u","token":"p"}`, "u", "p"},
		{"ghcr.io/a/b", `{"type":"github","token":"p"}`, "token", "p"},
		{"registry.a.example:5000/a/b", `{"type":"gitlab","username":null,"token":"p"}`, "oauth2", "p"},
		{"us-docker.pkg.dev/a/b/c", `{"type":"gcr","password":"{}"}`, "_json_key", "{}"},
		{"gcr.io/a/b", `{"type":"GCR","token":"p"}`, "oauth2accesstoken", "p"},
		{"1.dkr.ecr.eu-west-1.amazonaws.com/a", `{"type":"ecr","password":"p"}`, "AWS", "p"},
	} {
		svc := newImaginary()
		call(t, svc, "POST", buildPath, body(tt.image, tt.credentials))
		if len(svc.built) != 1 || svc.built[0].Login == nil || svc.built[0].Login.Username != tt.user || svc.built[0].Login.Password.Reveal() != tt.password {
			t.Errorf("%s at %s: %+v", tt.credentials, tt.image, svc.built)
		}
	}
	for _, tt := range []struct {
		image, credentials string
		status             float64
	}{
		{"ghcr.io.evil.example/a", `{"type":"github","token":"hunter2"}`, 400}, {"evilghcr.io/a", `{"type":"github","token":"hunter2"}`, 400}, {"a/b", `{"type":"gcr","token":"hunter2"}`, 400},
		{"a/b", `{"type":"azure","username":"u","password":"hunter2"}`, 400}, {"a/b", `{"type":"basic","password":"hunter2"}`, 400},
		{"a/b", `{"type":"basic","username":"u"}`, 400}, {"a/b", `{}`, 400}, {"a/b", `"hunter2"`, 400}, {"a/b", `{"username":"u","password":["hunter2"]}`, 400},
		{"1.dkr.ecr.eu-west-1.amazonaws.com/a", `{"username":"AKIAX","password":"hunter2"}`, 501},
	} {
		svc := newImaginary()
		got := call(t, svc, "POST", buildPath, body(tt.image, tt.credentials))
		if got["status_code"] != tt.status || len(svc.built) > 0 || strings.Contains(fmt.Sprint(got), "hunter2") {
			t.Errorf("%s at %s: %v", tt.credentials, tt.image, got)
		}
	}
	svc := newImaginary()
	if call(t, svc, "POST", buildPath, body("x", "null")); len(svc.built) != 1 || svc.built[0].Login != nil {
		t.Errorf("without credentials: %+v", svc.built)
	}
}

func TestBuildRefused(t *testing.T) {
	many := make([]string, sandbox.MaxEnvPairs+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"A%d="`, i)
	}
	for body, want := range map[string]string{
		``:                        "no body",
		`{}`:                      "name and from_image",
		`{"name":5}`:              "name of the body cannot be number",
		`{` + least + `,"cpu":0}`: "cpu is 0", `{` + least + `,"cpu":65}`: "cpu is 65",
		`{` + least + `,"steps":[{"type":"ENV","args":[` + strings.Join(many, ",") + `]}]}`: "variables",
		`{` + least + `,"memory":511}`: "memory is 511", `{` + least + `,"memory":64001}`: "memory is 64001",
		`{` + least + `,"diskGB":0}`: "diskGB is 0", `{` + least + `,"diskGB":251}`: "diskGB is 251",
		`{` + least + `,"steps":[{"type":"RUN","args":[" "]}]}`:                                  "RUN has no command",
		`{` + least + `,"steps":[{"type":"ADD","args":["x"]}]}`:                                  `type "ADD"`,
		`{` + least + `,"steps":[{"type":"WORKDIR","args":["app"]}]}`:                            "not absolute",
		`{` + least + `,"steps":[{"type":"ENV","args":["A=1","B"]}]}`:                            `"B" is not NAME=VALUE`,
		`{` + least + `,"steps":[{"type":"ENV"}]}`:                                               "ENV has no variable",
		`{` + least + `,"steps":[{"type":"USER"}]}`:                                              "USER has no name",
		`{` + least + `,"steps":[` + strings.Repeat(`{"type":"CMD"},`, 200) + `{"type":"CMD"}]}`: "201 steps",
		`{` + least + `,"steps":[{"type":"COPY","args":["a","/b"],"filesHash":"x"}]}`:            `is of no files`,
		`{` + least + `,"steps":[{"type":"COPY","args":["a","/b"]}]}`:                            "no filesHash",
		`{` + least + `,"steps":[{"type":"COPY","args":["a"],"filesHash":"there"}]}`:             "what to copy and where to",
		`{` + least + `,"steps":[{"type":"COPY","args":["a","/b","me"],"filesHash":"there"}]}`:   "beside them",
		`{` + least + `,"readyCmd":{"type":"port","port":1}}`:                                    "readyCmd needs a startCmd",
		`{` + least + `,"startCmd":"x","readyCmd":{"type":"port"}}`:                              "readyCmd.port is 0",
		`{` + least + `,"startCmd":"x","readyCmd":{"type":"moon"}}`:                              `"moon" is not known`,
		`{` + least + `,"startCmd":"x","readyCmd":{"type":"url"}}`:                               "does not say what",
		`{` + least + `,"startCmd":"x","readyCmd":{"type":"file","path":"/x","timeout":600001}}`: "timeout is 600001",
	} {
		svc := newImaginary()
		got := call(t, svc, "POST", buildPath, body)
		if got["status_code"] != 400.0 || !strings.Contains(fmt.Sprint(got["body"]), want) || len(svc.built) > 0 {
			t.Errorf("%.200s: %v, want %q", body, got, want)
		}
	}
	for body, status := range map[string]float64{
		`{` + strings.Replace(least, "mine", "host", 1) + `}`: 409,
		`{` + least + `,"update":true}`:                       404,
	} {
		svc := newImaginary()
		if got := call(t, svc, "POST", buildPath, body); got["status_code"] != status || len(svc.built) > 0 {
			t.Errorf("%s: %v", body, got)
		}
	}
	svc := newImaginary()
	if got := call(t, svc, "POST", buildPath, `{`+strings.Replace(least, "mine", "host", 1)+`,"update":true}`); got["build_id"] == nil {
		t.Errorf("an update: %v", got)
	}
}

func TestBuildFollowed(t *testing.T) {
	svc := newImaginary()
	for _, id := range []string{"bld-1", "mine"} { // by the template's name too
		if got := call(t, svc, "GET", buildPath+"/"+id+"/status", ""); got["build_id"] != "bld-1" || got["status"] != "building" || got["progress"] != 50.0 || got["current_step"] != "run 1" {
			t.Errorf("%s: %v", id, got)
		}
	}
	svc.events = []sandbox.BuildEvent{{Step: "a", Log: "one"}, {Step: "b"}, {Step: "b", Log: "two\n"}}
	got := call(t, svc, "GET", buildPath+"/bld-1/logs?offset=2", "")
	if got["logs"] != "e\ntwo\n" || got["offset"] != 8.0 || got["complete"] != false || got["status"] != "building" {
		t.Errorf("under way: %v", got)
	}
	end := svc.build.CreatedAt.Add(90 * time.Second)
	svc.build.State, svc.build.EndedAt, svc.build.Reason = sandbox.BuildFailed, &end, "step 1 has failed"
	if got := call(t, svc, "GET", buildPath+"/bld-1/status", ""); got["status"] != "failed" || got["error_message"] != "step 1 has failed" || got["build_duration_ms"] != 90000.0 || got["completed_at"] == nil {
		t.Errorf("failed: %v", got)
	}
	if got := call(t, svc, "GET", buildPath+"/bld-1/logs", ""); got["logs"] != "one\ntwo\n" || got["complete"] != true {
		t.Errorf("failed: %v", got)
	}
	// A long log is returned in parts, without a gap.
	svc.events = []sandbox.BuildEvent{{Log: strings.Repeat("x", 200<<10)}, {Log: strings.Repeat("y", 200<<10)}}
	first := call(t, svc, "GET", buildPath+"/bld-1/logs", "")
	if len(first["logs"].(string)) != 256<<10 || first["complete"] != false || first["offset"] != float64(256<<10) {
		t.Errorf("the first part has %d bytes, complete %v, offset %v", len(first["logs"].(string)), first["complete"], first["offset"])
	}
	rest := call(t, svc, "GET", fmt.Sprintf("%s/bld-1/logs?offset=%.0f", buildPath, first["offset"]), "")
	if all := first["logs"].(string) + rest["logs"].(string); all != svc.events[0].Log+"\n"+svc.events[1].Log+"\n" || rest["complete"] != true {
		t.Errorf("both parts have %d bytes, complete %v", len(all), rest["complete"])
	}
	for path, status := range map[string]float64{"/nope/status": 404, "/nope/logs": 404, "/bld-1/logs?offset=-1": 400, "/bld-1/logs?offset=x": 400, "/bld-1": 404} {
		if got := call(t, svc, "GET", buildPath+path, ""); got["status_code"] != status {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// FuzzCallAPI checks that an arbitrary path only reaches the routes of the client.
func FuzzCallAPI(f *testing.F) {
	for _, s := range []string{"/v1/sandboxes", "v1/sandboxes/sbx-1/", "https://api.hopx.dev/v1/templates?limit=1", "/v1/sandboxes/%2e%2e/x", "//", "://", "/v1/templates/build/bld-1/status", "%zz", "?", "\x00"} {
		f.Add("GET", s)
		f.Add("post", s)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		svc := newImaginary()
		svc.build.State = sandbox.BuildReady
		args, err := json.Marshal(map[string]any{"method": method, "path": path})
		if err != nil {
			t.Fatal(err)
		}
		if strings.EqualFold(strings.TrimSpace(method), "delete") || strings.Contains(path, "pause") || strings.Contains(path, "stop") || strings.Contains(path, "resume") || strings.Contains(path, "start") {
			return // this service lacks these
		}
		text, failed := told(t, first, svc, "call_api", string(args))
		if !json.Valid([]byte(text)) || failed || len(text) > 64<<10 {
			t.Errorf("%q %q: isError %v, %.500s", method, path, failed, text)
		}
	})
}
