package desktop

import (
	"context"
	"errors"
	"fmt"
	"image"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sh/cove/internal/guest/agent/desktop/x11"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// dragTime is the default duration of a drag: programs need some time to accept a drop.
	dragTime = 150 * time.Millisecond
	// dragStep is the time between two motions of a drag.
	dragStep = 10 * time.Millisecond
	// strokesAtOnce is how many keystrokes are sent before waiting for the server.
	strokesAtOnce = 64
)

var errNoKeys = sandbox.Errorf(sandbox.CodeUnsupported, "the keyboard of the X server has no key left for this character; use another layout, or paste the text from the clipboard")

// buttons are the numbers of the pointer's buttons.
var buttons = map[string]byte{"": 1, "left": 1, "middle": 2, "right": 3, "back": 8, "forward": 9}

const (
	wheelUp, wheelDown, wheelLeft, wheelRight = 4, 5, 6, 7
)

// holding are the keys and buttons that are held, in the order in which they were
// pressed.
type holding struct {
	of            *session
	keys, buttons []byte
}

// SendInput performs inputs in order.
func (d *Desktop) SendInput(ctx context.Context, inputs []sandbox.Input) (*sandbox.Screen, error) {
	plans, err := planInputs(inputs)
	if err != nil {
		return nil, err
	}
	if err := d.inputs.lock(ctx); err != nil {
		return nil, d.explain(err)
	}
	defer d.inputs.unlock()
	s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	if s.xtest.Opcode == 0 {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "the X server on display %s takes no input from programs; start one with the extension XTEST", d.display)
	}
	if err := checkPlaces(inputs, *s.size.Load()); err != nil {
		// The last known size may be outdated.
		screen, again := s.screen(ctx)
		if again != nil {
			return nil, d.explain(again)
		}
		if err := checkPlaces(inputs, image.Pt(screen.Width, screen.Height)); err != nil {
			return nil, err
		}
	}
	if d.held.of != s {
		d.held = holding{of: s} // a new server holds nothing
	}
	h := &hand{ctx: ctx, d: d, s: s}
	for i, p := range plans {
		if err := h.do(&inputs[i], p); err != nil {
			h.releaseAll()
			return nil, inputError(inputs, i, d.explain(err))
		}
	}
	screen, err := h.arrive()
	if err != nil {
		h.releaseAll()
		return nil, d.explain(err)
	}
	return screen, nil
}

// inputError adds to an error which of the inputs caused it.
func inputError(inputs []sandbox.Input, i int, err error) error {
	e, ok := errors.AsType[*sandbox.Error](err)
	if !ok {
		return err
	}
	if len(inputs) == 1 {
		return e
	}
	return sandbox.Wrap(e.Code, e, fmt.Sprintf("input %d of %d (%.16s): %s", i+1, len(inputs), inputs[i].Type, e.Message))
}

// plan is a checked input.
type plan struct {
	combos [][]keysym
	text   []keysym
	button byte
}

// The fields of an input, for [inputFields].
const (
	fieldPlace = 1 << iota
	fieldButton
	fieldCount
	fieldPath
	fieldScroll
	fieldText
	fieldKeys
	fieldDuration
)

// inputFields are the fields that each type of input may have.
var inputFields = map[sandbox.InputType]int{
	sandbox.InputMove:    fieldPlace,
	sandbox.InputClick:   fieldPlace | fieldButton | fieldCount | fieldKeys | fieldDuration,
	sandbox.InputPress:   fieldPlace | fieldButton,
	sandbox.InputRelease: fieldPlace | fieldButton,
	sandbox.InputDrag:    fieldPlace | fieldButton | fieldPath | fieldKeys | fieldDuration,
	sandbox.InputScroll:  fieldPlace | fieldScroll | fieldKeys,
	sandbox.InputText:    fieldText | fieldDuration,
	sandbox.InputKey:     fieldKeys | fieldDuration,
	sandbox.InputKeyDown: fieldKeys,
	sandbox.InputKeyUp:   fieldKeys,
	sandbox.InputWait:    fieldDuration,
}

