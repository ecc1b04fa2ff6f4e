package image

import (
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// definition says how a template is made.
type definition struct {
	name, description string
	source            source
	packages          []string
	// npm are packages from npm's registry that are newer than Debian's.
	npm []string
	env map[string]string
	// warm is code to run in the default interpreters of the golden checkpoint.
	warm map[string]string
	// The other fields are as in [sandbox.TemplateSpec].
	start     *sandbox.StartCommand
	desktop   *sandbox.Desktop
	ports     []int
	resources sandbox.Resources
	files     []sandbox.TemplateFile
	run       []sandbox.TemplateStep
}

// The names of the built-in definitions.
const (
	Host            = "host"
	Debian          = "debian"
	CodeInterpreter = "code-interpreter"
)

// The user and directories that every template has.
const (
	userName = "user"
	userID   = 1000
	homeDir  = "/home/user"
	workDir  = "/workspace"
)

// basePackages are in every Debian template: the default user needs them to become root,
// and programs need them to use TLS.
var basePackages = []string{"ca-certificates", "sudo"}

var codePackages = []string{
	"python3", "python-is-python3", "python3-pip", "python3-venv", "python3-ipykernel",
	"python3-numpy", "python3-pandas", "python3-matplotlib", "python3-plotly", "python3-seaborn", "python3-scipy", "python3-sklearn",
	"python3-requests", "python3-httpx", "python3-bs4", "python3-lxml", "python3-openpyxl", "python3-pil", "python3-pytest",
	"nodejs", "npm", "node-typescript", "golang", "gcc", "g++", "libc6-dev", "make", "pkg-config",
	"git", "curl", "wget", "openssh-client", "vim", "nano", "less", "procps", "file", "jq", "sqlite3",
	"unzip", "zip", "xz-utils", "patch", "ripgrep",
}

// toolPackages are what users expect and a minimal Debian lacks.
var toolPackages = []string{"curl", "git", "procps", "less", "nano", "file", "xz-utils", "unzip"}

var nodePackages = []string{"nodejs", "npm", "node-typescript"}

// newerNode is a maintained Node.js and its npm: Debian 12 has version 18.
var newerNode = []string{"node-linux-" + map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH] + "@22.23.3", "npm@10.9.9"}

var nodeWarm = map[string]string{string(sandbox.JavaScript): "undefined"}

// codeWarm imports what most code imports, and defines no names.
var codeWarm = map[string]string{
	string(sandbox.Python):     `exec("import numpy, pandas, matplotlib, matplotlib.pyplot, matplotlib.font_manager", {})`,
	string(sandbox.JavaScript): "undefined",
}

// baseEnv is the environment of every template. pip may install packages although
// the interpreter belongs to Debian: a sandbox is not a system to protect.
var baseEnv = map[string]string{
	"LANG":                      "C.UTF-8",
	"PATH":                      "/home/user/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"PIP_BREAK_SYSTEM_PACKAGES": "1",
}

// withEnv returns baseEnv with one more variable.
func withEnv(name, value string) map[string]string {
	env := maps.Clone(baseEnv)
	env[name] = value
	return env
}

// builtin returns the built-in definitions by name.
func builtin(host, debian source) map[string]definition {
	defs := []definition{
		{name: Host, source: host, env: baseEnv, description: "this machine's own programs, read-only: /usr and what it needs of /etc, nothing else"},
		{name: Debian, source: debian, env: baseEnv, packages: basePackages, description: "a small Debian 12"},
		{name: CodeInterpreter, source: debian, env: baseEnv, packages: slices.Concat(basePackages, codePackages),
			description: "Debian 12 with Python and its data libraries, Node.js 22, Go, C and C++, git and editors", npm: newerNode, warm: codeWarm},
		{name: "base", source: debian, env: baseEnv, packages: slices.Concat(basePackages, toolPackages),
			description: "a small Debian 12 with curl, git and the usual tools"},
		{name: "node", source: debian, env: baseEnv, packages: slices.Concat(basePackages, toolPackages, nodePackages),
			description: "Debian 12 with Node.js 22, npm and TypeScript", npm: newerNode, warm: nodeWarm},
		// These two are node with a project; the steps that install node's packages run
		// once for all three.
		definition{name: "nextjs", source: debian, env: withEnv("NEXT_TELEMETRY_DISABLED", "1"), packages: slices.Concat(basePackages, toolPackages, nodePackages),
			description: "Node.js 22 with a Next.js 16 project in /workspace, which is served on port 3000", npm: newerNode}.
			starter("next dev", 3000, "http://127.0.0.1:3000/"),
		definition{name: "react-vite", source: debian, env: baseEnv, packages: slices.Concat(basePackages, toolPackages, nodePackages),
			description: "Node.js 22 with a React project of Vite 8 in /workspace, which is served on port 5173", npm: newerNode}.
			starter("vite", 5173, "http://127.0.0.1:5173/ -o /dev/null http://127.0.0.1:5173/src/main.tsx"),
		definition{name: "desktop", source: debian, env: baseEnv, packages: slices.Concat(basePackages, desktopPackages, shellPackages),
			description: "a computer: Debian 12 with a screen, a panel, Chromium, a terminal and a file manager"}.computer(shellDesktop),
		definition{name: "browser", source: debian, env: baseEnv, packages: slices.Concat(basePackages, desktopPackages),
			description: "a computer whose screen is Chromium alone, open from the start"}.computer(shellBrowser),
	}
	out := map[string]definition{}
	for _, d := range defs {
		slices.Sort(d.packages)
		d.packages = slices.Compact(d.packages)
		out[d.name] = d
	}
	return out
}

var (
	validTemplate = lazyregexp.New(`^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$`)
	validPackage  = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]*$`)
)

const (
	maxPackages    = 500
	maxPackageName = 128
)

// checkPackages returns the packages sorted and without duplicates. A name may not
// end with a hyphen, which apt takes as a request to remove it.
func checkPackages(packages []string) ([]string, error) {
	if len(packages) > maxPackages {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "a template can name at most %d packages; name fewer", maxPackages)
	}
	for _, p := range packages {
		if len(p) > maxPackageName || !validPackage.MatchString(p) || strings.HasSuffix(p, "-") {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "%.80q is not the name of a Debian package; use names such as python3-numpy", p)
		}
	}
	all := slices.Concat(basePackages, packages)
	slices.Sort(all)
	return slices.Compact(all), nil
}

// template describes a definition that has not been built.
func (d definition) template() sandbox.Template {
	return sandbox.Template{
		Name: d.name, Description: d.description, Source: d.source.kind(), State: sandbox.TemplateAvailable,
		User: userName, WorkDir: workDir, Env: maps.Clone(d.env), Packages: slices.Clone(d.packages),
		Resources: d.resources, Warm: maps.Clone(d.warm), Start: d.start, Desktop: d.desktop, Ports: slices.Clone(d.ports),
	}
}

// spec returns the specification of a definition.
func (d definition) spec() sandbox.TemplateSpec {
	s := sandbox.TemplateSpec{
		Description: d.description, Env: d.env, Files: d.files, Run: d.run,
		Resources: d.resources, Warm: d.warm, Start: d.start, Desktop: d.desktop, Ports: d.ports,
	}
	if d.name == Host {
		s.From.Host = true
		return s
	}
	s.From.Debian, s.Apt, s.NPM = suite, withoutBase(d.packages), slices.Clone(d.npm)
	return s
}

// withoutBase leaves out basePackages.
func withoutBase(packages []string) []string {
	return slices.DeleteFunc(slices.Clone(packages), func(name string) bool { return slices.Contains(basePackages, name) })
}
