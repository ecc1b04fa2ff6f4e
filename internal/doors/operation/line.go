package operation

import "github.com/cove-sh/cove/sandbox"

// LineError is the error in the last line of a stream that failed after its start.
type LineError struct {
	Code         sandbox.Code   `json:"code"`
	Message      string         `json:"message"`
	Reason       sandbox.Reason `json:"reason,omitempty"`
	RetryAfterMS int64          `json:"retry_after_ms,omitempty"`
}

// End is set in the last line of a stream. A stream that ends without it was cut off.
type End struct {
	Final bool       `json:"final,omitempty"`
	Error *LineError `json:"error,omitempty"`
}

// Last returns the line's end, for reading or setting it.
func (e *End) Last() *End { return e }

// Line is a line of a stream.
type Line[L any] interface {
	*L
	Last() *End
}

// Final is the end of a complete stream.
var Final = End{Final: true}

// JobLine is one line of a stream of job events: an event, the final state of
// the job, or an error.
type JobLine struct {
	sandbox.JobEvent
	End
}

// BuildLine is one line of the stream of a template build.
type BuildLine struct {
	sandbox.BuildEvent
	// Build is the ended build, in the last line of [FollowBuild].
	Build *sandbox.Build `json:"build,omitempty"`
	End
}

// WatchLine is one line of a stream of file changes.
type WatchLine struct {
	sandbox.WatchEvent
	End
}

// NetworkLine is one line of the stream of a network log.
type NetworkLine struct {
	Event *sandbox.NetworkEvent `json:"event,omitempty"`
	End
}

// TryLine is one line of the stream of a try: an attempt that has ended, the
// result, or an error.
type TryLine struct {
	Attempt *sandbox.Attempt `json:"attempt,omitempty"`
	// Done and Total count attempts.
	Done   int                `json:"done,omitempty" doc:"How many attempts have ended."`
	Total  int                `json:"total,omitempty" doc:"How many attempts there are."`
	Result *sandbox.TryResult `json:"result,omitempty"`
	End
}

// CodeLine is one line of the stream of a run of code: output, a rich output,
// the result, which has all of them, or an error.
type CodeLine struct {
	Stream sandbox.Stream      `json:"stream,omitempty"`
	Data   []byte              `json:"data,omitempty"`
	Output *sandbox.CodeOutput `json:"output,omitempty"`
	Result *sandbox.CodeResult `json:"result,omitempty" doc:"In the final line."`
	End
}

// EventLine is one line of the stream of events.
type EventLine struct {
	*sandbox.Event
	End
}

// EventID returns the id of the line as a server-sent event. A client that reconnects
// sends it as Last-Event-ID.
func (l EventLine) EventID() string {
	if l.Event == nil {
		return ""
	}
	return l.ID
}
