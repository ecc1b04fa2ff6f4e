package builds

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/daemon/service/validate"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/internal/template/image"
	"github.com/cove-sh/cove/sandbox"
)

// buildSteps returns the steps of a spec, in order.
func (x *Builder) buildSteps(spec *sandbox.TemplateSpec, base *image.Foundation) []buildStep {
	network := sandbox.NetworkPolicy{Preset: sandbox.NetworkPackages}
	if spec.BuildNetwork != nil {
		network = *spec.BuildNetwork
	}
	var steps []buildStep
	add := func(title string, key any, env map[string]string, policy sandbox.NetworkPolicy, run func(context.Context, *buildMachine) error) {
		steps = append(steps, buildStep{title: title, key: []any{"step 1", key, env, spec.BuildNetwork}, network: policy, run: run})
	}
	// Packages are installed in the base's environment, so that templates whose own
	// environments differ share these steps.
	install := func(with string, packages []string, policy sandbox.NetworkPolicy, key any, run func(context.Context, *buildMachine) error) {
		add(titled(with, packages), key, base.Template.Env, policy, run)
		steps[len(steps)-1].installs = with
	}
	env, settings := stepEnv(spec, base), x.cfg.Templates.NPMSettings()
	if packages := aptMissing(spec, base); len(packages) > 0 {
		files, policy := x.aptSetup(network)
		install("apt", packages, policy, []any{"apt", packages}, func(ctx context.Context, m *buildMachine) error {
			return m.apt(ctx, files, packages)
		})
	}
	host := len(base.Root.Binds) > 0
	if len(spec.Pip) > 0 {
		install("pip", spec.Pip, network, []any{"pip", spec.Pip, host}, func(ctx context.Context, m *buildMachine) error {
			return m.pip(ctx, spec.Pip, host, cmp.Or(base.Template.User, stepRoot))
		})
	}
	if len(spec.NPM) > 0 {
		key := []any{"npm", spec.NPM, host}
		if own := npmOwn(spec.Env); len(own) > 0 {
			key = append(key, own)
		}
		install("npm", spec.NPM, npmNetwork(settings, network), key, func(ctx context.Context, m *buildMachine) error {
			return m.npm(ctx, settings, spec.NPM, host, cmp.Or(base.Template.User, stepRoot))
		})
	}
	if len(spec.Files) > 0 || spec.WorkDir != "" || spec.User != "" {
		paths := make([]string, len(spec.Files))
		for i, f := range spec.Files {
			paths[i] = f.Path
		}
		title := "files"
		if len(paths) > 0 {
			title = titled("files", paths)
		}
		add(title, []any{"files", spec.Files, spec.WorkDir, spec.User, base.Template.User}, env, network, func(ctx context.Context, m *buildMachine) error {
			return m.files(ctx, spec, base)
		})
	}
	registries := network
	if spec.BuildNetwork == nil {
		registries = npmNetwork(settings, network) // the machine's own is one of them
	}
	for _, step := range spec.Run {
		if step.Copy != nil {
			steps = append(steps, buildStep{title: titled("copy", append(slices.Clone(step.Copy.Sources), step.Copy.To)), copy: step.Copy})
			continue
		}
		key := []any{"run", step, spec.WorkDir, base.Template.WorkDir}
		add(titled("run", []string{step.Run}), key, env, registries, func(ctx context.Context, m *buildMachine) error {
			return m.command(ctx, settings, &step)
		})
	}
	return steps
}

// command runs a command of a template. In it, npm uses the registry of the machine's
// own npm.
func (m *buildMachine) command(ctx context.Context, settings image.NPMSettings, step *sandbox.TemplateStep) error {
	given := maps.Clone(step.Env)
	if given == nil {
		given = map[string]string{}
	}
	for name, value := range m.env {
		if _, own := given[name]; !own {
			given[name] = value
		}
	}
	env, err := m.npmEnv(ctx, settings, given)
	if err != nil {
		return err
	}
	maps.Copy(env, given)
	if step.WorkDir != "" {
		made := sandbox.ExecRequest{Command: shell(workDirScript, step.WorkDir, cmp.Or(step.User, stepRoot)), User: stepRoot, WorkDir: "/"}
		if err := m.exec(ctx, made); err != nil {
			return err
		}
	}
	return m.exec(ctx, sandbox.ExecRequest{
		Command: []string{"/bin/sh", "-c", step.Run}, User: cmp.Or(step.User, stepRoot), WorkDir: cmp.Or(step.WorkDir, m.workDir), Env: env,
	})
}

