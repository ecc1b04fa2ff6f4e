package native

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/sandboxdoc"
	"github.com/cove-sh/cove/sandbox"
)

// describer derives the schema of a tool's arguments or result from a Go type: members
// and their types from its fields, enums from constants, limits from [argumentLimits]
// and [resultLimits], descriptions from [texts]. A top-level argument without a text
// has the comment of package sandbox.
type describer struct {
	tool   string
	own    *memberTexts // of the tool
	common *memberTexts // of all tools
	result bool
}

// argumentSchema is the schema of the arguments of a tool.
func argumentSchema(t reflect.Type, tool string) *jsonschema.Schema {
	d := &describer{tool: tool, own: &texts().tools[tool].args, common: &texts().tools["*"].args}
	return d.schema(t)
}

// resultSchema is the schema of a tool's structured result: the result or an error.
func resultSchema(t reflect.Type, tool string) *jsonschema.Schema {
	d := &describer{tool: tool, own: &texts().tools[tool].result, common: &texts().tools["*"].result, result: true}
	s := d.schema(t)
	required := s.Required
	s.Required = nil
	e := &describer{tool: tool, own: &texts().tools["*"].result, common: new(memberTexts), result: true}
	failure := e.schema(reflect.TypeFor[dialect.ErrorBody]()).Properties["error"]
	s.Properties["error"], s.PropertyOrder = failure, append(s.PropertyOrder, "error")
	if len(required) > 0 {
		s.AnyOf = []*jsonschema.Schema{{Required: required}, {Required: []string{"error"}}}
	}
	return s
}

// inJSON are the schemas of types whose JSON differs from what the Go type suggests.
var inJSON = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[time.Time]():           {Type: "string", Format: "date-time"},
	reflect.TypeFor[[]byte]():              {Type: "string"},
	reflect.TypeFor[sandbox.SecretValue](): {Type: "string"},
	reflect.TypeFor[json.RawMessage]():     anyJSON(),
}

// anyJSON is the schema of any value. It lists the types one by one, since
// some clients accept neither a schema without a type nor a list of types.
func anyJSON() *jsonschema.Schema {
	s := new(jsonschema.Schema)
	for _, t := range []string{"array", "object", "string", "number", "boolean", "null"} {
		s.AnyOf = append(s.AnyOf, &jsonschema.Schema{Type: t})
	}
	return s
}

func (d *describer) schema(t reflect.Type) *jsonschema.Schema {
	s, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: inJSON})
	if err != nil {
		panic(fmt.Sprintf("tool %s: %v", d.tool, err)) // a test finds it
	}
	d.value(t, s, "")
	for _, p := range d.own.paths {
		if d.common.by != nil && !has(s, strings.Split(p, ".")) {
			panic(fmt.Sprintf("tool %s: a text for %s, which it does not have", d.tool, p))
		}
	}
	return s
}

// has reports whether a schema has a property, by its path.
func has(s *jsonschema.Schema, names []string) bool {
	for s.Items != nil {
		s = s.Items
	}
	if len(names) == 0 {
		return true
	}
	p := s.Properties[names[0]]
	return p != nil && has(p, names[1:])
}

// value describes a value of a type, at a path.
func (d *describer) value(t reflect.Type, s *jsonschema.Schema, at string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if n := len(s.Types); n > 0 { // null counts as missing
		s.Type, s.Types = s.Types[n-1], nil
	}
	switch {
	case inJSON[t] != nil:
	case t.Kind() == reflect.Struct:
		d.object(t, s, at)
	case t.Kind() == reflect.Slice:
		d.value(t.Elem(), s.Items, at)
	case t.Kind() == reflect.String && t.PkgPath() != "":
		for _, v := range sandboxdoc.Values(t.Name()) {
			s.Enum = append(s.Enum, v)
		}
	case s.Type == "integer":
		s.Minimum, s.Maximum = nil, nil // those of the Go type
		if d.result {
			s.Minimum = new(float64)
		}
	}
}

