package client_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestConsoleForms compiles each call of this package that the console tells people to make.
// The file is kept current by the console's own tests.
func TestConsoleForms(t *testing.T) {
	data, err := os.ReadFile("../console/src/lib/testdata/forms.json")
	if err != nil {
		t.Fatal(err)
	}
	var forms []struct{ Verb, Go string }
	if err := json.Unmarshal(data, &forms); err != nil {
		t.Fatal(err)
	}
	fset := token.NewFileSet()
	from := importer.ForCompiler(fset, "gc", exported(t))
	read := 0
	for _, f := range forms {
		if f.Go == "" {
			continue
		}
		read++
		source := "package p\nimport (\"context\"; \"encoding/json\"; \"io\"; \"github.com/cove-sh/cove/client\"; \"github.com/cove-sh/cove/sandbox\")\n" +
			"var _ = json.Unmarshal\nvar _ sandbox.Sandbox\n" +
			"func call(ctx context.Context, c *client.Client, file io.Reader) {\n" + f.Go + "\n}\n"
		file, err := parser.ParseFile(fset, f.Verb, source, 0)
		if err != nil {
			t.Errorf("%s: %s: %v", f.Verb, f.Go, err)
			continue
		}
		// The forms declare variables for the reader to continue with.
		config := types.Config{Importer: from, Error: func(err error) {
			if e, ok := errors.AsType[types.Error](err); !ok || !e.Soft {
				t.Errorf("%s: %s: %v", f.Verb, f.Go, err)
			}
		}}
		_, _ = config.Check("p", fset, []*ast.File{file}, nil)
	}
	if read < 50 {
		t.Errorf("the console writes %d calls of Go, which is not all of them", read)
	}
}

// exported returns a lookup for the export data of the packages that the calls import.
func exported(t *testing.T) importer.Lookup {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}", ".", "../sandbox", "encoding/json").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		files[path] = file
	}
	return func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("nothing is exported of %s", path)
		}
		return os.Open(files[path])
	}
}
