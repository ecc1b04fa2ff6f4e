package dialect

import (
	"bytes"
	"encoding/json"
	"slices"
)

// Object is a JSON object whose keys keep their order, for results that need no
// type of their own.
type Object []member

type member struct {
	key   string
	value any
}

// ObjectOf makes an object of keys, which are strings, and values in turn.
func ObjectOf(pairs ...any) Object {
	out := make(Object, 0, len(pairs)/2)
	for pair := range slices.Chunk(pairs, 2) {
		out = append(out, member{pair[0].(string), pair[1]})
	}
	return out
}

// MarshalJSON implements [json.Marshaler].
func (o Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := enc.Encode(m.key); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := enc.Encode(m.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
