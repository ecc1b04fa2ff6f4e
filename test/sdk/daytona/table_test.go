package daytona

import (
	"strings"

	"github.com/cove-sh/cove/internal/testing/sdktest"
)

// table lists what the SDK offers. The run makes the table of docs/compat.md from it.
var table = sdktest.Table{Product: "daytona", Sections: []sdktest.Section{
	section("sandboxes", "Daytona", "Sandbox"),
	section("commands, sessions and terminals", "Process", "PtyHandle"),
	section("code", "CodeInterpreter"),
	section("files", "FileSystem"),
	section("git", "Git"),
	section("snapshots and volumes", "SnapshotService Snapshot", "VolumeService Volume", "Image"),
	section("desktops", "ComputerUse", "Mouse ComputerUse", "Keyboard ComputerUse", "Screenshot ComputerUse", "Display ComputerUse", "RecordingService ComputerUse", "Accessibility ComputerUse"),
	section("the rest", "LspServer", "SecretService Secret", "WarmPoolService WarmPool"),
}}

// section lists classes, each "CLASS" or "CLASS FILE" with the file that declares it.
func section(title string, classes ...string) sdktest.Section {
	s := sdktest.Section{Title: "Daytona: " + title}
	for _, class := range classes {
		name, file, ok := strings.Cut(class, " ")
		if !ok {
			file = name
		}
		s.Classes = append(s.Classes, sdktest.Class{Package: "@daytonaio/sdk", Name: name, File: "esm/" + file + ".d.ts"})
	}
	return s
}
