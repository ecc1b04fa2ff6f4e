package terms

import (
	"maps"
	"path"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// Step is a step of a recipe; exactly one of the fields is set.
type Step struct {
	Run     string
	Env     *StepEnv
	WorkDir string
	User    *StepUser
}

// StepEnv sets a variable for later steps and for sandboxes.
type StepEnv struct{ Key, Value string }

// StepUser makes a user, if missing, for later steps and for sandboxes.
type StepUser struct {
	Name string
	// Sudo lets the user become root without a password.
	Sudo bool
}

const root = "root"

var (
	envName  = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
	userName = lazyregexp.New(`^[a-z_][a-z0-9_-]{0,30}$`)
)

// setting is the environment, user and directory in effect for a step.
type setting struct {
	user, dir string
	env       map[string]string
}

// addSteps adds steps to a specification. A template's variables and directory apply to all
// of its steps in Cove, but only from their own step on in the product. So earlier commands
// unset the variables and change to their own directory.
func addSteps(s *sandbox.TemplateSpec, steps []Step) error {
	if len(steps) > sandbox.MaxTemplateSteps { // each repeats all variables before it
		return invalid("build_spec.steps has %d steps; give at most %d", len(steps), sandbox.MaxTemplateSteps)
	}
	last := setting{env: map[string]string{}}
	for _, step := range steps {
		if step.Env != nil {
			last.env[step.Env.Key] = step.Env.Value
		}
		if step.WorkDir != "" {
			last.dir = absolute(last.dir, step.WorkDir)
		}
	}
	now := setting{user: root, env: map[string]string{}}
	if last.dir != "" {
		now.dir = "/"
	}
	for i, step := range steps {
		switch {
		case step.Run != "":
			s.Run = append(s.Run, now.command(step.Run, last.env))
		case step.Env != nil:
			if !envName.MatchString(step.Env.Key) {
				return invalid("build_spec.steps[%d].env.key %.80q is no name of a variable", i, step.Env.Key)
			}
			now.env[step.Env.Key] = step.Env.Value
		case step.WorkDir != "":
			if strings.ContainsAny(step.WorkDir, "\x00\n") {
				return invalid("build_spec.steps[%d].workdir has a line break or NUL", i)
			}
			if now.dir = absolute(now.dir, step.WorkDir); len(now.dir) > sandbox.MaxPathBytes {
				return invalid("build_spec.steps[%d].workdir is a path of %d bytes; give at most %d", i, len(now.dir), sandbox.MaxPathBytes)
			}
			s.Run = append(s.Run, sandbox.TemplateStep{Run: "mkdir -p " + dialect.Quote(now.dir) + " && chown " + now.user + " " + dialect.Quote(now.dir), WorkDir: "/"})
		case step.User != nil:
			if !userName.MatchString(step.User.Name) {
				return invalid("build_spec.steps[%d].user.name %.80q must be 1 to 31 of a-z, 0-9, _ and -, and begin with a letter or _", i, step.User.Name)
			}
			now.user = step.User.Name
			s.User = now.user
			s.Run = append(s.Run, sandbox.TemplateStep{Run: dialect.MakeUser(step.User.Name, step.User.Sudo), WorkDir: "/"})
		default:
			return invalid("build_spec.steps[%d] must have one of run, env, workdir and user", i)
		}
	}
	if len(now.env) > 0 {
		s.Env = now.env
	}
	s.WorkDir = last.dir
	return nil
}

// command returns a command as a step.
func (t *setting) command(run string, all map[string]string) sandbox.TemplateStep {
	step := sandbox.TemplateStep{Run: dialect.UnsetLater(run, maps.Keys(all), t.env), WorkDir: t.dir}
	if t.user != root {
		step.User = t.user
	}
	if len(t.env) > 0 {
		step.Env = maps.Clone(t.env)
	}
	return step
}

func absolute(base, dir string) string {
	if path.IsAbs(dir) {
		return path.Clean(dir)
	}
	return path.Join("/", base, dir)
}

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}
