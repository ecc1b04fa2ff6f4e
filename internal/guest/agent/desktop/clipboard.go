package desktop

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// clipboardWait is how long the owner of the clipboard may take to answer.
	clipboardWait = 10 * time.Second
	// transferWait bounds a transfer of the clipboard to a program.
	transferWait = time.Minute
	// transferPiece is the size of the pieces in which a text is transferred, in bytes.
	transferPiece = 64 << 10
	// maxTransfers bounds the concurrent transfers.
	maxTransfers = 8
	// maxConversions bounds the targets of one MULTIPLE request.
	maxConversions = 32
)

// The states of a PropertyNotify.
const (
	propertyNew     = 0
	propertyDeleted = 1
)

// clipboard owns the selections CLIPBOARD and PRIMARY until another program copies
// something, and sends the text to programs that request it.
type clipboard struct {
	s         *session
	inbox     chan x11.Event
	reading   mutex // held while the clipboard of another program is read
	transfers chan struct{}

	mu    sync.Mutex
	text  string          // guarded by mu
	since uint32          // when it was set, by the server's clock; guarded by mu
	owned map[uint32]bool // selections; guarded by mu
}

func newClipboard(s *session) *clipboard {
	return &clipboard{
		s: s, inbox: make(chan x11.Event, 256), reading: newMutex(),
		transfers: make(chan struct{}, maxTransfers), owned: map[uint32]bool{},
	}
}

// post queues an event about selections. If the queue is full, the event is dropped, and
// the program that sent it times out.
func (c *clipboard) post(e *x11.Event) {
	select {
	case c.inbox <- *e:
	default:
	}
}

// run serves requests until the connection ends.
func (c *clipboard) run() {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		select {
		case <-c.s.Dead():
			return
		case e := <-c.inbox:
			if e.Code() == x11.EventSelectionClear {
				c.lose(e.Uint32(12), e.Uint32(4))
				continue
			}
			select {
			case c.transfers <- struct{}{}:
				running.Go(func() {
					defer func() { <-c.transfers }()
					c.serve(ctx, &e)
				})
			default:
				c.answer(&e, false)
			}
		}
	}
}

// lose records that another program has owned a selection since the given time.
func (c *clipboard) lose(selection, since uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if int32(since-c.since) >= 0 { // the server's clock wraps around
		delete(c.owned, selection)
	}
}

// SetClipboard puts text into the clipboard and into the primary selection, which the
// middle button pastes.
func (d *Desktop) SetClipboard(ctx context.Context, text string) error {
	if len(text) > sandbox.MaxClipboard {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the text is longer than %d bytes; write it to a file", sandbox.MaxClipboard)
	}
	if !utf8.ValidString(text) {
		return sandbox.Errorf(sandbox.CodeInvalid, "the text is not valid UTF-8")
	}
	_, err := retry(ctx, d, func(s *session) (struct{}, error) { return struct{}{}, s.clipboard.set(ctx, text) })
	return err
}

func (c *clipboard) set(ctx context.Context, text string) error {
	now, err := c.now(ctx)
	if err != nil {
		return err
	}
	selections := []uint32{c.s.atoms.clipboard, x11.AtomPrimary}
	c.mu.Lock()
	c.text, c.since = text, now
	for _, selection := range selections {
		c.owned[selection] = true
	}
	c.mu.Unlock()
	for _, selection := range selections {
		c.s.SetSelectionOwner(c.s.window, selection, now)
	}
	owner, err := c.s.SelectionOwner(ctx, c.s.atoms.clipboard)
	if err == nil && owner != c.s.window {
		err = sandbox.Errorf(sandbox.CodeConflict, "another program took the clipboard at the same time; try again")
	}
	return err
}

// now returns the server's time, taken from the event for the change of a property.
func (c *clipboard) now(ctx context.Context) (uint32, error) {
	events, stop := c.s.selectionEvents.subscribe()
	defer stop()
	if _, err := c.s.ChangeProperty(c.s.window, c.s.atoms.timestamp, x11.AtomInteger, 32, nil).Wait(ctx); err != nil {
		return 0, err
	}
	e, err := c.await(ctx, events, func(e *x11.Event) bool {
		return e.Code() == x11.EventPropertyNotify && e.Uint32(4) == c.s.window && e.Uint32(8) == c.s.atoms.timestamp
	})
	return e.Uint32(12), err
}

var errSlowOwner = sandbox.Errorf(sandbox.CodeTimeout, "the program that owns the clipboard does not answer; copy again, or close it")

// await waits for a matching event.
func (c *clipboard) await(ctx context.Context, events <-chan x11.Event, wanted func(*x11.Event) bool) (x11.Event, error) {
	end := time.NewTimer(clipboardWait)
	defer end.Stop()
	for {
		select {
		case e := <-events:
			if wanted(&e) {
				return e, nil
			}
		case <-end.C:
			return x11.Event{}, errSlowOwner
		case <-ctx.Done():
			return x11.Event{}, ctx.Err()
		case <-c.s.Dead():
			return x11.Event{}, c.s.Err()
		}
	}
}

