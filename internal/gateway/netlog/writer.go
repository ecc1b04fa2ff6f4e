package netlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// queueLength is how many events may wait for the disk.
	queueLength = 4096
	// segmentShare is the part of the log's size that one segment takes.
	segmentShare = 8
	batchBytes   = 64 << 10
)

// WriterConfig describes a [Writer]. Only Dir is required.
type WriterConfig struct {
	// Dir is made if it is missing.
	Dir string
	// MaxBytes bounds the log on disk; 0 is [sandbox.MaxNetworkLogBytes].
	MaxBytes int64
	// Logger takes the trouble of writing; nil drops it.
	Logger *slog.Logger
}

// Writer appends events to a log. It is safe for concurrent use. A log may
// have several writers for a short time, as one instance follows another.
type Writer struct {
	cfg     WriterConfig
	queue   chan sandbox.NetworkEvent
	dropped atomic.Int64
	done    chan struct{}

	mu     sync.RWMutex
	closed bool // guarded by mu

	// The rest belongs to the goroutine that writes.
	last     int64  // id
	slot     int64  // last digits of its ids
	of       string // the sandbox of the last event
	file     *os.File
	size     int64
	buf      []byte
	reported time.Time
}

// NewWriter opens a log for writing.
func NewWriter(cfg WriterConfig) (*Writer, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = sandbox.MaxNetworkLogBytes
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make network log: %w", err)
	}
	all, err := segments(cfg.Dir)
	if err != nil {
		return nil, err
	}
	last := lastID(all)
	w := &Writer{cfg: cfg, queue: make(chan sandbox.NetworkEvent, queueLength), done: make(chan struct{}), last: last, slot: (last + 1) % idSlots}
	go w.run()
	return w, nil
}

// Record appends an event, under an id of its own that is greater than those
// before. It never blocks: events that come faster than the disk takes them
// are dropped, and their number is recorded.
func (w *Writer) Record(e sandbox.NetworkEvent) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		return
	}
	select {
	case w.queue <- e:
	default:
		w.dropped.Add(1)
	}
}

// Close writes what was recorded and ends the writer.
func (w *Writer) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	close(w.queue)
	w.mu.Unlock()
	<-w.done
	return nil
}

// run writes events in batches, as many as there are.
func (w *Writer) run() {
	defer close(w.done)
	for e := range w.queue {
		w.add(e)
		w.drain()
		w.flush()
	}
	w.note(w.of)
	w.flush()
	if w.file != nil {
		w.file.Close()
	}
}

func (w *Writer) drain() {
	for len(w.buf) < batchBytes {
		select {
		case e, ok := <-w.queue:
			if !ok {
				return
			}
			w.add(e)
		default:
			return
		}
	}
}

// add encodes an event, after a note about those that were dropped before it.
func (w *Writer) add(e sandbox.NetworkEvent) {
	w.of = e.SandboxID
	w.note(w.of)
	w.encode(e)
}

// note records how many events were dropped, if there were any.
func (w *Writer) note(sandboxID string) {
	n := w.dropped.Swap(0)
	if n == 0 {
		return
	}
	w.encode(sandbox.NetworkEvent{SandboxID: sandboxID, Kind: sandbox.NetworkConnection, Protocol: "log", Time: time.Now(),
		Verdict: sandbox.NetworkFailed, Match: sandbox.MatchLimit,
		Reason: fmt.Sprintf("%d events before this were not recorded: they came faster than the disk takes them", n)})
}

// idSlots is how many writers of a log can give ids in the same microsecond.
const idSlots = 8

var idEpoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// nextID returns an id: the time, or the next above the last, so that ids grow
// over the writers of a log without their meeting. Ids stay exact in JavaScript
// until 2059.
func nextID(now time.Time, last, slot int64) int64 {
	at := max(now.UnixMicro()-idEpoch, last/idSlots+1)
	return at*idSlots + slot
}

// encode gives an event its id and its line.
func (w *Writer) encode(e sandbox.NetworkEvent) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.UTC()
	e.ID = nextID(time.Now(), w.last, w.slot)
	line, err := json.Marshal(e)
	if err != nil || len(line) > maxLine {
		w.dropped.Add(1)
		return
	}
	w.last = e.ID
	w.buf = append(append(w.buf, line...), '\n')
}

// flush writes what is encoded, in one piece: a reader sees whole lines. The
// trouble of writing costs events, never traffic.
func (w *Writer) flush() {
	if len(w.buf) == 0 {
		return
	}
	defer func() { w.buf = w.buf[:0] }()
	if w.file != nil && w.size+int64(len(w.buf)) > w.cfg.MaxBytes/segmentShare {
		w.file.Close()
		w.file = nil
	}
	if w.file == nil {
		if err := w.open(); err != nil {
			w.trouble(err)
			return
		}
	}
	n, err := w.file.Write(w.buf)
	w.size += int64(n)
	if err != nil {
		w.trouble(err)
		if w.size == 0 { // a full disk takes names all the same, without end
			_ = os.Remove(w.file.Name())
		}
		w.file.Close()
		w.file = nil // what was torn stays the last line of its segment
	}
}

// open begins a segment, and removes the oldest ones if there are too many.
func (w *Writer) open() error {
	first, ok := parse(w.buf)
	if ok == 0 || len(first) == 0 {
		return errors.New("nothing to write")
	}
	for id := first[0].ID; ; id++ { // another writer may have that one
		f, err := os.OpenFile(filepath.Join(w.cfg.Dir, segmentName(id)), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("begin a segment of the network log: %w", err)
		}
		w.file, w.size = f, 0
		return w.trim()
	}
}

// trim keeps the log below its size, with room for the segment that was begun.
func (w *Writer) trim() error {
	all, err := segments(w.cfg.Dir)
	if err != nil {
		return err
	}
	left := w.cfg.MaxBytes - w.cfg.MaxBytes/segmentShare
	for i := len(all) - 1; i >= 0; i-- {
		if left -= all[i].size; left < 0 && i < len(all)-1 {
			if err := os.Remove(all[i].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a segment of the network log: %w", err)
			}
		}
	}
	return nil
}

// trouble reports, now and then, that events are lost.
func (w *Writer) trouble(err error) {
	w.dropped.Add(int64(bytes.Count(w.buf, []byte("\n"))))
	if time.Since(w.reported) > time.Minute {
		w.reported = time.Now()
		w.cfg.Logger.Error("network log is not written", "error", err)
	}
}
