// Package oci reads images of the Open Container Initiative and of Docker from
// registries and files, and returns their layers as checked tar streams.
//
// Everything that comes from a registry or an archive is hostile. Manifests and
// configurations are bounded and checked against their digests; a layer's stream is
// checked against its size and digest as transferred, and fails before its end if
// either is wrong. Package image checks the content of the stream, and whether it has
// the digest in the configuration.
//
// The server sends requests to registries on behalf of anyone who may build templates,
// with the credentials of the server's Docker configuration. They must not give access
// to the server's own network: its addresses are refused when they are dialled, whether
// they come from a name, a redirect or a token server, unless the operator has listed
// the host. Plain HTTP is used only for hosts that are listed as insecure.
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
	// maxStored bounds a layer as transferred, in bytes.
	maxStored = 16 << 30
	// maxRatio bounds the compression ratio of layers larger than freeBytes. Honest ones
	// stay far below it.
	maxRatio  = 400
	freeBytes = 256 << 20
)

// Config says how registries are reached. Its zero value is ready to use.
type Config struct {
	// Mirrors are tried, in order, before the registry itself: they map "docker.io" to
	// "mirror.example.com" or "mirror.example.com/prefix".
	Mirrors map[string][]string
	// Insecure are registries, host or host:port, that may use plain HTTP or a
	// certificate that cannot be verified.
	Insecure []string
	// Private are hosts, in the same form, that may have internal addresses. Mirrors
	// and insecure registries need not be listed.
	Private []string
	// ExtraCA are authorities in addition to the system's, in PEM.
	ExtraCA []byte
	// Keychain finds credentials; nil is Docker's configuration.
	Keychain authn.Keychain
	// Proxy chooses the proxy of a request; nil uses that of the environment.
	Proxy func(*http.Request) (*url.URL, error)
	// UserAgent is the User-Agent header of requests.
	UserAgent string
	// Backoff is the first wait before another attempt; 0 is a second.
	Backoff time.Duration
	// Stall is how long a registry may pause in the middle of a response; 0 is a minute.
	Stall time.Duration
}

// Image is an image whose manifest and configuration are known and checked.
type Image struct {
	// Digest is the digest of its manifest, "sha256:…"; "" for an archive of docker
	// save, which has no manifest.
	Digest string
	Config Settings
	Layers []Layer
	close  func() error
}

// Close closes the files it was read from. Layers cannot be opened after that.
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
	// Size is the size of the layer as transferred, in bytes; -1 if unknown.
	Size int64
	// From identifies the registry and the blob: layers with the same From have the same
	// source. It is "" in an archive.
	From   string
	digest v1.Hash // as transferred; zero if unknown
	open   func(ctx context.Context) (io.ReadCloser, error)
}

// platform is this machine's platform.
var platform = v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