// planInputs checks the inputs as far as possible without the screen, so that nothing is
// performed if one of them is invalid.
func planInputs(inputs []sandbox.Input) ([]plan, error) {
	if len(inputs) == 0 || len(inputs) > sandbox.MaxInputs {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "give 1 to %d inputs in a call", sandbox.MaxInputs)
	}
	plans := make([]plan, len(inputs))
	var total time.Duration
	typed := 0
	for i := range inputs {
		p, takes, err := planInput(&inputs[i])
		if err != nil {
			return nil, inputError(inputs, i, err)
		}
		plans[i] = p
		typed += len(inputs[i].Text)
		if total += takes; total > sandbox.MaxInputTime {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the inputs take longer than %v together; send them in several calls", sandbox.MaxInputTime)
		}
		if typed > sandbox.MaxTypedBytes {
			return nil, sandbox.Errorf(sandbox.CodeTooLarge, "the text is longer than %d bytes; type it in several calls, or paste it from the clipboard", sandbox.MaxTypedBytes)
		}
	}
	return plans, nil
}

func planInput(in *sandbox.Input) (p plan, takes time.Duration, err error) {
	if err := checkFields(in); err != nil {
		return p, 0, err
	}
	button, ok := buttons[in.Button]
	if !ok {
		return p, 0, sandbox.Errorf(sandbox.CodeInvalid, "the button %.32q is unknown; use left, middle, right, back or forward", in.Button)
	}
	p.button = button
	if p.text, err = planText(in.Text); err != nil {
		return p, 0, err
	}
	for _, name := range in.Keys {
		combo, err := parseKeys(name)
		if err != nil {
			return p, 0, err
		}
		p.combos = append(p.combos, combo)
	}
	if in.DurationMS < 0 || in.DurationMS > sandbox.MaxInputTime.Milliseconds() {
		return p, 0, sandbox.Errorf(sandbox.CodeInvalid, "duration_ms is out of range; use 0 to %d", sandbox.MaxInputTime.Milliseconds())
	}
	times := 1
	switch in.Type {
	case sandbox.InputClick:
		times = max(1, in.Count)
	case sandbox.InputText:
		times = len(p.text)
	case sandbox.InputKey:
		times = len(p.combos)
	}
	return p, time.Duration(in.DurationMS) * time.Millisecond * time.Duration(times), nil
}

func planText(text string) ([]keysym, error) {
	if !utf8.ValidString(text) {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the text is not valid UTF-8")
	}
	var syms []keysym
	for _, r := range strings.ReplaceAll(text, "\r\n", "\n") {
		sym, ok := runeKey(r)
		if !ok {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the text holds the control character %U, for which there is no key; use the input \"key\"", r)
		}
		syms = append(syms, sym)
	}
	return syms, nil
}

// checkFields refuses an input with fields that its type does not have, or without those
// that it needs.
func checkFields(in *sandbox.Input) error {
	has, ok := inputFields[in.Type]
	if !ok {
		return sandbox.Errorf(sandbox.CodeInvalid, "the type %.32q of an input is unknown; use move, click, press, release, drag, scroll, type, key, key_down, key_up or wait", in.Type)
	}
	for _, f := range []struct {
		field int
		set   bool
		name  string
	}{
		{fieldPlace, in.X != nil || in.Y != nil, "x and y"}, {fieldButton, in.Button != "", "button"},
		{fieldCount, in.Count != 0, "count"}, {fieldPath, len(in.Path) > 0, "path"},
		{fieldScroll, in.DX != 0 || in.DY != 0, "dx and dy"}, {fieldText, in.Text != "", "text"},
		{fieldKeys, len(in.Keys) > 0, "keys"}, {fieldDuration, in.DurationMS != 0, "duration_ms"},
	} {
		if f.set && has&f.field == 0 {
			return sandbox.Errorf(sandbox.CodeInvalid, "an input of type %s has no %s; leave it out", in.Type, f.name)
		}
	}
	needs := func(what string) error {
		return sandbox.Errorf(sandbox.CodeInvalid, "an input of type %s needs %s", in.Type, what)
	}
	switch {
	case in.Type == sandbox.InputMove && in.X == nil:
		return needs("x and y")
	case in.Type == sandbox.InputDrag && (len(in.Path) == 0 || len(in.Path) > sandbox.MaxDragPoints):
		return needs(fmt.Sprintf("a path of 1 to %d points", sandbox.MaxDragPoints))
	case (in.Type == sandbox.InputKey || in.Type == sandbox.InputKeyDown || in.Type == sandbox.InputKeyUp) && len(in.Keys) == 0:
		return needs("keys")
	case in.Type == sandbox.InputText && in.Text == "":
		return needs("text")
	case (in.X == nil) != (in.Y == nil):
		return sandbox.Errorf(sandbox.CodeInvalid, "give both x and y, or none of them")
	case in.Count < 0 || in.Count > sandbox.MaxClicks:
		return sandbox.Errorf(sandbox.CodeInvalid, "count is out of range; use 1 to %d", sandbox.MaxClicks)
	case max(in.DX, -in.DX) > sandbox.MaxNotches || max(in.DY, -in.DY) > sandbox.MaxNotches:
		return sandbox.Errorf(sandbox.CodeInvalid, "dx and dy are notches of the wheel, at most %d", sandbox.MaxNotches)
	case len(in.Keys) > sandbox.MaxInputKeys:
		return sandbox.Errorf(sandbox.CodeInvalid, "an input has at most %d keys", sandbox.MaxInputKeys)
	}
	return nil
}

