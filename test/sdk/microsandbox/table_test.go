package microsandbox

import (
	"strings"

	"github.com/cove-sh/cove/internal/testing/sdktest"
)

// table lists what the SDK offers. The run makes the table of docs/compat.md from it.
var table = sdktest.Table{Product: "microsandbox", Sections: []sdktest.Section{
	section("sandboxes", "Sandbox sandbox", "SandboxHandle sandbox-handle", "SandboxListBuilder sandbox"),
	section("commands and logs", "ExecHandle exec", "ExecSink exec", "LogStream logs"),
	section("files", "SandboxFsOps fs", "FsReadStream fs", "FsWriteSink fs"),
	section("SSH", "SandboxSshOps ssh", "SshClient ssh", "SftpClient ssh", "SshServer ssh"),
	section("volumes", "Volume volume", "VolumeHandle volume-handle", "VolumeFs volume-fs"),
}}

// section lists classes, each "CLASS FILE" with the file that declares it.
func section(title string, classes ...string) sdktest.Section {
	s := sdktest.Section{Title: "microsandbox: " + title}
	for _, class := range classes {
		name, file, _ := strings.Cut(class, " ")
		s.Classes = append(s.Classes, sdktest.Class{Package: "microsandbox", Name: name, File: "dist/" + file + ".d.ts"})
	}
	return s
}