// GetClipboard returns the text in the clipboard, or "" if it is empty.
func (d *Desktop) GetClipboard(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*clipboardWait, errSlowOwner)
	defer cancel()
	text, err := retry(ctx, d, func(s *session) (string, error) { return s.clipboard.get(ctx) })
	if err != nil && errors.Is(context.Cause(ctx), errSlowOwner) {
		return "", errSlowOwner
	}
	return text, err
}

func (c *clipboard) get(ctx context.Context) (string, error) {
	if err := c.reading.lock(ctx); err != nil {
		return "", err
	}
	defer c.reading.unlock()
	owner, err := c.s.SelectionOwner(ctx, c.s.atoms.clipboard)
	if err != nil || owner == 0 {
		return "", err
	}
	if owner == c.s.window {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.text, nil
	}
	targets := []uint32{c.s.atoms.utf8, c.s.atoms.plainUTF8, x11.AtomString}
	list, err := c.convert(ctx, c.s.atoms.targets)
	if err != nil {
		return "", err
	}
	if offered := list.Uint32s(); len(offered) > 0 {
		// Some programs send the bytes of a picture if they are asked for text.
		targets = slices.DeleteFunc(targets, func(t uint32) bool { return !slices.Contains(offered, t) })
	}
	for _, target := range targets {
		p, err := c.convert(ctx, target)
		if err != nil {
			return "", err
		}
		if p.Format != 8 {
			continue
		}
		text := strings.ToValidUTF8(string(p.Value), "\uFFFD")
		if target == x11.AtomString && p.Type == x11.AtomString {
			text = latin1(p.Value)
		}
		if len(text) > sandbox.MaxClipboard { // UTF-8 may be longer than the property
			return "", errLargeClipboard
		}
		return text, nil
	}
	return "", sandbox.Errorf(sandbox.CodeConflict, "the clipboard holds something that is not text; copy text first")
}

// convert asks the clipboard's owner to convert the content to a target. If the owner
// cannot, the result is empty.
func (c *clipboard) convert(ctx context.Context, target uint32) (*x11.Property, error) {
	events, stop := c.s.selectionEvents.subscribe()
	defer stop()
	a := &c.s.atoms
	c.s.DeleteProperty(c.s.window, a.transfer)
	c.s.ConvertSelection(c.s.window, a.clipboard, target, a.transfer, 0)
	if err := c.s.Flush(); err != nil {
		return nil, err
	}
	e, err := c.await(ctx, events, func(e *x11.Event) bool {
		return e.Code() == x11.EventSelectionNotify && e.Uint32(8) == c.s.window && e.Uint32(12) == a.clipboard && e.Uint32(16) == target
	})
	if err != nil {
		return nil, err
	}
	if e.Uint32(20) == x11.AtomNone {
		return &x11.Property{}, nil
	}
	p, err := c.take(ctx)
	if err != nil || p.Type != a.incr {
		return p, err
	}
	value := []byte{}
	for {
		if _, err := c.await(ctx, events, func(e *x11.Event) bool {
			return e.Code() == x11.EventPropertyNotify && e.Uint32(4) == c.s.window && e.Uint32(8) == a.transfer && e[16] == propertyNew
		}); err != nil {
			return nil, err
		}
		if p, err = c.take(ctx); err != nil {
			return nil, err
		}
		if p.Type == x11.AtomNone {
			continue // the event was for a piece that was already taken
		}
		if len(p.Value) == 0 {
			return &x11.Property{Type: p.Type, Format: p.Format, Value: value}, nil
		}
		if value = append(value, p.Value...); len(value) > sandbox.MaxClipboard {
			return nil, errLargeClipboard
		}
	}
}

var errLargeClipboard = sandbox.Errorf(sandbox.CodeTooLarge, "the clipboard holds more than %d bytes; save it to a file in the program that owns it", sandbox.MaxClipboard)

// take reads and removes the transferred property. Removing it requests the next piece.
func (c *clipboard) take(ctx context.Context) (*x11.Property, error) {
	p, err := property(ctx, c.s.GetProperty(c.s.window, c.s.atoms.transfer, sandbox.MaxClipboard, true))
	if err == nil && p.More > 0 {
		c.s.DeleteProperty(c.s.window, c.s.atoms.transfer)
		err = errLargeClipboard
	}
	return p, err
}

// serve answers a program that requests the clipboard's content.
func (c *clipboard) serve(ctx context.Context, e *x11.Event) {
	ctx, cancel := context.WithTimeout(ctx, transferWait)
	defer cancel()
	c.mu.Lock()
	text, since, owned := c.text, c.since, c.owned[e.Uint32(16)]
	c.mu.Unlock()
	if !owned || e.Uint32(8) != c.s.window {
		c.answer(e, false)
		return
	}
	o := &transfer{c: c, ctx: ctx, text: text, since: since, to: e.Uint32(12)}
	if e.Uint32(24) == x11.AtomNone {
		copy(e[24:28], e[20:24]) // obsolete programs expect the property to be named like the target
	}
	var ok bool
	if e.Uint32(20) == c.s.atoms.multiple {
		ok = o.putMultiple(e.Uint32(24))
	} else {
		ok = o.put(e.Uint32(20), e.Uint32(24))
	}
	c.answer(e, ok)
	o.finish()
}

