package cli

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	superserve "github.com/cove-sh/cove/internal/doors/dialect/superserve/api"
	"github.com/cove-sh/cove/internal/durable"
)

// shimFile is the name of Superserve's shim in the state directory.
const shimFile = "compat-superserve.mjs"

// superserveShim writes the shim and returns the variable that makes Node.js load it,
// with what the variable already contains.
func (a *app) superserveShim() ([]envVar, error) {
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the state directory: %w", err)
	}
	file := filepath.Join(dir, shimFile)
	if file, err = filepath.Abs(file); err != nil {
		return nil, err
	}
	if err := durable.WriteFile(file, []byte(superserve.Shim)); err != nil {
		return nil, fmt.Errorf("save the shim for Superserve's clients: %w", err)
	}
	return []envVar{{"NODE_OPTIONS", withImport(os.Getenv("NODE_OPTIONS"), file)}}, nil
}

// withImport adds the import of a file to Node's options, and removes older imports of
// a file with that name.
func withImport(options, file string) string {
	kept := slices.DeleteFunc(strings.Fields(options), func(o string) bool {
		return strings.HasPrefix(o, "--import=") && strings.HasSuffix(o, "/"+filepath.Base(file))
	})
	where := url.URL{Scheme: "file", Path: file} // a path may have blanks
	return strings.Join(append(kept, "--import="+where.String()), " ")
}
