package agent

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// goCache is where Go builds are cached for users without a directory of
// their own.
const goCache = "/tmp/cove-go"

// runOnce runs Go or a shell script in a process of its own. Nothing is kept but the
// cache of Go builds.
func (a *Agent) runOnce(ctx context.Context, p *codePlan, box *kernel.Outbox) (*agentv1.CodeResult, error) {
	isGo := p.key.language == sandbox.Go
	dir, err := a.scratch(&p.user, isGo)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	p.home = cmp.Or(p.dir, p.home)
	p.env = maps.Clone(p.env)
	maps.Copy(p.env, p.setEnv)
	name, code := "main.sh", p.code
	if isGo {
		name, code = "main.go", goMain(p.code)
		goEnv(p.env, &p.user)
	}
	if err := leave(dir, name, []byte(code), &p.user); err != nil {
		return nil, err
	}
	r := newCodeRun(&stages{})
	done := r.limit(ctx, p.timeout, a.endGrace)
	var outcome *kernel.Outcome
	if isGo {
		outcome, err = a.buildAndRun(r, p, dir, box)
	} else {
		outcome, err = a.runProgram(r, p, kernel.Programs(p.key.language), []string{filepath.Join(dir, name)}, box)
	}
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

// buildAndRun builds a Go program and, if that succeeds, runs it.
func (a *Agent) buildAndRun(r *codeRun, p *codePlan, dir string, box *kernel.Outbox) (*kernel.Outcome, error) {
	spawn := a.spawner(p, &p.user)
	program := filepath.Join(dir, "main")
	messages := kernel.NewOutbox(p.keep)
	build, err := kernel.StartProgram(spawn, kernel.Programs(p.key.language),
		[]string{"build", "-o", program, filepath.Join(dir, "main.go")}, nil, messages)
	if err != nil {
		return nil, asCall(err, "start the Go toolchain")
	}
	if end := a.stage(r, p, build); end.Code != 0 {
		return &kernel.Outcome{Exit: end.Code, Died: end.Code > 128, End: end, Error: compileError(compilerOutput(messages, dir))}, nil
	}
	return a.runProgram(r, p, []string{program}, nil, box)
}

// runProgram runs the first of names that exists.
func (a *Agent) runProgram(r *codeRun, p *codePlan, names, args []string, box *kernel.Outbox) (*kernel.Outcome, error) {
	program, err := kernel.StartProgram(a.spawner(p, &p.user), names, args, p.stdin, box)
	if err != nil {
		return nil, asCall(err, "start the program")
	}
	end := a.stage(r, p, program)
	return &kernel.Outcome{Exit: end.Code, Interrupted: end.Code == 128+int(unix.SIGINT), Died: end.Code == 128+int(unix.SIGKILL), End: end}, nil
}

// stages is the [runner] of a run that consists of several programs, one at a time.
type stages struct {
	mu      sync.Mutex
	current runner // guarded by mu; nil: none yet
	stopped bool   // guarded by mu
}

func (s *stages) set(r runner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = r
	if s.stopped {
		r.Kill()
	}
}

// Interrupt also keeps further programs from running.
func (s *stages) Interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.current != nil {
		s.current.Interrupt()
	}
}

func (s *stages) Insist() bool { return false }

func (s *stages) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.current != nil {
		s.current.Kill()
	}
}

// stage waits for a program that is a part of a run.
func (a *Agent) stage(r *codeRun, p *codePlan, program *kernel.Program) kernel.End {
	a.code.hold(program, string(p.key.language))
	r.on.(*stages).set(program)
	return program.Wait()
}

func asCall(err error, doing string) error {
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce
	}
	return fail(connect.CodeInternal, "%s: %v", doing, err)
}

// compilerOutput returns the compiler's messages, with the user's file names.
func compilerOutput(messages *kernel.Outbox, dir string) string {
	var b strings.Builder
	events, _ := messages.Take()
	for _, e := range events {
		b.Write(e.GetOutput().GetData())
	}
	text := strings.ReplaceAll(b.String(), dir+"/main.go", "main.go")
	if i := strings.LastIndex(dir, "/"); i >= 0 { // also in paths relative to the working directory
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
