package config

import (
	"errors"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/internal/lazyregexp"
)

// What the YAML library says of a value that does not fit names types of Go.
var (
	unknownField = lazyregexp.New(`^(line \d+: )?field (.+) not found in type \S+$`)
	wrongType    = lazyregexp.New("(?s)^(line \\d+: )?cannot unmarshal !!(\\w+)(?: `(.*)`)? into (\\S+)$")
)

// kinds are the types of Go in words.
var kinds = map[string]string{
	"int": "a whole number", "int64": "a whole number", "bool": "true or false", "string": "text", "time.Duration": "a duration such as 90s or 2h",
	"[]string": "a list", "map[string][]string": "lists by name",
}

// explained says in words of the file what is wrong with it.
func explained(err error) error {
	wrong, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var said []string
	for _, e := range wrong.Errors {
		if m := unknownField.FindStringSubmatch(e); m != nil {
			e = m[1] + "unknown setting " + m[2] + "; check its name and indentation"
		} else if m := wrongType.FindStringSubmatch(e); m != nil {
			e = m[1] + needs(m[4], m[2], m[3])
		}
		said = append(said, e)
	}
	return errors.New(strings.Join(said, "; "))
}

// needs says what is needed in place of a value.
func needs(goType, tag, value string) string {
	kind := kinds[goType]
	if kind == "" {
		kind = "settings with names, one per line, indented"
	}
	given := map[string]string{"map": "settings with names", "seq": "a list"}[tag]
	if given == "" && value != "" {
		given = strconv.Quote(value)
	}
	if given == "" {
		return "must be " + kind
	}
	return "must be " + kind + ", not " + given
}
