package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// trustPaths are the places that the sandbox's programs take authorities from,
// and the one of the gateway's own.
type trustPaths struct {
	run  string // the directory for certFile
	conf string // resolv.conf
	// bundles are what distributions call their file of all authorities. Those
	// that are there get the gateway's; if there is none, the first is made.
	bundles []string
	// sources are the directories of a machine's own authorities, from which
	// distributions make their bundles anew.
	sources []string
}

var systemTrust = trustPaths{
	run:  "/run/cove",
	conf: "/etc/resolv.conf",
	bundles: []string{
		"/etc/ssl/certs/ca-certificates.crt", // Debian, Arch, Alpine
		"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, Red Hat
		"/etc/ssl/ca-bundle.pem",             // SUSE
		"/etc/ssl/cert.pem",                  // Alpine, and what is built for BSD
	},
	sources: []string{"/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors", "/etc/pki/trust/anchors"},
}

const (
	// certFile has the authority of the gateway alone.
	certFile = "ca.pem"
	// sourceFile is its name among a machine's own.
	sourceFile = "cove-gateway.crt"
	// maxBundle bounds a file of authorities; the usual ones have 200 KiB.
	maxBundle = 8 << 20
)

// The lines around the gateway's authority in a bundle, which readers of PEM
// skip.
const (
	trustBegin = "# Cove: the authority of this sandbox's gateway\n"
	trustEnd   = "# Cove: end\n"
)

// joinNetwork writes what programs need to know of the gateway, and returns
// their environment, or nil if that stays as it is. What cannot be done is
// logged: an image may be strange and its sandbox of use nevertheless.
func (a *Agent) joinNetwork(m *agentv1.ConfigureRequest) map[string]string {
	if !a.cfg.Init {
		return nil
	}
	if m.Nameserver != nil {
		if err := setResolver(systemTrust.conf, m.GetNameserver()); err != nil {
			a.log.Warn("write the resolver's address", "error", err)
		}
	}
	if m.GetAuthority() == "" {
		return nil
	}
	env, err := trust(systemTrust, []byte(m.GetAuthority()))
	if err != nil {
		a.log.Warn("trust the gateway's authority", "error", err)
	}
	return env
}

// setResolver makes the file at path name the resolver and no other. A symbolic
// link, which often leads to a service that does not run here, is replaced.
func setResolver(path, addr string) error {
	p, err := openEntry(path)
	if err != nil {
		return err
	}
	defer p.close()
	want := []byte("nameserver " + addr + "\n")
	switch old, err := p.content(maxBundle); {
	case errors.Is(err, unix.EISDIR):
		return err
	case err == nil && bytes.Equal(old, want):
		return nil
	}
	return p.put(want, 0o644)
}

// errNotRegular says that something is no ordinary file.
var errNotRegular = errors.New("not a regular file")

// content returns what is in a regular file of at most limit bytes. It neither
// follows a link nor waits for the other end of a pipe.
func (p dirEntry) content(limit int64) ([]byte, error) {
	fd, err := unix.Openat(p.dir, p.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), p.name)
	defer f.Close()
	return readRegular(f, limit)
}

// readRegular reads a file, which may turn out to be none.
func readRegular(f *os.File, limit int64) ([]byte, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, unix.EISDIR
	case !info.Mode().IsRegular():
		return nil, errNotRegular
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", f.Name(), limit)
	}
	return data, err
}

// trust has the programs of the sandbox trust an authority, and returns the
// environment for those that have to be told. What could be done is done on an
// error, too.
func trust(paths trustPaths, authority []byte) (map[string]string, error) {
	isNew := true
	if p, err := openEntry(paths.run + "/" + certFile); err == nil {
		old, err := p.content(maxBundle)
		isNew = err != nil || !bytes.Equal(old, authority)
		p.close()
	}
	own, err := writeOwn(paths.run, certFile, authority)
	if err != nil {
		return nil, err
	}
	bundle := ""
	var errs []error
	for _, path := range paths.bundles {
		switch err := addToBundle(path, authority, false); {
		case err == nil && bundle == "":
			bundle = path
		case err != nil && absent(err) != nil:
			errs = append(errs, fmt.Errorf("add to %s: %w", path, err))
		}
	}
	if bundle == "" {
		bundle = paths.bundles[0]
		if err := addToBundle(bundle, authority, true); err != nil {
			errs, bundle = append(errs, fmt.Errorf("make %s: %w", bundle, err)), own
		}
	}
	for _, dir := range paths.sources {
		if err := putIn(dir, sourceFile, authority); absent(err) != nil {
			errs = append(errs, fmt.Errorf("add to %s: %w", dir, err))
		}
	}
	env := trustEnv(bundle, own)
	java, err := javaEnv(paths.run, bundle, authority, isNew)
	if err != nil {
		errs = append(errs, fmt.Errorf("make a trust store: %w", err))
	}
	maps.Copy(env, java)
	return env, errors.Join(errs...)
}

// trustEnv is the environment by which programs find a file of all authorities,
// or add one to their own.
func trustEnv(bundle, own string) map[string]string {
	env := map[string]string{"NODE_EXTRA_CA_CERTS": own, "DENO_CERT": own}
	for _, name := range []string{
		"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO",
	} {
		env[name] = bundle
	}
	return env
}

// writeOwn writes a file into Cove's directory, and returns its path.
func writeOwn(dir, name string, data []byte) (string, error) {
	at, err := openEntry(dir)
	if errors.Is(err, unix.ENOENT) {
		self := account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
		if err := makeParents(filepath.Dir(dir), &self); err != nil {
			return "", err
		}
		at, err = openEntry(dir)
	}
	if err != nil {
		return "", err
	}
	defer at.close()
	fd, err := at.ownDir()
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return dir + "/" + name, (dirEntry{dir: fd, name: name}).put(data, 0o444)
}

// putIn puts a file into a directory that is there.
func putIn(dir, name string, data []byte) error {
	p, err := openEntry(dir + "/" + name)
	if err != nil {
		return err
	}
	defer p.close()
	if old, err := p.content(maxBundle); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return p.put(data, 0o644)
}

// addToBundle adds an authority to a file of them, in the place of the one that
// it added before. With create the file and its directories are made.
func addToBundle(path string, authority []byte, create bool) error {
	if create {
		self := account{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
		if err := makeParents(filepath.Dir(path), &self); err != nil {
			return err
		}
	}
	p, err := openEntry(path)
	if err != nil {
		return err
	}
	// The file is often somewhere else, behind a link of the distribution's.
	if p, err = p.follow(); err != nil {
		return err
	}
	defer p.close()
	old, err := p.content(maxBundle)
	if err != nil && !(create && errors.Is(err, unix.ENOENT)) {
		return err
	}
	now := bundleWith(old, authority)
	if bytes.Equal(now, old) {
		return nil
	}
	return p.put(now, 0o644)
}

// bundleWith returns the content of a bundle with the authority at its end, and
// without the one that was added before.
func bundleWith(old, authority []byte) []byte {
	if before, rest, ok := bytes.Cut(old, []byte(trustBegin)); ok {
		if _, after, ok := bytes.Cut(rest, []byte(trustEnd)); ok {
			old = append(bytes.Clone(before), after...)
		}
	}
	out := bytes.Clone(old)
	if len(out) > 0 && out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	out = append(out, trustBegin...)
	out = append(out, authority...)
	if out[len(out)-1] != '\n' {
		out = append(out, '\n')
	}
	return append(out, trustEnd...)
}
