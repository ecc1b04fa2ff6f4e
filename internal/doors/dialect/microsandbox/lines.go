package microsandbox

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxOutput bounds the output of one call. A line counts for more than its text, since
	// it is an object of its own.
	maxOutput = 4 << 20
	lineCost  = 64
)

// lines is output in the product's form: lines in the order of their arrival.
type lines struct {
	all     []map[string]string
	room    int
	dropped int64 // bytes beyond maxOutput
	partial map[sandbox.Stream]*bytes.Buffer
}

func newLines() *lines {
	return &lines{room: maxOutput, partial: map[sandbox.Stream]*bytes.Buffer{sandbox.Stdout: {}, sandbox.Stderr: {}}}
}

// add adds a piece of a stream.
func (l *lines) add(stream sandbox.Stream, data []byte) {
	part := l.partial[stream]
	if part == nil {
		return
	}
	for len(data) > 0 {
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			l.begin(part, data)
			return
		}
		l.begin(part, data[:i])
		l.line(stream, part)
		data = data[i+1:]
	}
}

// begin keeps the beginning of a line, as far as there is space.
func (l *lines) begin(part *bytes.Buffer, data []byte) {
	n := max(min(len(data), l.room-part.Len()), 0)
	part.Write(data[:n])
	l.dropped += int64(len(data) - n)
}

func (l *lines) line(stream sandbox.Stream, part *bytes.Buffer) {
	text := strings.TrimSuffix(part.String(), "\r")
	part.Reset()
	if l.room <= 0 {
		l.dropped += int64(len(text)) + 1
		return
	}
	kept, cost := fit(text, l.room)
	l.dropped += int64(len(text) - kept)
	text = text[:kept]
	l.room -= cost + lineCost
	l.all = append(l.all, map[string]string{"stream": string(stream), "text": strings.ToValidUTF8(text, "\uFFFD")})
}

// fit returns how much of a text fits into room, and its size as JSON, where a control
// character takes six bytes.
func fit(text string, room int) (kept, cost int) {
	for i := range len(text) {
		more := 1
		if text[i] < ' ' && text[i] != '\t' && text[i] != '\r' {
			more = 6
		}
		if cost+more > room {
			return i, cost
		}
		cost += more
	}
	return len(text), cost
}

// end turns unfinished lines into lines.
func (l *lines) end() {
	for _, stream := range []sandbox.Stream{sandbox.Stdout, sandbox.Stderr} {
		if part := l.partial[stream]; part.Len() > 0 {
			l.line(stream, part)
		}
	}
}

// dropNote removes the service's message on stderr about code that it has ended: the
// product has its own.
func (l *lines) dropNote() {
	for i := len(l.all) - 1; i >= 0; i-- {
		if l.all[i]["stream"] == string(sandbox.Stderr) {
			if strings.HasPrefix(l.all[i]["text"], "cove: the code was ended") {
				l.all = slices.Delete(l.all, i, i+1)
			}
			return
		}
	}
}

// text adds whole lines.
func (l *lines) text(stream sandbox.Stream, text string) {
	l.add(stream, []byte(strings.TrimRight(text, "\n")+"\n"))
}

// missing records that bytes of a stream were not kept.
func (l *lines) missing(stream sandbox.Stream, n int64) {
	l.add(stream, fmt.Appendf(nil, "[%d bytes are missing here]\n", n))
}

// list returns all lines, and after them a line about missing output.
func (l *lines) list() []map[string]string {
	if l.dropped > 0 {
		l.all = append(l.all, map[string]string{
			"stream": string(sandbox.Stdout), "text": fmt.Sprintf("[%d more bytes; write to a file and read it in parts]", l.dropped),
		})
		l.dropped = 0
	}
	if l.all == nil {
		return []map[string]string{}
	}
	return l.all
}
