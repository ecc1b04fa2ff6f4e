package intercept

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// minPlaceholder is the shortest placeholder that is looked for: shorter ones
// might be found by chance.
const minPlaceholder = 16

// place is where in a request a placeholder is.
type place uint8

const (
	inHeader      place = 1 << iota // of a kind that may carry a secret
	inShownHeader                   // one that servers show, log or pass on
	inOtherBasic                    // in basic authentication, but not as the secret's
	inQuery                         // in the parameter that the secret names
	inOtherQuery
	inPath
	inBody
)

// words tells of a place to a developer.
func (p place) words() string {
	switch {
	case p&inPath != 0:
		return "in the path"
	case p&(inQuery|inOtherQuery) != 0:
		return "in the query"
	case p&inOtherBasic != 0:
		return "in basic authentication that is not the secret's"
	case p&inShownHeader != 0:
		return "in a header that servers show or log"
	}
	return "in a header"
}

// finding is a binding whose placeholder is in a request.
type finding struct {
	*binding
	at place
}

// shownHeaders are not credentials, whatever is in them: servers write them to
// logs and pages, or pass them on.
var shownHeaders = []string{
	"Forwarded", "From", "Host", "Origin", "Referer", "User-Agent", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
	"X-Real-Ip", "X-Request-Id",
}

// find returns the bindings whose placeholders are in a request's headers,
// path and query.
func (bs *bindings) find(r *http.Request) []finding {
	var found []finding
	for _, b := range bs.list {
		if at := b.find(r); at != 0 {
			found = append(found, finding{b, at})
		}
	}
	return found
}

func (b *binding) find(r *http.Request) place {
	var at place
	for name, values := range r.Header {
		for _, v := range values {
			at |= b.inHeader(name, v)
		}
	}
	if strings.Contains(r.URL.Path, b.Placeholder) || strings.Contains(r.URL.RawPath, b.Placeholder) {
		at |= inPath
	}
	_ = eachParameter(r.URL.RawQuery, func(raw string) (string, bool) {
		if name, ok := b.inParameter(raw); ok && name {
			at |= inQuery
		} else if ok {
			at |= inOtherQuery
		}
		return "", false
	})
	return at
}

// mayCarry tells whether a header may carry the value. The name is in
// canonical form.
func (b *binding) mayCarry(name string) bool {
	return !slices.Contains(shownHeaders, name) || b.Auth.Type == "header" && strings.EqualFold(b.Auth.Name, name)
}

// inParameter tells whether the placeholder is in a parameter of a query, and
// whether it is the one that the secret names.
func (b *binding) inParameter(raw string) (named, found bool) {
	if !strings.Contains(raw, b.Placeholder) {
		if !strings.Contains(raw, "%") {
			return false, false
		}
		plain, err := url.QueryUnescape(raw)
		if err != nil || !strings.Contains(plain, b.Placeholder) {
			return false, false
		}
	}
	name, value, _ := strings.Cut(raw, "=")
	name, err := url.QueryUnescape(name)
	if err != nil || b.Auth.Type != "query" || name != b.Auth.Name {
		return false, true
	}
	value, err = url.QueryUnescape(value)
	return err == nil && strings.Contains(value, b.Placeholder), true
}

// eachParameter calls edit with each part of a query as it is written, and
// returns the query with the parts replaced that edit wants so.
func eachParameter(query string, edit func(raw string) (string, bool)) string {
	if query == "" {
		return ""
	}
	var out strings.Builder
	for {
		i := strings.IndexAny(query, "&;")
		raw := query
		if i >= 0 {
			raw = query[:i]
		}
		if changed, ok := edit(raw); ok {
			raw = changed
		}
		out.WriteString(raw)
		if i < 0 {
			return out.String()
		}
		out.WriteByte(query[i])
		query = query[i+1:]
	}
}

// inBasic tells whether a placeholder is in credentials of basic
// authentication.
func inBasic(name, value, placeholder string) bool {
	_, plain, ok := decodeBasic(name, value)
	return ok && strings.Contains(plain, placeholder)
}

// isBasic tells whether a header has credentials of basic authentication.
func isBasic(name, value string) bool {
	return (name == "Authorization" || name == "Proxy-Authorization") && len(value) >= 6 && strings.EqualFold(value[:6], "basic ")
}

// decodeBasic splits a header with basic authentication into the scheme as it
// is written, with its space, and the credentials in the clear.
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

// hasBasic tells whether the value may travel in basic authentication.
func (b *binding) hasBasic() bool { return b.Auth.Type == "basic" || b.Auth.User != "" }

// basicCredentials encodes the secret's user with a password.
func (b *binding) basicCredentials(password []byte) []byte {
	plain := append([]byte(b.Auth.User+":"), password...)
	defer wipe(plain)
	return base64.StdEncoding.AppendEncode(nil, plain)
}

// inHeader tells where a placeholder is in a header, or returns 0. The name is
// in canonical form.
func (b *binding) inHeader(name, value string) place {
	literal, encoded := strings.Contains(value, b.Placeholder), inBasic(name, value, b.Placeholder)
	switch {
	case !literal && !encoded:
		return 0
	case !b.mayCarry(name):
		return inShownHeader
	case isBasic(name, value) && !b.fitsBasic(name, value):
		return inOtherBasic
	}
	return inHeader
}

// fitsBasic tells whether the credentials of a header of basic authentication
// are those of the secret: its user with the placeholder as the password, or
// the placeholder alone where the value stands for the credentials as a whole.
// The value does not go into any other credentials: their text would be the
// sandbox's own choice, and a host decodes them.
func (b *binding) fitsBasic(name, value string) bool {
	_, plain, ok := decodeBasic(name, value)
	if ok && b.hasBasic() && plain == b.Auth.User+":"+b.Placeholder {
		return true
	}
	return b.Auth.Type == "header" && strings.EqualFold(b.Auth.Prefix, "basic ") && strings.EqualFold(value[:6], b.Auth.Prefix) && value[6:] == b.Placeholder
}
