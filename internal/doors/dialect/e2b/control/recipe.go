package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// buildBody says how a template is made.
type buildBody struct {
	FromImage    string         `json:"fromImage"`
	FromTemplate string         `json:"fromTemplate"`
	Registry     *imageRegistry `json:"fromImageRegistry"`
	Start        string         `json:"startCmd"`
	Ready        string         `json:"readyCmd"`
	Force        bool           `json:"force"`
	Steps        []buildStep    `json:"steps"`
}

// buildStep is an instruction of a build.
type buildStep struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash"`
	Force     bool     `json:"force"`
	// Clients leave in these, which say how they have made the archive.
	ForceUpload     bool `json:"forceUpload"`
	ResolveSymlinks bool `json:"resolveSymlinks"`
	Gzip            bool `json:"gzip"`
}

// imageRegistry is a login at the registry of an image.
type imageRegistry struct {
	Type     string              `json:"type"`
	Username string              `json:"username"`
	Password sandbox.SecretValue `json:"password"`
	Account  sandbox.SecretValue `json:"serviceAccountJson"`
	// These are for AWS, whose logins are refused.
	KeyID     sandbox.SecretValue `json:"awsAccessKeyId"`
	SecretKey sandbox.SecretValue `json:"awsSecretAccessKey"`
	Region    string              `json:"awsRegion"`
}

// login returns the login in Cove's form; nil if there is none.
func (r *imageRegistry) login() (*sandbox.RegistryLogin, error) {
	if r == nil {
		return nil, nil
	}
	switch r.Type {
	case "registry":
		return &sandbox.RegistryLogin{Username: r.Username, Password: r.Password}, nil
	case "gcp":
		return &sandbox.RegistryLogin{Username: "_json_key", Password: r.Account}, nil
	case "aws":
		return nil, invalid("fromImageRegistry: Cove does not trade keys of AWS for a login; give user name AWS and the password of: aws ecr get-login-password")
	}
	return nil, invalid("fromImageRegistry.type %.80q is not known; use registry or gcp", r.Type)
}

// The user and the directory of E2B's guests.
const (
	guestUser = "user"
	rootUser  = "root"
)

// ownImages are the images of E2B's own base, in whose place template base is.
var ownImages = []string{"e2bdev/base", "e2bdev/base:latest"}

// guestPath is the usual PATH of images. An image's own is not known until it is pulled.
const guestPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// recipe translates a build into a specification of Cove's.
type recipe struct {
	spec *sandbox.TemplateSpec
	// of has, for each of the specification's steps, the number of its instruction, from 1;
	// 0 is none.
	of []int
	// archive finds an archive that the client has sent, by the client's name for it.
	archive func(hash string) (string, error)

	user, dir string
	env       map[string]string // of the base and the steps so far
	set       map[string]string // of the steps so far
	setBytes  int               // of names and values in set
	named     map[string]bool   // what ENV sets somewhere
	anew      bool
}

// recipeOf returns the recipe of a build.
func (p *plane) recipeOf(ctx context.Context, body *buildBody, shape sandbox.Resources) (*recipe, error) {
	if len(body.Steps) > sandbox.MaxTemplateSteps {
		return nil, invalid("there are %d steps; give at most %d", len(body.Steps), sandbox.MaxTemplateSteps)
	}
	r := &recipe{
		spec: &sandbox.TemplateSpec{Resources: shape, BuildNetwork: &sandbox.NetworkPolicy{Preset: sandbox.NetworkOpen}},
		user: guestUser, dir: homeDir, set: map[string]string{}, named: map[string]bool{}, anew: body.Force,
		env: map[string]string{"PATH": guestPath},
		archive: func(hash string) (string, error) {
			link, err := p.cfg.Service.LinkUpload(ctx, sandbox.UploadLinkRequest{Name: hash, SizeBytes: 1})
			if err == nil && !link.Present {
				err = invalid("filesHash %.80q is of no files that are here, or not any more; send them again", hash)
			}
			if err != nil {
				return "", err
			}
			return link.Archive, nil
		},
	}
	if err := p.begin(ctx, body, r); err != nil {
		return nil, err
	}
	for i := range body.Steps {
		if s := &body.Steps[i]; strings.EqualFold(s.Type, "ENV") {
			for k := 0; k < len(s.Args); k += 2 {
				if name := s.Args[k]; envName.MatchString(name) {
					r.named[name] = true
				}
			}
		}
		if len(r.named) > sandbox.MaxEnvPairs { // each step has them
			return nil, invalid("ENV: there are more than %d variables; give fewer", sandbox.MaxEnvPairs)
		}
	}
	for i := range body.Steps {
		s := &body.Steps[i]
		r.anew = r.anew || s.Force
		if err := r.step(s); err != nil {
			return nil, sandbox.Wrap(sandbox.CodeOf(err), err, "step "+strconv.Itoa(i+1)+": "+sandbox.MessageOf(err))
		}
		for len(r.of) < len(r.spec.Run) {
			r.of = append(r.of, i+1)
		}
	}
	if r.anew { // for an instruction that is not a command
		r.command("true", rootUser)
		r.of = append(r.of, 0)
	}
	r.spec.User, r.spec.WorkDir = r.user, r.dir
	if len(r.set) > 0 {
		r.spec.Env = r.set
	}
	if body.Start != "" || body.Ready != "" {
		r.spec.Start = &sandbox.StartCommand{Command: shellOf(body.Start), Ready: shellOf(body.Ready), TimeoutMS: sandbox.MaxStartTimeout.Milliseconds()}
		if body.Start == "" {
			r.spec.Start.Command = "true"
		}
	}
	return r, nil
}

