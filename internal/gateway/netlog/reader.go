package netlog

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// followEvery is the interval at which a followed log is polled.
	followEvery = 200 * time.Millisecond
	// readAtOnce bounds one read from a segment, in bytes.
	readAtOnce = 1 << 20
)

// Read returns one page of the log in dir, newest first, and the cursor of the
// next page, which is empty at the end. A log that does not exist is empty. The
// error for an invalid request has the code invalid.
func Read(ctx context.Context, dir string, req sandbox.NetworkLogRequest) ([]sandbox.NetworkEvent, string, error) {
	sel, err := newSelection(req)
	if err != nil {
		return nil, "", err
	}
	before, err := parseCursor(req.Cursor)
	if err != nil {
		return nil, "", err
	}
	limit := cmp.Or(req.Limit, sandbox.DefaultPageSize)
	if limit < 0 || limit > sandbox.MaxPageSize {
		return nil, "", sandbox.Errorf(sandbox.CodeInvalid, "limit must be from 1 to %d", sandbox.MaxPageSize)
	}
	all, err := segments(dir)
	if err != nil {
		return nil, "", err
	}
	page, err := newest(ctx, all, limit+1, func(e *sandbox.NetworkEvent) bool {
		return (before == 0 || e.ID < before) && sel.has(e)
	}, before)
	if err != nil || len(page) <= limit {
		return page, "", err
	}
	page = page[:limit]
	return page, strconv.FormatInt(page[limit-1].ID, 36), nil
}

// newest returns the newest n events for which want returns true, newest first. It reads
// from the newest segment backwards and skips segments whose last id is below all n
// events found so far. It cannot stop at the first of these, since the ids of two writers
// overlap.
func newest(ctx context.Context, all []segment, n int, want func(*sandbox.NetworkEvent) bool, before int64) ([]sandbox.NetworkEvent, error) {
	var found []sandbox.NetworkEvent
	for _, s := range slices.Backward(all) {
		if before > 0 && s.first >= before || len(found) >= n && s.lastID() < found[n-1].ID {
			continue
		}
		for offset := int64(0); ; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			events, next, err := s.read(offset, readAtOnce)
			if err != nil {
				return nil, err
			}
			found = append(found, slices.DeleteFunc(events, func(e sandbox.NetworkEvent) bool { return !want(&e) })...)
			slices.SortStableFunc(found, func(a, b sandbox.NetworkEvent) int { return cmp.Compare(b.ID, a.ID) })
			found = found[:min(len(found), n)]
			if next == offset {
				break
			}
			offset = next
		}
	}
	return found, nil
}

func parseCursor(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	id, err := strconv.ParseInt(s, 36, 64)
	if err != nil || id <= 0 || strconv.FormatInt(id, 36) != s {
		return 0, sandbox.Errorf(sandbox.CodeInvalid, "the cursor is not valid; start over without a cursor")
	}
	return id, nil
}

// selection is a parsed request.
type selection struct {
	sandbox.NetworkLogRequest
	host  string
	below bool // host selects the names below it
}

func newSelection(req sandbox.NetworkLogRequest) (selection, error) {
	s := selection{NetworkLogRequest: req}
	switch req.Kind {
	case "", sandbox.NetworkConnection, sandbox.NetworkDNS, sandbox.NetworkRequest:
	default:
		return s, sandbox.Errorf(sandbox.CodeInvalid, "kind is not valid; use connection, dns or request")
	}
	switch req.Verdict {
	case "", sandbox.NetworkAllowed, sandbox.NetworkBlocked, sandbox.NetworkFailed:
	default:
		return s, sandbox.Errorf(sandbox.CodeInvalid, "verdict is not valid; use allowed, blocked or failed")
	}
	host := strings.ToLower(strings.TrimSuffix(req.Host, "."))
	s.host, s.below = strings.CutPrefix(host, "*.")
	if strings.Contains(s.host, "*") || len(s.host) > 253 || s.below && s.host == "" {
		return s, sandbox.Errorf(sandbox.CodeInvalid, "host is not valid; use a domain or *.domain")
	}
	return s, nil
}

func (s *selection) has(e *sandbox.NetworkEvent) bool {
	switch {
	case s.Kind != "" && e.Kind != s.Kind,
		s.Verdict != "" && e.Verdict != s.Verdict,
		s.Since != nil && e.Time.Before(*s.Since),
		s.Until != nil && !e.Time.Before(*s.Until):
		return false
	case s.host == "":
		return true
	case s.below:
		return strings.HasSuffix(e.Host, "."+s.host)
	}
	return e.Host == s.host
}

// Follow passes the events that are written to the log in dir from now on to sink, in
// order. It returns nil when ctx is cancelled, and sink's error when sink fails. The log
// need not exist yet. The request's limit and cursor are ignored.
func Follow(ctx context.Context, dir string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	sel, err := newSelection(req)
	if err != nil {
		return err
	}
	at := map[string]int64{} // offset up to which each segment was read
	all, err := segments(dir)
	if err != nil {
		return err
	}
	for _, s := range all {
		at[s.path] = s.end()
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		events, err := appended(dir, at)
		if err != nil {
			return err
		}
		for _, e := range events {
			if !sel.has(&e) {
				continue
			}
			if ctx.Err() != nil {
				return nil
			}
			if err := sink(e); err != nil {
				return err
			}
		}
	}
}

// end returns the offset after the last complete line of a segment.
func (s segment) end() int64 {
	from := max(0, s.size-2*maxLine)
	_, next, err := s.read(from, s.size-from)
	if err != nil || next == from {
		return s.size
	}
	return next
}

// appended returns the events that were written after the offsets in at, oldest
// first, and advances the offsets.
func appended(dir string, at map[string]int64) ([]sandbox.NetworkEvent, error) {
	all, err := segments(dir)
	if err != nil {
		return nil, err
	}
	var events []sandbox.NetworkEvent
	exists := map[string]bool{}
	for _, s := range all {
		exists[s.path] = true
		for s.size > at[s.path] {
			more, next, err := s.read(at[s.path], readAtOnce)
			if err != nil {
				return nil, err
			}
			events = append(events, more...)
			if next == at[s.path] {
				break
			}
			at[s.path] = next
		}
	}
	maps.DeleteFunc(at, func(path string, _ int64) bool { return !exists[path] })
	slices.SortStableFunc(events, func(a, b sandbox.NetworkEvent) int { return cmp.Compare(a.ID, b.ID) })
	return events, nil
}
