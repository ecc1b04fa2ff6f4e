package cove_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// Every process of the program would compile the regular expressions of all packages
// before main: so they are those of package lazyregexp.
func TestRegexpsAreLazy(t *testing.T) {
	for _, dir := range []string{"client", "cmd", "internal", "sandbox"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.HasPrefix(path, "internal/testing/") || strings.HasPrefix(path, "internal/lazyregexp/") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if e, ok := node.(ast.Expr); ok && isCall(e, "regexp", "MustCompile") {
					t.Errorf("%s calls regexp.MustCompile: use lazyregexp.New", path)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
