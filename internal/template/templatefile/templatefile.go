// Package templatefile reads template files: a [sandbox.TemplateSpec] as people write it,
// in YAML or JSON, with the names of its JSON form. It accepts short forms: an image can be
// just its reference, and a step or a start command just its command. The content of a file
// is given as text, or read from another file.
//
// A template file is not trusted: its size is bounded, anchors are refused because they
// would multiply its content, and unknown names are errors. Every error names the line.
package templatefile

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	yaml "go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// MaxBytes bounds a template file.
	MaxBytes = 12 << 20
	// maxDepth bounds the nesting, and maxNodes the number of values.
	maxDepth = 16
	maxNodes = 50_000
)

// Open opens a file that a template file names as a source, by its path as written. Parse
// reads no more of the file than it needs.
type Open func(source string) (io.ReadCloser, error)

// Parse parses a template file. Without open, files cannot have sources. Errors are
// [sandbox.Error] values.
func Parse(data []byte, open Open) (*sandbox.TemplateSpec, error) {
	if len(data) > MaxBytes {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "the template file has %d bytes, but at most %d are allowed; put large content into separate files and name them as source", len(data), MaxBytes)
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the template file is not UTF-8 text")
	}
	root, err := parseDocument(data)
	if err != nil {
		return nil, err
	}
	d := decoder{open: open, room: sandbox.MaxTemplateFileBytes}
	var spec sandbox.TemplateSpec
	if err := d.value(root, "", reflect.ValueOf(&spec).Elem()); err != nil {
		return nil, err
	}
	return &spec, nil
}

// parseDocument parses the single document of a file, and checks its bounds.
func parseDocument(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, more yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the template file is empty; begin with what the template starts from, such as 'from: python:3.12'")
		}
		return nil, syntaxError(err)
	}
	if err := dec.Decode(&more); err == nil {
		return nil, fail(&more, "there is a second document; write one template per file")
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(err)
	}
	if len(doc.Content) != 1 {
		return nil, fail(&doc, "there is no template")
	}
	nodes := 0
	return doc.Content[0], check(doc.Content[0], 0, &nodes)
}

func syntaxError(err error) error {
	return sandbox.Errorf(sandbox.CodeInvalid, "the template file is not valid YAML: %.300s", strings.TrimPrefix(err.Error(), "yaml: "))
}

// check refuses documents that are too large or have anchors.
func check(n *yaml.Node, depth int, nodes *int) error {
	if *nodes++; *nodes > maxNodes {
		return fail(n, "there are more than %d values, which is too many for a template", maxNodes)
	}
	switch {
	case depth > maxDepth:
		return fail(n, "values are nested more than %d levels deep", maxDepth)
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return fail(n, "anchors and aliases (& and *) are not supported; write the value out, or put it in quotes")
	}
	for _, c := range n.Content {
		if err := check(c, depth+1, nodes); err != nil {
			return err
		}
	}
	return nil
}

func fail(n *yaml.Node, format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, "line %d: %s", n.Line, fmt.Sprintf(format, args...))
}

// decoder decodes nodes into the types of package sandbox, by their JSON names.
type decoder struct {
	open Open
	room int64 // bytes left for the content of files
}

// describe returns the name of a value for errors.
func describe(at string) string {
	if at == "" {
		return "the template"
	}
	return at
}

func (d *decoder) value(n *yaml.Node, at string, to reflect.Value) error {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil // the same as leaving it out
	}
	if done, err := d.short(n, at, to); done || err != nil {
		return err
	}
	switch to.Kind() {
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		return d.value(n, at, to.Elem())
	case reflect.Struct:
		return d.object(n, at, to)
	case reflect.Map:
		return d.pairs(n, at, to)
	case reflect.Slice:
		return d.list(n, at, to)
	}
	return scalar(n, at, to)
}

// short decodes the short form of a value, and reports whether it was one.
func (d *decoder) short(n *yaml.Node, at string, to reflect.Value) (bool, error) {
	if n.Kind != yaml.ScalarNode || to.Kind() != reflect.Struct {
		return false, nil
	}
	switch v := to.Addr().Interface().(type) {
	case *sandbox.TemplateSource:
		if strings.TrimSpace(n.Value) == "" {
			return true, fail(n, "%s is empty; use an image such as python:3.12, or a mapping such as {debian: bookworm}", at)
		}
		v.Image = n.Value
	case *sandbox.TemplateStep:
		v.Run = n.Value
	case *sandbox.StartCommand:
		v.Command = n.Value
	case *sandbox.NetworkPolicy:
		v.Preset = sandbox.NetworkPreset(n.Value)
	default:
		return false, nil
	}
	return true, nil
}

// fields returns the indexes of a struct's fields, including embedded ones, by their JSON
// names.
func fields(t reflect.Type) map[string][]int {
	out := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.IsExported() && !f.Anonymous && name != "" && name != "-" {
			out[name] = f.Index
		}
	}
	return out
}

