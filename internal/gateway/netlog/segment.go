package netlog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

const (
	suffix = ".jsonl"
	// idDigits is the width to which ids in file names are padded, so that names sort
	// like ids.
	idDigits = 19
	// maxLine bounds an event on disk, in bytes; longer lines are skipped.
	maxLine = 64 << 10
	// maxSegments is how many of the newest segments of a log are read.
	maxSegments = 4096
)

// segment is one file of a log.
type segment struct {
	path  string
	first int64 // the id of its first event
	size  int64
}

func segmentName(first int64) string { return fmt.Sprintf("%0*d%s", idDigits, first, suffix) }

// segments lists the segments of a log, oldest first. A log that does not exist
// has none.
func segments(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network log: %w", err)
	}
	var all []segment
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), suffix)
		if !ok || len(digits) != idDigits || !e.Type().IsRegular() {
			continue
		}
		first, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || first < 0 {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // removed meanwhile
		}
		all = append(all, segment{filepath.Join(dir, e.Name()), first, info.Size()})
	}
	slices.SortFunc(all, func(a, b segment) int { return cmp.Compare(a.first, b.first) })
	return all[max(0, len(all)-maxSegments):], nil
}

// read returns the events in the complete lines of up to most bytes from offset, and the
// offset after these lines. It skips lines that contain no event.
func (s segment) read(offset, most int64) (events []sandbox.NetworkEvent, next int64, err error) {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, offset, nil // rotated away
	}
	if err != nil {
		return nil, offset, fmt.Errorf("open network log: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, offset, most))
	if err != nil {
		return nil, offset, fmt.Errorf("read network log: %w", err)
	}
	events, used := parse(data)
	if used == 0 && int64(len(data)) == most && most > maxLine {
		used = len(data) // no event is that long, so the segment is damaged
	}
	return events, offset + int64(used), nil
}

// parse returns the events in the complete lines of data, and the length of these
// lines.
func parse(data []byte) (events []sandbox.NetworkEvent, used int) {
	for {
		line, _, whole := bytes.Cut(data[used:], []byte("\n"))
		if !whole {
			return events, used
		}
		used += len(line) + 1
		if e, ok := parseLine(line); ok {
			events = append(events, e)
		}
	}
}

func parseLine(line []byte) (sandbox.NetworkEvent, bool) {
	var e sandbox.NetworkEvent
	if len(line) > maxLine || json.Unmarshal(line, &e) != nil || e.ID <= 0 || e.Kind == "" {
		return e, false
	}
	return e, true
}

// lastID returns the greatest id in a log, or 0.
func lastID(all []segment) int64 {
	var last int64
	// If the writers of segments overlapped, an older segment may have the greatest id.
	for _, s := range all[max(0, len(all)-3):] {
		last = max(last, s.lastID())
	}
	return last
}

// lastID returns the greatest id in a segment, or, if its end cannot be read, the
// first.
func (s segment) lastID() int64 {
	last := s.first
	events, _, _ := s.read(max(0, s.size-2*maxLine), 3*maxLine)
	for _, e := range events {
		last = max(last, e.ID)
	}
	return last
}
