package native_test

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/native"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/local"
	"github.com/cove-sh/cove/sandbox"
)

func TestConversations(t *testing.T) {
	d := native.New()
	dialecttest.Conversations(t, d, "testdata", dialecttest.InMemory(d))
}

// The conversations about pausing, forks and snapshots.
func TestTimeConversations(t *testing.T) {
	d := native.New()
	dialecttest.Conversations(t, d, "testdata/time", func(t *testing.T) (dialecttest.Caller, func(string) string) {
		return dialecttest.Direct(t, d, newImaginary()), func(s string) string { return s }
	})
}

// Patterns for text that differs each time, and their replacements.
var differences = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`("size_bytes": |memory of \S+, )\d{6,}`), "${1}<size>"},
	{regexp.MustCompile(`(?:,\n *"warm_bytes": \d+| size=\d+MiB)`), ""},
	// A screen on which nothing happens may be painted late.
	{regexp.MustCompile(`("stable": )(?:true|false)`), "$1<bool>"},
	{regexp.MustCompile(` The screen still changes\.`), ""},
	{regexp.MustCompile(`image/(png|jpeg) [A-Za-z0-9+/=]+`), "image/$1 <picture>"},
	{regexp.MustCompile(`("fraction": )0\.\d+`), "$1<n>"},
	// A volume's use is measured every few seconds.
	{regexp.MustCompile(`("used_bytes": )\d+`), "$1<n>"},
	{regexp.MustCompile(`("PATH": )"[^"]*"`), `$1"<path>"`},
	// Of a window: in an object, and at the beginning of a line.
	{regexp.MustCompile(`("(?:id|pid)": )\d+|(\ntext: )\d+( "sh" )`), "$1$2<n>$3"},
	{regexp.MustCompile(`http://[^\s"]+`), "<link>"},
}

func hide(s string) string {
	for _, d := range differences {
		s = d.what.ReplaceAllString(s, d.with)
	}
	return s
}

// The conversations of testdata with real sandboxes, which end at each script's end:
// what the scripts say holds for an ordinary user and, in "make soak", for root.
func TestRealConversations(t *testing.T) {
	covetest.Own(t, func(t *testing.T, daemon *covetest.Daemon) {
		d := native.New()
		converse := func(scripts string, normalize func(string) string) {
			if alike := normalize; covetest.OnNode() { // which results then name
				normalize = func(s string) string { return strings.ReplaceAll(alike(s), "  \"node\": \"node\",\n", "") }
			}
			dialecttest.Conversations(t, d, scripts, func(t *testing.T) (dialecttest.Caller, func(string) string) {
				t.Cleanup(func() { dialecttest.KillAll(t, daemon) })
				return following(dialecttest.Direct(t, d, daemon.Client)), normalize
			})
		}
		converse("testdata", func(s string) string { return s })
		converse("testdata/real", hide)
		converse("testdata/builds", hide)
		dialecttest.BuildScreen(t, daemon, "screen")
		converse("testdata/computer", hide)
	})
}

// following waits for builds as their hints tell an agent to, however slow the machine
// is. It leaves out the progress of builds that are not waited for or were cancelled.
func following(call dialecttest.Caller) dialecttest.Caller {
	return func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
		res, err := call(ctx, tool, args)
		if !strings.HasPrefix(tool, "template_build") || err != nil || res.IsError {
			return res, err
		}
		var build struct {
			ID       string `json:"build_id"`
			Template string `json:"template"`
			State    string `json:"state"`
			Created  string `json:"created_at"`
		}
		for {
			data, err := json.Marshal(res.StructuredContent)
			if err == nil {
				err = json.Unmarshal(data, &build)
			}
			if err != nil {
				return nil, err
			}
			if build.State != string(sandbox.BuildRunning) || strings.Contains(string(args), `"wait_ms": 0`) {
				break
			}
			if res, err = call(ctx, "template_build_status", json.RawMessage(`{"build_id": "`+build.ID+`"}`)); err != nil || res.IsError {
				return res, err
			}
		}
		if build.State != string(sandbox.BuildRunning) && build.State != string(sandbox.BuildCancelled) {
			return res, nil
		}
		return &mcp.CallToolResult{StructuredContent: map[string]any{
			"build_id": build.ID, "template": build.Template, "state": build.State, "created_at": build.Created, "fraction": 0,
		}}, nil
	}
}

func TestResources(t *testing.T) {
	svc := local.New(t)
	ctx := sandbox.WithCaller(t.Context(), sandbox.LocalCaller())
	sb, err := svc.Create(ctx, sandbox.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := svc.WriteFile(ctx, sb.ID, sandbox.WriteFileRequest{Path: "ü b/data.json", MakeParents: true}, strings.NewReader(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := svc.WriteFile(ctx, sb.ID, sandbox.WriteFileRequest{Path: "big"}, strings.NewReader(strings.Repeat("x", 9<<20))); err != nil {
		t.Fatal(err)
	}
	read := native.New().Resources()[0].Read
	base := "cove://sandbox/" + sb.ID
	dir := strings.TrimSuffix(info.Path, "/ü b/data.json")
	res, err := read(ctx, svc, base+dir+"/%C3%BC%20b/data.json")
	if err != nil || res.Contents[0].Text != `{"a":1}` || res.Contents[0].MIMEType != "application/json" {
		t.Errorf("%+v %v", res, err)
	}
	res, err = read(ctx, svc, base+dir+"/%C3%BC%20b?format=zip")
	if err != nil || !strings.HasPrefix(string(res.Contents[0].Blob), "PK") {
		t.Errorf("%+v %v", res, err)
	}
	for uri, want := range map[string]sandbox.Code{
		base + dir + "/nope": sandbox.CodeNotFound,
		base + dir + "/big":  sandbox.CodeTooLarge,
		base + "%00":         sandbox.CodeInvalid,
		base + dir + "/%00":  sandbox.CodeInvalid,
		"file:///etc/passwd": sandbox.CodeInvalid,
	} {
		if _, err := read(ctx, svc, uri); sandbox.CodeOf(err) != want {
			t.Errorf("%s: %v", uri, err)
		}
	}
}
