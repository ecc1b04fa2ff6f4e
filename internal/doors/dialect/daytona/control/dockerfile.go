package control

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// imagePath is the usual PATH of images. An image's own is not known until it is pulled.
const imagePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var envName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

// dockerfile translates a Dockerfile of one stage that copies no files: each instruction is
// in effect for those after it.
type dockerfile struct {
	spec            *sandbox.TemplateSpec
	user, dir       string
	env, args       map[string]string // what ENV and ARG have set
	sets            map[string]string // what ENV sets somewhere
	entrypoint, cmd *parser.Node
}

func refusedInstruction(i *parser.Node, why string) error {
	return answer.Refused("buildInfo.dockerfileContent", clip.Text(strings.TrimSpace(i.Original), 80)+": "+why)
}

// arguments returns the arguments of an instruction, which the parser has as one or several
// words.
func arguments(i *parser.Node) []string {
	var list []string
	for n := i.Next; n != nil; n = n.Next {
		list = append(list, n.Value)
	}
	return list
}

// parseDockerfile returns the specification of a template that is built as a Dockerfile says.
func parseDockerfile(text string) (*sandbox.TemplateSpec, error) {
	parsed, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		return nil, answer.Invalid("buildInfo.dockerfileContent is no Dockerfile, which begins with FROM IMAGE: %.300s", err)
	}
	if parsed.EscapeToken != parser.DefaultEscapeToken {
		return nil, answer.Refused("buildInfo.dockerfileContent", "a backslash is what escapes; leave out # escape")
	}
	list := parsed.AST.Children
	if !strings.EqualFold(list[0].Value, "FROM") {
		return nil, answer.Invalid("buildInfo.dockerfileContent names no image; begin with FROM IMAGE")
	}
	from := arguments(list[0])
	if len(from) != 1 && (len(from) != 3 || !strings.EqualFold(from[1], "AS")) || len(list[0].Flags) > 0 || strings.Contains(from[0], "$") {
		return nil, refusedInstruction(list[0], "name one image")
	}
	d := &dockerfile{
		spec: &sandbox.TemplateSpec{Description: "The image " + from[0], From: sandbox.TemplateSource{Image: from[0]}},
	}
	if len(list) == 1 {
		return d.spec, nil
	}
	d.spec.Description = "A Dockerfile, from " + from[0]
	d.spec.BuildNetwork = &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}
	if len(list) > sandbox.MaxTemplateSteps {
		return nil, answer.Invalid("buildInfo.dockerfileContent has %d instructions; write at most %d", len(list), sandbox.MaxTemplateSteps)
	}
	for range 2 { // the first time to see what is set
		d.sets, d.env, d.args, d.user, d.dir, d.spec.Run = d.env, map[string]string{}, map[string]string{}, "", "", nil
		for _, i := range list[1:] {
			if err := d.add(i); err != nil {
				return nil, err
			}
		}
	}
	d.spec.User, d.spec.WorkDir = d.user, d.dir
	if len(d.env) > 0 {
		d.spec.Env = d.env
	}
	if command := d.start(); len(command) > 0 {
		d.spec.Start = &sandbox.StartCommand{Command: shellQuote(command)}
	}
	return d.spec, nil
}

// start is the program that an image runs: CMD has the arguments of an ENTRYPOINT, unless
// that is a line for a shell.
func (d *dockerfile) start() []string {
	entrypoint := programOf(d.entrypoint)
	if d.entrypoint != nil && !d.entrypoint.Attributes["json"] {
		return entrypoint
	}
	return slices.Concat(entrypoint, programOf(d.cmd))
}

// programOf returns the program of an instruction, which is a list or a line for a shell. It
// is empty if there is none.
func programOf(i *parser.Node) []string {
	if i == nil {
		return nil
	}
	command := arguments(i)
	if i.Attributes["json"] || strings.Join(command, "") == "" {
		return command
	}
	return []string{"/bin/sh", "-c", strings.Join(command, " ")}
}

func (d *dockerfile) add(i *parser.Node) error {
	switch strings.ToUpper(i.Value) {
	case "RUN":
		return d.run(i)
	case "ENV":
		return d.setEnv(i)
	case "ARG":
		return d.setArgs(i)
	case "WORKDIR":
		return d.setDir(i)
	case "USER":
		return d.setUser(i)
	case "ENTRYPOINT":
		d.entrypoint = i
	case "CMD":
		d.cmd = i
	case "LABEL", "MAINTAINER", "EXPOSE": // which change nothing in an image's files and programs
	default:
		return refusedInstruction(i, "Cove builds FROM, RUN, ENV, ARG, WORKDIR, USER, ENTRYPOINT and CMD")
	}
	return nil
}