// answer tells the requestor whether the request was fulfilled.
func (c *clipboard) answer(request *x11.Event, ok bool) {
	var e x11.Event
	e[0] = x11.EventSelectionNotify
	copy(e[4:8], request[4:8])    // time
	copy(e[8:20], request[12:24]) // requestor, selection, target
	if ok {
		copy(e[20:24], request[24:28])
	}
	c.s.SendEvent(request.Uint32(12), 0, &e)
	_ = c.s.Flush() // if the connection is broken, nobody waits
}

// transfer sends the content to one program in the targets that it requests.
type transfer struct {
	c           *clipboard
	ctx         context.Context // of the request
	text        string
	since       uint32
	to          uint32 // the requestor's window
	incremental []incremental
	events      <-chan x11.Event
	stop        func()
}

// incremental is a text that is transferred in pieces.
type incremental struct {
	kind, property uint32
	rest           []byte
}

// putMultiple fulfils a MULTIPLE request. A property lists its pairs of target and
// property.
func (o *transfer) putMultiple(list uint32) bool {
	p, err := property(o.ctx, o.c.s.GetProperty(o.to, list, maxSmall, false))
	if err != nil || p.More > 0 {
		return false
	}
	pairs := p.Uint32s()
	if len(pairs) > 2*maxConversions || len(pairs)%2 != 0 {
		return false
	}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i] == o.c.s.atoms.multiple || !o.put(pairs[i], pairs[i+1]) {
			pairs[i+1] = x11.AtomNone
		}
	}
	return o.change(list, o.c.s.atoms.atomPair, 32, numbers(pairs...))
}

// put fulfils a request for one target.
func (o *transfer) put(target, property uint32) bool {
	a := &o.c.s.atoms
	switch target {
	case a.targets:
		return o.change(property, x11.AtomAtom, 32, numbers(a.targets, a.timestamp, a.multiple, a.utf8, a.plainUTF8, a.plain, a.text, x11.AtomString))
	case a.timestamp:
		return o.change(property, x11.AtomInteger, 32, numbers(o.since))
	case a.utf8, a.plainUTF8, a.plain:
		return o.send(property, target, []byte(o.text))
	case a.text:
		return o.send(property, a.utf8, []byte(o.text))
	case x11.AtomString:
		return o.send(property, target, toLatin1(o.text))
	}
	return false
}

// send sends a text at once or, if it is long, announces an incremental transfer.
func (o *transfer) send(property, kind uint32, value []byte) bool {
	if len(value) <= transferPiece {
		return o.change(property, kind, 8, value)
	}
	if o.stop == nil {
		o.events, o.stop = o.c.s.selectionEvents.subscribe()
		o.c.s.SelectInput(o.to, x11.PropertyChangeMask|x11.StructureNotifyMask)
	}
	o.incremental = append(o.incremental, incremental{kind: kind, property: property, rest: value})
	return o.change(property, o.c.s.atoms.incr, 32, numbers(uint32(len(value))))
}

func (o *transfer) change(property, kind uint32, format byte, value []byte) bool {
	if property == x11.AtomNone {
		return false
	}
	_, err := o.c.s.ChangeProperty(o.to, property, kind, format, value).Wait(o.ctx)
	return err == nil
}

// finish performs the announced transfers: it sends a piece whenever the program has
// taken the one before, and finally an empty piece.
func (o *transfer) finish() {
	if o.stop == nil {
		return
	}
	defer o.stop()
	defer o.c.s.SelectInput(o.to, 0)
	for len(o.incremental) > 0 {
		e, err := o.c.await(o.ctx, o.events, func(e *x11.Event) bool {
			return e.Uint32(4) == o.to && (e.Code() == x11.EventPropertyNotify && e[16] == propertyDeleted) ||
				e.Code() == x11.EventDestroyNotify && e.Uint32(8) == o.to
		})
		if err != nil || e.Code() == x11.EventDestroyNotify {
			return
		}
		for i := range o.incremental {
			p := &o.incremental[i]
			if p.property != e.Uint32(8) {
				continue
			}
			n := min(len(p.rest), transferPiece)
			if !o.change(p.property, p.kind, 8, p.rest[:n]) {
				return
			}
			if p.rest = p.rest[n:]; n == 0 {
				o.incremental = slices.Delete(o.incremental, i, i+1)
			}
			break
		}
	}
}

// numbers encodes the value of a property.
func numbers(list ...uint32) []byte {
	var b []byte
	for _, n := range list {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

// toLatin1 encodes a text in Latin-1, with question marks for other characters.
func toLatin1(s string) []byte {
	var b []byte
	for _, r := range s {
		if r > 0xff {
			r = '?'
		}
		b = append(b, byte(r))
	}
	return b
}
