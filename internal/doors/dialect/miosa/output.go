package miosa

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// halfStream is how many bytes of a stream's beginning, and of its end, a result has at
	// most.
	halfStream = 32 << 10
	// halfEvents is the same bound for all events together.
	halfEvents = 32 << 10
	// eventCost is the size of an event besides its line.
	eventCost = 40
	// maxLine is the length at which a line without an end is split.
	maxLine = 8 << 10
)

// capture keeps the beginning and the end of a stream.
type capture struct {
	total  int64 // bytes of the stream so far
	head   []byte
	closed bool // nothing can be added to head
	tail   []byte
}

// write adds a piece at an offset of the stream. The sandbox has not kept the bytes between
// it and the previous piece.
func (c *capture) write(offset int64, p []byte) {
	if offset > c.total {
		c.total, c.closed = offset, true
	}
	c.total += int64(len(p))
	if !c.closed {
		n := min(len(p), halfStream-len(c.head))
		c.head, p = append(c.head, p[:n]...), p[n:]
		c.closed = len(c.head) == halfStream
	}
	c.tail = append(c.tail, p...)
	if len(c.tail) > 4*halfStream {
		c.tail = append([]byte(nil), c.tail[len(c.tail)-halfStream:]...)
	}
}

// text returns the kept output, with a line in place of what was dropped, and reports
// whether there is such a line.
func (c *capture) text() (string, bool) {
	head, tail := c.head, c.tail[max(0, len(c.tail)-halfStream):]
	missing := c.total - int64(len(head)+len(tail))
	if missing == 0 {
		return text(append(head[:len(head):len(head)], tail...)), false
	}
	head, tail = clip.TrimEnd(head), clip.TrimStart(tail)
	missing = c.total - int64(len(head)+len(tail))
	return text(head) + fmt.Sprintf("\n[… %s left out …]\n", count(missing, "byte")) + text(tail), true
}

// event is an event in the product's form.
type event struct {
	Type     string `json:"type"`
	Line     string `json:"line,omitempty"`
	ExitCode *int   `json:"exit_code,omitempty"`
}

// MarshalJSON writes the line of an output event even if it is empty.
func (e event) MarshalJSON() ([]byte, error) {
	if e.ExitCode != nil {
		return json.Marshal(map[string]any{"type": e.Type, "exit_code": *e.ExitCode})
	}
	return json.Marshal(map[string]any{"type": e.Type, "line": e.Line})
}

// lines turns the lines of two streams into events, and keeps the first and the last of
// them.
type lines struct {
	tell    func(event) // may be nil
	open    map[sandbox.Stream][]byte
	head    []event
	tail    []event
	headLen int
	tailLen int
	dropped int64
}

func (l *lines) write(s sandbox.Stream, p []byte) {
	if l.open == nil {
		l.open = make(map[sandbox.Stream][]byte)
	}
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		part := p[:max(i, 0)]
		if i < 0 {
			part = p
		}
		if room := maxLine - len(l.open[s]); len(part) > room {
			part, i = part[:room], -1
		}
		p = p[len(part):]
		if i >= 0 {
			p = p[1:] // the end of the line
			if len(l.open[s]) == 0 {
				l.add(s, part) // the common case; there may be millions of lines
				continue
			}
		}
		l.open[s] = append(l.open[s], part...)
		switch {
		case i >= 0:
			l.end(s, 0)
		case len(l.open[s]) >= maxLine:
			l.end(s, clip.PartialEnd(l.open[s]))
		}
	}
}

// end makes an event of the unfinished line, except for its last keep bytes.
func (l *lines) end(s sandbox.Stream, keep int) {
	line := l.open[s]
	l.add(s, line[:len(line)-keep])
	l.open[s] = append([]byte(nil), line[len(line)-keep:]...)
}

// add makes an event of a line.
func (l *lines) add(s sandbox.Stream, line []byte) {
	e := event{Type: string(s), Line: text(line)}
	if l.tell != nil {
		l.tell(e)
	}
	cost := len(e.Line) + eventCost
	if l.tailLen == 0 && l.headLen+cost <= halfEvents {
		l.head, l.headLen = append(l.head, e), l.headLen+cost
		return
	}
	l.tail, l.tailLen = append(l.tail, e), l.tailLen+cost
	drop := 0
	for ; l.tailLen > halfEvents && drop < len(l.tail)-1; drop++ {
		l.tailLen -= len(l.tail[drop].Line) + eventCost
	}
	l.dropped += int64(drop)
	l.tail = l.tail[drop:]
}

// events returns the kept events, including unfinished lines.
func (l *lines) events() []event {
	for _, s := range []sandbox.Stream{sandbox.Stdout, sandbox.Stderr} {
		if len(l.open[s]) > 0 {
			l.end(s, 0)
		}
	}
	out := append([]event{}, l.head...)
	if l.dropped > 0 {
		out = append(out, event{Type: "truncated", Line: fmt.Sprintf("[… %s left out …]", count(l.dropped, "line"))})
	}
	return append(out, l.tail...)
}

const (
	// tellEvery is the minimum interval between progress messages, and maxTold bounds each
	// of them.
	tellEvery = 100 * time.Millisecond
	maxTold   = 16 << 10
)

// teller reports lines as progress, several in one message.
type teller struct {
	send func(string)
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	pending strings.Builder // guarded by mu
	dropped int64           // guarded by mu
}

func newTeller(ctx context.Context, send func(string)) *teller {
	t := &teller{send: send}
	ctx, t.stop = context.WithCancel(ctx)
	t.done.Go(func() { t.run(ctx) })
	return t
}

func (t *teller) tell(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Most lines of a program that writes as fast as it can are dropped. That must cost
	// next to nothing, since it holds up the program.
	if t.pending.Len()+len(e.Line)+eventCost > maxTold {
		t.dropped++
		return
	}
	line, err := json.Marshal(e)
	if err != nil {
		return // cannot happen: the event is our own
	}
	if t.pending.Len()+len(line) > maxTold {
		t.dropped++
		return
	}
	if t.pending.Len() > 0 {
		t.pending.WriteByte('\n')
	}
	t.pending.Write(line)
}

func (t *teller) run(ctx context.Context) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t.flush()
		}
	}
}

func (t *teller) flush() {
	t.mu.Lock()
	message := t.pending.String()
	t.pending.Reset()
	if t.dropped > 0 {
		if message != "" {
			message += "\n"
		}
		message += fmt.Sprintf(`{"type":"truncated","line":"[… %s left out …]"}`, count(t.dropped, "line"))
		t.dropped = 0
	}
	t.mu.Unlock()
	if message != "" {
		t.send(message)
	}
}

// end reports the remaining lines.
func (t *teller) end() {
	t.stop()
	t.done.Wait()
	t.flush()
}
