package superserve

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type execArgs struct {
	inSandbox
	Command string            `json:"command"`
	Dir     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
	Timeout float64           `json:"timeout_ms"`
}

// executed is the result of a command.
type executed struct {
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	ExitCode  int    `json:"exit_code"`
	Truncated bool   `json:"truncated"`
	// StdoutBytes and StderrBytes are the full lengths of streams that were cut.
	StdoutBytes int64 `json:"stdout_bytes,omitempty"`
	StderrBytes int64 `json:"stderr_bytes,omitempty"`
}

const (
	// maxExecTimeout caps the timeout that a client sets for a command.
	maxExecTimeout = 10 * time.Minute
	// exitTimeout is the exit code of a command that timed out.
	exitTimeout = 124
)

func exec(ctx context.Context, c *dialect.Call, in execArgs) (*mcp.CallToolResult, error) {
	if in.Dir != "" && !path.IsAbs(in.Dir) {
		return nil, dialect.Invalid(`cwd must be absolute (start with "/"): %s`, clip.Text(in.Dir, maxShown))
	}
	ms := min(in.Timeout, float64(maxExecTimeout.Milliseconds()))
	streams := map[sandbox.Stream]*capture{sandbox.Stdout: newCapture(), sandbox.Stderr: newCapture()}
	c.Status("running")
	job, err := c.Service.Exec(ctx, in.Sandbox, sandbox.ExecRequest{
		Command: []string{"/bin/sh", "-c", in.Command}, Env: in.Env, WorkDir: in.Dir,
		TimeoutMS: max(1, int64(ms)), KeepBytes: 1, // output is streamed
	}, func(e sandbox.JobEvent) error {
		if s := streams[e.Stream]; s != nil {
			s.write(e.Data)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := executed{ExitCode: job.ExitCode}
	if job.EndCause == sandbox.EndTimeout {
		out.ExitCode = exitTimeout
	}
	out.Stdout, out.StdoutBytes = streams[sandbox.Stdout].result()
	out.Stderr, out.StderrBytes = streams[sandbox.Stderr].result()
	out.Truncated = out.StdoutBytes+out.StderrBytes > 0
	return dialect.Text(out.text(), out), nil
}

func (e *executed) text() string {
	parts := []string{fmt.Sprintf("exit %d", e.ExitCode)}
	if e.Stdout != "" {
		parts = append(parts, "--- stdout ---", e.Stdout)
	}
	if e.Stderr != "" {
		parts = append(parts, "--- stderr ---", e.Stderr)
	}
	return strings.Join(parts, "\n")
}

// A stream longer than maxStream bytes is cut to its first headBytes and its last
// tailBytes.
const (
	maxStream = 32768
	headBytes = maxStream * 60 / 100
	tailBytes = maxStream * 35 / 100
)

// capture keeps the returned parts of a stream, as text. The bounds apply to the text, in
// which each byte that is not UTF-8 becomes U+FFFD.
type capture struct {
	text    dialect.Ends
	bytes   int64  // length of the stream
	partial []byte // an incomplete character at the end of the stream
}

func newCapture() *capture {
	return &capture{text: dialect.Ends{Head: headBytes, Tail: maxStream - headBytes}}
}

func (s *capture) write(p []byte) {
	s.bytes += int64(len(p))
	p = append(s.partial, p...)
	whole := clip.TrimEnd(p)
	s.partial = slices.Clone(p[len(whole):])
	s.text.Append([]byte(toText(whole)))
}

// result returns the stream's text, and the stream's length in bytes if it was cut.
func (s *capture) result() (text string, cut int64) {
	s.text.Append([]byte(toText(s.partial)))
	head, tail, missing := s.text.Kept()
	if missing == 0 {
		return string(head) + string(tail), 0
	}
	last := clip.TrimStart(tail[max(0, len(tail)-tailBytes):])
	missing += int64(len(tail) - len(last))
	return string(head) + fmt.Sprintf("\n… [%d bytes truncated] …\n", missing) + string(last), s.bytes
}
