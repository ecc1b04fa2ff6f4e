package dialect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// Beginnings keep the beginning of both streams of a job. Its Take is a
// [sandbox.JobSink], for one job.
type Beginnings struct {
	// Limit is what is kept of each stream, in bytes.
	Limit int

	streams [2]bytes.Buffer
	more    [2]int
}

// Take takes a piece of output.
func (b *Beginnings) Take(e sandbox.JobEvent) error {
	i := streamIndex(e.Stream)
	n := min(len(e.Data), b.Limit-b.streams[i].Len())
	b.streams[i].Write(e.Data[:n])
	b.more[i] += len(e.Data) - n
	return nil
}

// Text returns a stream's beginning, and says how much is missing.
func (b *Beginnings) Text(stream sandbox.Stream) string {
	i := streamIndex(stream)
	t := strings.ToValidUTF8(b.streams[i].String(), "\uFFFD")
	if b.more[i] > 0 {
		t = Line(t) + fmt.Sprintf("[%d more bytes; write to a file and read it in parts]\n", b.more[i])
	}
	return t
}

func streamIndex(s sandbox.Stream) int {
	if s == sandbox.Stderr {
		return 1
	}
	return 0
}

// Line ends a text with a line's end, unless it is empty.
func Line(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// WithError returns what code has written to stderr, with its error at the end
// unless that is in it already.
func WithError(stderr string, e *sandbox.CodeError) string {
	text := ErrorOf(e)
	if strings.Contains(stderr, strings.TrimSpace(text)) {
		return stderr
	}
	return Line(stderr) + strings.TrimRight(text, "\n") + "\n"
}

// ErrorOf is an error of code as its language shows it.
func ErrorOf(e *sandbox.CodeError) string {
	if e.Traceback == "" {
		return e.Name + ": " + e.Message
	}
	return e.Traceback
}

// Values returns the values of expressions as their language shows them.
func Values(res *sandbox.CodeResult) []string {
	var values []string
	for _, o := range res.Outputs {
		var text string
		if o.Result && json.Unmarshal(o.Data["text/plain"], &text) == nil && text != "" {
			values = append(values, text)
		}
	}
	return values
}
