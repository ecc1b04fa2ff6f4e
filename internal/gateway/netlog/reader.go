package netlog

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

const (
	// followEvery is how often a log is looked at for what is new.
	followEvery = 200 * time.Millisecond
	// readAtOnce bounds what is read of a segment at a time.
	readAtOnce = 1 << 20
)

// Read returns one page of the log in dir, newest first, and the cursor of the
// next, which is empty at the end. A log that is not there is empty. A request
// that is not valid is an invalid error.
func Read(ctx context.Context, dir string, req sandbox.NetworkLogRequest) ([]sandbox.NetworkEvent, string, error) {
	sel, err := newSelection(req)
	if err != nil {
		return nil, "", err
	}
	before, err := parseCursor(req.Cursor)
	if err != nil {
		return nil, "", err
	}
	limit := req.Limit
	if limit == 0 {
		limit = sandbox.DefaultPageSize
	}
	if limit < 0 || limit > sandbox.MaxPageSize {
		return nil, "", sandbox.Errorf(sandbox.CodeInvalid, "limit is not from 1 to %d", sandbox.MaxPageSize)
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

// newest returns up to n events that are wanted, newest first. It reads
// segments from the newest on, until no older one can hold what belongs among
// the events found: ids in a segment are above its first, but those of two
// writers overlap.
func newest(ctx context.Context, all []segment, n int, want func(*sandbox.NetworkEvent) bool, before int64) ([]sandbox.NetworkEvent, error) {
	var found []sandbox.NetworkEvent
	for i := len(all) - 1; i >= 0; i-- {
		if before > 0 && all[i].first >= before {
			continue
		}
		if len(found) >= n && all[i].last() < found[n-1].ID {
			continue
		}
		for offset := int64(0); ; {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			events, next, err := all[i].read(offset, readAtOnce)
			if err != nil {
				return nil, err
			}
			for j := range events {
				if want(&events[j]) {
					found = append(found, events[j])
				}
			}
			found = keepNewest(found, n)
			if next == offset {
				break
			}
			offset = next
		}
	}
	return found, nil
}

func keepNewest(found []sandbox.NetworkEvent, n int) []sandbox.NetworkEvent {
	slices.SortStableFunc(found, func(a, b sandbox.NetworkEvent) int { return cmp.Compare(b.ID, a.ID) })
	return found[:min(len(found), n)]
}

// last returns the greatest id of a segment, or one that is certainly not
// smaller.
func (s segment) last() int64 { return lastID([]segment{s}) }

func parseCursor(s string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	id, err := strconv.ParseInt(s, 36, 64)
	if err != nil || id <= 0 || strconv.FormatInt(id, 36) != s {
		return 0, sandbox.Errorf(sandbox.CodeInvalid, "the cursor is not one that this server gave out; start over without a cursor")
	}
	return id, nil
}

// selection is a request, parsed once.
type selection struct {
	sandbox.NetworkLogRequest
	host  string
	below bool
}

func newSelection(req sandbox.NetworkLogRequest) (selection, error) {
	s := selection{NetworkLogRequest: req}
	switch req.Kind {
	case "", sandbox.NetworkConnection, sandbox.NetworkDNS, sandbox.NetworkRequest:
	default:
		return s, sandbox.Errorf(sandbox.CodeInvalid, "kind is not known; use connection, dns or request")
	}
	switch req.Verdict {
	case "", sandbox.NetworkAllowed, sandbox.NetworkBlocked, sandbox.NetworkFailed:
	default:
		return s, sandbox.Errorf(sandbox.CodeInvalid, "verdict is not known; use allowed, blocked or failed")
	}
	host := strings.ToLower(strings.TrimSuffix(req.Host, "."))
	s.host, s.below = strings.CutPrefix(host, "*.")
	if strings.Contains(s.host, "*") || len(s.host) > 253 || s.below && s.host == "" {
		return s, sandbox.Errorf(sandbox.CodeInvalid, "host is not valid; write a domain or *.domain")
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

// Follow passes the events that are written to the log in dir from now on to
// sink, in their order, until ctx is cancelled, which is not an error, or sink
// fails, whose error it returns. The log need not be there yet. The request's
// limit and cursor are ignored.
func Follow(ctx context.Context, dir string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	sel, err := newSelection(req)
	if err != nil {
		return err
	}
	at := map[string]int64{} // how far each segment was read
	all, err := segments(dir)
	if err != nil {
		return err
	}
	for _, s := range all {
		at[s.path] = s.whole()
	}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		events, err := news(dir, at)
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

// whole returns where the last whole line of a segment ends.
func (s segment) whole() int64 {
	from := max(0, s.size-2*maxLine)
	_, next, err := s.read(from, s.size-from)
	if err != nil || next == from {
		return s.size
	}
	return next
}

// news returns what was written since the last time, oldest first.
func news(dir string, at map[string]int64) ([]sandbox.NetworkEvent, error) {
	all, err := segments(dir)
	if err != nil {
		return nil, err
	}
	var events []sandbox.NetworkEvent
	there := map[string]bool{}
	for _, s := range all {
		there[s.path] = true
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
	for path := range at {
		if !there[path] {
			delete(at, path)
		}
	}
	slices.SortStableFunc(events, func(a, b sandbox.NetworkEvent) int { return cmp.Compare(a.ID, b.ID) })
	return events, nil
}
