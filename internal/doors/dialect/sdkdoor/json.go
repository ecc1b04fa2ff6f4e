package sdkdoor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"strings"

	"github.com/cove-sh/cove/internal/limits"
)

// DecodeJSON decodes one JSON value into v. A member that v does not have is refused, as it
// would have no effect; [UnknownMember] names it.
func DecodeJSON(data []byte, v any) error {
	if err := limits.CheckJSON(data); err != nil {
		return err
	}
	return decodeStrictly(data, v)
}

// DecodeKnown is [DecodeJSON] for products whose newer clients send every member that they
// know. Of the members that v does not have, or has as [json.RawMessage], it drops those
// for which silent returns true. Silent gets a member as it was sent: an object with
// members is not silent, even if each of them is empty.
func DecodeKnown(data []byte, v any, silent func(member any) bool) error {
	if err := limits.CheckJSON(data); err != nil {
		return err
	}
	var tree any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return err
	}
	leaveOut(tree, reflect.TypeOf(v), silent)
	known, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	return decodeStrictly(append(known, data[dec.InputOffset():]...), v)
}

// Empty reports whether a member is null, or an object or a list with nothing in it.
func Empty(member any) bool {
	switch m := member.(type) {
	case nil:
		return true
	case map[string]any:
		return len(m) == 0
	case []any:
		return len(m) == 0
	}
	return false
}

// leaveOut removes silent members from a value that will be decoded as a type.
func leaveOut(v any, t reflect.Type, silent func(any) bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return
	}
	switch v := v.(type) {
	case []any:
		for i := range v {
			if t.Kind() == reflect.Slice {
				leaveOut(v[i], t.Elem(), silent)
			}
		}
	case map[string]any:
		for name, m := range v {
			of, known := t, false
			switch t.Kind() {
			case reflect.Map:
				of, known = t.Elem(), true
			case reflect.Struct:
				of, known = memberOf(t, name)
				if (!known || of == reflect.TypeFor[json.RawMessage]()) && silent(m) {
					delete(v, name)
				}
			}
			if known {
				leaveOut(m, of, silent)
			}
		}
	}
}

// memberOf returns the type of the member of a struct that has a name in JSON.
func memberOf(t reflect.Type, name string) (of reflect.Type, known bool) {
	for _, f := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if strings.EqualFold(cmp.Or(tag, f.Name), name) {
			return f.Type, true
		}
	}
	return nil, false
}

func decodeStrictly(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if len(bytes.TrimSpace(data[dec.InputOffset():])) > 0 {
		return errors.New("there is more after the object")
	}
	return nil
}

// UnknownMember returns the name of the unknown member for which a [json.Decoder] has
// refused a value, and whether that is the error.
func UnknownMember(err error) (name string, ok bool) {
	if err == nil {
		return "", false
	}
	name, ok = strings.CutPrefix(err.Error(), "json: unknown field ") // it has no type
	return strings.Trim(name, `"`), ok
}
