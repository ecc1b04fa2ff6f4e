package service

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxPackages bounds the packages of a template, of each kind.
	maxPackages = sandbox.MaxTemplatePackages
	// maxPackageBytes bounds what names one.
	maxPackageBytes = 512
	// maxDescription bounds the description of a template.
	maxDescription = 1024
	// maxSourceBytes bounds a reference of an image and the like.
	maxSourceBytes = 1024
)

// aptPackages are names of Debian's packages, with an architecture, a version or
// a release if need be.
var aptPackages = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{0,127}(:[a-z0-9-]{1,32})?([=/][A-Za-z0-9.+:~-]{1,128})?$`)

// checkBuild refuses what is wrong with a request for a build. What it changes
// of the spec is a copy's.
func checkBuild(req *sandbox.BuildTemplateRequest) error {
	if !newTemplateNames.MatchString(req.Name) {
		return invalid("name %s is not valid; use 1 to 63 lower-case letters, digits, dashes, underscores and dots, with a letter or digit first and last", quote(req.Name))
	}
	if len(req.Packages) > maxPackages {
		return invalid("packages has %d entries; give at most %d", len(req.Packages), maxPackages)
	}
	for _, p := range req.Packages {
		if !packageNames.MatchString(p) {
			return invalid("package %s is not a valid name of a Debian package; correct it", quote(p))
		}
	}
	if err := checkLogin(req.Login); err != nil {
		return err
	}
	if req.Spec == nil {
		return nil
	}
	if len(req.Packages) > 0 {
		return invalid("both packages and a spec are given; put the packages into the spec, as apt")
	}
	spec := *req.Spec
	if err := checkSpec(&spec); err != nil {
		return err
	}
	req.Spec = &spec
	return nil
}

// maxLoginName bounds the user name of a login.
const maxLoginName = 256

// checkLogin refuses what no registry could be told. It does not repeat what is
// wrong: a password may be where the name should be.
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
		return invalid("registry_login.username is not valid; give 1 to %d bytes without colons and control characters", maxLoginName)
	case password == "" || len(password) > sandbox.MaxSecretBytes || strings.ContainsAny(password, "\x00\r") || !utf8.ValidString(password):
		return invalid("registry_login.password is not valid; give 1 to %d bytes of text", sandbox.MaxSecretBytes)
	}
	return nil
}

func checkSpec(spec *sandbox.TemplateSpec) error {
	if len(spec.Description) > maxDescription {
		return invalid("description has %d bytes; give at most %d", len(spec.Description), maxDescription)
	}
	user := error(nil)
	if spec.User != "" {
		user = checkUser("user", spec.User)
	}
	workDir := error(nil)
	if spec.WorkDir != "" {
		workDir = checkWorkDir(spec.WorkDir)
	}
	return cmp.Or(checkText("description", spec.Description), checkSource(&spec.From), checkApt(spec.Apt),
		checkInstalled("pip", spec.Pip), checkInstalled("npm", spec.NPM), checkTemplateFiles(spec.Files), checkSteps(spec.Run),
		checkEnv(spec.Env), user, workDir, checkResources(spec.Resources), checkStart(spec.Start), checkWarm(spec.Warm),
		checkDesktop(spec.Desktop), checkServed(spec.Ports), checkNetworks(spec))
}

// checkSource sees to it that a template begins with one thing.
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
			return invalid("from.%s has %d bytes; give at most %d", c.field, len(c.value), maxSourceBytes)
		}
		if err := checkText("from."+c.field, c.value); err != nil {
			return err
		}
	}
	if given != 1 {
		return invalid("from names %d things to begin with; set exactly one of image, archive, directory, debian, template, snapshot and host", given)
	}
	if from.Template != "" {
		return checkTemplateName(from.Template)
	}
	return nil
}

func checkApt(packages []string) error {
	if len(packages) > maxPackages {
		return invalid("apt has %d packages; give at most %d", len(packages), maxPackages)
	}
	for i, p := range packages {
		if !aptPackages.MatchString(p) || strings.HasSuffix(p, "-") {
			return invalid("apt[%d] %s is not a Debian package; write its name, or NAME=VERSION", i, quote(p))
		}
	}
	return nil
}

// checkInstalled checks packages that an installer gets as arguments.
func checkInstalled(field string, packages []string) error {
	if len(packages) > maxPackages {
		return invalid("%s has %d packages; give at most %d", field, len(packages), maxPackages)
	}
	for i, p := range packages {
		at := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case p == "" || len(p) > maxPackageBytes:
			return invalid("%s has %d bytes; a package has 1 to %d", at, len(p), maxPackageBytes)
		case strings.HasPrefix(p, "-"):
			return invalid("%s %s is an option, not a package; use a run step for what needs options", at, quote(p))
		case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return invalid("%s %s has control characters; correct it", at, quote(p))
		}
		if err := checkText(at, p); err != nil {
			return err
		}
	}
	return nil
}

// notInTemplates are directories whose content no template has: memory, and
// what is made for each sandbox.
var notInTemplates = []string{"/proc", "/sys", "/dev", "/tmp", "/run/cove", "/.cove"}

func checkTemplateFiles(files []sandbox.TemplateFile) error {
	if len(files) > sandbox.MaxTemplateFiles {
		return invalid("files has %d entries; give at most %d, and fetch more in a run step", len(files), sandbox.MaxTemplateFiles)
	}
	total := 0
	for i := range files {
		f := &files[i]
		field := fmt.Sprintf("files[%d]", i)
		if err := checkPath(field+".path", f.Path); err != nil {
			return err
		}
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" {
			return invalid("%s.path %s is not an absolute, clean path of a file; write one such as /etc/app.conf", field, quote(f.Path))
		}
		if slices.ContainsFunc(notInTemplates, func(dir string) bool { return f.Path == dir || strings.HasPrefix(f.Path, dir+"/") }) {
			return invalid("%s.path %s is where a template keeps nothing; choose another directory", field, quote(f.Path))
		}
		if _, err := checkMode(f.Mode); err != nil {
			return invalid("%s.%s", field, sandbox.MessageOf(err))
		}
		if f.Owner != "" {
			if err := checkUser(field+".owner", f.Owner); err != nil {
				return err
			}
		}
		total += len(f.Content)
	}
	if total > sandbox.MaxTemplateFileBytes {
		return sandbox.Errorf(sandbox.CodeTooLarge, "files have %d bytes together; give at most %d, and fetch more in a run step", total, sandbox.MaxTemplateFileBytes)
	}
	return nil
}

func checkSteps(steps []sandbox.TemplateStep) error {
	if len(steps) > sandbox.MaxTemplateSteps {
		return invalid("run has %d steps; give at most %d", len(steps), sandbox.MaxTemplateSteps)
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
			return invalid("%s is empty; give a command for /bin/sh", field)
		case len(step.Run) > maxArgument:
			return sandbox.Errorf(sandbox.CodeTooLarge, "%s has %d bytes; give at most %d, or write a script as a file and run that", field, len(step.Run), maxArgument)
		}
		if err := cmp.Or(checkText(field, step.Run), checkEnv(step.Env)); err != nil {
			return err
		}
		if step.User != "" {
			if err := checkUser(field+".user", step.User); err != nil {
				return err
			}
		}
		if step.WorkDir != "" {
			if err := checkWorkDir(step.WorkDir); err != nil {
				return err
			}
		}
	}
	return nil
}

// uploads are names of archives that were sent here.
var uploads = regexp.MustCompile(`^upload-[a-z2-7]{26}$`)

func checkCopy(field string, step *sandbox.TemplateStep) error {
	c := step.Copy
	switch {
	case step.Run != "" || step.User != "" || step.WorkDir != "" || len(step.Env) > 0:
		return invalid("%s has copy and something else; make it a step of its own", field)
	case !uploads.MatchString(c.Archive):
		return invalid("%s.copy.archive %s is not an upload; send an archive first, and give its name", field, quote(c.Archive))
	case len(c.Sources) > sandbox.MaxTemplateFiles:
		return invalid("%s.copy.sources has %d entries; give at most %d", field, len(c.Sources), sandbox.MaxTemplateFiles)
	}
	for i, s := range c.Sources {
		at := fmt.Sprintf("%s.copy.sources[%d]", field, i)
		if s == "" || len(s) > sandbox.MaxPathBytes || slices.Contains(strings.Split(s, "/"), "..") || strings.Count(s, "**") > 4 {
			return invalid("%s %s is not a name in the archive; give one such as src/app.py, or a pattern such as src/*.py", at, quote(s))
		}
		if err := checkText(at, s); err != nil {
			return err
		}
	}
	if err := checkPath(field+".copy.to", c.To); err != nil {
		return err
	}
	if to := path.Clean(c.To); !path.IsAbs(c.To) || strings.TrimSuffix(c.To, "/") != strings.TrimSuffix(to, "/") ||
		slices.ContainsFunc(notInTemplates, func(dir string) bool { return to == dir || strings.HasPrefix(to, dir+"/") }) {
		return invalid("%s.copy.to %s is not an absolute, clean path that a template keeps; write one such as /app/", field, quote(c.To))
	}
	return nil
}

func checkStart(start *sandbox.StartCommand) error {
	if start == nil {
		return nil
	}
	if strings.TrimSpace(start.Command) == "" {
		return invalid("start.command is empty; give a command for /bin/sh, or leave start out")
	}
	for _, c := range []struct{ field, value string }{{"start.command", start.Command}, {"start.ready", start.Ready}} {
		if len(c.value) > maxArgument {
			return sandbox.Errorf(sandbox.CodeTooLarge, "%s has %d bytes; give at most %d, or write a script as a file and start that", c.field, len(c.value), maxArgument)
		}
		if err := checkText(c.field, c.value); err != nil {
			return err
		}
	}
	return checkRange("start.timeout_ms", start.TimeoutMS, 0, sandbox.MaxStartTimeout.Milliseconds())
}

func checkWarm(warm map[string]string) error {
	for language, code := range warm {
		if _, err := sandbox.ParseLanguage(language); err != nil {
			return err
		}
		if err := checkCodeText("warm."+language, code); err != nil {
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
		return invalid("desktop.display %s is not an X display; write :1", quote(d.Display))
	}
	return cmp.Or(checkRange("desktop.width", int64(d.Width), 64, sandbox.MaxScreenWidth), checkRange("desktop.height", int64(d.Height), 64, sandbox.MaxScreenHeight))
}

var displays = regexp.MustCompile(`^:[0-9]{1,4}$`)

// checkServed checks the ports on which a template serves something.
func checkServed(ports []int) error {
	if len(ports) > sandbox.MaxPublishedPorts {
		return invalid("ports has %d entries; give at most %d", len(ports), sandbox.MaxPublishedPorts)
	}
	for i, p := range ports {
		if err := checkPort(fmt.Sprintf("ports[%d]", i), p); err != nil {
			return err
		}
	}
	return nil
}
