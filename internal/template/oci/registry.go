package oci

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/cove-sh/cove/sandbox"
)

// Registries finds images in registries. It is safe for concurrent use.
type Registries struct {
	cfg               Config
	mirrors           map[string][]string
	private, insecure map[string]bool
	transport         *guardedTransport
}

// dockerHub is the name of Docker's registry in references, dockerHubHost its host.
const (
	dockerHub     = "docker.io"
	dockerHubHost = "index.docker.io"
)

// New returns a client for registries. It fails if the configuration is invalid.
func New(cfg Config) (*Registries, error) {
	if cfg.Keychain == nil {
		cfg.Keychain = authn.DefaultKeychain
	}
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "cove")
	cfg.Backoff, cfg.Stall = cmp.Or(cfg.Backoff, time.Second), cmp.Or(cfg.Stall, time.Minute)
	r := &Registries{cfg: cfg, mirrors: map[string][]string{}, private: map[string]bool{}, insecure: map[string]bool{}}
	for _, h := range cfg.Insecure {
		r.insecure[strings.ToLower(h)], r.private[strings.ToLower(h)] = true, true
	}
	for _, h := range cfg.Private {
		r.private[strings.ToLower(h)] = true
	}
	for of, mirrors := range cfg.Mirrors {
		if of == dockerHub {
			of = dockerHubHost
		}
		for _, m := range mirrors {
			host, _, _ := strings.Cut(m, "/")
			if _, err := name.NewRegistry(host); err != nil || host == "" || strings.HasSuffix(host, ":") {
				return nil, fmt.Errorf("the mirror %q is not host, host:port or host/prefix", m)
			}
			r.private[strings.ToLower(host)] = true
			r.mirrors[of] = append(r.mirrors[of], strings.TrimSuffix(m, "/"))
		}
	}
	var err error
	r.transport, err = newGuardedTransport(cfg, r.private, r.insecure)
	return r, err
}

// maxReference bounds a reference, in bytes.
const maxReference = 512

// CheckReference checks the syntax of a reference to an image.
func CheckReference(ref string) error {
	_, err := parse(ref)
	return err
}

func parse(ref string) (name.Reference, error) {
	if len(ref) > maxReference {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the image's name has %d bytes; use at most %d", len(ref), maxReference)
	}
	r, err := name.ParseReference(ref)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "%.200q is not a valid image name; use names such as node:22 or ghcr.io/org/name@sha256:…", ref)
	}
	return r, nil
}

// Resolve finds an image by its reference, for this machine's platform. Mirrors are
// tried first. A login, unless nil, replaces the server's own for the registry in the
// reference. Errors are for the caller.
func (r *Registries) Resolve(ctx context.Context, ref string, login *sandbox.RegistryLogin) (*Image, error) {
	first, err := parse(ref)
	if err != nil {
		return nil, err
	}
	// Tokens are kept while one image is being read.
	registry := first.Context().RegistryStr()
	puller, err := remote.NewPuller(r.options(registry, nil)...)
	if err != nil {
		return nil, err
	}
	own, from := puller, registry+" "
	if login != nil {
		// Other callers that want the same layers have another login, or none.
		from += rand.Text() + " "
		if own, err = remote.NewPuller(r.options(registry, login)...); err != nil {
			return nil, err
		}
	}
	var all []origin
	for _, m := range r.mirrors[registry] {
		at, err := name.ParseReference(m+"/"+first.Context().RepositoryStr()+separator(first)+first.Identifier(), r.nameOptions(m)...)
		if err == nil {
			all = append(all, origin{at, puller, nil})
		}
	}
	direct, err := name.ParseReference(ref, r.nameOptions(registry)...)
	if err != nil {
		return nil, err
	}
	all = append(all, origin{direct, own, login})
	for i, p := range all {
		img, perr := p.resolve(ctx, all[i:])
		if perr == nil {
			for j := range img.Layers {
				img.Layers[j].From = from + img.Layers[j].digest.String()
			}
		}
		if perr == nil || ctx.Err() != nil {
			return img, perr
		}
		err = p.describe(perr)
	}
	return nil, err
}

func separator(r name.Reference) string {
	if _, ok := r.(name.Digest); ok {
		return "@"
	}
	return ":"
}

// nameOptions says how to connect to a registry. The library would use plain HTTP for any
// private address; guardedTransport refuses that.
func (r *Registries) nameOptions(registry string) []name.Option {
	host, _, _ := strings.Cut(registry, "/")
	if r.transport.named(r.insecure, withPort(host)) {
		return []name.Option{name.Insecure}
	}
	return nil
}

func withPort(host string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), "443")
}

func (r *Registries) options(registry string, login *sandbox.RegistryLogin) []remote.Option {
	auth, transport := remote.WithAuthFromKeychain(r.cfg.Keychain), http.RoundTripper(r.transport)
	if login != nil {
		auth, transport = remote.WithAuth(authenticator(login)), &loginGuard{transport, registry, login}
	}
	return []remote.Option{
		auth, remote.WithUserAgent(r.cfg.UserAgent),
		remote.WithTransport(&resuming{next: transport, backoff: r.cfg.Backoff}),
		remote.WithRetryBackoff(remote.Backoff{Duration: r.cfg.Backoff, Factor: 3, Jitter: 0.1, Steps: 3}),
	}
}

// Close closes idle connections.
func (r *Registries) Close() { r.transport.close() }

