package agent

import (
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestImports keeps the agent small: every package that it links makes it larger, and
// runs as root in a sandbox.
func TestImports(t *testing.T) {
	allowed := []string{
		"github.com/cove-sh/cove/sandbox",
		"github.com/cove-sh/cove/internal/guest/agent/desktop",
		"github.com/cove-sh/cove/internal/guest/agent/kernel",
		"github.com/cove-sh/cove/internal/clip",
		"github.com/cove-sh/cove/internal/template/layer/apply",
		"github.com/cove-sh/cove/internal/guest/wire/",
		"connectrpc.com/connect",
		"google.golang.org/protobuf",
		"github.com/creack/pty",
		"github.com/fsnotify/fsnotify",
		"golang.org/x/sys/",
		"software.sslmate.com/src/go-pkcs12",
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range file.Imports {
			path, _ := strconv.Unquote(imp.Path.Value)
			ok := !strings.Contains(strings.Split(path, "/")[0], ".") // standard library
			for _, a := range allowed {
				ok = ok || path == strings.TrimSuffix(a, "/") || strings.HasSuffix(a, "/") && strings.HasPrefix(path, a)
			}
			if !ok || path == "os/exec" || path == "C" {
				t.Errorf("%s imports %s; the agent may not", e.Name(), path)
			}
		}
	}
}
