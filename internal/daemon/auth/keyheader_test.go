package auth

import (
	"net/http"
	"testing"
)

// TestKeyHeader checks that a key may be in X-API-Key if there is no Authorization header,
// which has precedence.
func TestKeyHeader(t *testing.T) {
	for _, c := range []struct {
		name          string
		authorization []string
		keys          []string
		want          string // empty: refused
	}{
		{"alone", nil, []string{"k"}, "k"},
		{"beside a token", []string{"Bearer t"}, []string{"k"}, "t"},
		{"beside what is wrong", []string{"Basic t"}, []string{"k"}, ""},
		{"two", nil, []string{"k", "k"}, ""},
		{"no key", nil, []string{"a key"}, ""},
		{"empty", nil, []string{""}, ""},
		{"none", nil, nil, ""},
	} {
		h := http.Header{}
		h["Authorization"], h[KeyHeader] = c.authorization, c.keys
		if got, err := BearerToken(h); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}
