package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/sandbox"
)

// hostSource makes the template host: a root with the machine's /usr (and /bin,
// /sbin and /lib*, unless they are links into /usr) bound read-only, and the files
// of /etc that programs need and that are not confidential.
//
// Only what every user of the machine may read is visible: other files and directories in
// /usr are covered by empty ones, and so are the paths in /usr where package managers look
// for their settings and credentials. If the daemon runs as an ordinary user, files that
// only that user can read are covered too.
type hostSource struct {
	// machine is "/" outside tests.
	machine string
	// maskDir and maskFile are empty, and are bound over what is hidden.
	maskDir, maskFile string
}

func (*hostSource) kind() string { return "host" }

// systemDirs hold programs and libraries.
var systemDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"}

// alwaysHidden are directories in /usr for the machine owner's settings.
var alwaysHidden = []string{"usr/etc", "usr/local/etc"}

// hiddenNames are names of files that usually hold credentials, in any directory.
var hiddenNames = map[string]bool{
	".npmrc": true, "npmrc": true, ".netrc": true, ".pypirc": true, "pip.conf": true, ".env": true, ".git-credentials": true,
	"id_rsa": true, "id_ecdsa": true, "id_ed25519": true,
}

// maxHidden bounds the mounts that hide files in a sandbox.
const maxHidden = 128

func (h *hostSource) build(ctx context.Context, j *job) error {
	stamp, err := h.stamp()
	if err != nil {
		return err
	}
	j.report("copying settings", 0.1, "")
	if err := h.skeleton(j); err != nil {
		return err
	}
	if err := h.copyEtc(j.tree); err != nil {
		return fmt.Errorf("copy settings: %w", err)
	}
	j.report("searching for private files", 0.4, "")
	if err := h.hide(ctx, j); err != nil {
		return err
	}
	shell := "/bin/sh"
	if _, err := os.Stat(filepath.Join(h.machine, "bin/bash")); err == nil {
		shell = "/bin/bash"
	}
	if err := h.accounts(j.tree, shell); err != nil {
		return err
	}
	if err := furnish(j.tree, shell); err != nil {
		return err
	}
	path := baseEnv["PATH"]
	// Go's installation instructions use this directory, which is on no default PATH.
	if info, err := os.Stat(filepath.Join(h.machine, "usr/local/go/bin")); err == nil && info.IsDir() {
		path += ":/usr/local/go/bin"
	}
	if h.has("usr/bin/python3") && !h.has("usr/bin/python") && !h.has("usr/local/bin/python") {
		if err := namePython(j.tree); err != nil {
			return err
		}
		path += ":/" + aliasDir
	}
	if path != baseEnv["PATH"] {
		j.env = map[string]string{"PATH": path}
	}
	j.stamp = stamp
	return nil
}

// aliasDir holds additional names for the machine's programs. It is last in PATH.
const aliasDir = "opt/cove/bin"

// namePython adds the name python for python3.
func namePython(t *tree) error {
	for _, dir := range []string{"opt/cove", aliasDir} {
		if err := t.mkdir(dir, meta{mode: 0o755}); err != nil {
			return err
		}
	}
	return t.symlink(aliasDir+"/python", "/usr/bin/python3", root)
}

// has reports whether the machine has a file.
func (h *hostSource) has(rel string) bool {
	_, err := os.Stat(filepath.Join(h.machine, rel))
	return err == nil
}

// skeleton makes the top level: links as the machine has them, and directories
// on which the machine's are bound.
func (h *hostSource) skeleton(j *job) error {
	for _, d := range []string{"etc", "opt", "srv", "mnt", "media", "var", "var/lib", "var/cache", "home"} {
		if err := j.tree.mkdir(d, meta{mode: 0o755}); err != nil {
			return err
		}
	}
	for _, d := range systemDirs {
		path := filepath.Join(h.machine, d)
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			if err := j.tree.symlink(d, to, root); err != nil {
				return err
			}
		case info.IsDir():
			if err := j.tree.mkdir(d, meta{mode: 0o755}); err != nil {
				return err
			}
			j.binds = append(j.binds, engine.Bind{Source: path, Target: "/" + d})
		}
	}
	if len(j.binds) == 0 {
		return sandbox.Errorf(sandbox.CodeUnsupported, "this machine has no /usr to show in a sandbox; build the template debian instead")
	}
	return nil
}

// stamp describes the machine's settings, the state of its package database
// and its system directories.
func (h *hostSource) stamp() (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, "cove-host-3", os.Geteuid() == 0)
	note := func(rel string) {
		info, err := os.Lstat(filepath.Join(h.machine, rel))
		if err != nil {
			return
		}
		fmt.Fprintln(sum, rel, info.Mode(), info.Size(), info.ModTime().UnixNano())
	}
	for _, d := range systemDirs {
		note(d)
	}
	for _, rel := range []string{
		"var/lib/dpkg/status", "var/lib/rpm/rpmdb.sqlite", "usr/lib/sysimage/rpm/rpmdb.sqlite", "lib/apk/db/installed", "var/lib/pacman/local",
		"usr/local", "usr/local/bin", "usr/local/sbin", "usr/local/lib", "usr/local/share", "usr/local/etc", "usr/etc",
	} {
		note(rel)
	}
	err := h.eachEtc(func(rel string, _ fs.FileInfo, _ check) error {
		note(filepath.Join("etc", rel))
		return nil
	})
	return fmt.Sprintf("%x", sum.Sum(nil)), err
}

// contentDigest returns the digest of a tree with its binds. The stamp represents the
// content of the host's directories. The location of the masks is left out, so that the
// digest is the same in every state directory.
func contentDigest(tree string, j *job) string {
	if len(j.binds) == 0 {
		return tree
	}
	sum := sha256.New()
	fmt.Fprintln(sum, tree, j.stamp)
	for _, b := range j.binds {
		source := b.Source
		if b.Mask {
			source = filepath.Base(source)
		}
		fmt.Fprintf(sum, "%q %q\n", source, b.Target)
	}
	return fmt.Sprintf("sha256-%x", sum.Sum(nil))
}

// hostCache caches for a short time that the host template is up to date.
type hostCache struct {
	source *hostSource

	mu      sync.Mutex
	checked time.Time // under mu
	m       *manifest // under mu
}

// hostCheckEvery is how long the host template is assumed to be up to date.
const hostCheckEvery = 10 * time.Second

// currentHost returns the host template. It makes the template again if the machine's
// settings have changed, or if anew is set.
func (p *Provider) currentHost(ctx context.Context, anew bool) (*manifest, error) {
	c := p.host
	c.mu.Lock()
	defer c.mu.Unlock()
	if !anew && c.m != nil && time.Since(c.checked) < hostCheckEvery && p.hasRoot(c.m.Digest) {
		return c.m, nil
	}
	stamp, err := c.source.stamp()
	if err != nil {
		return nil, fmt.Errorf("read this machine's settings: %w", err)
	}
	m, err := p.readManifest(Host)
	if anew || err != nil || m.Stamp != stamp {
		// Other callers wait for the result too, so this one's cancellation does not stop
		// it.
		m, err = p.make(context.WithoutCancel(ctx), p.builtins[Host], func(string, float64, string) {})
		if err == nil {
			err = p.publish(m)
		}
		if err != nil {
			return nil, fmt.Errorf("make the host template: %w", err)
		}
		p.log.Info("host template made", "digest", m.Digest, "notes", strings.Join(m.Notes, "; "))
	}
	c.m, c.checked = m, time.Now()
	return m, nil
}
