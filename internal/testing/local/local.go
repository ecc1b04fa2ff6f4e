// Package local makes the whole service for tests of the doors: the real one,
// over a real store and a real agent, with commands as processes of the host
// in a temporary directory in place of sandboxes.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/daemon/service"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite"
	"github.com/cove-sh/cove/internal/daemon/store/sqlite/sqlitetest"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/testing/faketemplates"
	"github.com/cove-sh/cove/sandbox"
)

// Service is a running service.
type Service struct {
	*service.Service
	dir   string
	state *memory.State
	db    *sqlite.Store
}

// Open starts a service that keeps everything below dir.
func Open(ctx context.Context, dir string, log *slog.Logger) (*Service, error) {
	work := filepath.Join(dir, "sandboxes")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, fmt.Errorf("open local service: %w", err)
	}
	db, err := sqlite.Open(ctx, filepath.Join(dir, "cove.db"))
	if err != nil {
		return nil, fmt.Errorf("open local service: %w", err)
	}
	state := memory.NewState(work)
	svc, err := service.New(service.Config{Store: db, Engine: memory.New(state), Templates: templates(), Log: log, BuildDir: filepath.Join(dir, "builds")})
	if err == nil {
		err = svc.Start(ctx)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open local service: %w", err), db.Close())
	}
	return &Service{Service: svc, dir: work, state: state, db: db}, nil
}

// Close ends the service and its sandboxes.
func (s *Service) Close() error {
	return errors.Join(s.state.Close(), s.Service.Close(), s.db.Close())
}

// New returns a service that ends with the test.
func New(t testing.TB) *Service {
	t.Helper()
	dir := t.TempDir()
	sqlitetest.New(t, filepath.Join(dir, "cove.db"))
	s, err := Open(t.Context(), dir, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Normalize shows a sandbox's temporary directory as /workspace, which is
// where commands start in a real one, and the user of the test as user.
func (s *Service) Normalize(text string) string {
	text = strings.ReplaceAll(text, `"user": "`+user()+`"`, `"user": "user"`)
	text = strings.ReplaceAll(text, ", user "+user()+",", ", user user,")
	return regexp.MustCompile(regexp.QuoteMeta(s.dir)+`/[a-zA-Z0-9<>_-]+/workspace`).ReplaceAllString(text, "/workspace")
}

// user is who commands run as: only root can run them as another.
func user() string {
	if os.Getuid() == 0 {
		return "root"
	}
	return strconv.Itoa(os.Getuid())
}

// templates are one template, the host as it is, and names that real servers
// have too but that are not built here.
func templates() *faketemplates.Provider {
	s := faketemplates.New("/",
		sandbox.Template{Name: "code-interpreter", Source: "debian", State: sandbox.TemplateAvailable},
		sandbox.Template{Name: "debian", Source: "debian", State: sandbox.TemplateAvailable},
		sandbox.Template{Name: "host", Source: "host", State: sandbox.TemplateReady, User: user(), WorkDir: "/workspace"},
	)
	s.Unknown = func(name string) error {
		return sandbox.Errorf(sandbox.CodeNotFound, "there is no template %q; use one of base, browser, code-interpreter, debian, desktop, host, nextjs, node, react-vite", name)
	}
	return s
}
