package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/sandbox"
)

// Where sandboxes end with their client's session, a second process waits for the
// end of this one: nothing runs in a process that is killed with SIGKILL. It is told
// the ids, a line each, on its standard input, and ends these sandboxes when that is
// closed, unless the last line is endedLine.
const (
	mcpEndCommand = "mcp-end"
	endedLine     = "ended"
	// endTime bounds how long the sandboxes may take to end.
	endTime = time.Minute
)

// sessionBound is a service that passes on the ids of the sandboxes that it makes.
type sessionBound struct {
	sandbox.Service
	made func(id string)
}

// Create implements [sandbox.Sandboxes].
func (s sessionBound) Create(ctx context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	sb, err := s.Service.Create(ctx, req)
	if err == nil {
		s.made(sb.ID)
	}
	return sb, err
}

// Fork implements [sandbox.Snapshots].
func (s sessionBound) Fork(ctx context.Context, id string, req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	list, err := s.Service.Fork(ctx, id, req)
	if err == nil {
		for i := range list.Items {
			s.made(list.Items[i].ID)
		}
	}
	return list, err
}

// ender is the process that waits for the end of this one.
type ender struct {
	mu sync.Mutex
	in io.WriteCloser
}

// startEnder starts the second process, in a session of its own, so that what ends
// this one does not reach it.
func (a *app) startEnder() (*ender, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program's own file: %w", err)
	}
	args := []string{mcpEndCommand}
	if a.globals.StateDir != "" {
		dir, err := a.stateDir()
		if err != nil {
			return nil, err
		}
		args = append(args, "--state-dir", dir)
	}
	env := withoutSecrets(os.Environ())
	if a.globals.URL != "" {
		args, env = append(args, "--url", a.globals.URL), append(env, "COVE_API_KEY="+a.globals.Key)
	}
	cmd := exec.Command(executable, args...)
	cmd.Args[0], cmd.Env, cmd.Dir = os.Args[0], env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the process that ends sandboxes after this one: %w", err)
	}
	go func() { _ = cmd.Wait() }() // reaps it, should it end first
	return &ender{in: in}, nil
}

// say writes a line. If the process is gone, the sandboxes end by their timers.
func (e *ender) say(line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = io.WriteString(e.in, line+"\n")
}

// done tells the process that there is nothing to do.
func (e *ender) done() {
	e.say(endedLine)
	_ = e.in.Close()
}

func (a *app) mcpEndCommand() *cobra.Command {
	return &cobra.Command{
		Use: mcpEndCommand, Short: "End the sandboxes that standard input names when it is closed", Hidden: true,
		Args: argsBetween(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runMCPEnd(cmd.Context()) },
	}
}

func (a *app) runMCPEnd(ctx context.Context) error {
	var ids []string
	for in := bufio.NewScanner(a.Stdin); in.Scan(); {
		line := strings.TrimSpace(in.Text())
		if line == endedLine {
			return nil
		}
		ids = append(ids, line)
	}
	if len(ids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer closeQuietly(c)
	var errs []error
	for _, id := range ids {
		if _, err := c.Kill(ctx, id); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
