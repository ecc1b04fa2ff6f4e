package agent

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// goCache is where Go builds are cached for users without a directory of
// their own.
const goCache = "/tmp/cove-go"

// runGo compiles and runs a main package. Nothing is kept but the cache.
func (a *Agent) runGo(ctx context.Context, p *codePlan, box *kernel.Outbox) (*agentv1.CodeResult, error) {
	dir, err := a.scratch(&p.user, true)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := leave(dir, "main.go", []byte(goMain(p.code)), &p.user); err != nil {
		return nil, err
	}
	p.home = orElse(p.dir, p.home)
	p.env = maps.Clone(p.env)
	maps.Copy(p.env, p.setEnv)
	goEnv(p.env, &p.user)
	return a.inStages(ctx, p, box, func(r *codeRun) (*kernel.Outcome, error) { return a.goStages(r, p, dir, box) })
}

// runScript runs a shell script in a shell of its own.
func (a *Agent) runScript(ctx context.Context, p *codePlan, box *kernel.Outbox) (*agentv1.CodeResult, error) {
	dir, err := a.scratch(&p.user, false)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := leave(dir, "main.sh", []byte(p.code), &p.user); err != nil {
		return nil, err
	}
	p.home = orElse(p.dir, p.home)
	p.env = maps.Clone(p.env)
	maps.Copy(p.env, p.setEnv)
	return a.inStages(ctx, p, box, func(r *codeRun) (*kernel.Outcome, error) {
		return a.runProgram(r, p, kernel.Programs(p.key.language), []string{filepath.Join(dir, "main.sh")}, box)
	})
}

// inStages runs what consists of programs.
func (a *Agent) inStages(ctx context.Context, p *codePlan, box *kernel.Outbox, run func(*codeRun) (*kernel.Outcome, error)) (*agentv1.CodeResult, error) {
	r := newCodeRun(&stages{})
	done := r.limit(ctx, p.timeout, a.endGrace)
	outcome, err := run(r)
	done()
	if err != nil {
		if ctx.Err() != nil {
			return nil, cancelled(ctx)
		}
		return nil, err
	}
	result := r.result(outcome, p, box)
	result.Count = 1
	if !outcome.Died {
		result.Reason = ""
	}
	return result, nil
}

// goEnv adds what the Go toolchain needs to an environment.
func goEnv(env map[string]string, acc *account) {
	if home := env["HOME"]; env["GOCACHE"] == "" && (home == "" || home == "/" || unix.Access(home, unix.F_OK) != nil) {
		env["GOCACHE"] = filepath.Join(goCache, acc.name)
	}
	if env["GOTOOLCHAIN"] == "" {
		env["GOTOOLCHAIN"] = "local"
	}
}

// goStages builds the program, and runs it if it could be built.
func (a *Agent) goStages(r *codeRun, p *codePlan, dir string, box *kernel.Outbox) (*kernel.Outcome, error) {
	spawn := a.spawner(p, &p.user)
	program := filepath.Join(dir, "main")
	said := kernel.NewOutbox(p.keep)
	build, err := kernel.StartProgram(spawn, kernel.Programs(p.key.language),
		[]string{"build", "-o", program, filepath.Join(dir, "main.go")}, nil, said)
	if err != nil {
		return nil, asCall(err, "start the Go toolchain")
	}
	if end := a.stage(r, p, build); end.Code != 0 {
		return &kernel.Outcome{Exit: end.Code, Died: end.Code > 128, End: end, Error: compileError(compilerOutput(said, dir))}, nil
	}
	return a.runProgram(r, p, []string{program}, nil, box)
}

// runProgram runs the first of names that there is.
func (a *Agent) runProgram(r *codeRun, p *codePlan, names, args []string, box *kernel.Outbox) (*kernel.Outcome, error) {
	program, err := kernel.StartProgram(a.spawner(p, &p.user), names, args, p.stdin, box)
	if err != nil {
		return nil, asCall(err, "start the program")
	}
	end := a.stage(r, p, program)
	return &kernel.Outcome{Exit: end.Code, Interrupted: end.Code == 128+int(unix.SIGINT), Died: end.Code == 128+int(unix.SIGKILL), End: end}, nil
}

// stage waits for a program that a run consists of.
func (a *Agent) stage(r *codeRun, p *codePlan, program *kernel.Program) kernel.End {
	a.code.hold(program)
	a.code.own(program.PID(), string(p.key.language))
	r.on.(*stages).set(program)
	return program.Wait()
}

func asCall(err error, doing string) error {
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce
	}
	return fail(connect.CodeInternal, "%s: %v", doing, err)
}

// compilerOutput is what the compiler has said, with the user's file names.
func compilerOutput(said *kernel.Outbox, dir string) string {
	var b strings.Builder
	events, _ := said.Take()
	for _, e := range events {
		b.Write(e.GetOutput().GetData())
	}
	text := strings.ReplaceAll(b.String(), dir+"/main.go", "main.go")
	if i := strings.LastIndex(dir, "/"); i >= 0 { // also relative to where it was called
		for _, word := range strings.Fields(text) {
			if at := strings.Index(word, dir[i:]+"/main.go"); at > 0 {
				text = strings.ReplaceAll(text, word[:at]+dir[i:]+"/main.go", "main.go")
			}
		}
	}
	return strings.TrimPrefix(text, "# command-line-arguments\n")
}

func compileError(text string) *agentv1.CodeError {
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return &agentv1.CodeError{Name: "CompileError", Message: first, Traceback: strings.TrimSpace(text)}
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}