// origin is an image in one registry.
type origin struct {
	ref    name.Reference
	puller *remote.Puller
	login  *sandbox.RegistryLogin // the build's login; nil means the server's own
}

// describe turns an error into one for callers.
func (p origin) describe(err error) error {
	if p.login == nil {
		return describe(err, p.ref)
	}
	status := 0
	if e, ok := errors.AsType[*transport.Error](err); ok {
		status = e.StatusCode
	}
	shown := describeLogin(err, status, p.ref)
	if shown == nil {
		shown = describe(err, p.ref)
	}
	return redactLogin(shown, err, p.login)
}

func (p origin) resolve(ctx context.Context, all []origin) (*Image, error) {
	got, err := p.puller.Get(ctx, p.ref)
	if err != nil {
		return nil, err
	}
	if int64(len(got.Manifest)) > maxManifest {
		return nil, bad("its manifest has %d bytes; at most %d are read", len(got.Manifest), maxManifest)
	}
	if got.Digest.Algorithm != "sha256" {
		return nil, checkDescriptor(got.Descriptor, maxManifest)
	}
	return resolve(ctx, origins(all), got.Descriptor, got.Manifest)
}

// origins are the registries that may have the parts of an image. The first is the one that
// has its manifest. Parts are named by their digests, so any registry will do.
type origins []origin

func (ps origins) manifest(ctx context.Context, d v1.Descriptor) (data []byte, err error) {
	for _, p := range ps {
		got, gerr := p.puller.Get(ctx, p.ref.Context().Digest(d.Digest.String()))
		if gerr == nil || ctx.Err() != nil {
			if gerr != nil {
				return nil, gerr
			}
			return got.Manifest, nil
		}
		err = p.describe(gerr)
	}
	return nil, err
}

func (ps origins) blob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	var err error
	for _, p := range ps {
		l, gerr := p.puller.Layer(ctx, p.ref.Context().Digest(d.Digest.String()))
		var r io.ReadCloser
		if gerr == nil {
			r, gerr = l.Compressed()
		}
		if gerr == nil || ctx.Err() != nil {
			return r, gerr
		}
		err = p.describe(gerr)
	}
	return nil, err
}

// describe translates an error into one for callers, without information that only the
// server's operator may have.
func describe(err error, ref name.Reference) error {
	if _, ok := errors.AsType[*sandbox.Error](err); ok || errors.Is(err, context.Canceled) {
		return err
	}
	host := ref.Context().RegistryStr()
	text := err.Error()
	switch {
	case notAsNamed(err):
		return bad("the registry %s sent content with a wrong digest: %v", host, err)
	case strings.Contains(text, "x509:"):
		return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("the registry %s has a certificate that is not trusted; the server's operator can add its authority with network.extra_ca, or allow it with registries.insecure", host))
	case errors.Is(err, errPrivate):
		return sandbox.Wrap(sandbox.CodeForbidden, err, fmt.Sprintf("the registry %s, or a host that it redirects to, is in the server's own network; the server's operator can allow it with registries.private", host))
	case errors.Is(err, errPlain), strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return sandbox.Wrap(sandbox.CodeForbidden, err, fmt.Sprintf("the registry %s, or a host that it redirects to, uses plain HTTP; the server's operator can allow it with registries.insecure", host))
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return describeStatus(e, ref)
	}
	why := "it cannot be reached"
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		return describeDNS(e, host)
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		why = "it does not answer in time"
	}
	if strings.Contains(text, "tls:") {
		why = "its TLS handshake failed"
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("the registry %s did not return the image: %s; try again", host, why))
}

// describeDNS returns the error for a registry whose address was not found. Docker's own
// registry exists, and most image names do not contain it.
func describeDNS(err *net.DNSError, host string) error {
	if !err.IsNotFound || host == name.DefaultRegistry {
		return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("the server is offline, or its DNS server does not answer: the address of the registry %s was not found; connect the server, or use a mirror that it can reach (registries.mirrors)", host))
	}
	return sandbox.Wrap(sandbox.CodeInvalid, err, fmt.Sprintf("there is no registry %s; check the image's name, and that the server is online", host))
}

// notAsNamed reports whether an error is the library's for content with a wrong digest. The
// library does not export its type.
func notAsNamed(err error) bool { return strings.Contains(err.Error(), "error verifying ") }

func describeStatus(e *transport.Error, ref name.Reference) error {
	host, image := ref.Context().RegistryStr(), ref.Name()
	switch {
	case e.StatusCode == http.StatusNotFound:
		return sandbox.Wrap(sandbox.CodeNotFound, e, fmt.Sprintf("the registry %s has no image %.300s; check its name and tag", host, image))
	case e.StatusCode == http.StatusUnauthorized, e.StatusCode == http.StatusForbidden:
		return sandbox.Wrap(sandbox.CodeForbidden, e, fmt.Sprintf("the registry %s refuses access to %.300s: the image does not exist or needs a login; the server uses the Docker configuration of its user ('docker login %s')", host, image, host))
	case e.StatusCode == http.StatusTooManyRequests:
		return sandbox.Wrap(sandbox.CodeUnavailable, e, fmt.Sprintf("the registry %s limits how many images it serves; try again later, log in, or use a mirror (registries.mirrors)", host))
	}
	return sandbox.Wrap(sandbox.CodeUnavailable, e, fmt.Sprintf("the registry %s answered %d; try again", host, e.StatusCode))
}

// Temporary reports whether reading an image again may succeed.
func Temporary(err error) bool {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed) {
		return true
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return e.Temporary()
	}
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout()
}
