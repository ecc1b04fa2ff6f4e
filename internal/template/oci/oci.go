// Package oci finds images of the Open Container Initiative and of Docker, in
// registries and in files, and gives out their layers as checked tar streams.
//
// Everything that a registry or an archive says is hostile. Manifests and
// configurations are bounded and checked against their digests; a layer's
// stream is checked against its size and digest as it was sent, and fails
// before its end if either is wrong. What is in the stream, and whether that has
// the digest that the configuration names, is for package image to judge.
//
// A registry is asked by the server, at the wish of somebody who may build
// templates, with the credentials of the server's Docker configuration. It
// must not become their way to the server's own network: addresses of that are
// refused when they are dialled, wherever a name, a redirect or a token server
// leads, unless the operator has named the host; and nothing is sent in clear
// unless the host is among the insecure ones.
package oci

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Bounds of what is read.
const (
	maxManifest = 4 << 20
	maxConfig   = 8 << 20
	maxLayers   = 256
	// maxStored bounds a layer as it is sent, in bytes.
	maxStored = 16 << 30
	// maxRatio bounds what a compressed layer grows to, once it is larger than
	// freeBytes. Honest ones stay far below.
	maxRatio  = 400
	freeBytes = 256 << 20
)

// Config says how registries are reached. Its zero value is right.
type Config struct {
	// Mirrors are asked before a registry, in order, for what it is said to
	// have: "docker.io" to "mirror.example.com" or "mirror.example.com/prefix".
	Mirrors map[string][]string
	// Insecure are registries, host or host:port, that may speak plain HTTP or
	// have a certificate that cannot be verified.
	Insecure []string
	// Private are hosts, likewise, that may have internal addresses. Mirrors and
	// insecure registries may have them without being listed.
	Private []string
	// ExtraCA are authorities besides the system's, in PEM.
	ExtraCA []byte
	// Keychain finds credentials; nil is Docker's configuration.
	Keychain authn.Keychain
	// Proxy chooses the way out; nil is that of the environment.
	Proxy func(*http.Request) (*url.URL, error)
	// UserAgent is told to registries.
	UserAgent string
	// Backoff is the first wait before another attempt; 0 is a second.
	Backoff time.Duration
	// Stall is how long a registry may send nothing in the middle of an answer;
	// 0 is a minute.
	Stall time.Duration
}

// Image is an image whose manifest and configuration are known and checked.
type Image struct {
	// Digest is that of its manifest, "sha256:…"; "" in an archive of docker
	// save, which has none.
	Digest string
	Config Settings
	Layers []Layer
	close  func() error
}

// Close lets go of the files it came from. Layers cannot be opened after that.
func (i *Image) Close() error {
	if i.close == nil {
		return nil
	}
	return i.close()
}

// Layer is a layer of an image.
type Layer struct {
	// DiffID is the digest of its tar stream, "sha256:…".
	DiffID string
	// Size is that of the layer as it is sent, in bytes; -1 if unknown.
	Size int64
	// From names the registry that gives it, and what it gives: layers with the
	// same From are read alike. It is "" in an archive.
	From   string
	digest v1.Hash // as it is sent; zero if unknown
	open   func(ctx context.Context) (io.ReadCloser, error)
}

// platform is what this machine runs.
var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
