package store

import (
	"encoding/base64"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/sandbox"
)

// maxCursorBytes bounds a cursor as callers send it.
const maxCursorBytes = 256

// Cursor is a place in a listing by time and id, newest first: the last item
// that was returned.
type Cursor struct {
	At time.Time
	ID string
}

// String returns the opaque form that callers get.
func (c Cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte("1 " + strconv.FormatInt(c.At.UnixNano(), 10) + " " + c.ID))
}

// ParseCursor is the inverse of [Cursor.String]. Anything else is an invalid
// error.
func ParseCursor(s string) (Cursor, error) {
	bad := sandbox.Errorf(sandbox.CodeInvalid, "the cursor is not one that this server gave out; start over without a cursor")
	if len(s) > maxCursorBytes {
		return Cursor{}, bad
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || !utf8.Valid(b) {
		return Cursor{}, bad
	}
	version, rest, ok := strings.Cut(string(b), " ")
	if !ok || version != "1" {
		return Cursor{}, bad
	}
	at, id, ok := strings.Cut(rest, " ")
	if !ok || id == "" {
		return Cursor{}, bad
	}
	n, err := strconv.ParseInt(at, 10, 64)
	if err != nil {
		return Cursor{}, bad
	}
	return Cursor{At: time.Unix(0, n).UTC(), ID: id}, nil
}

// PageLimit returns how many items a page holds.
func PageLimit(p sandbox.Page) (int, error) {
	switch {
	case p.Limit == 0:
		return sandbox.DefaultPageSize, nil
	case p.Limit < 0 || p.Limit > sandbox.MaxPageSize:
		return 0, sandbox.Errorf(sandbox.CodeInvalid, "limit is %d; give 1 to %d, or leave it out for %d", p.Limit, sandbox.MaxPageSize, sandbox.DefaultPageSize)
	}
	return p.Limit, nil
}
