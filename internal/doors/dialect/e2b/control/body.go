package control

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// maxBody bounds the body of a request, in bytes.
const maxBody = 4 << 20

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

// refused is the error for a field that would have no effect.
func refused(field string) error {
	return invalid("%s: Cove does not enforce this field of E2B's; leave it out", field)
}

// decode reads a JSON body into v. An empty body leaves v unchanged. Unknown members
// are ignored, since newer clients add some.
func decode(w http.ResponseWriter, r *http.Request, v any) error {
	data, err := sdkdoor.ReadBody(w, r, maxBody, "send less")
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	if err := limits.CheckJSON(data); err != nil {
		return invalid("validation error: %v", err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return invalid("validation error: %v", err)
	}
	return nil
}

// given reports whether a member is present and not empty.
func given(raw json.RawMessage) bool {
	switch string(bytes.TrimSpace(raw)) {
	case "", "null", "{}", "[]", "false", `""`:
		return false
	}
	return true
}
