package sqlstore

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// marks returns n placeholders of a statement.
func marks(n int) string { return strings.Repeat(", ?", n)[2:] }

// text is a value kept as JSON in a text column.
type text struct{ v any }

// jsonText lets v, a pointer or a map or slice to be stored, be a JSON column.
func jsonText(v any) text { return text{v} }

// Scan implements [sql.Scanner].
func (t text) Scan(src any) error {
	s, ok := src.(string)
	if !ok {
		return fmt.Errorf("column holds %T, want text", src)
	}
	return json.Unmarshal([]byte(s), t.v)
}

func encode(v any) (string, error) {
	b, err := json.Marshal(v)
	return string(b), err
}

// opaque scans JSON that nobody here looks into; empty is nil.
type opaque struct{ v *json.RawMessage }

// Scan implements [sql.Scanner].
func (o opaque) Scan(src any) error {
	s, ok := src.(string)
	if !ok {
		return fmt.Errorf("column holds %T, want text", src)
	}
	*o.v = nil
	if s != "" {
		*o.v = json.RawMessage(s)
	}
	return nil
}

// instant scans nanoseconds into a time.
type instant struct{ t *time.Time }

// Scan implements [sql.Scanner].
func (i instant) Scan(src any) error {
	n, ok := src.(int64)
	if !ok {
		return fmt.Errorf("column holds %T, want a time", src)
	}
	*i.t = time.Unix(0, n).UTC()
	return nil
}

// maybe scans nanoseconds or NULL.
type maybe struct{ t **time.Time }

// Scan implements [sql.Scanner].
func (m maybe) Scan(src any) error {
	if src == nil {
		*m.t = nil
		return nil
	}
	*m.t = new(time.Time)
	return instant{*m.t}.Scan(src)
}

func nanos(t *time.Time) any {
	if t == nil {
		return nil
	}
	return t.UnixNano()
}

// scanText scans a row of one text column.
func scanText(scan func(...any) error) (string, error) {
	var v string
	err := scan(&v)
	return v, err
}