// begin sets the base of the template, and the environment and user that it has.
func (p *plane) begin(ctx context.Context, body *buildBody, r *recipe) error {
	switch {
	case (body.FromImage == "") == (body.FromTemplate == ""):
		return invalid("give exactly one of fromImage and fromTemplate")
	case body.FromImage != "" && !slices.Contains(ownImages, body.FromImage):
		r.spec.From.Image = body.FromImage
		return nil
	}
	ref := body.FromTemplate
	if ref == "" {
		ref = "base"
	}
	var chosen sandbox.CreateRequest
	if err := p.chooseTemplate(ctx, ref, &chosen); err != nil {
		return err
	}
	switch {
	case chosen.Snapshot != "":
		r.spec.From.Snapshot = chosen.Snapshot
	case chosen.Template == "": // one of E2B's own, which is not built here
		r.spec.From.Host = true
	default:
		r.spec.From.Template = chosen.Template
	}
	if chosen.Template == "" || chosen.WorkDir != "" {
		return nil
	}
	t, err := p.cfg.Service.GetTemplate(ctx, chosen.Template)
	if err != nil {
		return aboutTemplate(ref, err)
	}
	if t.User != "" {
		r.user = t.User
	}
	if t.WorkDir != "" {
		r.dir = t.WorkDir
	}
	maps.Copy(r.env, t.Env)
	return nil
}

func (r *recipe) step(s *buildStep) error {
	switch strings.ToUpper(s.Type) {
	case "RUN":
		return r.run(s)
	case "COPY":
		return r.copy(s)
	case "ENV":
		return r.setEnv(s)
	case "WORKDIR":
		if len(s.Args) != 1 || s.Args[0] == "" {
			return invalid("WORKDIR takes one path")
		}
		r.dir = r.absolute(s.Args[0])
		if len(r.dir) > sandbox.MaxPathBytes { // each step has it
			return invalid("WORKDIR %.80q has %d bytes; give at most %d", r.dir, len(r.dir), sandbox.MaxPathBytes)
		}
		// The directory is made for the step, if it is missing, and belongs to the user.
		r.command("true", r.user)
		return nil
	case "USER":
		return r.setUser(s)
	}
	return invalid("type %.80q is not known; Cove has RUN, COPY, ENV, WORKDIR and USER", s.Type)
}

// run adds a command.
func (r *recipe) run(s *buildStep) error {
	if len(s.Args) < 1 || len(s.Args) > 2 || strings.TrimSpace(s.Args[0]) == "" {
		return invalid("RUN takes a command, and perhaps a user")
	}
	user := r.user
	if len(s.Args) == 2 && s.Args[1] != "" {
		user = s.Args[1]
	}
	r.command(dialect.UnsetLater(shellOf(s.Args[0]), maps.Keys(r.named), r.set), user)
	return nil
}

// command adds a step. The first step that must not be reused is made to differ from that
// of earlier builds, and so do all that follow.
func (r *recipe) command(script, user string) {
	if r.anew {
		script, r.anew = "# "+rand.Text()+"\n"+script, false
	}
	r.spec.Run = append(r.spec.Run, sandbox.TemplateStep{Run: script, User: unlessRoot(user), WorkDir: r.dir, Env: maps.Clone(r.set)})
}

// unlessRoot returns a user, or "" for root, who needs no account.
func unlessRoot(user string) string {
	if user == rootUser {
		return ""
	}
	return user
}

