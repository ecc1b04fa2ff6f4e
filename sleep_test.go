package cove_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

// sleeps are how many times a file of tests calls time.Sleep other than [sleepsOf]
// allows. The list may only become shorter.
var sleeps = map[string]int{
	// Helpers of tests in testing/synctest.
	"internal/daemon/janitor/janitor_test.go": 1,
	"internal/doors/mcpserver/stdio_test.go":  1,
	"internal/engine/tiered/fake_test.go":     1,
	// Something takes its time, which is what the test is about.
	"internal/guest/agent/desktop/input_test.go":  2,
	"internal/guest/agent/desktop/main_test.go":   1,
	"internal/guest/agent/desktop/screen_test.go": 1,
	"internal/gateway/intercept/flow_test.go":     1,
	"internal/engine/cells/trouble_test.go":       1,
	"internal/limits/limits_test.go":              5,
	"internal/doors/preview/attack_test.go":       1,
	"internal/daemon/server/slow_test.go":         1,
	"internal/daemon/service/code_test.go":        1,
	// What another does at the same time may have come to its interesting point.
	"internal/cell/lock_test.go":             1,
	"internal/doors/cli/daemon_test.go":      1,
	"internal/gateway/netlog/netlog_test.go": 1,
}

// A test that sleeps until something has surely happened fails on a machine that is
// slow, and is slow on all others. So unit tests run by a clock of their own, in
// testing/synctest, or ask again until a deadline.
func TestNoSleep(t *testing.T) {
	left := maps.Clone(sleeps)
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if e.IsDir() && (path == "test" || path == "bin" || e.Name() == "node_modules" || strings.HasPrefix(e.Name(), ".") && path != ".") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		n, err := sleepsOf(path)
		if n != left[path] {
			t.Errorf("%s calls time.Sleep %d times, and may %d times: use testing/synctest, or a loop with a deadline", path, n, left[path])
		}
		delete(left, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for path := range left {
		t.Errorf("%s is in the list and does not sleep", path)
	}
}

// sleepsOf counts the calls of time.Sleep in a file, except those in the function of
// a synctest.Test, where no time passes, and those between the turns of a loop.
func sleepsOf(path string) (int, error) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return 0, err
	}
	n := 0
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.ForStmt:
			if post, ok := node.Post.(*ast.ExprStmt); ok && isCall(post.X, "time", "Sleep") {
				n-- // counted below
			}
		case ast.Expr:
			if isCall(node, "synctest", "Test") {
				return false
			}
			if isCall(node, "time", "Sleep") {
				n++
			}
		}
		return true
	})
	return n, nil
}

// isCall reports whether an expression calls a function of a package.
func isCall(e ast.Expr, pkg, name string) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := f.X.(*ast.Ident)
	return ok && x.Name == pkg && f.Sel.Name == name
}
