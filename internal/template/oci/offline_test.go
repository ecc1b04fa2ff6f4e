package oci

import (
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/cove-sh/cove/sandbox"
)

// TestOfflineError checks that a server without a network says that it is offline, and
// does not blame an image name without a registry.
func TestOfflineError(t *testing.T) {
	for _, tt := range []struct {
		image    string
		notFound bool
		code     sandbox.Code
		want     string
	}{
		{"node:22-slim", true, sandbox.CodeUnavailable, "the server is offline"},
		{"node:22-slim", false, sandbox.CodeUnavailable, "the server is offline"},
		{"ghcr.example/x:1", false, sandbox.CodeUnavailable, "the server is offline"},
		{"ghcr.example/x:1", true, sandbox.CodeInvalid, "there is no registry ghcr.example; check the image's name"},
	} {
		ref, err := name.ParseReference(tt.image)
		if err != nil {
			t.Fatal(err)
		}
		dns := &net.DNSError{Err: "no such host", Name: ref.Context().RegistryStr(), IsNotFound: tt.notFound}
		err = describe(&url.Error{Op: "Get", URL: "https://x/v2/", Err: &net.OpError{Op: "dial", Err: dns}}, ref)
		if sandbox.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, not found %v: %v, want %s", tt.image, tt.notFound, err, tt.want)
		}
	}
}
