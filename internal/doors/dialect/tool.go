package dialect

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/sandbox"
)

// maxTool bounds what is read of a tool's output, in bytes.
const maxTool = 8 << 10

// RunTool runs a program of a sandbox as root, as other products' own agents run, and
// returns what it prints. The tag marks the command as the door's. A program that fails is
// an invalid request, in the program's words.
func RunTool(ctx context.Context, svc sandbox.Service, id, tag string, command ...string) (string, error) {
	var out [2]bytes.Buffer
	req := sandbox.ExecRequest{Command: command, User: "root", WorkDir: "/", Tag: tag, KeepBytes: maxTool}
	job, err := svc.Exec(ctx, id, req, func(e sandbox.JobEvent) error {
		b := &out[0]
		if e.Stream == sandbox.Stderr {
			b = &out[1]
		}
		b.Write(e.Data[:min(len(e.Data), maxTool-b.Len())])
		return nil
	})
	if err != nil {
		return "", err
	}
	if job.ExitCode != 0 {
		text := strings.TrimSpace(clip.ToText(out[1].Bytes()))
		if text == "" {
			text = fmt.Sprintf("%s has failed with exit code %d", command[0], job.ExitCode)
		}
		return "", Invalid("%s", text)
	}
	return strings.TrimSuffix(clip.ToText(out[0].Bytes()), "\n"), nil
}