func (d *dockerfile) run(i *parser.Node) error {
	command := strings.Join(arguments(i), " ")
	switch {
	case command == "":
		return refusedInstruction(i, "give a command")
	case len(i.Flags) > 0:
		return refusedInstruction(i, "a command has no options")
	case len(i.Heredocs) > 0:
		return refusedInstruction(i, "a command is one line, with \\ where it goes on")
	case i.Attributes["json"]:
		command = shellQuote(arguments(i))
	}
	env := maps.Clone(d.args)
	maps.Copy(env, d.env)
	command = dialect.UnsetLater(command, maps.Keys(d.sets), env)
	d.spec.Run = append(d.spec.Run, sandbox.TemplateStep{Run: command, User: d.user, WorkDir: d.dir, Env: env})
	return nil
}

// setEnv sets variables permanently. The parser has three arguments for each: the name, the
// value, and the separator between them.
func (d *dockerfile) setEnv(i *parser.Node) error {
	args := arguments(i)
	set := map[string]string{} // values refer to variables as they were before
	for ; len(args) >= 3; args = args[3:] {
		name, err := d.word(i, args[0])
		if err != nil {
			return err
		}
		if set[name], err = d.word(i, args[1]); err != nil {
			return err
		}
	}
	return d.set(i, d.env, set)
}

// setArgs sets variables for the build.
func (d *dockerfile) setArgs(i *parser.Node) error {
	set := map[string]string{}
	for _, arg := range arguments(i) {
		word, err := d.word(i, arg)
		if err != nil {
			return err
		}
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			return refusedInstruction(i, "give NAME=VALUE; nothing else says what a build argument is")
		}
		set[name] = value
	}
	return d.set(i, d.args, set)
}

func (d *dockerfile) set(i *parser.Node, in, set map[string]string) error {
	if len(set) == 0 {
		return refusedInstruction(i, "give NAME=VALUE")
	}
	for name := range set {
		if !envName.MatchString(name) {
			return refusedInstruction(i, "give NAME=VALUE")
		}
	}
	maps.Copy(in, set)
	if len(d.env)+len(d.args) > sandbox.MaxEnvPairs { // each step has them
		return refusedInstruction(i, "there are more variables than "+strconv.Itoa(sandbox.MaxEnvPairs)+"; set fewer")
	}
	size := 0
	for _, set := range []map[string]string{d.env, d.args} {
		for name, value := range set {
			size += len(name) + len(value)
		}
	}
	if size > sandbox.MaxEnvBytes {
		return refusedInstruction(i, "the variables are too large")
	}
	return nil
}

func (d *dockerfile) setUser(i *parser.Node) error {
	user, err := d.only(i)
	if err != nil {
		return err
	}
	if strings.Contains(user, ":") {
		return refusedInstruction(i, "a group of its own is not set; name the user")
	}
	d.user = user
	return nil
}

func (d *dockerfile) setDir(i *parser.Node) error {
	dir, err := d.only(i)
	switch {
	case err != nil:
		return err
	case path.IsAbs(dir):
		d.dir = path.Clean(dir)
	case d.dir == "":
		return refusedInstruction(i, "the directory of the image is not known; give an absolute one first")
	default:
		d.dir = path.Join(d.dir, dir)
	}
	if len(d.dir) > sandbox.MaxPathBytes { // each step has it
		return refusedInstruction(i, "the path is longer than "+strconv.Itoa(sandbox.MaxPathBytes)+" bytes; give a shorter one")
	}
	return nil
}

// only is the single argument of an instruction.
func (d *dockerfile) only(i *parser.Node) (string, error) {
	args := arguments(i)
	if len(args) != 1 || args[0] == "" {
		return "", refusedInstruction(i, "give one word")
	}
	return d.word(i, args[0])
}

// word resolves quotes, escapes and variables of a word, as Dockerfiles have them.
func (d *dockerfile) word(i *parser.Node, text string) (string, error) {
	known := &variables{d: d, room: sandbox.MaxEnvBytes}
	got, err := shell.NewLex(parser.DefaultEscapeToken).ProcessWordWithMatches(text, known)
	if err != nil {
		return "", refusedInstruction(i, clip.Text(err.Error(), 200))
	}
	if known.room < 0 || len(got.Result) > sandbox.MaxEnvBytes {
		return "", refusedInstruction(i, "it is too large")
	}
	for name := range got.Unmatched {
		return "", refusedInstruction(i, "the variable $"+name+" is set nowhere before; those of the image are not known")
	}
	return got.Result, nil
}

// variables are those at an instruction. Room is how many bytes of values a word may still
// have: it can name each of them often.
type variables struct {
	d    *dockerfile
	room int
}

// Get implements [shell.EnvGetter].
func (v *variables) Get(name string) (string, bool) {
	for _, set := range []map[string]string{v.d.env, v.d.args, {"PATH": imagePath}} {
		value, ok := set[name]
		if !ok {
			continue
		}
		if v.room -= len(value); v.room < 0 {
			return "", true
		}
		return value, true
	}
	return "", false
}

// Keys implements [shell.EnvGetter].
func (v *variables) Keys() []string {
	return slices.Concat(slices.Collect(maps.Keys(v.d.env)), slices.Collect(maps.Keys(v.d.args)), []string{"PATH"})
}
