package main

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// fieldTexts reads the comments on the fields of a package's structs: by
// "Type.member", with the member's JSON name, and by "Type" the type's own. Those
// on the methods of its interfaces are by "Method()".
func fieldTexts(dir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			decl, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range decl.Specs {
				if ts, ok := spec.(*ast.TypeSpec); ok {
					addStruct(texts, decl, ts)
					addMethods(texts, ts)
				}
			}
		}
	}
	return texts, nil
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

func writeFieldTexts(path, dir string) error {
	texts, err := fieldTexts(dir)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(texts, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
