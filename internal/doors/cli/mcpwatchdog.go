package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sh/cove/sandbox"
)

// If sandboxes end with their client's session, a watchdog process waits for the end of
// this one, which cannot clean up if it is killed with SIGKILL. The watchdog reads the
// ids, one per line, from its standard input, and ends these sandboxes when the input
// is closed, unless the last line is endedLine.
const (
	mcpWatchdogCommand = "mcp-watchdog"
	endedLine          = "ended"
	// endTime bounds how long the sandboxes may take to end.
	endTime = time.Minute
)

// sessionBound is a service that reports the ids of the sandboxes that it makes.
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

// watchdog starts the watchdog process at the first id, and passes on the ids. If that
// process cannot be started or is gone, the sandboxes end by their timeouts.
type watchdog struct {
	start func() (io.WriteCloser, error)
	log   *slog.Logger

	mu    sync.Mutex
	begun bool           // under mu
	stdin io.WriteCloser // under mu; nil while there is no process
}

func (w *watchdog) made(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.begun {
		w.begun = true
		stdin, err := w.start()
		if err != nil {
			w.log.Error("start the watchdog that ends sandboxes when this process is killed", "error", err)
			return
		}
		w.stdin = stdin
	}
	w.say(id)
}

// done tells the process that the session has ended and that there is nothing left to
// do.
func (w *watchdog) done() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.say(endedLine)
	if w.stdin != nil {
		_ = w.stdin.Close()
	}
}

// Preconditions: w.mu is held.
func (w *watchdog) say(line string) {
	if w.stdin != nil {
		_, _ = io.WriteString(w.stdin, line+"\n")
	}
}

// startWatchdog starts the watchdog process and returns its standard input.
func (a *app) startWatchdog() (io.WriteCloser, error) {
	args := []string{mcpWatchdogCommand, "--namespace", cmp.Or(a.globals.Namespace, "*")}
	if a.globals.StateDir != "" {
		dir, err := a.stateDir()
		if err != nil {
			return nil, err
		}
		args = append(args, "--state-dir", dir)
	}
	if a.globals.URL != "" {
		args = append(args, "--url", a.globals.URL)
	}
	cmd, err := detachedCommand(args...)
	if err != nil {
		return nil, fmt.Errorf("find the program's own file: %w", err)
	}
	if a.globals.URL != "" {
		cmd.Env = append(cmd.Env, "COVE_API_KEY="+a.globals.Key)
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }() // reaps it, should it end first
	return stdin, nil
}

func (a *app) mcpWatchdogCommand() *cobra.Command {
	cmd := a.make(command{
		Use: mcpWatchdogCommand, Short: "End the sandboxes named on standard input when it is closed",
		Do: action{run: watchMCP},
	})
	cmd.Hidden = true
	return cmd
}

func watchMCP(ctx context.Context, c *call) error {
	var ids []string
	for in := bufio.NewScanner(c.Stdin); in.Scan(); {
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
	var errs []error
	for _, id := range ids {
		if _, err := c.client.Kill(ctx, id); err != nil && sandbox.CodeOf(err) != sandbox.CodeNotFound {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
