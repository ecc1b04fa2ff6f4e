package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// checkJobCode checks code that is to run as a job.
func checkJobCode(req *agentv1.ExecRequest) error {
	if !slices.Contains(sandbox.Languages(), sandbox.Language(req.GetLanguage())) {
		return invalid("the language %q is not known; use python, javascript, typescript, bash or go", clip.Valid(req.GetLanguage(), 64))
	}
	if len(req.GetCode()) > sandbox.MaxCodeBytes {
		return invalid("the code is longer than %d bytes; put data into files", sandbox.MaxCodeBytes)
	}
	return nil
}

// planJobCode makes a plan run code in an interpreter of its own. The code is
// in a file, which goes away with the job.
func (a *Agent) planJobCode(p *plan, env map[string]string, req *agentv1.ExecRequest) (err error) {
	l := sandbox.Language(req.GetLanguage())
	program := ""
	for _, name := range kernel.Programs(l) {
		if program, err = findProgram(name, env["PATH"], p.workdir); err == nil && executable(program) == nil {
			break
		}
		program = ""
	}
	if program == "" {
		return missing(l, kernel.Programs(l))
	}
	if p.scratch, err = a.scratch(&p.user, l == sandbox.Go); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			p.clean()
		}
	}()
	files := map[string]string{}
	file := func(name, content string) string {
		files[name] = content
		return filepath.Join(p.scratch, name)
	}
	switch l {
	case sandbox.Python:
		p.argv = []string{program, "-u", file("main.py", req.GetCode())}
		path := p.workdir // as if the file were there
		if more := env["PYTHONPATH"]; more != "" {
			path += ":" + more
		}
		env["PYTHONPATH"] = path
	case sandbox.JavaScript, sandbox.TypeScript:
		driver, err := kernel.NodeProgram(l)
		if err != nil {
			return fail(connect.CodeInternal, "%v", err)
		}
		p.argv = []string{program, file("driver.js", driver), file("main.js", req.GetCode())}
	case sandbox.Bash:
		p.argv = []string{program, file("main.sh", req.GetCode())}
	case sandbox.Go:
		shell, err := findShell()
		if err != nil {
			return err
		}
		goEnv(env, &p.user)
		file("main.go", goMain(req.GetCode()))
		p.argv = []string{shell, "-c", `"$1" build -o "$0/main" "$0/main.go" && exec "$0/main"`, p.scratch, program}
	}
	p.path, p.language, p.shown = p.argv[0], req.GetLanguage(), []string{req.GetLanguage(), firstLine(req.GetCode())}
	for name, content := range files {
		if err := leave(p.scratch, name, []byte(content), &p.user); err != nil {
			return err
		}
	}
	return nil
}

// firstLine is what is shown of code where there is room for a line.
func firstLine(code string) string {
	line, rest, _ := strings.Cut(strings.TrimSpace(code), "\n")
	line = strings.ToValidUTF8(strings.TrimSpace(line), "\uFFFD")
	if strings.TrimSpace(rest) != "" {
		line += " …"
	}
	return line
}

// clean removes what the plan has left for its process.
func (p *plan) clean() {
	if p.scratch != "" {
		_ = os.RemoveAll(p.scratch)
	}
}
