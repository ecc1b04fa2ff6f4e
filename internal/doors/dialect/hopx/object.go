package hopx

import (
	"bytes"
	"encoding/json"
)

// pair is a key of an object, with its value.
type pair struct {
	key   string
	value any
}

// pairs is an object whose keys keep their order. It is used where a struct type would add
// nothing.
type pairs []pair

func object(all ...pair) pairs { return all }

// MarshalJSON implements [json.Marshaler].
func (p pairs) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	for i, kv := range p {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := enc.Encode(kv.key); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		if err := enc.Encode(kv.value); err != nil {
			return nil, err
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}
