package agent

import (
	"cmp"
	"context"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/agent/desktop"
	"github.com/cove-sh/cove/internal/wire/agentv1"
)

const (
	// browserVariable names a command with its arguments, separated by spaces,
	// that opens the address which comes after them.
	browserVariable = "COVE_BROWSER"
	// browserStart is how long to look whether a browser ends at once, as it
	// does where it cannot run, or hands the address to one that does.
	browserStart = 500 * time.Millisecond
	// maxURL bounds an address, in bytes.
	maxURL = 8 << 10
)

// browsers are the programs to look for, the best first. The first is what
// computers have as the browser that is set up for them.
var browsers = []string{
	"~/.local/bin/chromium", "chromium", "chromium-browser", "google-chrome", "x-www-browser", "firefox", "firefox-esr", "epiphany", "xdg-open",
}

// urlSchemes are those of addresses that a browser shows. Others start
// programs.
var urlSchemes = []string{"http", "https", "file", "about", "data"}

// OpenURL implements [agentv1connect.DesktopHandler].
func (s *desktopServer) OpenURL(ctx context.Context, req *connect.Request[agentv1.OpenURLRequest]) (*connect.Response[agentv1.OpenURLResponse], error) {
	address, err := checkURL(req.Msg.GetUrl())
	if err != nil {
		return nil, err
	}
	// That there is a screen is better known before a browser waits for it.
	display := cmp.Or(req.Msg.GetDisplay(), desktop.DefaultDisplay)
	d, err := s.a.screens.get(display)
	if err != nil {
		return nil, err
	}
	if _, err := d.GetScreen(ctx); err != nil {
		return nil, desktopError(err)
	}
	if err := s.a.browse(ctx, display, address); err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.OpenURLResponse{}), nil
}

// checkURL returns an address in a form that no program takes for an option.
func checkURL(address string) (string, error) {
	if len(address) > maxURL {
		return "", fail(connect.CodeResourceExhausted, "the address is longer than %d bytes; write a page to a file and open that", maxURL)
	}
	u, err := url.Parse(address)
	if err != nil || !slices.Contains(urlSchemes, u.Scheme) || strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return "", invalid("this is not an address of the web or a file; give one that begins with http://, https://, file:/// or about:")
	}
	if (u.Scheme == "http" || u.Scheme == "https") && u.Host == "" {
		return "", invalid("the address has no host; give one such as https://example.com/")
	}
	// Parsed, so it begins with the scheme and never with a dash.
	return u.Scheme + address[len(u.Scheme):], nil
}

// browse starts the browser as a job of its own, which nobody waits for.
func (a *Agent) browse(ctx context.Context, display, address string) error {
	command, err := a.browser()
	if err != nil {
		return err
	}
	p, err := a.planJob(&agentv1.ExecRequest{Argv: append(command, address), Env: map[string]string{"DISPLAY": display}})
	if err != nil {
		return err
	}
	j, f, err := a.launch(p)
	if err != nil {
		return err
	}
	j.out.unfollow(f)
	t := time.NewTimer(a.browserStart)
	defer t.Stop()
	select {
	case <-j.done:
	case <-t.C:
		return nil
	case <-ctx.Done():
		return cancelled(ctx)
	}
	if e := j.describe(); e.GetExitCode() != 0 || e.GetSignal() != 0 {
		_, said, _ := j.out.read(1, 0, 4096)
		return fail(connect.CodeFailedPrecondition, "the browser %s ended at once with exit code %d (%.300s); set %s to one that runs here",
			command[0], e.GetExitCode(), strings.ToValidUTF8(strings.TrimSpace(string(said)), "\uFFFD"), browserVariable)
	}
	return nil
}

// browser returns the command that opens addresses for the sandbox's user.
func (a *Agent) browser() ([]string, error) {
	s := a.current()
	acc, err := a.users.lookup(s.user)
	if err != nil {
		return nil, err
	}
	env := jobEnv(&acc, s, &agentv1.ExecRequest{})
	if command := strings.Fields(env[browserVariable]); len(command) > 0 {
		return command, nil
	}
	for _, name := range browsers {
		if rest, ok := strings.CutPrefix(name, "~/"); ok {
			name = filepath.Join(env["HOME"], rest)
		}
		path, err := findProgram(name, env["PATH"], s.workdir)
		if err != nil || executable(path) != nil {
			continue
		}
		command := []string{path}
		if acc.uid == 0 && strings.Contains(name, "chrom") && !strings.Contains(name, "/") {
			// It runs as root in no other way; the sandbox around it stays.
			command = append(command, "--no-sandbox", "--no-first-run")
		}
		return command, nil
	}
	return nil, fail(connect.CodeNotFound, "the sandbox has no browser; install chromium, or set %s to a command that opens addresses", browserVariable)
}
