package validate

import (
	"cmp"
	"strconv"

	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/sandbox"
)

// MaxArgument is execve's own limit for one argument on Linux, in bytes.
const MaxArgument = 128<<10 - 1

// MaxMillis is the longest timeout of a command, in milliseconds.
const MaxMillis = int64(sandbox.MaxLifetime / 1e6)

// process refuses an environment, directory, user or input with which no program can be
// started. The directory and the user may be empty.
func process(env map[string]string, workDir, user string, stdin []byte) error {
	if err := Env(env); err != nil {
		return err
	}
	if workDir != "" {
		if err := Path("workdir", workDir); err != nil {
			return err
		}
	}
	if user != "" {
		if err := User("user", user); err != nil {
			return err
		}
	}
	if len(stdin) > sandbox.MaxStdinBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "stdin has %d bytes; send at most %d, and put more into a file", len(stdin), sandbox.MaxStdinBytes)
	}
	return nil
}

// Exec refuses an invalid command and fills in defaults.
func Exec(req *sandbox.ExecRequest) error {
	if err := command(req); err != nil {
		return err
	}
	if err := process(req.Env, req.WorkDir, req.User, req.Stdin); err != nil {
		return err
	}
	if t := req.Terminal; t != nil && (t.Cols == 0 || t.Rows == 0) {
		return Errorf("terminal is %d by %d; use at least 1 column and 1 row", t.Cols, t.Rows)
	}
	if err := Range("keep_bytes", req.KeepBytes, 0, sandbox.MaxKeepBytes); err != nil {
		return err
	}
	if len(req.Tag) > sandbox.MaxTagBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "tag has %d bytes; use at most %d", len(req.Tag), sandbox.MaxTagBytes)
	}
	if err := Text("tag", req.Tag); err != nil {
		return err
	}
	return execTimes(req)
}

func command(req *sandbox.ExecRequest) error {
	if req.Code != nil {
		return jobCode(req)
	}
	if (len(req.Command) == 0) == (req.Shell == "") {
		return Errorf("set exactly one of command, a program with its arguments, and shell, a line for the shell")
	}
	if err := Text("shell", req.Shell); err != nil {
		return err
	}
	if len(req.Shell) > MaxArgument {
		return sandbox.Errorf(sandbox.CodeTooLarge, "shell has %d bytes; use at most %d, or write a script to a file and run that", len(req.Shell), MaxArgument)
	}
	size := len(req.Shell)
	for i, a := range req.Command {
		field := "command[" + strconv.Itoa(i) + "]"
		if err := Text(field, a); err != nil {
			return err
		}
		if len(a) > MaxArgument {
			return sandbox.Errorf(sandbox.CodeTooLarge, "%s has %d bytes; an argument has at most %d, so put more into a file", field, len(a), MaxArgument)
		}
		size += len(a) + 9 // its final NUL and its pointer
	}
	for k, v := range req.Env {
		size += len(k) + len(v) + 10
	}
	if size > sandbox.MaxCommandBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "command and env have %d bytes in total; use at most %d, and put more into a file", size, sandbox.MaxCommandBytes)
	}
	if len(req.Command) > 0 && req.Command[0] == "" {
		return Errorf("command[0] is empty; set it to the program to run")
	}
	return nil
}

func execTimes(req *sandbox.ExecRequest) error {
	if req.Background && req.DetachAfterMS != 0 {
		return Errorf("detach_after_ms works only with foreground commands; leave it out, or leave background out")
	}
	if err := Range("detach_after_ms", req.DetachAfterMS, 0, MaxMillis); err != nil {
		return err
	}
	longest := sandbox.MaxExecTimeout.Milliseconds()
	// A command that is detached in time continues as a job.
	detached := 0 < req.DetachAfterMS && req.DetachAfterMS <= longest
	if detached {
		longest = sandbox.DetachedTimeout.Milliseconds()
	}
	switch t := req.TimeoutMS; {
	case req.Background && t == -1:
		req.TimeoutMS = 0
	case req.Background:
		return Range("timeout_ms", t, -1, MaxMillis)
	case t == -1 && detached:
		req.TimeoutMS = 0
	case t == 0 && detached:
		req.TimeoutMS = longest
	case t == 0:
		req.TimeoutMS = sandbox.DefaultExecTimeout.Milliseconds()
	case t < 0 || t > longest:
		return Errorf("timeout_ms is %d; use 1 to %d, or run the command in the background", t, longest)
	}
	return nil
}

// DefaultContext is the context of code that names none.
const DefaultContext = "default"

// Code refuses an invalid run of code and fills in defaults.
func Code(req *sandbox.RunCodeRequest) (err error) {
	if req.Language, err = sandbox.ParseLanguage(string(req.Language)); err != nil {
		return err
	}
	if err := CodeText("code", req.Code); err != nil {
		return err
	}
	if req.Fresh && req.Context != "" {
		return Errorf("fresh code does not run in a context; leave context or fresh out")
	}
	if req.Context, err = Context(req.Context); err != nil {
		return err
	}
	if err := process(req.Env, req.WorkDir, req.User, req.Stdin); err != nil {
		return err
	}
	if err := Range("keep_bytes", req.KeepBytes, 0, sandbox.MaxKeepBytes); err != nil {
		return err
	}
	if err := Range("timeout_ms", req.TimeoutMS, 0, sandbox.MaxCodeTimeout.Milliseconds()); err != nil {
		return err
	}
	req.KeepBytes = cmp.Or(req.KeepBytes, sandbox.DefaultKeepBytes)
	req.TimeoutMS = cmp.Or(req.TimeoutMS, sandbox.DefaultCodeTimeout.Milliseconds())
	return nil
}

// jobCode checks a job that runs code.
func jobCode(req *sandbox.ExecRequest) error {
	if len(req.Command) > 0 || req.Shell != "" {
		return Errorf("set exactly one of command, shell and code")
	}
	lang, err := sandbox.ParseLanguage(string(req.Code.Language))
	if err != nil {
		return err
	}
	req.Code = &sandbox.JobCode{Language: lang, Code: req.Code.Code}
	return CodeText("code", req.Code.Code)
}

// CodeText refuses code that cannot be passed to an interpreter.
func CodeText(field, code string) error {
	if code == "" {
		return Errorf("%s is empty; set it to the code to run", field)
	}
	if len(code) > sandbox.MaxCodeBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "%s has %d bytes; use at most %d, and load more from a file", field, len(code), sandbox.MaxCodeBytes)
	}
	return Text(field, code)
}

// Context checks the name of a context and returns it, or [DefaultContext] if it is
// empty.
func Context(name string) (string, error) {
	if name == "" {
		return DefaultContext, nil
	}
	if !agentclient.ValidContextName(name) {
		return "", Errorf("context %s is not valid; use 1 to 63 letters, digits, dashes, underscores and dots", Quote(name))
	}
	return name, nil
}

// ContextRef refuses an invalid reference to a context, and fills in the default name.
func ContextRef(ref *sandbox.ContextRef) (err error) {
	if ref.Language, err = sandbox.ParseLanguage(string(ref.Language)); err != nil {
		return err
	}
	ref.Name, err = Context(ref.Name)
	return err
}
