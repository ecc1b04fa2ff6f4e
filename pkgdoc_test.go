package cove_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// longFiles may have more than maxLines lines, for the reason given.
var longFiles = map[string]string{}

const maxLines = 600

// TestTree checks what every source file and package promises: one package
// comment a package, a comment on every exported name, files of a size that
// can be read.
func TestTree(t *testing.T) {
	comments := map[string]int{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" || path == "bin" || path == "patches") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		return checkFile(t, path, comments)
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, n := range comments {
		if n != 1 {
			t.Errorf("%s has %d package comments, want 1", dir, n)
		}
	}
}

func checkFile(t *testing.T, path string, comments map[string]int) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.ParseComments)
	if err != nil {
		return err
	}
	if ast.IsGenerated(f) {
		if _, ok := comments[filepath.Dir(path)]; !ok && !isMessages(filepath.Dir(path)) {
			comments[filepath.Dir(path)] = 0
		}
		return nil
	}
	if strings.HasSuffix(path, "_test.go") {
		return nil
	}
	if n := strings.Count(string(src), "\n"); n > maxLines && longFiles[path] == "" {
		t.Errorf("%s has %d lines: split it by subject, or give a reason in longFiles", path, n)
	}
	dir := filepath.Dir(path)
	if f.Doc != nil {
		comments[dir]++
	} else if _, ok := comments[dir]; !ok {
		comments[dir] = 0
	}
	if f.Name.Name == "main" {
		return nil
	}
	for _, d := range f.Decls {
		checkDecl(t, path, d)
	}
	return nil
}

func checkDecl(t *testing.T, path string, d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc == nil && (d.Recv == nil || exportedReceiver(d)) {
			t.Errorf("%s: %s has no comment", path, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if s.Name.IsExported() && d.Doc == nil && s.Doc == nil {
					t.Errorf("%s: type %s has no comment", path, s.Name.Name)
				}
			case *ast.ValueSpec:
				if s.Names[0].IsExported() && d.Doc == nil && s.Doc == nil && s.Comment == nil {
					t.Errorf("%s: %s has no comment", path, s.Names[0].Name)
				}
			}
		}
	}
}

func exportedReceiver(d *ast.FuncDecl) bool {
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if idx, ok := typ.(*ast.IndexExpr); ok {
		typ = idx.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}

// isMessages reports whether a directory has code that is made from the
// description of a protocol alone.
func isMessages(dir string) bool {
	return strings.HasPrefix(dir, "internal/guest/wire/") || strings.Contains(dir, "/e2b/envd/") && !strings.HasSuffix(dir, "/envd")
}
