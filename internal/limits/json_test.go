package limits

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestCheckJSON(t *testing.T) {
	for text, twice := range map[string]string{
		`{"name":"a","name":"b"}`:                 "name",
		`{"a":{"b":1,"b":2}}`:                     "b",
		`[{"a":1},{"a":1,"x":[{}],"a":2}]`:        "a",
		`{"a":1,"\u0061":2}`:                      "a",
		`{"":1,"":2}`:                             "",
		`{"\"":1,"x":"}","\"":2}`:                 `"`,
		`{"method":"a","params":{},"method":"b"}`: "method",
		`{"` + strings.Repeat("n", 100) + `":1,"` + strings.Repeat("n", 100) + `":2}`: strings.Repeat("n", 64),
	} {
		var duplicate *DuplicateError
		if err := CheckJSON([]byte(text)); !errors.As(err, &duplicate) || duplicate.Name != twice {
			t.Errorf("%.60s: %v, want that %q is there twice", text, err, twice)
		}
	}
	for _, text := range []string{
		`{}`, `{"a":"a","b":"a"}`, `{"a":{"a":{"a":1}},"b":["a","a"]}`, `["a","a"]`, `{"a":1,"A":2}`, `"a"`, `{"a":"\\","b":"\""}`,
		// Text that is not JSON is left to the decoder.
		``, `{`, `}`, `{"a":1,"b`, `{"a\`, `{"\x":1,"\x":1}`, strings.Repeat("[", 20_000), strings.Repeat("]", 20_000),
	} {
		if err := CheckJSON([]byte(text)); err != nil {
			t.Errorf("%.60s: %v", text, err)
		}
	}
	if err := CheckJSON([]byte("{\"a\":\"\xff\"}")); !errors.Is(err, ErrNotUTF8) {
		t.Errorf("bad bytes: %v", err)
	}
}

// repeats reports whether valid JSON contains an object with a repeated member, as
// encoding/json reads it token by token.
func repeats(dec *json.Decoder) bool {
	token, err := dec.Token()
	if err != nil {
		panic(err)
	}
	found := false
	switch token {
	case json.Delim('{'):
		names := map[string]bool{}
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				panic(err)
			}
			found = found || names[name.(string)]
			names[name.(string)] = true
			found = repeats(dec) || found
		}
		_, err = dec.Token()
	case json.Delim('['):
		for dec.More() {
			found = repeats(dec) || found
		}
		_, err = dec.Token()
	}
	if err != nil {
		panic(err)
	}
	return found
}

func FuzzCheckJSON(f *testing.F) {
	for _, s := range []string{`{"a":1,"a":2}`, `[{"a":{"b":[1,"x"]},"\u0061":null}]`, `{"\ud800":1,"\ud801":2}`, `{"a":"\"","b":"\\"}`, `"`, `{"a"`, "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		err := CheckJSON(data)
		if !json.Valid(data) || errors.Is(err, ErrNotUTF8) {
			return
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		if want := repeats(dec); want != (err != nil) {
			t.Errorf("%q: %v, want an error: %v", data, err, want)
		}
	})
}
