package intercept

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/gateway/egress"
)

// minPlaceholder is the length of the shortest placeholder, in bytes: shorter ones
// could occur by chance.
const minPlaceholder = 16

// location is a set of locations of a placeholder in a request.
type location uint8

const (
	inHeader      location = 1 << iota // a header that may carry a secret
	inShownHeader                      // a header that servers show, log or pass on
	inOtherBasic                       // basic authentication with credentials other than the secret's
	inQuery                            // the parameter that the secret names
	inOtherQuery
	inPath
	inBody

	// swappable are the locations in which the value replaces the placeholder.
	swappable = inHeader | inQuery | inBody
)

// String describes a location for developers.
func (l location) String() string {
	switch {
	case l&inPath != 0:
		return "in the path"
	case l&(inQuery|inOtherQuery) != 0:
		return "in the query"
	case l&inOtherBasic != 0:
		return "in basic authentication that is not the secret's"
	case l&inShownHeader != 0:
		return "in a header that servers show or log"
	}
	return "in a header"
}

// finding is a binding whose placeholder is in a request.
type finding struct {
	*binding
	at location
}

// find returns the bindings whose placeholders are in a request's headers, path or query.
func (bs *bindings) find(r *http.Request) []finding {
	var found []finding
	for _, b := range bs.list {
		if at := b.find(r); at != 0 {
			found = append(found, finding{b, at})
		}
	}
	return found
}

func (b *binding) find(r *http.Request) location {
	var at location
	for name, values := range r.Header {
		for _, v := range values {
			at |= b.inHeader(name, v)
		}
	}
	if strings.Contains(r.URL.Path, b.Placeholder) || strings.Contains(r.URL.RawPath, b.Placeholder) {
		at |= inPath
	}
	for raw := range strings.FieldsFuncSeq(r.URL.RawQuery, func(c rune) bool { return c == '&' || c == ';' }) {
		at |= b.inParameter(raw)
	}
	return at
}

// mayCarry reports whether a header may carry the value. The name is in canonical form.
func (b *binding) mayCarry(name string) bool {
	return !slices.Contains(egress.ShownHeaders, name) || b.Auth.Type == "header" && strings.EqualFold(b.Auth.Name, name)
}

// inParameter returns [inQuery] or [inOtherQuery] if the placeholder is in an encoded
// parameter of a query, or 0.
func (b *binding) inParameter(raw string) location {
	if !strings.Contains(raw, b.Placeholder) {
		plain, err := url.QueryUnescape(raw)
		if err != nil || !strings.Contains(plain, b.Placeholder) {
			return 0
		}
	}
	name, value, _ := strings.Cut(raw, "=")
	name, err := url.QueryUnescape(name)
	if err != nil || b.Auth.Type != "query" || name != b.Auth.Name {
		return inOtherQuery
	}
	value, err = url.QueryUnescape(value)
	if err != nil || !strings.Contains(value, b.Placeholder) {
		return inOtherQuery
	}
	return inQuery
}

// editQuery returns a query with every parameter, in its encoded form, replaced by the
// result of edit.
func editQuery(query string, edit func(raw string) string) string {
	var out strings.Builder
	for {
		i := strings.IndexAny(query, "&;")
		if i < 0 {
			return out.String() + edit(query)
		}
		out.WriteString(edit(query[:i]))
		out.WriteByte(query[i])
		query = query[i+1:]
	}
}

// isBasic reports whether a header has credentials of basic authentication.
func isBasic(name, value string) bool {
	return (name == "Authorization" || name == "Proxy-Authorization") && len(value) >= 6 && strings.EqualFold(value[:6], "basic ")
}

// decodeBasic splits a header with basic authentication into the scheme as written,
// with the spaces after it, and the decoded credentials.
func decodeBasic(name, value string) (scheme, plain string, ok bool) {
	if !isBasic(name, value) {
		return "", "", false
	}
	rest := strings.TrimLeft(value[6:], " ")
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(rest, "= "))
	if err != nil {
		return "", "", false
	}
	return value[:len(value)-len(rest)], string(b), true
}

// hasBasic reports whether the value may be sent in basic authentication.
func (b *binding) hasBasic() bool { return b.Auth.Type == "basic" || b.Auth.User != "" }

// basicCredentials encodes the secret's user and a password.
func (b *binding) basicCredentials(password []byte) []byte {
	plain := append([]byte(b.Auth.User+":"), password...)
	defer wipe(plain)
	return base64.StdEncoding.AppendEncode(nil, plain)
}

// inHeader returns the location of a placeholder in a header, or 0. The name is in
// canonical form.
func (b *binding) inHeader(name, value string) location {
	_, plain, _ := decodeBasic(name, value)
	switch {
	case !strings.Contains(value, b.Placeholder) && !strings.Contains(plain, b.Placeholder):
		return 0
	case !b.mayCarry(name):
		return inShownHeader
	case isBasic(name, value) && !b.fitsBasic(name, value):
		return inOtherBasic
	}
	return inHeader
}

// fitsBasic reports whether the credentials in a header of basic authentication are those
// of the secret: its user with the placeholder as the password, or the placeholder alone
// if the value is the complete credentials. The value is not put into any other
// credentials: the sandbox would choose their text, which a host decodes.
func (b *binding) fitsBasic(name, value string) bool {
	_, plain, ok := decodeBasic(name, value)
	if ok && b.hasBasic() && plain == b.Auth.User+":"+b.Placeholder {
		return true
	}
	return b.Auth.Type == "header" && strings.EqualFold(b.Auth.Prefix, "basic ") && strings.EqualFold(value[:6], b.Auth.Prefix) && value[6:] == b.Placeholder
}
