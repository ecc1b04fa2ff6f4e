package netlog

import (
	"bytes"
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
	// idDigits makes names of segments sort as their numbers do.
	idDigits = 19
	// maxLine bounds an event on disk; longer lines are no events.
	maxLine = 64 << 10
	// maxSegments bounds the files of a log that are looked at.
	maxSegments = 4096
)

// segment is one file of a log.
type segment struct {
	path  string
	first int64 // the id of its first event
	size  int64
}

func segmentName(first int64) string { return fmt.Sprintf("%0*d%s", idDigits, first, suffix) }

// segments lists a log's files, oldest first. A log that is not there has
// none.
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
	slices.SortFunc(all, func(a, b segment) int { return compare(a.first, b.first) })
	if len(all) > maxSegments {
		all = all[len(all)-maxSegments:]
	}
	return all, nil
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// read returns the whole events of a segment from offset on, and where the
// next one begins. A line that is no event is skipped; one without an end is
// left for later.
func (s segment) read(offset int64, most int64) (events []sandbox.NetworkEvent, next int64, err error) {
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
		used = len(data) // no event is that long: damaged
	}
	return events, offset + int64(used), nil
}

// parse returns the events in the whole lines of data, and how much of it they
// are.
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
	// Segments of writers that overlapped may end with a later event than the
	// newest: look at a few.
	for i := len(all) - 1; i >= 0 && i >= len(all)-3; i-- {
		last = max(last, all[i].first)
		tail := max(0, all[i].size-2*maxLine)
		events, _, err := all[i].read(tail, 2*maxLine+maxLine)
		if err != nil {
			continue
		}
		for _, e := range events {
			last = max(last, e.ID)
		}
	}
	return last
}
