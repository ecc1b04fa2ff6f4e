package image

import (
	"embed"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// starters are projects, in directories with the names of the templates that have
// them. Their dependencies come from npm's registry, as locked by their lock files.
//
//go:embed all:starters
var starters embed.FS

// starterSteps install a project's dependencies as its user. The template has neither
// npm's cache nor the addresses of its registry.
var starterSteps = []sandbox.TemplateStep{
	{Run: "chown -R " + userName + ": " + workDir},
	{Run: "npm install --no-progress --omit-lockfile-registry-resolved --cache /tmp/npm-cache", User: userName},
}

// starterTimeout bounds the wait for a development server, which compiles its
// first page on a machine that may be busy.
const starterTimeout = 3 * time.Minute

// starterResources suffice to serve, compile and check a project at the same time.
var starterResources = sandbox.Resources{VCPUs: 2, MemoryMiB: 2048}

// starter adds the project named like the definition, and starts its development server,
// which counts as ready once it has served a page.
func (d definition) starter(server string, port int, page string) definition {
	d.files, d.run = starterFiles(d.name), starterSteps
	d.start = &sandbox.StartCommand{
		Command:   "exec node_modules/.bin/" + server,
		Ready:     "curl -fsS -o /dev/null " + page,
		TimeoutMS: starterTimeout.Milliseconds(),
	}
	d.ports, d.resources = []int{port}, starterResources
	return d
}

// starterFiles returns the files of a project.
func starterFiles(name string) []sandbox.TemplateFile {
	var files []sandbox.TemplateFile
	top := path.Join("starters", name)
	err := fs.WalkDir(starters, top, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		content, err := starters.ReadFile(p)
		files = append(files, sandbox.TemplateFile{Path: workDir + strings.TrimPrefix(p, top), Content: content, Owner: userName})
		return err
	})
	if err != nil {
		panic("image: the project " + name + ": " + err.Error())
	}
	return files
}
