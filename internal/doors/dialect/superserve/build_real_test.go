package superserve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect/superserve"
	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/internal/testing/dialecttest"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// patience is for a build on a busy machine.
const patience = 2 * time.Minute

// TestRealBuilds builds templates from an image, polls for them, and uses them, as in the
// product's guide. The image is in a registry on this machine; the scripts call it <image>,
// and the registry <registry>.
func TestRealBuilds(t *testing.T) {
	needs.GVisor(t)
	registry, image := dialecttest.PushShell(t, "")
	d := covetest.Start(t, dialecttest.Ordinary("--insecure-registries", registry))
	connect := dialecttest.Through(d, dialecttest.HTTP(d, superserve.Name), revision, func(s string) string {
		return strings.NewReplacer(image, "<image>", registry, "<registry>").Replace(s)
	})
	dialecttest.Conversations(t, superserve.New(), "testdata/build", func(t *testing.T) (dialecttest.Caller, func(string) string) {
		call, hide := connect(t)
		return polling(func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error) {
			args = bytes.ReplaceAll(args, []byte("<image>"), []byte(image))
			return call(ctx, tool, bytes.ReplaceAll(args, []byte("<registry>"), []byte(registry)))
		}), hide
	})
}

// polling lists templates until none of them is being built, as the text of a build tells
// an agent to.
func polling(call dialecttest.Caller) dialecttest.Caller {
	return func(ctx context.Context, tool string, args json.RawMessage) (res *mcp.CallToolResult, err error) {
		covetest.Eventually(patience, func() bool {
			res, err = call(ctx, tool, args)
			if tool != "sandbox_template_list" || err != nil || res.IsError {
				return true
			}
			text, ok := res.Content[0].(*mcp.TextContent)
			return !ok || !strings.Contains(text.Text, "\tbuilding\t")
		})
		return res, err
	}
}
