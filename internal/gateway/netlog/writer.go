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
	"slices"
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
	// Dir is created if it does not exist.
	Dir string
	// MaxBytes bounds the log on disk; 0 is [sandbox.MaxNetworkLogBytes].
	MaxBytes int64
	// Logger receives write errors; nil discards them.
	Logger *slog.Logger
}

// Writer appends events to a log. It is safe for concurrent use. A log may have several
// writers for a short time, when one instance replaces another.
type Writer struct {
	cfg     WriterConfig
	queue   chan sandbox.NetworkEvent
	dropped atomic.Int64
	done    chan struct{}

	mu     sync.RWMutex
	closed bool // guarded by mu

	// The other fields are used only by the goroutine of run.
	last      int64  // the last id
	slot      int64  // the ids of this writer modulo idSlots
	sandboxID string // of the last event
	file      *os.File
	size      int64
	buf       []byte
	reported  time.Time
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

// Record appends an event under a new id, greater than all earlier ones. It never blocks:
// events that arrive faster than the disk can store them are dropped, and their number is
// recorded.
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

// Close writes the queued events and ends the writer.
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

// run writes the queued events in batches.
func (w *Writer) run() {
	defer close(w.done)
	for e := range w.queue {
		w.add(e)
		w.fillBatch()
		w.flush()
	}
	w.recordDropped()
	w.flush()
	if w.file != nil {
		w.file.Close()
	}
}

// fillBatch adds queued events until the batch is full or the queue empty.
func (w *Writer) fillBatch() {
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

// add encodes an event, after a record of the events that were dropped before it.
func (w *Writer) add(e sandbox.NetworkEvent) {
	w.sandboxID = e.SandboxID
	w.recordDropped()
	w.encode(e)
}

// recordDropped records how many events were dropped, if there were any.
func (w *Writer) recordDropped() {
	n := w.dropped.Swap(0)
	if n == 0 {
		return
	}
	w.encode(sandbox.NetworkEvent{SandboxID: w.sandboxID, Kind: sandbox.NetworkConnection, Protocol: "log", Time: time.Now(),
		Verdict: sandbox.NetworkFailed, Match: sandbox.MatchLimit,
		Reason: fmt.Sprintf("%d events before this were not recorded: they came faster than the disk takes them", n)})
}

// idSlots is how many writers of a log can assign ids in the same microsecond.
const idSlots = 8

var idEpoch = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// nextID returns an id: the time, or the next value above the last id, with the writer's
// slot in its low digits. Ids therefore grow, and writers that overlap assign different
// ones. Ids are exact in JavaScript until 2059.
func nextID(now time.Time, last, slot int64) int64 {
	at := max(now.UnixMicro()-idEpoch, last/idSlots+1)
	return at*idSlots + slot
}

// encode assigns an id to an event and appends its line to the batch.
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

// flush writes the batch at once, so that readers see complete lines. If it cannot be
// written, its events are lost; traffic continues.
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
			w.lost(err)
			return
		}
	}
	n, err := w.file.Write(w.buf)
	w.size += int64(n)
	if err != nil {
		w.lost(err)
		if w.size == 0 { // a full disk still takes new names, and empty segments would pile up
			_ = os.Remove(w.file.Name())
		}
		w.file.Close()
		w.file = nil // a new segment, so that nothing follows the incomplete line
	}
}

// open starts a segment, and removes the oldest ones if there are too many.
func (w *Writer) open() error {
	events, _ := parse(w.buf)
	if len(events) == 0 {
		return errors.New("nothing to write")
	}
	for id := events[0].ID; ; id++ { // another writer's segment may have this id
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

// trim removes the oldest segments so that the log stays within its size when the new
// segment is full.
func (w *Writer) trim() error {
	all, err := segments(w.cfg.Dir)
	if err != nil {
		return err
	}
	left := w.cfg.MaxBytes - w.cfg.MaxBytes/segmentShare
	for i, s := range slices.Backward(all) {
		if left -= s.size; left < 0 && i < len(all)-1 {
			if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a segment of the network log: %w", err)
			}
		}
	}
	return nil
}

// lost counts the events of the batch as dropped and logs the error, at most once a
// minute.
func (w *Writer) lost(err error) {
	w.dropped.Add(int64(bytes.Count(w.buf, []byte("\n"))))
	if time.Since(w.reported) > time.Minute {
		w.reported = time.Now()
		w.cfg.Logger.Error("network log is not written", "error", err)
	}
}
