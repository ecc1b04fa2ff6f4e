package builds

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxPackages bounds the packages of a template, of each kind.
	maxPackages = sandbox.MaxTemplatePackages
	// maxPackageBytes bounds the name of a package, in bytes.
	maxPackageBytes = 512
	// maxDescription bounds the description of a template, in bytes.
	maxDescription = 1024
	// maxSourceBytes bounds each field of a source, in bytes.
	maxSourceBytes = 1024
)

// aptPackages matches the name of a Debian package, with an optional architecture and
// an optional version or release.
var aptPackages = lazyregexp.New(`^[a-z0-9][a-z0-9+.-]{0,127}(:[a-z0-9-]{1,32})?([=/][A-Za-z0-9.+:~-]{1,128})?$`)

// checkBuild refuses an invalid request for a build. It changes only a copy of the
// spec.
func checkBuild(req *sandbox.BuildTemplateRequest) error {
	if !validate.NewTemplateNames.MatchString(req.Name) {
		return validate.Errorf("name %s is not valid; use 1 to 63 lower-case letters, digits, dashes, underscores and dots, with a letter or digit first and last", validate.Quote(req.Name))
	}
	if len(req.Packages) > maxPackages {
		return validate.Errorf("packages has %d entries; use at most %d", len(req.Packages), maxPackages)
	}
	for _, p := range req.Packages {
		if !validate.PackageNames.MatchString(p) {
			return validate.Errorf("package %s is not a valid name of a Debian package; correct it", validate.Quote(p))
		}
	}
	if err := checkLogin(req.Login); err != nil {
		return err
	}
	if req.Spec == nil {
		return nil
	}
	if len(req.Packages) > 0 {
		return validate.Errorf("packages and a spec are both given; put the packages into the spec, as apt")
	}
	spec := *req.Spec
	if err := checkSpec(&spec); err != nil {
		return err
	}
	req.Spec = &spec
	return nil
}

// maxLoginName bounds the user name of a login, in bytes.
const maxLoginName = 256

// checkLogin refuses a login that cannot be sent to a registry. The error does not
// quote it, since a password may be in the place of the name.
func checkLogin(login *sandbox.RegistryLogin) error {
	if login == nil {
		return nil
	}
	password := login.Password.Reveal()
	unfit := func(s string) bool {
		return !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
	}
	switch {
	case login.Username == "" || len(login.Username) > maxLoginName || strings.Contains(login.Username, ":") || unfit(login.Username):
		return validate.Errorf("registry_login.username is not valid; use 1 to %d bytes without colons and control characters", maxLoginName)
	case password == "" || len(password) > sandbox.MaxSecretBytes || strings.ContainsAny(password, "\x00\r") || !utf8.ValidString(password):
		return validate.Errorf("registry_login.password is not valid; use 1 to %d bytes of text", sandbox.MaxSecretBytes)
	}
	return nil
}

func checkSpec(spec *sandbox.TemplateSpec) error {
	if len(spec.Description) > maxDescription {
		return validate.Errorf("description has %d bytes; use at most %d", len(spec.Description), maxDescription)
	}
	user := error(nil)
	if spec.User != "" {
		user = validate.User("user", spec.User)
	}
	workDir := error(nil)
	if spec.WorkDir != "" {
		workDir = validate.WorkDir(spec.WorkDir)
	}
	return cmp.Or(validate.Text("description", spec.Description), checkSource(&spec.From), checkApt(spec.Apt),
		checkInstalled("pip", spec.Pip), checkInstalled("npm", spec.NPM), checkTemplateFiles(spec.Files), checkSteps(spec.Run),
		validate.Env(spec.Env), user, workDir, validate.Resources(spec.Resources), checkStart(spec.Start), checkWarm(spec.Warm),
		checkDesktop(spec.Desktop), checkServed(spec.Ports), checkNetworks(spec))
}

// checkSource checks that a template has exactly one source.
func checkSource(from *sandbox.TemplateSource) error {
	given := 0
	if from.Host {
		given++
	}
	for _, c := range []struct{ field, value string }{
		{"image", from.Image}, {"archive", from.Archive}, {"directory", from.Directory},
		{"debian", from.Debian}, {"template", from.Template}, {"snapshot", from.Snapshot},
	} {
		if c.value == "" {
			continue
		}
		given++
		if len(c.value) > maxSourceBytes {
			return validate.Errorf("from.%s has %d bytes; use at most %d", c.field, len(c.value), maxSourceBytes)
		}
		if err := validate.Text("from."+c.field, c.value); err != nil {
			return err
		}
	}
	if given != 1 {
		return validate.Errorf("from has %d sources; set exactly one of image, archive, directory, debian, template, snapshot and host", given)
	}
	if from.Template != "" {
		return validate.TemplateName(from.Template)
	}
	return nil
}