// shellOf returns a command for the shell of E2B's guests, bash, if there is one; "" stays.
func shellOf(command string) string {
	if command == "" {
		return ""
	}
	return "c=" + dialect.Quote(command) + "\n[ ! -x /bin/bash ] || exec /bin/bash -c \"$c\"\nexec /bin/sh -c \"$c\""
}

// copy takes files of an archive that was sent before.
func (r *recipe) copy(s *buildStep) error {
	if len(s.Args) < 2 || len(s.Args) > 4 || s.Args[0] == "" || s.Args[1] == "" {
		return invalid("COPY takes what to copy and where to, and perhaps an owner and a mode")
	}
	args := append(slices.Clone(s.Args), "", "")
	if s.FilesHash == "" {
		return invalid("COPY has no filesHash; send the files first")
	}
	archive, err := r.archive(s.FilesHash)
	if err != nil {
		return err
	}
	owner := cmp.Or(args[2], r.user)
	to := r.absolute(args[1])
	if to != "/" && (strings.HasSuffix(args[1], "/") || strings.HasSuffix(args[1], "/.") || args[1] == ".") {
		to += "/"
	}
	r.spec.Run = append(r.spec.Run, sandbox.TemplateStep{Copy: &sandbox.TemplateCopy{Archive: archive, Sources: []string{args[0]}, To: to, Owner: unlessRoot(owner), Mode: args[3]}})
	return nil
}

// absolute returns a path as one of the guest.
func (r *recipe) absolute(p string) string {
	switch {
	case p == "~" || strings.HasPrefix(p, "~/"):
		return path.Join(homeOf(r.user), p[1:])
	case path.IsAbs(p):
		return path.Clean(p)
	}
	return path.Join(r.dir, p)
}

func homeOf(user string) string {
	if user == rootUser {
		return "/root"
	}
	return "/home/" + user
}

func (r *recipe) setEnv(s *buildStep) error {
	if len(s.Args) == 0 || len(s.Args)%2 != 0 {
		return invalid("ENV takes names and values in turn")
	}
	for i := 0; i < len(s.Args); i += 2 {
		name := s.Args[i]
		if !envName.MatchString(name) {
			return invalid("ENV %.80q is no name of a variable", name)
		}
		value, fits := r.expand(s.Args[i+1])
		if old, ok := r.set[name]; ok {
			r.setBytes -= len(name) + len(old)
		}
		r.setBytes += len(name) + len(value)
		if !fits || r.setBytes > sandbox.MaxEnvBytes {
			return invalid("ENV %.80q: the variables have more than %d bytes; pass larger data in a file", name, sandbox.MaxEnvBytes)
		}
		r.set[name], r.env[name] = value, value
	}
	return nil
}

var (
	envName  = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]{0,255}$`)
	userName = lazyregexp.New(`^[a-z_][a-z0-9_-]{0,30}$`)
	// variable matches a variable in a value, or an escaped character.
	variable = lazyregexp.New(`\\[$\\"` + "`" + `]|\$[A-Za-z_][A-Za-z0-9_]*|\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}`)
)

// expand puts values in the place of variables, as a shell does between double quotes, as
// long as they fit into an environment: each can double the one before it.
func (r *recipe) expand(value string) (expanded string, fits bool) {
	size := 0
	expanded = variable.ReplaceAllStringFunc(value, func(m string) string {
		put := r.expanded(m)
		if size += len(put); size > sandbox.MaxEnvBytes {
			return ""
		}
		return put
	})
	return expanded, size <= sandbox.MaxEnvBytes
}

// expanded is what stands in the place of a match of variable.
func (r *recipe) expanded(m string) string {
	if m[0] == '\\' {
		return m[1:]
	}
	name, usual, _ := strings.Cut(strings.Trim(m[1:], "{}"), ":-")
	switch known := r.env[name]; {
	case known != "":
		return known
	case name == "HOME":
		return homeOf(r.user)
	}
	return usual
}

// setUser makes a user, if missing, for later steps and for sandboxes.
func (r *recipe) setUser(s *buildStep) error {
	if len(s.Args) < 1 || len(s.Args) > 2 || !userName.MatchString(s.Args[0]) {
		return invalid("USER takes a name of 1 to 31 of a-z, 0-9, _ and -, which begins with a letter or _")
	}
	r.user = s.Args[0]
	sudo := len(s.Args) == 2 && s.Args[1] == "true"
	if r.user != rootUser && (r.user != guestUser || sudo) {
		r.spec.Run = append(r.spec.Run, sandbox.TemplateStep{Run: dialect.MakeUser(r.user, sudo), WorkDir: "/"})
	}
	return nil
}