// checkPlaces refuses points outside a screen of this size.
func checkPlaces(inputs []sandbox.Input, size image.Point) error {
	for i, in := range inputs {
		places := slices.Clone(in.Path)
		if in.X != nil && in.Y != nil {
			places = append(places, sandbox.Point{X: *in.X, Y: *in.Y})
		}
		for _, p := range places {
			if !image.Pt(p.X, p.Y).In(image.Rectangle{Max: size}) {
				return inputError(inputs, i, sandbox.Errorf(sandbox.CodeInvalid, "%d, %d is not on the screen, which is %d by %d pixels", p.X, p.Y, size.X, size.Y))
			}
		}
	}
	return nil
}

// hand performs the inputs of one call. The call holds Desktop.inputs.
type hand struct {
	ctx context.Context // of the call
	d   *Desktop
	s   *session
	to  *sandbox.Point // the last target of the pointer; nil if it was not moved

	waited time.Duration // the total wait for a pointer that did not arrive
}

const (
	// arriveWait bounds the wait for the pointer to arrive at its target.
	arriveWait = time.Second
	// arriveTotal bounds the total wait of one call for pointers that do not arrive: a
	// program may have grabbed the pointer, or the server may be hostile.
	arriveTotal = 3 * time.Second
	// arriveInterval is the polling interval.
	arriveInterval = 2 * time.Millisecond
)

// arrive waits until the server has processed all inputs, and returns the screen. After
// a click, window managers often freeze events until they have handled it.
func (h *hand) arrive() (*sandbox.Screen, error) {
	began := time.Now()
	for limit := min(h.s.waits.arriveWait, h.s.waits.arriveTotal-h.waited); ; {
		screen, err := h.s.screen(h.ctx)
		if err != nil || h.to == nil || screen.CursorX == h.to.X && screen.CursorY == h.to.Y {
			return screen, err
		}
		if waited := time.Since(began); waited >= limit {
			h.waited += waited
			return screen, nil
		}
		if err := pause(h.ctx, arriveInterval); err != nil {
			return nil, err
		}
	}
}

func (h *hand) do(in *sandbox.Input, p plan) error {
	if h.ctx.Err() != nil {
		return h.ctx.Err()
	}
	if in.X != nil {
		h.move(*in.X, *in.Y)
	}
	hold := time.Duration(in.DurationMS) * time.Millisecond
	switch in.Type {
	case sandbox.InputMove:
	case sandbox.InputClick:
		return h.with(p.combos, func() error { return h.click(p.button, max(1, in.Count), hold) })
	case sandbox.InputPress:
		h.button(p.button, true)
	case sandbox.InputRelease:
		h.button(p.button, false)
	case sandbox.InputDrag:
		return h.with(p.combos, func() error { return h.drag(p.button, in.Path, hold) })
	case sandbox.InputScroll:
		return h.with(p.combos, func() error { return h.scroll(in.DX, in.DY) })
	case sandbox.InputText:
		return h.typeText(p.text, hold)
	case sandbox.InputKey:
		for _, combo := range p.combos {
			if isShortcut(combo) {
				if err := h.shortcut(combo, hold); err != nil {
					return err
				}
				continue
			}
			if err := h.with([][]keysym{combo}, func() error { return h.wait(hold) }); err != nil {
				return err
			}
		}
	case sandbox.InputKeyDown:
		_, err := h.press(p.combos)
		return err
	case sandbox.InputKeyUp:
		return h.releaseKeys(p.combos)
	case sandbox.InputWait:
		return h.wait(hold)
	}
	return nil
}

