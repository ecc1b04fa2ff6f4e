// Command templates builds the template desktop of Debian's packages, as users
// do, and uses a computer made from it. It takes a download and minutes, so it
// is no part of "make test"; what it built is kept in the user's cache
// directory for as long as the definition is the same.
//
//	make test-templates
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"image/png"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
	"github.com/cove-sh/cove/test/covetest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "templates:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	dir, err := stateDir()
	if err != nil {
		return err
	}
	d, err := covetest.Launch(ctx, covetest.Options{StateDir: dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Shutdown(context.WithoutCancel(ctx))) }()
	began := time.Now()
	t, err := d.Client.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: "desktop"}, nil)
	if err != nil {
		return err
	}
	fmt.Printf("desktop: %d MiB, ready after %s\n", t.SizeBytes>>20, time.Since(began).Round(time.Second))
	return use(ctx, d)
}

// stateDir is named by the definitions of the templates.
func stateDir() (string, error) {
	root, err := covetest.Root()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range []string{"definition.go", "desktop.go"} {
		data, err := os.ReadFile(filepath.Join(root, "internal/image", name))
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "cove-test-templates", fmt.Sprintf("%x", sum.Sum(nil)[:8]))
	return dir, os.MkdirAll(dir, 0o700)
}

// use opens a page in a computer and looks at it.
func use(ctx context.Context, d *covetest.Daemon) error {
	sbx, err := d.Client.Create(ctx, sandbox.CreateRequest{Template: "desktop"})
	if err != nil {
		return err
	}
	const page = `<title>Here</title><body style="background:#2ec27e">`
	if _, err := d.Client.WriteFile(ctx, sbx.ID, sandbox.WriteFileRequest{Path: "/tmp/page.html"}, strings.NewReader(page)); err != nil {
		return err
	}
	if err := d.Client.OpenURL(ctx, sbx.ID, "file:///tmp/page.html"); err != nil {
		return err
	}
	green := func() (bool, error) {
		shot, err := d.Client.Screenshot(ctx, sbx.ID, sandbox.ScreenshotRequest{})
		if err != nil {
			return false, err
		}
		img, err := png.Decode(bytes.NewReader(shot.Data))
		if err != nil {
			return false, err
		}
		r, g, b, _ := img.At(img.Bounds().Dx()/2, img.Bounds().Dy()/2).RGBA()
		return r>>8 == 0x2e && g>>8 == 0xc2 && b>>8 == 0x7e, nil
	}
	if !covetest.Eventually(2*time.Minute, func() bool {
		var seen bool
		seen, err = green()
		return seen || err != nil
	}) {
		return errors.New("the browser of the template desktop does not show the page")
	}
	if err == nil {
		fmt.Println("desktop: its browser shows a page")
	}
	return err
}
