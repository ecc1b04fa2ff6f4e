package cove_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// logging are the methods of slog.Logger that log, with the place of the message
// among their arguments.
var logging = map[string]int{
	"Debug": 0, "Info": 0, "Warn": 0, "Error": 0,
	"DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1, "Log": 2,
}

var (
	loggerName = regexp.MustCompile(`(?i)^s?log$`)
	logKey     = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
)

// Logs are searched by their messages and keys. So a message is written out, without
// what varies, and a key is one word for one thing: an error's is "error". That each
// key has a value is checked by go vet.
func TestLogs(t *testing.T) {
	calls := 0
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if e.IsDir() && (path == "bin" || e.Name() == "node_modules" || strings.HasPrefix(e.Name(), ".") && path != ".") {
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok && isLogging(call) {
				calls++
				for _, wrong := range wrongInLog(call, logging[call.Fun.(*ast.SelectorExpr).Sel.Name]) {
					t.Errorf("%s: %s", files.Position(call.Pos()), wrong)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if calls < 50 {
		t.Errorf("%d calls of a logger were found: is the test blind?", calls)
	}
}

// isLogging reports whether an expression logs: log.Info, s.cfg.Log.Error.
func isLogging(call *ast.CallExpr) bool {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if at, known := logging[method.Sel.Name]; !known || len(call.Args) <= at {
		return false
	}
	switch x := method.X.(type) {
	case *ast.Ident:
		return loggerName.MatchString(x.Name)
	case *ast.SelectorExpr:
		return loggerName.MatchString(x.Sel.Name)
	}
	return false
}

// wrongInLog says what is wrong with a message, the argument at a place, and with the
// keys after it.
func wrongInLog(call *ast.CallExpr, at int) []string {
	var wrong []string
	if x, ok := call.Fun.(*ast.SelectorExpr).X.(*ast.Ident); ok && x.Name == "slog" {
		wrong = append(wrong, "this is the logger of the whole process: take one as an argument")
	}
	if message, ok := literal(call.Args[at]); ok && (strings.HasSuffix(message, ".") || message == "") {
		wrong = append(wrong, "the message is empty or ends in a full stop")
	}
	if _, ok := call.Args[at].(*ast.BinaryExpr); ok || isCallOf(call.Args[at], "Sprintf") {
		wrong = append(wrong, "the message is put together: what varies belongs into attributes")
	}
	for i := at + 1; i < len(call.Args); i += 2 {
		key, ok := literal(call.Args[i])
		switch {
		case !ok && i == len(call.Args)-1 && call.Ellipsis.IsValid(): // attrs...
		case !ok:
			wrong = append(wrong, "a key is not written out")
		case !logKey.MatchString(key):
			wrong = append(wrong, "the key "+strconv.Quote(key)+" is not lower case, with _ between words")
		case key == "err":
			wrong = append(wrong, `the key of an error is "error"`)
		}
	}
	return wrong
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// isCallOf reports whether an expression calls a function or method of a name.
func isCallOf(e ast.Expr, name string) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == name
}