func (d *decoder) object(n *yaml.Node, at string, to reflect.Value) error {
	if n.Kind != yaml.MappingNode {
		return fail(n, "%s is %s; use a mapping of names to values", describe(at), kindOf(n))
	}
	if to.Type() == reflect.TypeFor[sandbox.TemplateFile]() {
		return d.file(n, at, to.Addr().Interface().(*sandbox.TemplateFile))
	}
	known := fields(to.Type())
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		index, ok := known[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			return fail(key, "%s has no field %.80q; use one of %s", describe(at), key.Value, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case seen[key.Value]:
			return fail(key, "%s is set twice", join(at, key.Value))
		}
		seen[key.Value] = true
		if err := d.value(value, join(at, key.Value), to.FieldByIndex(index)); err != nil {
			return err
		}
	}
	return nil
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// fileNames are the names in a file of a template file. Its content is text or comes from a
// local file.
var fileNames = []string{"path", "content", "source", "mode", "owner"}

func (d *decoder) file(n *yaml.Node, at string, f *sandbox.TemplateFile) error {
	given := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || !slices.Contains(fileNames, key.Value):
			return fail(key, "%s has no field %.80q; use one of %s", at, key.Value, strings.Join(fileNames, ", "))
		case given[key.Value] != nil:
			return fail(key, "%s.%s is set twice", at, key.Value)
		case value.Kind != yaml.ScalarNode:
			return fail(value, "%s.%s is %s; use text", at, key.Value, kindOf(value))
		}
		given[key.Value] = value
	}
	for name, to := range map[string]*string{"path": &f.Path, "mode": &f.Mode, "owner": &f.Owner} {
		if v := given[name]; v != nil {
			*to = v.Value
		}
	}
	content, source := given["content"], given["source"]
	switch {
	case f.Path == "":
		return fail(n, "%s has no path; set it to an absolute path in the template", at)
	case (content == nil) == (source == nil):
		return fail(n, "%s needs exactly one of content, its text, and source, a file to copy", at)
	case content != nil:
		return d.text(content, at, f)
	}
	return d.source(source, at, f)
}

func (d *decoder) text(n *yaml.Node, at string, f *sandbox.TemplateFile) error {
	f.Content = []byte(n.Value)
	if n.Tag == "!!binary" {
		data, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(n.Value), ""))
		if err != nil {
			return fail(n, "%s.content is not valid base64", at)
		}
		f.Content = data
	}
	return d.take(n, at, int64(len(f.Content)))
}

func (d *decoder) source(n *yaml.Node, at string, f *sandbox.TemplateFile) error {
	if d.open == nil {
		return fail(n, "%s.source works only with 'cove template build'; use content", at)
	}
	r, err := d.open(n.Value)
	if err != nil {
		return fail(n, "%s.source: %v", at, err)
	}
	defer r.Close()
	if f.Content, err = io.ReadAll(io.LimitReader(r, d.room+1)); err != nil {
		return fail(n, "%s.source: %v", at, err)
	}
	return d.take(n, at, int64(len(f.Content)))
}

// take subtracts the content of a file from the room.
func (d *decoder) take(n *yaml.Node, at string, size int64) error {
	if d.room -= size; d.room < 0 {
		return fail(n, "with %s the files have more than %d bytes in total; fetch large files in a run step", at, sandbox.MaxTemplateFileBytes)
	}
	return nil
}

func (d *decoder) pairs(n *yaml.Node, at string, to reflect.Value) error {
	if n.Kind != yaml.MappingNode {
		return fail(n, "%s is %s; use a mapping of names to values", at, kindOf(n))
	}
	to.Set(reflect.MakeMap(to.Type()))
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		name := reflect.ValueOf(key.Value).Convert(to.Type().Key())
		if key.Kind != yaml.ScalarNode || to.MapIndex(name).IsValid() {
			return fail(key, "%s has %.80q twice, or a name that is not text", at, key.Value)
		}
		v := reflect.New(to.Type().Elem()).Elem()
		if err := d.value(value, join(at, key.Value), v); err != nil {
			return err
		}
		to.SetMapIndex(name, v)
	}
	return nil
}

func (d *decoder) list(n *yaml.Node, at string, to reflect.Value) error {
	if n.Kind != yaml.SequenceNode {
		return fail(n, "%s is %s; use a list, such as [a, b]", at, kindOf(n))
	}
	to.Set(reflect.MakeSlice(to.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		here := fmt.Sprintf("%s[%d]", at, i)
		if item.Kind == yaml.ScalarNode && item.Tag == "!!null" {
			return fail(item, "%s is empty", here)
		}
		if err := d.value(item, here, to.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

// scalar takes text as written, whatever its YAML type: 3.10 is a version, and no a
// country.
func scalar(n *yaml.Node, at string, to reflect.Value) error {
	if n.Kind != yaml.ScalarNode {
		return fail(n, "%s is %s; use a single value", at, kindOf(n))
	}
	switch to.Kind() {
	case reflect.String:
		to.SetString(n.Value)
		return nil
	case reflect.Bool:
		v, err := strconv.ParseBool(n.Value)
		if err != nil {
			return fail(n, "%s is %.40q; use true or false", at, n.Value)
		}
		to.SetBool(v)
		return nil
	case reflect.Int, reflect.Int64:
		v, err := strconv.ParseInt(n.Value, 10, to.Type().Bits())
		if err != nil {
			return fail(n, "%s is %.40q; use a whole number", at, n.Value)
		}
		to.SetInt(v)
		return nil
	}
	return fail(n, "%s cannot be written in a template file", at)
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}