func checkApt(packages []string) error {
	if len(packages) > maxPackages {
		return validate.Errorf("apt has %d packages; use at most %d", len(packages), maxPackages)
	}
	for i, p := range packages {
		if !aptPackages.MatchString(p) || strings.HasSuffix(p, "-") {
			return validate.Errorf("apt[%d] %s is not a Debian package; use its name, or NAME=VERSION", i, validate.Quote(p))
		}
	}
	return nil
}

// checkInstalled checks packages that are passed to an installer as arguments.
func checkInstalled(field string, packages []string) error {
	if len(packages) > maxPackages {
		return validate.Errorf("%s has %d packages; use at most %d", field, len(packages), maxPackages)
	}
	for i, p := range packages {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case p == "" || len(p) > maxPackageBytes:
			return validate.Errorf("%s has %d bytes; a package has 1 to %d", at, len(p), maxPackageBytes)
		case strings.HasPrefix(p, "-"):
			return validate.Errorf("%s %s is an option, not a package; use a run step for commands that need options", at, validate.Quote(p))
		case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return validate.Errorf("%s %s has control characters; correct it", at, validate.Quote(p))
		}
		if err := validate.Text(at, p); err != nil {
			return err
		}
	}
	return nil
}

// notInTemplates are directories whose content is never part of a template: they are in
// memory, or made for each sandbox.
var notInTemplates = []string{"/proc", "/sys", "/dev", "/tmp", "/run/cove", "/.cove"}

func checkTemplateFiles(files []sandbox.TemplateFile) error {
	if len(files) > sandbox.MaxTemplateFiles {
		return validate.Errorf("files has %d entries; use at most %d, and fetch more in a run step", len(files), sandbox.MaxTemplateFiles)
	}
	total := 0
	for i := range files {
		f := &files[i]
		field := fmt.Sprintf("files[%d]", i)
		if err := validate.Path(field+".path", f.Path); err != nil {
			return err
		}
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" {
			return validate.Errorf("%s.path %s must be an absolute, clean path of a file, such as /etc/app.conf", field, validate.Quote(f.Path))
		}
		if slices.ContainsFunc(notInTemplates, func(dir string) bool { return f.Path == dir || strings.HasPrefix(f.Path, dir+"/") }) {
			return validate.Errorf("%s.path %s is not kept in a template; choose another directory", field, validate.Quote(f.Path))
		}
		if _, err := validate.Mode(f.Mode); err != nil {
			return validate.Errorf("%s.%s", field, sandbox.MessageOf(err))
		}
		if f.Owner != "" {
			if err := validate.User(field+".owner", f.Owner); err != nil {
				return err
			}
		}
		total += len(f.Content)
	}
	if total > sandbox.MaxTemplateFileBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "files have %d bytes in total; use at most %d, and fetch more in a run step", total, sandbox.MaxTemplateFileBytes)
	}
	return nil
}

func checkSteps(steps []sandbox.TemplateStep) error {
	if len(steps) > sandbox.MaxTemplateSteps {
		return validate.Errorf("run has %d steps; use at most %d", len(steps), sandbox.MaxTemplateSteps)
	}
	for i := range steps {
		step := &steps[i]
		field := fmt.Sprintf("run[%d]", i)
		if step.Copy != nil {
			if err := checkCopy(field, step); err != nil {
				return err
			}
			continue
		}
		switch {
		case strings.TrimSpace(step.Run) == "":
			return validate.Errorf("%s is empty; set it to a command for /bin/sh", field)
		case len(step.Run) > validate.MaxArgument:
			return sandbox.Errorf(sandbox.CodeTooLarge, "%s has %d bytes; use at most %d, or write a script to a file and run that", field, len(step.Run), validate.MaxArgument)
		}
		if err := cmp.Or(validate.Text(field, step.Run), validate.Env(step.Env)); err != nil {
			return err
		}
		if step.User != "" {
			if err := validate.User(field+".user", step.User); err != nil {
				return err
			}
		}
		if step.WorkDir != "" {
			if err := validate.WorkDir(step.WorkDir); err != nil {
				return err
			}
		}
	}
	return nil
}

// uploads matches the name of an uploaded archive.
var uploads = lazyregexp.New(`^upload-[a-z2-7]{26}$`)

