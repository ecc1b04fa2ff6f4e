package native_test

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect/dialecttest"
	"github.com/cove-sh/cove/internal/dialect/native"
	"github.com/cove-sh/cove/internal/needs"
	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
	"github.com/cove-sh/cove/test/mcp/local"
)

func TestConversations(t *testing.T) {
	d := native.New()
	dialecttest.Conversations(t, d, "testdata", func(t *testing.T) (dialecttest.Caller, func(string) string) {
		svc := local.New(t)
		direct := dialecttest.Direct(t, d, svc)
		return func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
			return direct(sandbox.WithCaller(ctx, sandbox.LocalCaller()), tool, args)
		}, svc.Normalize
	})
}

// The conversations about pausing, forks and snapshots.
func TestTimeConversations(t *testing.T) {
	d := native.New()
	dialecttest.Conversations(t, d, "testdata/time", func(t *testing.T) (dialecttest.Caller, func(string) string) {
		return dialecttest.Direct(t, d, newImaginary()), func(s string) string { return s }
	})
}

// snapshotSize is how large a snapshot is, which is never the same.
var snapshotSize = regexp.MustCompile(`("size_bytes": |memory of \S+, )\d{6,}`)

// The conversations of testdata with real sandboxes, which end at each script's end:
// what the scripts say holds as root and as an ordinary user.
func TestRealConversations(t *testing.T) {
	needs.GVisor(t)
	users := map[string]covetest.Options{"own user": {}}
	if os.Geteuid() == 0 {
		users["ordinary user"] = covetest.Options{UID: 54321}
	}
	for name, opts := range users {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			daemon, d := covetest.Start(t, opts), native.New()
			for scripts, normalize := range map[string]func(string) string{
				"testdata":      func(s string) string { return s },
				"testdata/real": func(s string) string { return snapshotSize.ReplaceAllString(s, "${1}<size>") },
			} {
				dialecttest.Conversations(t, d, scripts, func(t *testing.T) (dialecttest.Caller, func(string) string) {
					t.Cleanup(func() { killAll(t, daemon.Client) })
					return dialecttest.Direct(t, d, daemon.Client), normalize
				})
			}
		})
	}
}

// killAll makes a daemon look new to the next script.
func killAll(t *testing.T, svc sandbox.Sandboxes) {
	ctx := context.WithoutCancel(t.Context())
	list, err := svc.List(ctx, sandbox.ListRequest{})
	if err != nil {
		t.Error(err)
		return
	}
	for _, sb := range list.Items {
		if _, err := svc.Kill(ctx, sb.ID); err != nil {
			t.Error(err)
		}
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
