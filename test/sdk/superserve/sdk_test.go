package superserve

import (
	"testing"

	"github.com/cove-sh/cove/internal/testing/sdktest"
)

// table lists what the SDK offers. The run makes the table of docs/compat.md from it.
var table = sdktest.Table{Product: "superserve", Sections: []sdktest.Section{
	{Title: "Superserve: sandboxes", Classes: classes("Sandbox")},
	{Title: "Superserve: commands and files", Classes: classes("Commands", "CommandSession", "CommandStdin", "Files")},
	{Title: "Superserve: templates", Classes: classes("Template")},
	{Title: "Superserve: secrets", Classes: classes("Secret", "Provider")},
}}

func classes(names ...string) []sdktest.Class {
	var list []sdktest.Class
	for _, name := range names {
		list = append(list, sdktest.Class{Package: "@superserve/sdk", Name: name})
	}
	return list
}

// TestSDK runs the checks. What they show is the table of docs/compat.md.
func TestSDK(t *testing.T) { table.Test(t, suite, sdktest.UserByURL) }

// TestSoakVersions runs the checks with the oldest version that is tested. In "make test",
// TestSDK stands for it.
func TestSoakVersions(t *testing.T) { sdktest.Versions(t, []string{"superserve-0.7"}, suite) }

func suite(t *testing.T, uid uint32, w sdktest.Way, env ...string) []sdktest.Row {
	t.Helper()
	return serve(t, uid, w).Suite(t, env...)
}
