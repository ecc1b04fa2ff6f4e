package superserve

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

type execArgs struct {
	Sandbox string            `json:"sandbox_id"`
	Command string            `json:"command"`
	Dir     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
	Timeout float64           `json:"timeout_ms"`
}

// executed is what came of a command.
type executed struct {
	Stdout    string `json:"stdout"`
	Stderr    string `json:"stderr"`
	ExitCode  int    `json:"exit_code"`
	Truncated bool   `json:"truncated"`
	// StdoutBytes and StderrBytes tell how long a stream was that was cut.
	StdoutBytes int64 `json:"stdout_bytes,omitempty"`
	StderrBytes int64 `json:"stderr_bytes,omitempty"`
}

const (
	// maxExecTimeout is what a longer time for a command becomes.
	maxExecTimeout = 10 * time.Minute
	// exitTimeout is the exit code of a command whose time is over.
	exitTimeout = 124
)

func exec(ctx context.Context, c *dialect.Call, in execArgs) (*mcp.CallToolResult, error) {
	if in.Dir != "" && !path.IsAbs(in.Dir) {
		return nil, dialect.Invalid(`cwd must be absolute (start with "/"): %s`, clip.Text(in.Dir, maxShown))
	}
	ms := min(in.Timeout, float64(maxExecTimeout.Milliseconds()))
	var mu sync.Mutex
	streams := map[sandbox.Stream]*capture{sandbox.Stdout: {}, sandbox.Stderr: {}} // guarded by mu
	c.Status("running")
	job, err := c.Service.Exec(ctx, in.Sandbox, sandbox.ExecRequest{
		Command: []string{"/bin/sh", "-c", in.Command}, Env: in.Env, WorkDir: in.Dir,
		TimeoutMS: max(1, int64(ms)), KeepBytes: 1, // it is taken as it comes
	}, func(e sandbox.JobEvent) error {
		mu.Lock()
		defer mu.Unlock()
		if s := streams[e.Stream]; s != nil {
			s.write(e.Data)
		}
		return nil
	})
	if err != nil {
		return nil, about(ctx, c, in.Sandbox, err)
	}
	mu.Lock()
	defer mu.Unlock()
	out := executed{ExitCode: job.ExitCode}
	if job.EndCause == sandbox.EndTimeout {
		out.ExitCode = exitTimeout
	}
	var cut [2]bool
	out.Stdout, cut[0] = streams[sandbox.Stdout].result()
	out.Stderr, cut[1] = streams[sandbox.Stderr].result()
	if cut[0] {
		out.StdoutBytes = streams[sandbox.Stdout].bytes
	}
	if cut[1] {
		out.StderrBytes = streams[sandbox.Stderr].bytes
	}
	out.Truncated = cut[0] || cut[1]
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

// A stream of over maxStream bytes is cut to its first headBytes and its last
// tailBytes.
const (
	maxStream = 32768
	headBytes = maxStream * 60 / 100
	tailBytes = maxStream * 35 / 100
)

// capture keeps what is returned of a stream, as text: what is not UTF-8 is
// U+FFFD.
type capture struct {
	bytes   int64  // of the stream
	total   int64  // of the text
	partial []byte // of a character at the end
	head    []byte // the first maxStream bytes of the text
	tail    []byte // the last ones, at least tailBytes if there are so many
}

func (s *capture) write(p []byte) {
	s.bytes += int64(len(p))
	p = append(s.partial, p...)
	whole := clip.TrimEnd(p)
	s.partial = append([]byte(nil), p[len(whole):]...)
	s.add(text(whole))
}

func (s *capture) add(t string) {
	s.total += int64(len(t))
	s.head = append(s.head, t[:min(len(t), maxStream-len(s.head))]...)
	if len(t) > maxStream {
		t = t[len(t)-maxStream:]
	}
	s.tail = append(s.tail, t...)
	if len(s.tail) > 4*maxStream {
		s.tail = append([]byte(nil), s.tail[len(s.tail)-maxStream:]...)
	}
}

// result returns the stream, and whether it was cut.
func (s *capture) result() (string, bool) {
	s.add(text(s.partial))
	s.partial = nil
	if s.total <= maxStream {
		return string(s.head), false
	}
	head := string(clip.Head(s.head, headBytes))
	tail := string(clip.TrimStart(s.tail[len(s.tail)-tailBytes:]))
	dropped := s.total - int64(len(head)+len(tail))
	return head + fmt.Sprintf("\n… [%d bytes truncated] …\n", dropped) + tail, true
}
