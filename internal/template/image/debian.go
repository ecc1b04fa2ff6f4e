package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/internal/machine"
	"github.com/cove-sh/cove/sandbox"
)

// suite is the Debian release of templates.
const suite = "bookworm"

// debianSource makes templates from Debian packages with mmdebstrap. If the machine runs
// the same release, packages come from the machine's own sources, so that local mirrors and
// proxies work; otherwise they come from deb.debian.org.
type debianSource struct {
	machine string // "/" outside tests
}

func (*debianSource) kind() string { return "debian" }

func (d *debianSource) build(ctx context.Context, j *job) error {
	mode, err := debianMode()
	if err != nil {
		return err
	}
	scratch, err := makeScratch(j.dir, mode)
	if err != nil {
		return fmt.Errorf("make scratch directory: %w", err)
	}
	args, err := d.arguments(j, mode)
	if err != nil {
		return err
	}
	j.report("starting", 0, "")
	if err := runMmdebstrap(ctx, j, args, scratch); err != nil {
		return err
	}
	j.report("adding the user", 0.96, "")
	for _, dir := range []string{"etc", "etc/apt"} {
		if !j.tree.has(dir, 'd') {
			return sandbox.Errorf(sandbox.CodeUnavailable, "mmdebstrap made no Debian system: /%s is missing", dir)
		}
	}
	if err := furnish(j.tree, "/bin/bash"); err != nil {
		return err
	}
	if err := npmForUser(j.tree); err != nil {
		return err
	}
	if err := j.tree.put("etc/dpkg/dpkg.cfg.d/cove", root, dpkgConf); err != nil {
		return err
	}
	return j.tree.put("etc/apt/sources.list", root, defaultSources("/usr/share/keyrings/debian-archive-keyring.gpg"))
}

// debianMode chooses how mmdebstrap gets the privileges it needs.
func debianMode() (string, error) {
	has := func(program string) bool { _, err := exec.LookPath(program); return err == nil }
	return modeWith(has, os.Geteuid() == 0, machine.SubordinateIDs)
}

// modeWith is debianMode for a given machine. The error says what to install.
func modeWith(has func(program string) bool, root bool, subordinateIDs func() error) (string, error) {
	var missing []string
	if !has("mmdebstrap") {
		missing = append(missing, "mmdebstrap")
	}
	mode := "root"
	if !root {
		mode = "unshare"
		if err := subordinateIDs(); err != nil {
			// These need no subordinate ids.
			mode = "fakechroot"
			for _, program := range []string{"fakechroot", "fakeroot"} {
				if !has(program) {
					missing = append(missing, program)
				}
			}
		}
	}
	if len(missing) == 0 {
		return mode, nil
	}
	needed := strings.Join(missing, " and ")
	if !has("apt-get") {
		return "", sandbox.Errorf(sandbox.CodeUnsupported, "building Debian templates needs %s, which a server on Debian or Ubuntu can install; on this server, build from an image: 'cove template build NAME --image IMAGE'", needed)
	}
	install := "apt-get install " + strings.Join(missing, " ")
	if !root {
		install = "sudo " + install
	}
	return "", sandbox.Errorf(sandbox.CodeUnsupported, "building Debian templates needs %s; run '%s' on the machine of Cove's server, and build again", needed, install)
}

// makeScratch makes the directory in which mmdebstrap works. In unshare mode it runs with
// other user ids, which cannot enter the build's own directory.
func makeScratch(dir, mode string) (string, error) {
	if mode != "unshare" {
		scratch := filepath.Join(dir, "work")
		return scratch, os.Mkdir(scratch, 0o700)
	}
	scratch, err := os.MkdirTemp("", scratchPrefix)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, scratchFile), []byte(scratch), 0o600); err != nil {
		os.Remove(scratch)
		return "", err
	}
	return scratch, os.Chmod(scratch, 0o777|os.ModeSticky)
}

const scratchPrefix = "cove-template-"

