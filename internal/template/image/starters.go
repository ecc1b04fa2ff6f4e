package image

import (
	"embed"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// starters are projects by the names of the templates that have them. Their
// dependencies come from npm's registry, as their lock files say.
//
//go:embed all:starters
var starters embed.FS

// starterSteps install a project's dependencies as its user. What npm has
// fetched is not kept in the template, nor from where.
var starterSteps = []sandbox.TemplateStep{
	{Run: "chown -R " + userName + ": " + workDir},
	{Run: "npm install --no-progress --omit-lockfile-registry-resolved --cache /tmp/npm-cache", User: userName},
}

// starterTimeout bounds the wait for a development server, which compiles its
// first page on a machine that may be busy.
const starterTimeout = 3 * time.Minute

// starterResources are enough to serve, compile and check a project at once.
var starterResources = sandbox.Resources{VCPUs: 2, MemoryMiB: 2048}

// starter gives a definition the project of its name, whose development server
// runs from the beginning. It is ready when it has served a page.
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

// starterFiles are those of a project.
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
