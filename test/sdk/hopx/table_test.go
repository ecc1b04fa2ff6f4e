package hopx

import "github.com/cove-sh/cove/internal/testing/sdktest"

// table lists what the SDK offers. The run makes the table of docs/compat.md from it.
var table = sdktest.Table{Product: "hopx", Sections: []sdktest.Section{
	section("sandboxes and code", "Sandbox"),
	section("commands", "Commands"),
	section("files", "Files"),
	section("environment", "EnvironmentVariables"),
	section("terminals and streams", "Terminal"),
	section("connections", "WSClient"),
	section("desktop", "Desktop"),
	section("templates", "Template"),
	section("cache", "Cache"),
}}

func section(title, class string) sdktest.Section {
	return sdktest.Section{Title: "HOPX: " + title, Classes: []sdktest.Class{{Package: "@hopx-ai/sdk", Name: class, Row: func(m string, _ bool) string {
		if class == "WSClient" && m == "messages" {
			return "" // a generator, which receive is made of
		}
		return class + "." + m
	}}}}
}
