package sandbox

import "time"

// Desktop says that a template's sandboxes have a screen, with its size in
// pixels. The template's start command runs an X server of that size.
type Desktop struct {
	Width  int `json:"width"`
	Height int `json:"height"`
	// Display is the X display, ":1" if empty.
	Display string `json:"display,omitempty"`
}

// Screen is the current size of a computer's screen and the position of its pointer.
type Screen struct {
	Width   int `json:"width"`
	Height  int `json:"height"`
	CursorX int `json:"cursor_x"`
	CursorY int `json:"cursor_y"`
}

// Region is a part of a screen, in pixels from the screen's top left corner.
type Region struct {
	X      int `json:"x"`
	Y      int `json:"y"`
	Width  int `json:"width"`
	Height int `json:"height"`
}

// ImageFormat is how a screenshot is encoded.
type ImageFormat string

// The formats of screenshots.
const (
	ImagePNG  ImageFormat = "png"
	ImageJPEG ImageFormat = "jpeg"
)

// ScreenshotRequest asks for a picture of the screen. The zero value means the whole
// screen, at once, at full size, without the cursor, as PNG.
type ScreenshotRequest struct {
	Region *Region `json:"region,omitempty" query:"region"`
	// Width and Height scale the picture down to fit a box; it is never enlarged.
	// Either can be left out.
	Width  int  `json:"width,omitempty" query:"width"`
	Height int  `json:"height,omitempty" query:"height"`
	Cursor bool `json:"cursor,omitempty" query:"cursor"`
	// StableMS waits until the screen has not changed for this long. After
	// [MaxStableWait] in all the picture is taken even if the screen still changes.
	StableMS int64       `json:"stable_ms,omitempty" query:"stable_ms"`
	Format   ImageFormat `json:"format,omitempty" query:"format"`
	// Quality is that of JPEG, 1 to 100; 0 is 80.
	Quality int `json:"quality,omitempty" query:"quality"`
}

// Screenshot is a picture of a screen.
type Screenshot struct {
	MIME string `json:"mime"`
	Data []byte `json:"data"`
	// Width and Height are the picture's size; Screen has the screen's own.
	Width  int    `json:"width"`
	Height int    `json:"height"`
	Screen Screen `json:"screen"`
	// Stable is false if the screen was still changing when the wait ended.
	Stable  bool      `json:"stable"`
	TakenAt time.Time `json:"taken_at"`
}

// InputType is the kind of one input.
type InputType string

// The kinds of input. Coordinates are pixels of the screen.
const (
	// InputMove moves the pointer to X, Y.
	InputMove InputType = "move"
	// InputClick clicks Button at X, Y, or where the pointer is without them,
	// Count times (1 if 0; 2 is a double click; up to [MaxClicks]), with Keys
	// held.
	InputClick InputType = "click"
	// InputPress and InputRelease hold and let go of Button.
	InputPress   InputType = "press"
	InputRelease InputType = "release"
	// InputDrag moves from X, Y along Path with Button and Keys held, within
	// DurationMS (150 if 0).
	InputDrag InputType = "drag"
	// InputScroll turns the wheel at X, Y by DX, DY notches, positive is right
	// and down, up to [MaxNotches], with Keys held.
	InputScroll InputType = "scroll"
	// InputText types Text, including characters that the keyboard layout lacks.
	InputText InputType = "type"
	// InputKey presses each combination in Keys in turn, such as "ctrl+shift+t".
	// Keys are named by X keysym or a usual alias.
	InputKey InputType = "key"
	// InputKeyDown and InputKeyUp hold and let go of the keys in Keys.
	InputKeyDown InputType = "key_down"
	InputKeyUp   InputType = "key_up"
	// InputWait waits DurationMS.
	InputWait InputType = "wait"
)

