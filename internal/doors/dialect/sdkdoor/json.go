package sdkdoor

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/cove-sh/cove/internal/limits"
)

// DecodeJSON decodes one JSON value into v. A member that v does not have is refused, as it
// would have no effect; [UnknownMember] names it.
func DecodeJSON(data []byte, v any) error {
	if err := limits.CheckJSON(data); err != nil {
		return err
	}
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

// UnknownMember names the member because of which a [json.Decoder] has refused a value, and
// reports whether that is the error.
func UnknownMember(err error) (name string, ok bool) {
	if err == nil {
		return "", false
	}
	name, ok = strings.CutPrefix(err.Error(), "json: unknown field ") // it has no type
	return strings.Trim(name, `"`), ok
}