// wait waits after the server has processed all inputs so far.
func (h *hand) wait(d time.Duration) error {
	if d == 0 {
		return nil
	}
	if err := h.s.Sync(h.ctx); err != nil {
		return err
	}
	return pause(h.ctx, d)
}

func (h *hand) move(x, y int) {
	h.s.FakeInput(h.s.xtest, x11.FakeMotion, 0, x, y)
	h.to = &sandbox.Point{X: x, Y: y}
}

func (h *hand) button(b byte, down bool) {
	if down {
		h.s.FakeInput(h.s.xtest, x11.FakeButtonPress, b, 0, 0)
		h.d.held.buttons = append(h.d.held.buttons, b)
		return
	}
	h.s.FakeInput(h.s.xtest, x11.FakeButtonRelease, b, 0, 0)
	h.d.held.buttons = slices.DeleteFunc(h.d.held.buttons, func(held byte) bool { return held == b })
}

func (h *hand) key(code byte, down bool) {
	if down {
		h.s.FakeInput(h.s.xtest, x11.FakeKeyPress, code, 0, 0)
		h.d.held.keys = append(h.d.held.keys, code)
		h.d.keys.use(code)
		return
	}
	h.s.FakeInput(h.s.xtest, x11.FakeKeyRelease, code, 0, 0)
	h.d.held.keys = slices.DeleteFunc(h.d.held.keys, func(held byte) bool { return held == code })
}

func (h *hand) click(button byte, count int, hold time.Duration) error {
	for range count {
		h.button(button, true)
		if err := h.wait(hold); err != nil {
			return err
		}
		h.button(button, false)
	}
	return nil
}

func (h *hand) scroll(dx, dy int) error {
	rotate := func(n int, negative, positive byte) error {
		b := positive
		if n < 0 {
			n, b = -n, negative
		}
		for i := range n {
			h.button(b, true)
			h.button(b, false)
			if i%strokesAtOnce == strokesAtOnce-1 {
				if err := h.s.Sync(h.ctx); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := rotate(dy, wheelUp, wheelDown); err != nil {
		return err
	}
	return rotate(dx, wheelLeft, wheelRight)
}

// drag moves along a path with a button held.
func (h *hand) drag(button byte, path []sandbox.Point, takes time.Duration) error {
	if takes == 0 {
		takes = dragTime
	}
	screen, err := h.arrive()
	if err != nil {
		return err
	}
	at := sandbox.Point{X: screen.CursorX, Y: screen.CursorY}
	h.button(button, true)
	steps := max(1, int(takes/dragStep)/len(path))
	step := takes / time.Duration(steps*len(path))
	for n, to := range path {
		for i := 1; i <= steps; i++ {
			if err := h.wait(step); err != nil {
				return err
			}
			h.move(at.X+(to.X-at.X)*i/steps, at.Y+(to.Y-at.Y)*i/steps)
			// Frozen motions are reported as a single motion to the last target. So wait
			// for the first motion, and for each point of the path.
			if n == 0 && i == 1 || i == steps {
				if _, err := h.arrive(); err != nil {
					return err
				}
			}
		}
		at = to
	}
	h.button(button, false)
	return nil
}

// releaseAll releases all keys and buttons, including those held by earlier calls, so that
// the state is known after a failed call.
func (h *hand) releaseAll() {
	// The call may have been cancelled.
	h.ctx = context.WithoutCancel(h.ctx)
	for _, b := range slices.Backward(slices.Clone(h.d.held.buttons)) {
		h.button(b, false)
	}
	for _, code := range slices.Backward(slices.Clone(h.d.held.keys)) {
		h.key(code, false)
	}
	_ = h.s.Sync(h.ctx) // the call has failed already
}