func (d *describer) object(t reflect.Type, s *jsonschema.Schema, at string) {
	ofType := texts().types[t.Name()]
	if s.Properties == nil {
		s.Properties = make(map[string]*jsonschema.Schema)
	}
	order := d.own.inside(at)
	for _, name := range ofType.inside("") {
		if !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	required, before := s.Required, ""
	s.Required = nil
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if f.Anonymous || p == nil {
			continue
		}
		owner := owner(t, f)
		if leftOut[owner+"."+name] != "" {
			delete(s.Properties, name)
			continue
		}
		text := d.text(ofType, owner, joinPath(at, name))
		d.value(f.Type, p, joinPath(at, name))
		d.limit(p, owner, joinPath(at, name))
		if text.open {
			p.Enum = nil
		}
		p.Description, p.Default = text.text, text.value
		if text.shown != nil && d.result {
			p = short(p, text.shown)
			s.Properties[name] = p
		}
		if slices.Contains(required, name) && !text.optional && text.value == nil {
			s.Required = append(s.Required, name)
		}
		if !slices.Contains(order, name) {
			order = slices.Insert(order, slices.Index(order, before)+1, name)
		}
		before = name
	}
	order = slices.DeleteFunc(order, func(name string) bool { return s.Properties[name] == nil })
	s.PropertyOrder = order
	slices.SortFunc(s.Required, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
}

// owner names the type that declares a field, which may be embedded in t.
func owner(t reflect.Type, f reflect.StructField) string {
	if len(f.Index) == 1 {
		return t.Name()
	}
	in := t.FieldByIndex(f.Index[:len(f.Index)-1]).Type
	for in.Kind() == reflect.Pointer {
		in = in.Elem()
	}
	return in.Name()
}

// text returns the text of a member: the one of the tool, of the type that contains the
// member, of the type that declares it, or of all members of this name.
func (d *describer) text(ofType *memberTexts, owner, at string) memberText {
	outer, name := splitPath(at)
	if text, ok := d.own.by[at]; ok {
		return text
	}
	for _, m := range []*memberTexts{ofType, texts().types[owner]} {
		if m != nil && d.result {
			if text, ok := m.by[name]; ok {
				return text
			}
		}
	}
	if text, ok := d.common.by[name]; ok && (d.result || outer == "") {
		return text
	}
	if d.result || outer != "" {
		return memberText{}
	}
	return memberText{text: sandboxdoc.Texts()[owner+"."+name]}
}

// limit applies the limits of a member: the ones of the tool, of the type that declares
// the member, or of all members of this name.
func (d *describer) limit(s *jsonschema.Schema, owner, at string) {
	_, name := splitPath(at)
	if d.result {
		if l, ok := resultLimits[owner+"."+name]; ok {
			l.apply(s)
			return
		}
		if l, ok := resultLimits[name]; ok {
			l.apply(s)
			return
		}
	} else if l, ok := argumentLimits[d.tool+"."+at]; ok {
		l.apply(s)
		return
	}
	l, ok := argumentLimits[owner+"."+name]
	if !ok && !d.result {
		l, ok = argumentLimits[name]
	}
	if d.result && owner != "NetworkPolicy" && owner != "NetworkRule" {
		return
	}
	if ok && l.of == s.Type {
		l.apply(s)
	}
}

// short returns the schema of an object, or of a list of objects, reduced to some
// members.
func short(s *jsonschema.Schema, shown []string) *jsonschema.Schema {
	if s.Type == "array" {
		return &jsonschema.Schema{Type: "array", Description: s.Description, Items: short(s.Items, shown)}
	}
	c := &jsonschema.Schema{Type: s.Type, Description: s.Description}
	for _, name := range shown {
		if c.Properties == nil {
			c.Properties = make(map[string]*jsonschema.Schema)
		}
		c.Properties[name] = s.Properties[name]
	}
	if shown = slices.Clone(shown); len(shown) > 0 {
		c.PropertyOrder = shown
	}
	return c
}

// brief returns the schema of arguments that clients are sent: without bounds of
// lengths, which error messages state, and without the members that the texts hide.
func brief(schema *jsonschema.Schema, args *memberTexts) *jsonschema.Schema {
	all := unbounded(schema)
	for name, text := range args.by {
		if text.shown != nil {
			all.Properties[name] = short(all.Properties[name], text.shown)
		}
	}
	return all
}

// unbounded returns a copy of a schema without bounds of lengths.
func unbounded(s *jsonschema.Schema) *jsonschema.Schema {
	if s == nil {
		return nil
	}
	c := *s
	c.MinLength, c.MaxLength, c.MinItems, c.MaxItems, c.MinProperties, c.MaxProperties = nil, nil, nil, nil, nil, nil
	if c.Maximum != nil && *c.Maximum >= maxOffset {
		c.Maximum = nil
	}
	c.Items = unbounded(s.Items)
	if s.AdditionalProperties != nil && s.AdditionalProperties.Not == nil {
		c.AdditionalProperties = unbounded(s.AdditionalProperties)
	}
	if s.Properties != nil {
		c.Properties = make(map[string]*jsonschema.Schema, len(s.Properties))
		for name, p := range s.Properties {
			c.Properties[name] = unbounded(p)
		}
	}
	return &c
}