// Input is one action of a pointer or keyboard, or a wait.
type Input struct {
	Type InputType `json:"type"`
	X    *int      `json:"x,omitempty"`
	Y    *int      `json:"y,omitempty"`
	// Button is "left" (the default), "middle", "right", "back" or "forward".
	Button string `json:"button,omitempty"`
	Count  int    `json:"count,omitempty"`
	// Path has the points that a drag goes through, up to [MaxDragPoints].
	Path []Point `json:"path,omitempty"`
	DX   int     `json:"dx,omitempty"`
	DY   int     `json:"dy,omitempty"`
	Text string  `json:"text,omitempty"`
	// Keys are keys or combinations, at most [MaxInputKeys].
	Keys []string `json:"keys,omitempty"`
	// DurationMS is how long a wait or drag takes, or how long keys are held; for
	// text, it is the time between characters. All inputs of a call together take
	// at most [MaxInputTime].
	DurationMS int64 `json:"duration_ms,omitempty"`
}

// Point is a place on a screen.
type Point struct {
	X int `json:"x"`
	Y int `json:"y"`
}

// Window is a top-level window.
type Window struct {
	// ID is the X window's, as a decimal number.
	ID      int64  `json:"id"`
	Title   string `json:"title"`
	Class   string `json:"class,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Region  Region `json:"region"`
	Focused bool   `json:"focused"`
	// Hidden says that the window is minimised.
	Hidden bool `json:"hidden,omitempty"`
}

// ActionKind is the kind of a [ComputerAction].
type ActionKind string

// The kinds of actions.
const (
	ActionInput     ActionKind = "input"
	ActionClipboard ActionKind = "clipboard"
	ActionWindow    ActionKind = "window"
	ActionOpen      ActionKind = "open"
)

// ComputerAction is what a call has done with a computer. It never contains what was
// typed or copied, nor more of an address than its host. What people do in a live view
// is not reported.
type ComputerAction struct {
	Action ActionKind `json:"action"`
	// Detail is the types of the inputs, what was done to a window, or the host of an
	// address.
	Detail string `json:"detail,omitempty"`
	// CursorX and CursorY are where the pointer is after inputs.
	CursorX *int `json:"cursor_x,omitempty"`
	CursorY *int `json:"cursor_y,omitempty"`
}

// WindowAction is what is done to a window.
type WindowAction string

// The actions on windows.
const (
	WindowFocus    WindowAction = "focus"
	WindowClose    WindowAction = "close"
	WindowMinimize WindowAction = "minimize"
	WindowMaximize WindowAction = "maximize"
	// WindowPlace moves and resizes the window to a region.
	WindowPlace WindowAction = "place"
)

// WindowRequest changes a window.
type WindowRequest struct {
	ID     int64        `json:"id"`
	Action WindowAction `json:"action"`
	Region *Region      `json:"region,omitempty"`
}

// ViewRequest asks for a link to the live view of a computer.
type ViewRequest struct {
	// Control lets the visitor use pointer and keyboard; without it they can only
	// watch.
	Control bool `json:"control,omitempty"`
	// TTLSeconds is how long the link is valid; 0 is [DefaultPreviewLink].
	TTLSeconds int64 `json:"ttl_seconds,omitempty"`
}

// ViewLink opens the live view of a computer in a browser, for anyone who has the link.
type ViewLink struct {
	URL       string    `json:"url"`
	Control   bool      `json:"control"`
	ExpiresAt time.Time `json:"expires_at"`
}

// The host name of a live view begins with [ViewLabel] and the sandbox's id;
// its link is in the query parameter [ViewLinkParam].
const (
	ViewLabel     = "view-"
	ViewLinkParam = "cove_view"
)

// ViewVisit is what the door to live views knows about a visitor.
type ViewVisit struct {
	SandboxID string
	// Link is the signed part of the link.
	Link string
}

// View is a live view that a visitor may open.
type View struct {
	SandboxID string
	// Name is the computer's name, or its id.
	Name      string
	Control   bool
	ExpiresAt time.Time
}
