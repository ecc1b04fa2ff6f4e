// Command image makes the OCI image of Cove, without Docker: the program, and certificates
// of the authorities that it trusts, on top of a base. Sandboxes of the template host see
// the programs of the base.
//
// The same program on the same base makes the same image, to the byte.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

type options struct {
	program, controller, certificates, base, baseTar, tag, out string
	push                                                       bool
}

func main() {
	var o options
	flag.StringVar(&o.program, "program", "bin/cove", "the program that \"make build\" has built")
	flag.StringVar(&o.controller, "controller", "", "the program that \"make bin/cove-kubernetes\" has built, if the image is to have it")
	flag.StringVar(&o.certificates, "certificates", "/etc/ssl/certs/ca-certificates.crt", "PEM file with the authorities that Cove trusts")
	flag.StringVar(&o.base, "base", "docker.io/library/python:3.13-slim-trixie", "image of a registry to build on")
	flag.StringVar(&o.baseTar, "base-tar", "", "tar file of a root file system to build on, instead of an image")
	flag.StringVar(&o.tag, "tag", "cove:dev", "name of the image")
	flag.StringVar(&o.out, "out", "", "file for the image, a tar file with an OCI layout")
	flag.BoolVar(&o.push, "push", false, "push the image to the registry in its name, with the credentials of docker login")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.out == "" && !o.push {
		return errors.New("say where the image is to go: --out FILE, or --push")
	}
	tag, err := name.NewTag(o.tag)
	if err != nil {
		return err
	}
	base, err := openBase(ctx, o)
	if err != nil {
		return err
	}
	img, err := build(base, o)
	if err != nil {
		return err
	}
	if o.out != "" {
		if err := writeLayout(o.out, img, tag); err != nil {
			return err
		}
	}
	if o.push {
		if err := remote.Write(tag, img, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
			return fmt.Errorf("push %s: %w", tag, err)
		}
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s@%s\n", tag, digest)
	return nil
}

// platform is that of the program.
var platform = v1.Platform{OS: "linux", Architecture: "amd64"}

func openBase(ctx context.Context, o options) (v1.Image, error) {
	if o.baseTar != "" {
		layer, err := tarball.LayerFromFile(o.baseTar, tarball.WithCompressionLevel(1))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", o.baseTar, err)
		}
		return mutate.AppendLayers(empty.Image, layer)
	}
	ref, err := name.ParseReference(o.base)
	if err != nil {
		return nil, err
	}
	img, err := remote.Image(ref, remote.WithContext(ctx), remote.WithPlatform(platform), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w; choose another with --base, or build on a tar file with --base-tar", ref, err)
	}
	return img, nil
}
