package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// patience bounds the wait for something that must happen, on a busy machine.
const patience = 3 * time.Minute

// user uses a sandbox of a template, and notes what held and what did not.
type user struct {
	ctx          context.Context
	d            *covetest.Daemon
	template, id string
	pictures     string
	held, failed []string
}

// note takes the outcome of a check and reports whether it held.
func (u *user) note(what string, err error) bool {
	if err != nil {
		u.failed = append(u.failed, what+": "+err.Error())
		return false
	}
	u.held = append(u.held, what)
	return true
}

// sh runs a line in a shell and returns its output.
func (u *user) sh(line string) (string, error) {
	res, err := u.d.Exec(u.ctx, u.id, sandbox.ExecRequest{Shell: line, TimeoutMS: patience.Milliseconds()})
	if err != nil {
		return "", err
	}
	if res.Job.ExitCode != 0 {
		return "", fmt.Errorf("exit code %d\n    %s", res.Job.ExitCode, strings.ReplaceAll(strings.TrimSpace(res.Stdout+res.Stderr), "\n", "\n    "))
	}
	return res.Stdout, nil
}

// shells runs lines that must succeed and print the wanted output.
func (u *user) shells(checks ...[3]string) {
	for _, c := range checks {
		out, err := u.sh("set -e\n" + c[1])
		if err == nil && !strings.Contains(out, c[2]) {
			err = fmt.Errorf("it wrote %q, which has no %q", out, c[2])
		}
		u.note(c[0], err)
	}
}

// put writes a file.
func (u *user) put(path, content string) error {
	_, err := u.d.Client.WriteFile(u.ctx, u.id, sandbox.WriteFileRequest{Path: path, MakeParents: true}, strings.NewReader(content))
	return err
}

// code runs code whose last expression must show something that contains want.
func (u *user) code(what string, language sandbox.Language, code, want string) *sandbox.CodeResult {
	r, err := u.d.Client.RunCode(u.ctx, u.id, sandbox.RunCodeRequest{Language: language, Code: code, TimeoutMS: patience.Milliseconds()}, nil)
	switch {
	case err != nil:
	case r.Error != nil:
		err = fmt.Errorf("%s: %s\n    %s", r.Error.Name, r.Error.Message, strings.ReplaceAll(r.Stderr, "\n", "\n    "))
	case r.ExitCode != 0:
		err = fmt.Errorf("exit code %d\n    %s", r.ExitCode, strings.ReplaceAll(r.Stdout+r.Stderr, "\n", "\n    "))
	default:
		shown := r.Stdout
		for _, o := range r.Outputs {
			shown += string(o.Data["text/plain"])
		}
		if !strings.Contains(shown, want) {
			err = fmt.Errorf("it shows %.400q, which has no %q", shown, want)
		}
	}
	if !u.note(what, err) {
		return nil
	}
	return r
}

// privacy checks that the template contains nothing of the machine's own settings for
// Debian packages: its mirrors and proxies may have passwords.
func (u *user) privacy() {
	hosts, err := mirrors()
	if err == nil {
		var out string
		// Not to be found in the command line of the search itself.
		if err = u.put("/tmp/hosts", strings.Join(hosts, "\n")+"\n"); err == nil && len(hosts) > 0 {
			out, err = u.sh("sudo grep -rIlFf /tmp/hosts /etc /var /root /home /opt /usr/local || test $? = 1; rm /tmp/hosts")
		}
		if err == nil && out != "" {
			err = fmt.Errorf("a mirror or proxy of this machine is named in %s", strings.Join(strings.Fields(out), ", "))
		}
	}
	u.note("no trace of the machine's mirrors", err)
	u.shells([3]string{"Debian's own mirrors", "cat /etc/apt/sources.list; ! ls /etc/apt/sources.list.d/* 2>&-", "http://deb.debian.org/debian"})
}

var address = regexp.MustCompile(`[a-z]+://(?:[^/@\s"]*@)?([A-Za-z0-9.-]+)`)

// mirrors are the hosts in this machine's apt settings, except Debian's own.
func mirrors() ([]string, error) {
	text, _ := exec.Command("apt-config", "dump").Output() // where there is one
	for _, pattern := range []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if errors.Is(err, fs.ErrPermission) {
				continue
			}
			if err != nil {
				return nil, err
			}
			text = append(append(text, '\n'), data...)
		}
	}
	var hosts []string
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if strings.HasPrefix(strings.TrimSpace(lines.Text()), "#") {
			continue
		}
		for _, m := range address.FindAllStringSubmatch(lines.Text(), -1) {
			if h := m[1]; !strings.HasSuffix(h, "debian.org") && h != "localhost" && !slices.Contains(hosts, h) {
				hosts = append(hosts, h)
			}
		}
	}
	return hosts, nil
}
