// Package sandboxdoc has the comments and the constants of package sandbox as data, for
// the OpenAPI document and the schemas of MCP tools.
package sandboxdoc

import (
	_ "embed" // for the generated files
	"encoding/json"
	"sync"
)

//go:generate go run ./gen ../../../sandbox fields.json values.json

//go:embed fields.json
var fieldsJSON []byte

//go:embed values.json
var valuesJSON []byte

var (
	texts  = sync.OnceValue(func() map[string]string { return parse[map[string]string]("fields.json", fieldsJSON) })
	values = sync.OnceValue(func() map[string][]string { return parse[map[string][]string]("values.json", valuesJSON) })
)

// Texts returns the comments: by "Type" a type's own, by "Type.member" that of the
// field with this JSON name, and by "Method()" that of an interface's method. The
// caller must not change the map.
func Texts() map[string]string { return texts() }

// Values returns the values of a string type's constants in the order of the
// source, without the empty one, or nil for a type without constants. The caller
// must not change the slice.
func Values(typeName string) []string { return values()[typeName] }

func parse[T any](name string, data []byte) T {
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		panic(name + ": " + err.Error()) // it is part of the program
	}
	return v
}