// removeScratch removes a directory that makeScratch made outside the state
// directory, including files of subordinate user ids.
func removeScratch(dir string) error {
	if filepath.Dir(dir) != filepath.Clean(os.TempDir()) || !strings.HasPrefix(filepath.Base(dir), scratchPrefix) {
		return fmt.Errorf("remove %q: not a scratch directory", dir)
	}
	if err := removeTree(dir); err == nil {
		return nil
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	cmd := exec.Command("mmdebstrap", append([]string{"--unshare-helper", "rm", "-rf", "--"}, left...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("remove %s: %w: %.200s", dir, err, out)
	}
	return removeTree(dir)
}

// arguments returns mmdebstrap's arguments. No shell reads them.
func (d *debianSource) arguments(j *job, mode string) ([]string, error) {
	sources := filepath.Join(j.dir, "sources.list")
	if err := os.WriteFile(sources, []byte(d.sources()), 0o644); err != nil {
		return nil, err
	}
	conf := filepath.Join(j.dir, "apt.conf")
	if err := os.WriteFile(conf, []byte(d.aptConf()), 0o644); err != nil {
		return nil, err
	}
	args := []string{
		"--verbose", "--mode=" + mode, "--format=tar", "--variant=minbase", "--aptopt=" + conf,
		// The system being made is discarded if the machine's power fails. Unwanted
		// files are skipped when it is unpacked: mmdebstrap would start a filter, in
		// Python, for each package.
		"--dpkgopt=force-unsafe-io",
	}
	if len(j.def.packages) > 0 {
		args = append(args, "--include="+strings.Join(j.def.packages, ","))
	}
	return append(args, suite, "-", sources), nil
}

// dpkgConf makes dpkg leave out the files that skipped leaves out, in templates and their
// sandboxes. It also disables syncing: only state that is synced as a whole survives a
// power failure in a sandbox.
const dpkgConf = `path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-include=/usr/share/locale/locale.alias
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
force-unsafe-io
`

// skipped reports whether a path is a manual or a translation, or a file that
// mmdebstrap made and that reveals how the template was built: mirrors and
// proxies, perhaps with passwords.
func skipped(p string) bool {
	switch {
	case strings.HasPrefix(p, "usr/share/man/"), strings.HasPrefix(p, "usr/share/info/"), strings.HasPrefix(p, "dev/"),
		strings.HasPrefix(p, "etc/apt/sources.list"), strings.HasPrefix(p, "etc/apt/auth.conf"):
		return true
	case strings.HasPrefix(p, "usr/share/locale/"):
		return p != "usr/share/locale/locale.alias"
	case strings.HasPrefix(p, "usr/share/doc/"):
		return strings.Count(p, "/") > 3 && !(strings.Count(p, "/") == 4 && strings.HasSuffix(p, "/copyright"))
	case strings.HasPrefix(p, "var/log/"):
		return strings.Count(p, "/") == 2 && strings.HasSuffix(p, ".log")
	}
	return p == "etc/dpkg/dpkg.cfg.d/99mmdebstrap" || p == "etc/apt/apt.conf.d/99mmdebstrap" || p == "etc/machine-id"
}

// terminationGrace is how long mmdebstrap may take to clean up after SIGTERM.
const terminationGrace = 20 * time.Second

// runMmdebstrap runs mmdebstrap and unpacks the archive that it writes. When
// runMmdebstrap returns, no process of the build is left.
func runMmdebstrap(ctx context.Context, j *job, args []string, scratch string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, outWrite, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	messages, messagesWrite, err := os.Pipe()
	if err != nil {
		outWrite.Close()
		return err
	}
	defer messages.Close()

	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = buildEnv(scratch), scratch, outWrite, messagesWrite
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = terminationGrace
	// The child must not inherit descriptors that this process has from its parent,
	// and mmdebstrap fails when descriptors have two digits. Descriptors that are
	// passed explicitly to other children are not affected.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	// Pdeathsig is sent when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	outWrite.Close()
	messagesWrite.Close()
	if err != nil {
		return fmt.Errorf("start mmdebstrap: %w", err)
	}
	defer context.AfterFunc(ctx, func() {
		// Stop reading even if some process still has the pipes open.
		late := time.Now().Add(terminationGrace + time.Second)
		_ = out.SetReadDeadline(late)
		_ = messages.SetReadDeadline(late)
	})()

	log := newAptLog(j.report)
	var reading sync.WaitGroup
	reading.Go(func() { log.follow(messages) })
	uerr := unpack(j.tree, bufio.NewReaderSize(out, 1<<20), skipped, log.unpacked)
	if uerr != nil && !errors.Is(uerr, io.ErrUnexpectedEOF) {
		cancel(uerr)
	}
	_, _ = io.Copy(io.Discard, out) // padding after the archive's end
	werr := cmd.Wait()
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	_ = messages.SetReadDeadline(time.Now().Add(time.Second))
	reading.Wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case werr != nil:
		return log.explain(werr)
	}
	return uerr
}

// buildEnv returns the environment of mmdebstrap.
func buildEnv(scratch string) []string {
	env := []string{"TMPDIR=" + scratch, "HOME=" + scratch, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "TERM=dumb"}
	for _, name := range []string{"PATH", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// keptOptions matches settings of the machine's apt that a build needs to reach the
// same mirrors.
var keptOptions = lazyregexp.New(`^(Acquire::(https?|ftp)::(Proxy|CaInfo|Timeout)|Acquire::(https?)::Proxy::[A-Za-z0-9.-]+|Acquire::(Check-Valid-Until|Check-Date|Retries|ForceIPv4|Max-FutureTime)) "[^"]*";$`)

// aptConf returns apt's configuration for the build.
func (d *debianSource) aptConf() string {
	var b strings.Builder
	// An unknown package name must not be taken for a pattern.
	b.WriteString("APT::Cmd::Pattern-Only \"true\";\nAPT::Install-Recommends \"false\";\nAcquire::Languages \"none\";\n")
	out, err := exec.Command("apt-config", "dump").Output()
	if err != nil {
		return b.String()
	}
	for line := range bytes.Lines(out) {
		if l := bytes.TrimSpace(line); keptOptions.Match(l) {
			b.Write(l)
			b.WriteByte('\n')
		}
	}
	return b.String()
}