// aptMissing returns the packages that the base does not have yet.
func aptMissing(spec *sandbox.TemplateSpec, base *image.Foundation) []string {
	if spec.From.Debian == "" {
		return spec.Apt // steps may have removed what the base is said to have
	}
	return slices.DeleteFunc(slices.Clone(spec.Apt), func(name string) bool { return slices.Contains(base.Template.Packages, name) })
}

// files writes the files of a spec, and makes its user and its directory.
func (m *buildMachine) files(ctx context.Context, spec *sandbox.TemplateSpec, base *image.Foundation) error {
	if user := spec.User; user != "" && user[0] > '9' {
		err := m.exec(ctx, sandbox.ExecRequest{Command: shell(addUserScript, user), User: stepRoot, WorkDir: "/"})
		if err != nil {
			return err
		}
	}
	if spec.WorkDir != "" {
		owner := cmp.Or(spec.User, base.Template.User, stepRoot)
		err := m.exec(ctx, sandbox.ExecRequest{Command: shell(workDirScript, spec.WorkDir, owner), User: stepRoot, WorkDir: "/"})
		if err != nil {
			return err
		}
	}
	for i := range spec.Files {
		if err := m.putFile(ctx, &spec.Files[i]); err != nil {
			return err
		}
	}
	return nil
}

const (
	// addUserScript adds a user that is missing, with the tools that the system has. An
	// image that has the user may lack the program that says so.
	addUserScript = `id -u "$1" >/dev/null 2>&1 && exit 0
if [ -r /etc/passwd ]; then while IFS=: read -r name rest; do if [ "$name" = "$1" ]; then exit 0; fi; done </etc/passwd; fi
if command -v useradd >/dev/null 2>&1; then exec useradd -m -s /bin/sh "$1"; fi
if command -v adduser >/dev/null 2>&1; then exec adduser -D "$1"; fi
echo "there is no user $1, and neither useradd nor adduser to make it" >&2; exit 1`

	// workDirScript makes a missing directory that belongs to the user.
	workDirScript = `test -d "$1" && exit 0
mkdir -p "$1" || exit 1
uid=$(id -u "$2" 2>/dev/null) || uid=${2%%:*}
chown "$uid" "$1" || :`

	// aptScript installs packages, from the machine's own mirrors if $1 has
	// settings. Only a Debian of the same release can use them.
	aptScript = `set -e
command -v apt-get >/dev/null 2>&1 || { echo "there is no apt-get in this template; begin from debian, or an image that has it" >&2; exit 1; }
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
set_dir=$1; shift
opts="-o APT::Cmd::Pattern-Only=true -o APT::Install-Recommends=false -o Acquire::Languages=none -o Acquire::Retries=2 -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-unsafe-io"
release=
if [ -r /etc/os-release ]; then release=$(. /etc/os-release; echo "$ID $VERSION_CODENAME"); fi
if [ -n "$set_dir" ]; then
	if [ -r "$set_dir/apt.conf" ]; then export APT_CONFIG="$set_dir/apt.conf"; fi
	if [ -r "$set_dir/sources.list" ] && [ "$release" = "debian bookworm" ]; then
		opts="$opts -o Dir::Etc::SourceList=$set_dir/sources.list -o Dir::Etc::SourceParts=/dev/null"
	fi
fi
apt-get $opts update
apt-get $opts install -y -- "$@"
apt-get $opts clean
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/apt /var/log/dpkg.log /var/log/alternatives.log`

	pipScript = `set -e
python=$(command -v python3 || command -v python) || { echo "there is no python3 in this template; add it with apt, or begin from an image that has it" >&2; exit 1; }
"$python" -m pip --version >/dev/null 2>&1 || { echo "there is no pip in this template; add python3-pip with apt, or begin from an image that has it" >&2; exit 1; }
exec "$python" -m pip install --no-input --no-cache-dir --disable-pip-version-check --progress-bar off "$@"`

	npmScript = `set -e
command -v npm >/dev/null 2>&1 || { echo "there is no npm in this template; add nodejs and npm with apt, or begin from an image that has them" >&2; exit 1; }
prefix=$1; shift
# npm's own pauses before it asks again are 10 s and 60 s.
: "${npm_config_fetch_retry_mintimeout:=1000}" "${npm_config_fetch_retry_maxtimeout:=5000}"
export npm_config_fetch_retry_mintimeout npm_config_fetch_retry_maxtimeout
exec npm install -g --prefix "$prefix" --no-fund --no-audit --no-update-notifier --cache /tmp/npm-cache --loglevel warn -- "$@"`
)

