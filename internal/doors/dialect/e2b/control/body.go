package control

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

// maxBody bounds the body of a request, in bytes.
const maxBody = 4 << 20

// maxShown bounds what an error quotes of a client's input, in bytes.
const maxShown = 128

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

// refused is the error for a field that would have no effect.
func refused(field string) error {
	return invalid("%s: Cove does not enforce this field of E2B's; leave it out", field)
}

// decode reads a JSON body into v. An empty body leaves v unchanged. A member that is not
// known is refused by its name, as it would have no effect, unless it says nothing: newer
// clients add some.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := sdkdoor.ReadBody(w, r, maxBody, "send less")
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	err = decodeKnown(data, v)
	if name, ok := sdkdoor.UnknownMember(err); ok {
		return refused(clip.Text(name, maxShown))
	}
	if err != nil {
		return invalid("validation error: %s", clip.Text(strings.TrimPrefix(err.Error(), "json: "), maxShown))
	}
	return nil
}

// maxUnknown bounds the names of members that are not known and say nothing.
const maxUnknown = 16

// decodeKnown decodes a JSON value without the members that are not known and say nothing.
func decodeKnown(data []byte, v any) error {
	err := sdkdoor.DecodeJSON(data, v)
	for range maxUnknown {
		name, unknown := sdkdoor.UnknownMember(err)
		if !unknown {
			return err
		}
		rest, ok := without(data, name)
		if !ok {
			return err
		}
		data = rest
		err = sdkdoor.DecodeJSON(data, v)
	}
	return err
}

// without returns a JSON value without the members of a name that say nothing, and false
// if there are none.
func without(data []byte, name string) (rest []byte, ok bool) {
	var tree any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if dec.Decode(&tree) != nil || !remove(tree, name) {
		return nil, false
	}
	rest, err := json.Marshal(tree)
	return rest, err == nil
}

// remove takes the members of a name that say nothing from all objects of a value.
func remove(v any, name string) (removed bool) {
	switch v := v.(type) {
	case map[string]any:
		if member, has := v[name]; has {
			if text, err := json.Marshal(member); err == nil && !given(text) {
				delete(v, name)
				removed = true
			}
		}
		for _, member := range v {
			removed = remove(member, name) || removed
		}
	case []any:
		for _, member := range v {
			removed = remove(member, name) || removed
		}
	}
	return removed
}

// given reports whether a member is present and not empty.
func given(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "{}", "[]", "false", `""`:
		return false
	}
	return true
}
