package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// The types below read flags into fields of requests as they are, such as
// f.Var((*mebibytes)(&req.SizeMiB), …).

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

// seconds is a flag for a duration: "90s", "1h", "0" for no bound.
type seconds int64

// String implements pflag.Value.
func (s *seconds) String() string {
	if *s == 0 {
		return ""
	}
	return (time.Duration(*s) * time.Second).String()
}

// Type implements pflag.Value.
func (*seconds) Type() string { return "duration" }

// Set implements pflag.Value.
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d%time.Second != 0 {
		return fmt.Errorf("%q is no whole number of seconds; write 90s, 15m or 2h, or 0 for no bound", text)
	}
	*s = seconds(d / time.Second)
	return nil
}

// secondsIfGiven is seconds where 0 is another thing than no flag, which leaves
// the pointer nil.
type secondsIfGiven struct{ to **int64 }

// String implements pflag.Value.
func (secondsIfGiven) String() string { return "" }

// Type implements pflag.Value.
func (secondsIfGiven) Type() string { return "duration" }

// Set implements pflag.Value.
func (s secondsIfGiven) Set(text string) error {
	var n seconds
	if err := n.Set(text); err != nil {
		return err
	}
	*s.to = (*int64)(&n)
	return nil
}

// milliseconds is a flag for a duration of any kind.
type milliseconds int64

// String implements pflag.Value.
func (m *milliseconds) String() string {
	if *m == 0 {
		return ""
	}
	return (time.Duration(*m) * time.Millisecond).String()
}

// Type implements pflag.Value.
func (*milliseconds) Type() string { return "duration" }

// Set implements pflag.Value.
func (m *milliseconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	*m = milliseconds(d.Milliseconds())
	return err
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

// repeated is a flag that may be given several times; parse reads each.
type repeated[T any] struct {
	to    *[]T
	kind  string
	parse func(string) (T, error)
}

// String implements pflag.Value.
func (repeated[T]) String() string { return "" }

// Type implements pflag.Value.
func (r repeated[T]) Type() string { return r.kind }

// Set implements pflag.Value.
func (r repeated[T]) Set(s string) error {
	v, err := r.parse(s)
	if err == nil {
		*r.to = append(*r.to, v)
	}
	return err
}

// ifGiven returns the value of a flag that was given, else nil.
func ifGiven[T any](f *pflag.FlagSet, flag string, value T) *T {
	if f.Changed(flag) {
		return &value
	}
	return nil
}
