package e2b

import "github.com/cove-sh/cove/internal/testing/sdktest"

// table lists what the SDKs offer. The run makes the table of docs/compat.md from it.
var table = sdktest.Table{Product: "e2b", Sections: []sdktest.Section{
	{Title: "Sandboxes", Classes: classes("Sandbox", "SandboxApi", "SandboxPaginator", "SnapshotPaginator")},
	{Title: "Commands and terminals", Classes: classes("Commands", "CommandHandle", "Pty")},
	{Title: "Files", Classes: classes("Filesystem", "WatchHandle")},
	{Title: "Code", Classes: []sdktest.Class{{Package: "@e2b/code-interpreter", Name: "Sandbox", Row: func(m string, _ bool) string { return "code Sandbox." + m }}}},
	{Title: "Templates", Classes: classes("TemplateBase", "TemplateFromImage", "TemplateBuilder")},
	{Title: "Volumes", Classes: classes("Volume")},
	{Title: "Secrets", Classes: classes("Secret", "SecretPaginator")},
	{Title: "Git", Classes: classes("Git")},
	{Title: "Command line", Names: []string{
		"e2b sandbox create", "e2b sandbox connect", "e2b sandbox list", "e2b sandbox info", "e2b sandbox exec", "e2b sandbox logs", "e2b sandbox metrics", "e2b sandbox pause",
		"e2b sandbox resume", "e2b sandbox snapshot create", "e2b sandbox snapshot list", "e2b sandbox kill", "e2b template create", "e2b template list", "e2b template publish",
		"e2b template unpublish", "e2b template delete", "e2b auth login",
	}},
}}

// aliases are the names of classes in the table that differ from their declarations.
var aliases = map[string]string{"SandboxApi": "Sandbox", "TemplateBase": "Template", "TemplateFromImage": "TemplateBuilder"}

func classes(names ...string) []sdktest.Class {
	var list []sdktest.Class
	for _, name := range names {
		list = append(list, sdktest.Class{Package: pinned, Name: name, Row: func(m string, static bool) string {
			as := name
			if alias := aliases[name]; alias != "" {
				as = alias
			}
			switch {
			case name == "TemplateBase" && !static:
				return "" // the builder has it
			case name == "Volume" && !static:
				return as + "#" + m // others of these names are the class's own
			}
			return as + "." + m
		}})
	}
	return list
}
