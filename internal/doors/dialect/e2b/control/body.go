package control

import (
	"bytes"
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
	err = sdkdoor.DecodeKnown(data, v, silent)
	if name, ok := sdkdoor.UnknownMember(err); ok {
		return refused(clip.Text(name, maxShown))
	}
	if err != nil {
		return invalid("validation error: %s", clip.Text(strings.TrimPrefix(err.Error(), "json: "), maxShown))
	}
	return nil
}

// silent reports whether a member says nothing.
func silent(member any) bool {
	return sdkdoor.Empty(member) || member == false || member == ""
}