// aptDir is where a step finds the machine's settings of apt. It is in memory, so
// the settings do not become part of the template.
const aptDir = "/tmp/cove-apt"

// npmAuthorities is where a step finds the certificates that the machine's npm trusts,
// also in memory.
const npmAuthorities = "/tmp/cove-npm/ca.pem"

// apt installs Debian packages.
func (m *buildMachine) apt(ctx context.Context, files map[string][]byte, packages []string) error {
	dir := ""
	for name, content := range files {
		dir = aptDir
		req := &sandbox.WriteFileRequest{Path: aptDir + "/" + name, MakeParents: true, Owner: stepRoot}
		if _, err := m.client.WriteFile(ctx, req, 0o644, bytes.NewReader(content)); err != nil {
			return fmt.Errorf("write settings of apt: %w", err)
		}
	}
	var progress image.AptProgress
	return m.execTold(ctx, sandbox.ExecRequest{Command: shell(aptScript, append([]string{dir}, packages...)...), User: stepRoot, WorkDir: "/"}, func(text string) {
		m.report(progress.Write(text), text)
	})
}

// pip installs Python packages: for all users, or only for the template's own user if
// the system's directories are the host machine's.
func (m *buildMachine) pip(ctx context.Context, packages []string, host bool, user string) error {
	args, as := []string{"--root-user-action=ignore", "--"}, stepRoot
	if host {
		args, as = []string{"--user", "--"}, user
	}
	// Old versions do not know --root-user-action, but ignore its variable.
	env := map[string]string{"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore", "PYTHONDONTWRITEBYTECODE": "1"}
	if !host {
		args = args[1:]
	}
	return m.exec(ctx, sandbox.ExecRequest{Command: shell(pipScript, append(args, packages...)...), User: as, WorkDir: "/", Env: env})
}

// npm installs packages for Node.js, with their commands on the PATH.
func (m *buildMachine) npm(ctx context.Context, settings image.NPMSettings, packages []string, host bool, user string) error {
	prefix, as := "/usr/local", stepRoot
	if host {
		prefix, as = "/home/user/.local", user
	}
	env, err := m.npmEnv(ctx, settings, m.env)
	if err != nil {
		return err
	}
	return m.exec(ctx, sandbox.ExecRequest{Command: shell(npmScript, append([]string{prefix}, packages...)...), User: as, WorkDir: "/", Env: env})
}

// npmEnv returns the environment that gives npm the machine's own settings of registry,
// proxies and certificates. Those in the template's environment take precedence.
func (m *buildMachine) npmEnv(ctx context.Context, settings image.NPMSettings, given map[string]string) (map[string]string, error) {
	env := npmOwn(given)
	said := func(name string) bool {
		for own := range env {
			if strings.EqualFold(own, name) {
				return true
			}
		}
		return false
	}
	for name, value := range map[string]string{"npm_config_registry": settings.Registry, "npm_config_proxy": settings.Proxy, "npm_config_https_proxy": settings.HTTPSProxy} {
		if value != "" && !said(name) {
			env[name] = value
		}
	}
	if len(settings.Authorities) > 0 && !said(nodeAuthorities) {
		req := &sandbox.WriteFileRequest{Path: npmAuthorities, MakeParents: true, Owner: stepRoot}
		if _, err := m.client.WriteFile(ctx, req, 0o644, bytes.NewReader(settings.Authorities)); err != nil {
			return nil, fmt.Errorf("write settings of npm: %w", err)
		}
		env[nodeAuthorities] = npmAuthorities
	}
	return env, nil
}

// nodeAuthorities is the variable that names a file of certificates that Node.js trusts
// in addition to its own.
const nodeAuthorities = "NODE_EXTRA_CA_CERTS"

// npmOwn returns npm's settings in an environment. npm also takes their names in upper
// case, and ignores empty ones.
func npmOwn(env map[string]string) map[string]string {
	own := map[string]string{}
	for name, value := range env {
		if value != "" && (name == nodeAuthorities || strings.HasPrefix(strings.ToLower(name), "npm_config_")) {
			own[name] = value
		}
	}
	return own
}

