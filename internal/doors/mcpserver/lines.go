package mcpserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/internal/limits"
)

const (
	// answerTime is how long pending calls may take after the end of input. The
	// first call may have to start the daemon.
	answerTime = 10 * time.Second
	// goneTime is the interval at which drain checks that somebody still reads.
	goneTime = 200 * time.Millisecond

	// clientBuffer is how many bytes of unread messages a client buffers: beyond
	// 10 MiB the official TypeScript SDK (1.32, ReadBuffer) closes the
	// connection. maxLine leaves room in it for notifications before an
	// answer, and maxResult for the rest of the answer around a result.
	clientBuffer = 10 << 20
	maxLine      = clientBuffer - 64<<10
	maxResult    = maxLine - 4<<10
)

// lines is the stream of messages on standard input and output. It answers a line
// that is too long or not UTF-8 with an error itself, so that one bad message neither
// fills the memory nor ends the connection, and it delays the end of input until the
// calls before it are answered.
type lines struct {
	in *bufio.Reader

	line []byte // what is left of the current line; used by Read only

	closed    chan struct{}
	closeOnce sync.Once

	mu      sync.Mutex
	out     io.Writer       // writes are guarded by mu
	pending int             // calls without an answer; guarded by mu
	listens map[string]bool // requests that listen, by id, whose answers nobody waits for; guarded by mu
	idle    chan struct{}   // closed when pending is 0 at the end of input; guarded by mu
}

func newLines(in io.Reader, out io.Writer) *lines {
	return &lines{in: bufio.NewReaderSize(in, 64<<10), out: out, listens: make(map[string]bool), closed: make(chan struct{})}
}

// Read reads valid lines.
func (l *lines) Read(p []byte) (int, error) {
	for len(l.line) == 0 {
		if err := l.next(); err != nil {
			return 0, err
		}
	}
	n := copy(p, l.line)
	l.line = l.line[n:]
	return n, nil
}

// next reads a line.
func (l *lines) next() error {
	var line []byte
	var long *longLine
	for {
		part, err := l.in.ReadSlice('\n')
		switch {
		case long != nil:
			long.add(part)
		case len(line)+len(part) > maxMessage:
			long = newLongLine(line, part)
			line = nil
		default:
			line = append(line, part...)
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err != nil && len(line) == 0 && long == nil {
			l.drain()
			return err
		}
		break
	}
	if long != nil {
		l.refuse(long.id(), jsonrpc.CodeInvalidRequest, fmt.Sprintf("the message is over %d MiB; write large files in parts", maxMessage>>20))
		return nil
	}
	switch err := limits.CheckJSON(line); {
	case errors.Is(err, limits.ErrNotUTF8):
		l.refuse(newLongLine(line, nil).id(), jsonrpc.CodeParseError, notUTF8)
	case err != nil:
		l.refuse(newLongLine(line, nil).id(), jsonrpc.CodeInvalidRequest, err.Error())
	case len(bytes.TrimSpace(line)) > 0:
		l.count(line, 1)
		l.line = line
	}
	return nil
}

// Write writes one message. For an answer that would end the client's
// connection, an error is written instead.
func (l *lines) Write(p []byte) (int, error) {
	if id, long := longAnswer(p); long {
		l.refuse(id, jsonrpc.CodeInternalError, fmt.Sprintf("the answer is over %.1f MiB, the most that clients take in one message; ask for less", float64(maxLine)/(1<<20)))
		l.count(p, -1)
		return len(p), nil
	}
	l.mu.Lock()
	n, err := l.out.Write(p)
	l.mu.Unlock()
	l.count(p, -1)
	return n, err
}

// longAnswer returns the id of a message that is an answer over [maxLine].
func longAnswer(p []byte) (id json.RawMessage, long bool) {
	if len(p) <= maxLine {
		return nil, false
	}
	var m envelope
	if json.Unmarshal(p, &m) != nil || len(m.ID) == 0 || m.Method != "" {
		return nil, false
	}
	return m.ID, true
}

// Close stops the wait for answers. A read of standard input cannot be interrupted;
// it blocks until the process ends.
func (l *lines) Close() error {
	l.closeOnce.Do(func() { close(l.closed) })
	return nil
}

// envelope is the part of a message that says what it is.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
}

// count counts calls received and answers sent, except those of requests that listen. A
// message that it misjudges only lengthens or shortens the wait at the end.
func (l *lines) count(message []byte, delta int) {
	method, id := bytes.Contains(message, []byte(`"method"`)), bytes.Contains(message, []byte(`"id"`))
	var m envelope
	if method && id { // either may be nested: arguments of tools have such names
		if json.Unmarshal(message, &m) == nil {
			method, id = m.Method != "", len(m.ID) > 0 && string(m.ID) != "null"
		}
	}
	if !id || method != (delta > 0) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.Method == methodListen {
		l.listens[string(m.ID)] = true
		return
	}
	if delta < 0 && l.listened(message) {
		return
	}
	l.pending += delta
	if l.pending <= 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// listened reports whether an answer is the first to a request that listens. The caller
// holds mu.
func (l *lines) listened(answer []byte) bool {
	if len(l.listens) == 0 {
		return false
	}
	var m envelope
	if json.Unmarshal(answer, &m) != nil || !l.listens[string(m.ID)] {
		return false
	}
	delete(l.listens, string(m.ID))
	return true
}

// drain waits at most answerTime until all calls are answered or the reader of the
// answers is gone.
func (l *lines) drain() {
	l.mu.Lock()
	if l.pending <= 0 {
		l.mu.Unlock()
		return
	}
	idle := make(chan struct{})
	l.idle = idle
	l.mu.Unlock()
	timer := time.NewTimer(answerTime)
	defer timer.Stop()
	tick := time.NewTicker(goneTime)
	defer tick.Stop()
	for !hungUp(l.out) {
		select {
		case <-idle:
			return
		case <-timer.C:
			return
		case <-l.closed:
			return
		case <-tick.C:
		}
	}
}

// hungUp reports whether the other end of a pipe or socket is closed.
func hungUp(w io.Writer) bool {
	conn, ok := w.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return err == nil && gone
}

func (l *lines) refuse(id []byte, code int64, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A write error will recur with the next message.
	_, _ = fmt.Fprintf(l.out, `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`+"\n", id, code, message)
}

// longLine keeps the two ends of a line, where clients write the id.
type longLine struct{ head, tail []byte }

const longLineEnd = 512

func newLongLine(line, more []byte) *longLine {
	l := &longLine{head: append([]byte(nil), line[:min(len(line), longLineEnd)]...)}
	l.add(line)
	l.add(more)
	return l
}

func (l *longLine) add(p []byte) {
	l.tail = append(l.tail, p[max(0, len(p)-longLineEnd):]...)
	l.tail = append([]byte(nil), l.tail[max(0, len(l.tail)-longLineEnd):]...)
}

// The id as a member of the outermost object, near its beginning or end.
var (
	idFirst = lazyregexp.New(`^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"method"\s*:\s*"[^"\\]*"\s*,\s*)?(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?[0-9]{1,18}|"[A-Za-z0-9_.:-]{1,128}")\s*,`)
	idLast  = lazyregexp.New(`\}\s*,\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?[0-9]{1,18}|"[A-Za-z0-9_.:-]{1,128}")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$`)
)

// id finds the id of the call to answer, or null.
func (l *longLine) id() []byte {
	if m := idFirst.FindSubmatch(l.head); m != nil {
		return m[1]
	}
	if m := idLast.FindSubmatch(l.tail); m != nil {
		return m[1]
	}
	return []byte("null")
}
