// Command templates builds the built-in templates of Debian packages, as users do, and
// uses each for its purpose. It needs downloads, about 5 GB of disk and several
// minutes, so it is not part of "make test". Its builds are kept in the user's cache
// directory: packages are downloaded again if a template's list of packages has
// changed, or after a week without a run.
//
//	make test-templates
//	go run ./test/templates -only desktop,node
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/testing/covetest"
	"github.com/cove-sh/cove/sandbox"
)

// uses has, for each template, the test of a sandbox of it.
var uses = []struct {
	name string
	use  func(*user)
}{
	{"base", useBase},
	{"node", useNode},
	{"nextjs", useNextJS},
	{"react-vite", useReactVite},
	{"code-interpreter", useCode},
	{"desktop", useDesktop},
	{"browser", useBrowser},
}

func main() {
	only := flag.String("only", "", "templates to build and use, with commas; all if empty")
	state := flag.String("state", "", "state directory of the daemon; one in the user's cache if empty")
	pictures := flag.String("pictures", "", "directory to which pictures of the screens are written")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *state, *pictures); err != nil {
		fmt.Fprintln(os.Stderr, "templates:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, only, state, pictures string) (err error) {
	var wanted []string
	for name := range strings.SplitSeq(only, ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if !slices.ContainsFunc(uses, func(s struct {
			name string
			use  func(*user)
		}) bool {
			return s.name == name
		}) {
			return fmt.Errorf("there is no test of a template %q", name)
		}
		wanted = append(wanted, name)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	state = cmp.Or(state, filepath.Join(cache, "cove-test-templates", "state"))
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	d, err := covetest.Launch(ctx, covetest.Options{StateDir: state})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Shutdown(context.WithoutCancel(ctx))) }()
	var failed []string
	for _, t := range uses {
		if len(wanted) > 0 && !slices.Contains(wanted, t.name) {
			continue
		}
		u := &user{ctx: ctx, d: d, template: t.name, pictures: pictures}
		if err := u.run(t.use); err != nil {
			fmt.Printf("%-17s FAILED: %v\n", t.name+":", err)
			failed = append(failed, t.name)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s: not as they should be", strings.Join(failed, ", "))
	}
	return nil
}

// run builds the template, creates a sandbox of it and has it used.
func (u *user) run(use func(*user)) error {
	began := time.Now()
	t, err := u.build()
	if err != nil {
		return err
	}
	built := time.Since(began)
	began = time.Now()
	sbx, err := u.d.Client.Create(u.ctx, sandbox.CreateRequest{Template: u.template})
	if err != nil {
		return fmt.Errorf("create a sandbox: %w", err)
	}
	created := time.Since(began)
	defer func() { _, _ = u.d.Client.Kill(context.WithoutCancel(u.ctx), sbx.ID) }()
	u.id = sbx.ID
	u.privacy()
	use(u)
	if len(u.failed) > 0 {
		return errors.New(strings.Join(u.failed, "\n  "))
	}
	if now, err := u.d.Client.GetTemplate(u.ctx, u.template); err == nil {
		t = now // includes its golden checkpoint, which a build does not report
	}
	fmt.Printf("%-17s %d MiB, checkpoint of %d MiB, ready after %s, first sandbox after %d ms; %d checks hold: %s\n", u.template+":", t.SizeBytes>>20, t.WarmBytes>>20,
		built.Round(time.Second), created.Milliseconds(), len(u.held), strings.Join(u.held, ", "))
	return nil
}

// build builds the template unless it was built from the same definition. The daemon
// keeps its parts, so only a change of packages takes long.
func (u *user) build() (*sandbox.Template, error) {
	sum, err := definitions()
	if err != nil {
		return nil, err
	}
	stamp := filepath.Join(u.d.StateDir, "built-"+u.template)
	if old, err := os.ReadFile(stamp); err != nil || string(old) != sum {
		if err := u.d.Client.DeleteTemplate(u.ctx, u.template); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			return nil, err
		}
	}
	var log []string
	t, err := u.d.Client.BuildTemplate(u.ctx, sandbox.BuildTemplateRequest{Name: u.template}, func(e sandbox.BuildEvent) error {
		if line := strings.TrimSpace(e.Log); line != "" {
			log = append(log[max(0, len(log)-20):], line)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("build it: %w; the build's last words:\n  %s", err, strings.Join(log, "\n  "))
	}
	return t, os.WriteFile(stamp, []byte(sum), 0o600)
}

// definitions names the definitions of the templates.
func definitions() (string, error) {
	root, err := covetest.Root()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, name := range []string{"builtin.go", "desktop.go", "desktop.sh", "debian.go", "accounts.go", "starters.go"} {
		data, err := os.ReadFile(filepath.Join(root, "internal/template/image", name))
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	if err := filepath.WalkDir(filepath.Join(root, "internal/template/image/starters"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(sum, "%s\n%s", path, data)
		return err
	}); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sum.Sum(nil)), nil
}
