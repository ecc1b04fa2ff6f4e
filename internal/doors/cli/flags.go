package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// flagValue is a flag that set parses. The functions below make flags that store
// into fields of requests, such as f.Var(sizeFlag(&req.SizeMiB), …).
type flagValue struct {
	kind string // the type that help shows
	set  func(string) error
}

func (flagValue) String() string       { return "" }
func (v flagValue) Type() string       { return v.kind }
func (v flagValue) Set(s string) error { return v.set(s) }

// parsedFlag makes a flag whose value is parsed into a variable.
func parsedFlag[T any](to *T, kind string, parse func(string) (T, error)) flagValue {
	return flagValue{kind, func(s string) (err error) {
		*to, err = parse(s)
		return err
	}}
}

// listFlag makes a flag that may be repeated; each value is appended to a list.
func listFlag[T any](to *[]T, kind string, parse func(string) (T, error)) flagValue {
	return flagValue{kind, func(s string) error {
		v, err := parse(s)
		if err == nil {
			*to = append(*to, v)
		}
		return err
	}}
}

// sizeFlag makes a flag for an amount of memory or disk in MiB.
func sizeFlag(to *int64) flagValue { return parsedFlag(to, "size", parseMiB) }

// parseMiB parses a size such as "512", "512m" or "2g" into MiB.
func parseMiB(s string) (int64, error) {
	text := strings.ToLower(s)
	text = strings.TrimSuffix(strings.TrimSuffix(text, "ib"), "b")
	factor := int64(1)
	switch {
	case strings.HasSuffix(text, "g"):
		factor = 1024
	case strings.HasSuffix(text, "t"):
		factor = 1024 * 1024
	case strings.HasSuffix(text, "m"):
	default:
		text += "m"
	}
	n, err := strconv.ParseInt(text[:len(text)-1], 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/factor {
		return 0, fmt.Errorf("%q is not a size; use a form such as 512m or 2g", s)
	}
	return n * factor, nil
}

// secondsFlag makes a flag for a duration of whole seconds: "90s", "1h", "0" for
// no limit.
func secondsFlag(to *int64) flagValue { return parsedFlag(to, "duration", parseSeconds) }

// optionalSecondsFlag is secondsFlag for a field in which 0 differs from nil, the
// value without the flag.
func optionalSecondsFlag(to **int64) flagValue {
	return parsedFlag(to, "duration", func(s string) (*int64, error) {
		n, err := parseSeconds(s)
		return &n, err
	})
}

func parseSeconds(s string) (int64, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d%time.Second != 0 {
		return 0, fmt.Errorf("%q is not a whole number of seconds; use a form such as 90s, 15m or 2h, or 0 for no limit", s)
	}
	return int64(d / time.Second), nil
}

// millisecondsFlag makes a flag for a duration of any length.
func millisecondsFlag(to *int64) flagValue {
	return parsedFlag(to, "duration", func(s string) (int64, error) {
		d, err := time.ParseDuration(s)
		return d.Milliseconds(), err
	})
}

// pairsFlag makes a flag for key=value, which may be repeated.
func pairsFlag(to *map[string]string) flagValue {
	return flagValue{"key=value", func(s string) error { return addPair(to, s) }}
}

func addPair(to *map[string]string, s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return fmt.Errorf("%q is not of the form key=value", s)
	}
	if *to == nil {
		*to = map[string]string{}
	}
	(*to)[key] = value
	return nil
}

// ifGiven returns the value of a flag if the flag was given, and otherwise nil.
func ifGiven[T any](f *pflag.FlagSet, flag string, value T) *T {
	if f.Changed(flag) {
		return &value
	}
	return nil
}
