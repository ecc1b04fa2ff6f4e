// Command gen writes the comments and the constants of a package as JSON:
//
//	gen DIR FIELDS VALUES
package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: gen DIR FIELDS VALUES")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(dir, fieldsFile, valuesFile string) error {
	decls, err := declarations(dir)
	if err != nil {
		return err
	}
	if err := write(fieldsFile, fieldTexts(decls)); err != nil {
		return err
	}
	return write(valuesFile, constants(decls))
}

// declarations returns the declarations of a package's types and constants.
func declarations(dir string) ([]*ast.GenDecl, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var decls []*ast.GenDecl
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if decl, ok := d.(*ast.GenDecl); ok {
				decls = append(decls, decl)
			}
		}
	}
	return decls, nil
}

// constants returns the values of constants by the names of their string types.
func constants(decls []*ast.GenDecl) map[string][]string {
	values := map[string][]string{}
	for _, decl := range decls {
		for _, spec := range decl.Specs {
			vs, ok := spec.(*ast.ValueSpec)
			if !ok || decl.Tok != token.CONST || len(vs.Values) != 1 {
				continue
			}
			typ, named := vs.Type.(*ast.Ident)
			value, literal := vs.Values[0].(*ast.BasicLit)
			if !named || !literal || value.Kind != token.STRING {
				continue
			}
			if text, err := strconv.Unquote(value.Value); err == nil && text != "" {
				values[typ.Name] = append(values[typ.Name], text)
			}
		}
	}
	return values
}

// fieldTexts reads the comments on the fields of a package's structs: by
// "Type.member", with the member's JSON name, and by "Type" the type's own. Those
// on the methods of its interfaces are by "Method()".
func fieldTexts(decls []*ast.GenDecl) map[string]string {
	texts := map[string]string{}
	for _, decl := range decls {
		for _, spec := range decl.Specs {
			if ts, ok := spec.(*ast.TypeSpec); ok {
				addStruct(texts, decl, ts)
				addMethods(texts, ts)
			}
		}
	}
	return texts
}

func addStruct(texts map[string]string, decl *ast.GenDecl, ts *ast.TypeSpec) {
	st, ok := ts.Type.(*ast.StructType)
	if !ok {
		return
	}
	add(texts, ts.Name.Name, decl.Doc.Text())
	for _, f := range st.Fields.List {
		if f.Tag == nil {
			continue
		}
		tag, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			continue
		}
		name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		if name != "" && name != "-" {
			add(texts, ts.Name.Name+"."+name, f.Doc.Text()+f.Comment.Text())
		}
	}
}

func addMethods(texts map[string]string, ts *ast.TypeSpec) {
	it, ok := ts.Type.(*ast.InterfaceType)
	if !ok {
		return
	}
	for _, m := range it.Methods.List {
		for _, name := range m.Names {
			add(texts, name.Name+"()", m.Doc.Text())
		}
	}
}

// add keeps a comment as one line; links to Go names become plain words.
func add(texts map[string]string, key, comment string) {
	text := strings.Join(strings.Fields(comment), " ")
	text = strings.NewReplacer("[", "", "]", "").Replace(text)
	if text != "" {
		texts[key] = text
	}
}

func write(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
