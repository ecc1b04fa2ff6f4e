package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// trustPaths are the paths from which the sandbox's programs read certificate
// authorities and the address of their resolver.
type trustPaths struct {
	run  string // the directory for certFile
	conf string // resolv.conf
	// bundles are the files of all authorities, as distributions name them. The
	// gateway's is added to those that exist; if none does, the first is made.
	bundles []string
	// sources are the directories of locally added authorities, from which
	// distributions rebuild their bundles.
	sources []string
}

var systemTrust = trustPaths{
	run:  "/run/cove",
	conf: "/etc/resolv.conf",
	bundles: []string{
		"/etc/ssl/certs/ca-certificates.crt", // Debian, Arch, Alpine
		"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, Red Hat
		"/etc/ssl/ca-bundle.pem",             // SUSE
		"/etc/ssl/cert.pem",                  // Alpine, and programs made for BSD
	},
	sources: []string{"/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors", "/etc/pki/trust/anchors"},
}

const (
	// certFile has only the gateway's authority.
	certFile = "ca.pem"
	// sourceFile is its name among locally added authorities.
	sourceFile = "cove-gateway.crt"
	// maxBundle bounds a file of authorities, in bytes; usual ones have 200 KiB.
	maxBundle = 8 << 20
)

// The lines around the gateway's authority in a bundle, which readers of PEM
// skip.
const (
	trustBegin = "# Cove: the authority of this sandbox's gateway\n"
	trustEnd   = "# Cove: end\n"
)

// joinNetwork writes the files by which programs find the gateway and trust it, and
// returns their environment, or nil if that does not change. Failures are only logged:
// the image may be unusual and its sandbox useful all the same.
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

// setResolver makes the file at path name this resolver and no other. A symbolic
// link, often to the file of a service that does not run here, is replaced.
func setResolver(path, addr string) error {
	return update(path, []byte("nameserver "+addr+"\n"))
}

// update makes the file at path have this content, in a directory that exists.
func update(path string, data []byte) error {
	p, err := openEntry(path)
	if err != nil {
		return err
	}
	defer p.close()
	if old, err := p.content(maxBundle); err == nil && bytes.Equal(old, data) {
		return nil
	}
	return p.put(data, 0o644)
}

var errNotRegular = errors.New("not a regular file")

// content returns the content of a regular file of at most limit bytes. It neither
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

// readRegular reads a file of at most limit bytes, and fails if it is not a regular one.
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

// trust makes the programs of the sandbox trust an authority, and returns the
// environment for those that read no common file. It does as much as it can even if a
// part fails.
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
		case err != nil && ignoreMissing(err) != nil:
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
		if err := update(dir+"/"+sourceFile, authority); ignoreMissing(err) != nil {
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

// trustEnv returns the environment that names the file of all authorities, or the file
// that programs add to their own.
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
	fd, err := makeOwnDir(dir)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return dir + "/" + name, (dirEntry{dir: fd, name: name}).put(data, 0o444)
}

// addToBundle adds an authority to a bundle, in place of the one that it added before.
// With create set it makes the file and its directories.
func addToBundle(path string, authority []byte, create bool) error {
	if create {
		if err := makeOwnParents(path); err != nil {
			return err
		}
	}
	p, err := openTarget(path)
	if err != nil {
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

// openTarget is openEntry for a path whose last name may be a symbolic link:
// distributions often link their bundles to other directories.
func openTarget(path string) (dirEntry, error) {
	p, err := openEntry(path)
	if err != nil {
		return p, err
	}
	return p.follow()
}

// bundleWith returns the content of a bundle with the authority at its end, and
// without the one that was added before.
func bundleWith(old, authority []byte) []byte {
	if before, rest, ok := bytes.Cut(old, []byte(trustBegin)); ok {
		if _, after, ok := bytes.Cut(rest, []byte(trustEnd)); ok {
			old = append(bytes.Clone(before), after...)
		}
	}
	out := endLine(bytes.Clone(old))
	out = append(out, trustBegin...)
	out = endLine(append(out, authority...))
	return append(out, trustEnd...)
}

// endLine appends the end of the last line of text if that is missing.
func endLine(text []byte) []byte {
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	return text
}