// checkOwner refuses an owner unless it is a user, or a user and a group, each by name
// or number.
func checkOwner(field, owner string) error {
	user, group, both := strings.Cut(owner, ":")
	if strings.Contains(group, ":") || both && validate.User(field, group) != nil {
		return validate.Errorf("%s %s is not valid; use a user, or user:group, as names or numbers", field, validate.Quote(owner))
	}
	return validate.User(field, user)
}

func checkCopy(field string, step *sandbox.TemplateStep) error {
	c := step.Copy
	switch {
	case step.Run != "" || step.User != "" || step.WorkDir != "" || len(step.Env) > 0:
		return validate.Errorf("%s has copy and other fields; make copy a step of its own", field)
	case !uploads.MatchString(c.Archive):
		return validate.Errorf("%s.copy.archive %s is not an upload; upload an archive first, and use its name", field, validate.Quote(c.Archive))
	case len(c.Sources) > sandbox.MaxTemplateFiles:
		return validate.Errorf("%s.copy.sources has %d entries; use at most %d", field, len(c.Sources), sandbox.MaxTemplateFiles)
	}
	for i, s := range c.Sources {
		at := fmt.Sprintf("%s.copy.sources[%d]", field, i)
		if s == "" || len(s) > sandbox.MaxPathBytes || slices.Contains(strings.Split(s, "/"), "..") || strings.Count(s, "**") > 4 {
			return validate.Errorf("%s %s is not a name in the archive; use one such as src/app.py, or a pattern such as src/*.py", at, validate.Quote(s))
		}
		if err := validate.Text(at, s); err != nil {
			return err
		}
	}
	if c.Owner != "" {
		if err := checkOwner(field+".copy.owner", c.Owner); err != nil {
			return err
		}
	}
	if _, err := validate.Mode(c.Mode); err != nil {
		return validate.Errorf("%s.copy.%s", field, sandbox.MessageOf(err))
	}
	if err := validate.Path(field+".copy.to", c.To); err != nil {
		return err
	}
	if to := path.Clean(c.To); !path.IsAbs(c.To) || strings.TrimSuffix(c.To, "/") != strings.TrimSuffix(to, "/") ||
		slices.ContainsFunc(notInTemplates, func(dir string) bool { return to == dir || strings.HasPrefix(to, dir+"/") }) {
		return validate.Errorf("%s.copy.to %s must be an absolute, clean path that a template keeps, such as /app/", field, validate.Quote(c.To))
	}
	return nil
}

func checkStart(start *sandbox.StartCommand) error {
	if start == nil {
		return nil
	}
	if strings.TrimSpace(start.Command) == "" {
		return validate.Errorf("start.command is empty; set it to a command for /bin/sh, or leave start out")
	}
	for _, c := range []struct{ field, value string }{{"start.command", start.Command}, {"start.ready", start.Ready}} {
		if len(c.value) > validate.MaxArgument {
			return sandbox.Errorf(sandbox.CodeTooLarge, "%s has %d bytes; use at most %d, or write a script to a file and start that", c.field, len(c.value), validate.MaxArgument)
		}
		if err := validate.Text(c.field, c.value); err != nil {
			return err
		}
	}
	return validate.Range("start.timeout_ms", start.TimeoutMS, 0, sandbox.MaxStartTimeout.Milliseconds())
}

func checkWarm(warm map[string]string) error {
	for language, code := range warm {
		if _, err := sandbox.ParseLanguage(language); err != nil {
			return err
		}
		if err := validate.CodeText("warm."+language, code); err != nil {
			return err
		}
	}
	return nil
}

func checkDesktop(d *sandbox.Desktop) error {
	if d == nil {
		return nil
	}
	if !displays.MatchString(cmp.Or(d.Display, ":1")) {
		return validate.Errorf("desktop.display %s is not an X display; use one such as :1", validate.Quote(d.Display))
	}
	return cmp.Or(validate.Range("desktop.width", int64(d.Width), 64, sandbox.MaxScreenWidth), validate.Range("desktop.height", int64(d.Height), 64, sandbox.MaxScreenHeight))
}

var displays = lazyregexp.New(`^:[0-9]{1,4}$`)

// checkServed checks the ports on which a template serves something.
func checkServed(ports []int) error {
	if len(ports) > sandbox.MaxPublishedPorts {
		return validate.Errorf("ports has %d entries; use at most %d", len(ports), sandbox.MaxPublishedPorts)
	}
	for i, p := range ports {
		if err := validate.Port(fmt.Sprintf("ports[%d]", i), p); err != nil {
			return err
		}
	}
	return nil
}