// npmNetwork returns the policy that lets a step reach the registry and proxies that
// the machine's settings name.
func npmNetwork(settings image.NPMSettings, policy sandbox.NetworkPolicy) sandbox.NetworkPolicy {
	policy = *validate.ClonePolicy(&policy)
	for _, at := range []string{settings.Registry, settings.Proxy, settings.HTTPSProxy} {
		policy.Rules = append(mirrorRules(at), policy.Rules...)
	}
	return policy
}

// aptSetup returns the machine's settings of apt as files, and the policy that lets a
// step reach the mirrors and proxies that they name.
func (x *Builder) aptSetup(policy sandbox.NetworkPolicy) (map[string][]byte, sandbox.NetworkPolicy) {
	sources, conf := x.cfg.Templates.AptSettings()
	files := map[string][]byte{}
	if conf != "" {
		files["apt.conf"] = []byte(conf)
	}
	if sources != "" {
		text := signedBy.ReplaceAllStringFunc(sources, func(by string) string {
			// Copies keyrings that the template may not have.
			path := strings.TrimPrefix(by, "signed-by=")
			key, err := os.ReadFile(path)
			if err != nil || len(key) > maxKeyring {
				return by
			}
			name := fmt.Sprintf("key-%d.gpg", len(files))
			if bytes.HasPrefix(bytes.TrimSpace(key), []byte("-----BEGIN")) {
				name = strings.TrimSuffix(name, ".gpg") + ".asc"
			}
			files[name] = key
			return "signed-by=" + aptDir + "/" + name
		})
		files["sources.list"] = []byte(text)
	}
	policy = *validate.ClonePolicy(&policy)
	for _, at := range addresses.FindAllString(sources+conf, -1) {
		policy.Rules = append(mirrorRules(at), policy.Rules...)
	}
	return files, policy
}

var (
	signedBy  = lazyregexp.New(`signed-by=/[^\s\],]+`)
	addresses = lazyregexp.New(`https?://[^\s"\]]+`)
)

// maxKeyring bounds a keyring, in bytes.
const maxKeyring = 1 << 20

// mirrorRules returns rules that allow an address of the machine's settings, even if it
// is in the machine's own network, which is otherwise denied.
func mirrorRules(address string) []sandbox.NetworkRule {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	port := cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	rule := func(to string) sandbox.NetworkRule {
		return sandbox.NetworkRule{Action: sandbox.NetworkAllow, To: to, Protocol: "tcp", Ports: []string{port}}
	}
	rules := []sandbox.NetworkRule{rule(u.Hostname())}
	found, err := net.LookupIP(u.Hostname())
	if err != nil {
		return rules
	}
	for _, ip := range found[:min(len(found), 8)] {
		if a, ok := netip.AddrFromSlice(ip); ok && (a.Unmap().IsPrivate() || a.Unmap().IsLoopback()) {
			rules = append(rules, rule(a.Unmap().String()))
		}
	}
	return rules
}

// canBuild refuses a spec at once if this server cannot perform its steps.
func (x *Builder) canBuild(spec *sandbox.TemplateSpec) error {
	steps := len(spec.Apt)+len(spec.Pip)+len(spec.NPM)+len(spec.Files)+len(spec.Run) > 0 || spec.WorkDir != "" || spec.User != ""
	if steps && x.cfg.Keeper == nil {
		return sandbox.Errorf(sandbox.CodeUnsupported, "this server's sandboxes keep no state, so a build cannot have steps; leave out apt, pip, npm, files, run, workdir and user")
	}
	if spec.From.Host && len(spec.Apt) > 0 {
		return sandbox.Errorf(sandbox.CodeUnsupported, "the template host consists of this machine's own programs, so apt cannot add to it; start from debian, or use pip, npm, files and run")
	}
	return nil
}

// checkNetworks checks the policies of a spec and replaces them with copies.
func checkNetworks(spec *sandbox.TemplateSpec) error {
	for _, p := range []**sandbox.NetworkPolicy{&spec.BuildNetwork, &spec.Network} {
		if *p == nil {
			continue
		}
		*p = validate.ClonePolicy(*p)
		if err := validate.Network(*p); err != nil {
			return err
		}
	}
	if n := spec.BuildNetwork; n != nil && slices.ContainsFunc(n.Rules, func(r sandbox.NetworkRule) bool { return r.Action == sandbox.NetworkAsk }) {
		return validate.Errorf("build_network asks, but nobody can answer during a build; allow what the build needs")
	}
	if n := spec.BuildNetwork; n != nil && len(n.Headers) > 0 {
		return validate.Errorf("build_network has headers, but requests of a build do not get them; leave them out")
	}
	return nil
}
