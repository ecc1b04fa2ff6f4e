package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// mebibytes is a flag for an amount of memory or disk: "512", "512m", "2g".
type mebibytes int64

// String implements pflag.Value.
func (m *mebibytes) String() string {
	if *m == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*m), 10) + "m"
}

// Type implements pflag.Value.
func (*mebibytes) Type() string { return "size" }

// Set implements pflag.Value.
func (m *mebibytes) Set(s string) error {
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
		return fmt.Errorf("%q is no size; write 512m or 2g", s)
	}
	*m = mebibytes(n * factor)
	return nil
}

// seconds is a flag for a duration that may be absent: "90s", "1h", "0" for
// no bound.
type seconds struct {
	value *int64
}

// String implements pflag.Value.
func (s *seconds) String() string {
	if s.value == nil {
		return ""
	}
	return (time.Duration(*s.value) * time.Second).String()
}

// Type implements pflag.Value.
func (*seconds) Type() string { return "duration" }

// Set implements pflag.Value.
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d%time.Second != 0 {
		return fmt.Errorf("%q is no whole number of seconds; write 90s, 15m or 2h, or 0 for no bound", text)
	}
	n := int64(d / time.Second)
	s.value = &n
	return nil
}

// pairs is a flag for key=value, which may be repeated.
type pairs map[string]string

// String implements pflag.Value.
func (p *pairs) String() string { return "" }

// Type implements pflag.Value.
func (*pairs) Type() string { return "key=value" }

// Set implements pflag.Value.
func (p *pairs) Set(s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return fmt.Errorf("%q is not key=value", s)
	}
	if *p == nil {
		*p = pairs{}
	}
	(*p)[key] = value
	return nil
}
