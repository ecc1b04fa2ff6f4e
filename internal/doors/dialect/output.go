package dialect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// Exec runs a command to its end and returns the first limit bytes of each stream
// with its job.
func Exec(ctx context.Context, svc sandbox.Service, id string, req sandbox.ExecRequest, limit int) (*sandbox.Job, *Beginnings, error) {
	out := &Beginnings{limit: limit}
	req.KeepBytes = 1 // the output is taken as it comes
	job, err := svc.Exec(ctx, id, req, out.take)
	return job, out, err
}

// Beginnings are the beginnings of both streams of a job.
type Beginnings struct {
	limit int // of each stream, in bytes

	streams [2]bytes.Buffer
	more    [2]int
}

func (b *Beginnings) take(e sandbox.JobEvent) error {
	i := streamIndex(e.Stream)
	n := min(len(e.Data), b.limit-b.streams[i].Len())
	b.streams[i].Write(e.Data[:n])
	b.more[i] += len(e.Data) - n
	return nil
}

// Text returns the beginning of a stream, with a note of how much is missing.
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

// Ends keeps the beginning and the end of a stream.
type Ends struct {
	// Head and Tail are how much of either is kept, in bytes.
	Head, Tail int
	// Total is the length of the stream so far, in bytes.
	Total int64

	head, tail []byte
	gap        bool // nothing can be added to head
}

// Skip adds n bytes whose content is unknown.
func (e *Ends) Skip(n int64) {
	e.Total += n
	e.gap = true
}

// Append adds a piece of the stream.
func (e *Ends) Append(p []byte) {
	e.Total += int64(len(p))
	if !e.gap {
		n := min(len(p), e.Head-len(e.head))
		e.head, p = append(e.head, p[:n]...), p[n:]
	}
	e.tail = append(e.tail, p[max(0, len(p)-e.Tail):]...)
	if len(e.tail) > 4*e.Tail {
		e.tail = slices.Clone(e.tail[len(e.tail)-e.Tail:])
	}
}

// Kept returns the beginning and the end, and how many bytes between them are
// missing. If any are, neither is cut within a character.
func (e *Ends) Kept() (head, tail []byte, missing int64) {
	head, tail = e.head, e.tail[max(0, len(e.tail)-e.Tail):]
	if e.Total > int64(len(head)+len(tail)) {
		head, tail = clip.TrimEnd(head), clip.TrimStart(tail)
	}
	return head, tail, e.Total - int64(len(head)+len(tail))
}

// Line ends a text that is not empty with a newline.
func Line(s string) string {
	if s == "" || strings.HasSuffix(s, "\n") {
		return s
	}
	return s + "\n"
}

// WithError returns what code has written to stderr, with the code's error
// appended unless it is there already.
func WithError(stderr string, e *sandbox.CodeError) string {
	text := e.Traceback
	if text == "" {
		text = e.Name + ": " + e.Message
	}
	if strings.Contains(stderr, strings.TrimSpace(text)) {
		return stderr
	}
	return Line(stderr) + strings.TrimRight(text, "\n") + "\n"
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
