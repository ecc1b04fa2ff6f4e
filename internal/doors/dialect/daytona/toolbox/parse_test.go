package toolbox

import (
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

func TestParseStatus(t *testing.T) {
	text := strings.Join([]string{
		"# branch.oid 1234", "# branch.head main", "# branch.upstream origin/main", "# branch.ab +2 -3",
		"1 A. N... 000000 100644 100644 0 1 a file", "1 .M N... 100644 100644 100644 1 1 b", "2 R. N... 100644 100644 100644 1 1 R100 new", "old name",
		"u UU N... 100644 100644 100644 100644 1 2 3 both", "? un tracked", "1 bad", "",
	}, "\x00")
	want := &status{CurrentBranch: "main", Upstream: "origin/main", BranchPublished: true, Ahead: 2, Behind: 3, FileStatus: []fileStatus{
		{"a file", "", "Added", "Unmodified"}, {"b", "", "Unmodified", "Modified"}, {"new", "old name", "Renamed", "Unmodified"},
		{"both", "", "Updated but unmerged", "Updated but unmerged"}, {"un tracked", "", "Untracked", "Untracked"},
	}}
	if diff := cmp.Diff(want, parseStatus(text)); diff != "" {
		t.Error(diff)
	}
	if s := parseStatus("# branch.head (detached)\x00"); !s.Detached || s.CurrentBranch != "HEAD" {
		t.Errorf("detached: %+v", s)
	}
}

func TestParseHistory(t *testing.T) {
	got := parseHistory("h1\nAnn\nann@x\n2026-01-02T03:04:05Z\nsubject\n\nbody\n\x00h2\nBob\nbob@x\n2026-01-01T00:00:00Z\none\n\x00rest")
	want := []commit{{"h1", "Ann", "ann@x", "subject\n\nbody", "2026-01-02T03:04:05Z"}, {"h2", "Bob", "bob@x", "one", "2026-01-01T00:00:00Z"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseMatches(t *testing.T) {
	got := parseMatches("/a:1\x003:x: y\n/b\x0010:\nno match\n/c\x00x:y\n")
	if diff := cmp.Diff([]match{{"/a:1", 3, "x: y"}, {"/b", 10, ""}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestViewFile(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		f                 sandbox.FileInfo
		mode, permissions string
		dir               bool
		owner             string
	}{
		{sandbox.FileInfo{Type: sandbox.TypeFile, Mode: "0644", Owner: "ann"}, "-rw-r--r--", "0644", false, "ann"},
		{sandbox.FileInfo{Type: sandbox.TypeDirectory, Mode: "1777", UID: 7}, "dtrwxrwxrwx", "01777", true, "7"},
		{sandbox.FileInfo{Type: sandbox.TypeSymlink, Mode: "0777", LinkedFile: &sandbox.LinkedFile{Type: sandbox.TypeDirectory}}, "Lrwxrwxrwx", "0777", true, "0"},
	} {
		c.f.ModifiedAt = at
		got := viewFile(&c.f)
		if got.Mode != c.mode || got.Permissions != c.permissions || got.IsDir != c.dir || got.Owner != c.owner || !got.ModifiedAt.Equal(at) {
			t.Errorf("%+v: %+v", c.f, got)
		}
	}
}

func TestPaths(t *testing.T) {
	box := &sandbox.Sandbox{WorkDir: "/home/user"}
	for name, want := range map[string]string{"": "/home/user", "a": "/home/user/a", "/a/../b": "/b", "../../../x": "/x", "/": "/", "a\x00": "", strings.Repeat("a", 5000): ""} {
		got, err := absolute(box, name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.20q: %q, %v", name, got, err)
		}
	}
	if dirOf("../../etc") == dirOf("../etc") || strings.Count(dirOf("../../etc"), "/") != strings.Count(sessionRoot, "/") {
		t.Errorf("the directory of a session is %s", dirOf("../../etc"))
	}
	for _, id := range []string{"", "a/b", "a\nb", strings.Repeat("a", maxID+1)} {
		if checkID(id) == nil {
			t.Errorf("%q is taken for an id", id)
		}
	}
}

func TestGitErrors(t *testing.T) {
	for text, want := range map[string]string{
		"fatal: not a git repository (or any of the parent directories): .git": "GIT_REPO_NOT_FOUND",
		"fatal: Authentication failed for 'https://x/'":                        "GIT_AUTH_FAILED",
		"error: pathspec 'x' did not match any file(s) known to git":           "GIT_BRANCH_NOT_FOUND",
		"fatal: a branch named 'x' already exists":                             "GIT_BRANCH_EXISTS",
		" ! [rejected]        main -> main (non-fast-forward)":                 "GIT_PUSH_REJECTED",
		"fatal: unable to access 'https://x/': Could not resolve host: x":      "GIT_TRANSPORT_FAILED",
		"something else": "BAD_REQUEST",
	} {
		if got := answer.Of(gitError(&tool{code: 128, stderr: text})).Code; got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// A password goes to the host of the repository only, and in no argument.
func TestGitLogin(t *testing.T) {
	var g repo
	if err := g.login("https://example.com/a/b.git", "ann", "secret", false); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http.https://example.com/.extraHeader", "GIT_CONFIG_VALUE_0": "Authorization: Basic YW5uOnNlY3JldA==",
	}
	if diff := cmp.Diff(want, g.env); diff != "" {
		t.Error(diff)
	}
	for _, address := range []string{"git@example.com:a/b", "/tmp/x", "ssh://example.com/x", "https:///x"} {
		if g.login(address, "ann", "secret", false) == nil {
			t.Errorf("a password is sent to %s", address)
		}
	}
}

func TestChart(t *testing.T) {
	figure := &sandbox.CodeOutput{Source: "matplotlib", Data: map[string]json.RawMessage{
		"image/png": json.RawMessage(`"aGk="`), typeChart: json.RawMessage(`{"type":"superchart","title":"T","elements":[1]}`),
	}}
	if got, want := string(chartOf(figure)), `{"elements":[1],"png":"aGk=","title":"T","type":"composite_chart"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	delete(figure.Data, typeChart)
	if got, want := string(chartOf(figure)), `{"elements":[],"png":"aGk=","title":"","type":"unknown"}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	figure.Source = "pandas"
	if got := chartOf(figure); got != nil {
		t.Errorf("%s is taken for a chart", got)
	}
}

func TestReadScreenshot(t *testing.T) {
	screen := &sandbox.Desktop{Width: 1000, Height: 500}
	for target, want := range map[string]*sandbox.ScreenshotRequest{
		"/computeruse/screenshot?showCursor=true":                                                   {Cursor: true},
		"/computeruse/screenshot/region?x=1&y=2&width=3&height=4":                                   {Region: &sandbox.Region{X: 1, Y: 2, Width: 3, Height: 4}},
		"/computeruse/screenshot/compressed?format=jpeg&quality=50&scale=0.5":                       {Format: sandbox.ImageJPEG, Quality: 50, Width: 500},
		"/computeruse/screenshot/region/compressed?x=0&y=0&width=10&height=10&scale=0.1&format=png": {Format: sandbox.ImagePNG, Width: 1, Region: &sandbox.Region{Width: 10, Height: 10}},
		"/computeruse/screenshot/region?x=1":                                                        nil,
		"/computeruse/screenshot/compressed?scale=2":                                                nil,
		"/computeruse/screenshot/compressed?scale=NaN":                                              nil,
		"/computeruse/screenshot/compressed?quality=top":                                            nil,
	} {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readScreenshot(u.Path, u.Query(), screen)
		if want == nil {
			if err == nil {
				t.Errorf("%s: %+v", target, got)
			}
		} else if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", target, err, diff)
		}
	}
}

func TestReadPTY(t *testing.T) {
	r := httptest.NewRequest("GET", "/process/pty/create-connect?id=a&cols=90&cwd=/tmp", nil)
	r.Header.Add("Sec-WebSocket-Protocol", "X-Daytona-Pty-Envs~eyJBIjoiYiJ9, X-Daytona-Pty-Exit-Control")
	got, err := readPTY(r)
	if diff := cmp.Diff(&ptyBody{ID: "a", Cwd: "/tmp", Cols: new(90), Envs: map[string]string{"A": "b"}}, got); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	for _, bad := range []string{"?cols=x", "?rows=1e3"} {
		if _, err := readPTY(httptest.NewRequest("GET", "/process/pty/create-connect"+bad, nil)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	r.Header.Set("Sec-WebSocket-Protocol", "X-Daytona-Pty-Envs~!!")
	if _, err := readPTY(r); err == nil {
		t.Error("variables that are not base64 are taken")
	}
}

// Output beyond the bound is counted, and the count is reported.
func TestText(t *testing.T) {
	var out text
	out.add(make([]byte, maxOutput-1))
	out.add([]byte("abc"))
	if got := out.done(); len(got) > maxOutput+64 || !strings.HasSuffix(got, "a\n[… 2 bytes left out …]\n") {
		t.Errorf("it ends with %q", got[len(got)-40:])
	}
}
