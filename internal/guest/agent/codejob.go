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

func checkLanguage(l string) error {
	if !slices.Contains(sandbox.Languages(), sandbox.Language(l)) {
		return invalid("the language %q is not known; use python, javascript, typescript, bash or go", clip.Valid(l, 64))
	}
	return nil
}

func checkCode(code string) error {
	if len(code) > sandbox.MaxCodeBytes {
		return invalid("the code is longer than %d bytes; put data into files", sandbox.MaxCodeBytes)
	}
	return nil
}

// planJobCode makes p run code in an interpreter of its own. The code is in a file,
// which is removed with the job.
func (a *Agent) planJobCode(p *plan, env map[string]string, req *agentv1.ExecRequest) (err error) {
	l := sandbox.Language(req.GetLanguage())
	_, program := findFirst(kernel.Programs(l), env["PATH"], p.workdir)
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
		path := p.workdir // as if main.py were in it
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

// firstLine is the form in which code is listed.
func firstLine(code string) string {
	line, rest, _ := strings.Cut(strings.TrimSpace(code), "\n")
	line = strings.ToValidUTF8(strings.TrimSpace(line), "\uFFFD")
	if strings.TrimSpace(rest) != "" {
		line += " …"
	}
	return line
}

// clean removes the files that the plan has made for its process.
func (p *plan) clean() {
	if p.scratch != "" {
		_ = os.RemoveAll(p.scratch)
	}
}
