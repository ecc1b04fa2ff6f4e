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

	"github.com/cove-sh/cove/internal/guest/agent/desktop"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// browserVariable is the variable with a command and its arguments, separated by
	// spaces, that opens the address appended to them.
	browserVariable = "COVE_BROWSER"
	// browserWindow bounds how long a browser may take to show a window.
	browserWindow = 30 * time.Second
	// browserHandover bounds how long to wait for a changed window after the program
	// has exited without an error: it has passed the address to a running browser,
	// which may change no window.
	browserHandover = 3 * time.Second
	// browserDraw bounds how long to wait until a window has a title and shows more
	// than one colour.
	browserDraw = 10 * time.Second
	// untitled begins the title of Chromium's windows until the server answers.
	untitled = "Untitled"
	// windowInterval is how often the windows are listed.
	windowInterval = 50 * time.Millisecond
	// maxURL bounds an address, in bytes.
	maxURL = 8 << 10
)

// homeBrowser, below the user's home, is the browser that is configured for computers.
const homeBrowser = ".local/bin/chromium"

// browsers are other programs that may be there, the best first.
var browsers = []string{
	"chromium", "chromium-browser", "google-chrome", "x-www-browser", "firefox", "firefox-esr", "epiphany", "xdg-open",
}

// urlSchemes are the schemes that a browser shows. Others start programs.
var urlSchemes = []string{"http", "https", "file", "about", "data"}

// OpenURL implements [agentv1connect.DesktopHandler].
func (s *desktopServer) OpenURL(ctx context.Context, req *connect.Request[agentv1.OpenURLRequest]) (*connect.Response[agentv1.OpenURLResponse], error) {
	address, err := checkURL(req.Msg.GetUrl())
	if err != nil {
		return nil, err
	}
	// Without a screen a browser would only wait for one.
	display := cmp.Or(req.Msg.GetDisplay(), desktop.DefaultDisplay)
	d, err := s.a.screens.get(display)
	if err != nil {
		return nil, err
	}
	before, err := d.ListWindows(ctx)
	if err != nil {
		return nil, desktopError(err)
	}
	j, err := s.a.browse(display, address)
	if err != nil {
		return nil, err
	}
	if err := s.a.awaitPage(ctx, d, j, before); err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.OpenURLResponse{}), nil
}

// checkURL returns an address in a form that no program mistakes for an option.
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
	// It has been parsed, so it begins with the scheme and not with a dash.
	return u.Scheme + address[len(u.Scheme):], nil
}

// browse starts the browser as a job of its own.
func (a *Agent) browse(display, address string) (*job, error) {
	command, err := a.browser()
	if err != nil {
		return nil, err
	}
	p, err := a.planJob(&agentv1.ExecRequest{Argv: append(command, address), Env: map[string]string{"DISPLAY": display}})
	if err != nil {
		return nil, err
	}
	j, f, err := a.launch(p)
	if err != nil {
		return nil, err
	}
	j.out.unfollow(f)
	return j, nil
}

// awaitPage waits until the browser that j has started shows a window with content.
// The browser goes on in any case.
func (a *Agent) awaitPage(ctx context.Context, d *desktop.Desktop, j *job, before []sandbox.Window) error {
	w, err := a.awaitWindow(ctx, d, j, before)
	if err != nil || w == nil {
		return err
	}
	return awaitDrawing(ctx, d, w.ID)
}

// awaitWindow waits until there is a window that is not in before, or has a new title.
// It returns nil if the browser has exited without an error and without a window: it
// has passed the address to another one.
func (a *Agent) awaitWindow(ctx context.Context, d *desktop.Desktop, j *job, before []sandbox.Window) (*sandbox.Window, error) {
	deadline := time.After(a.browserWindow)
	tick := time.NewTicker(windowInterval)
	defer tick.Stop()
	ended := j.done
	var handedOver <-chan time.Time
	for {
		select {
		case <-ended:
			if err := endedBrowser(j); err != nil {
				return nil, err
			}
			ended, handedOver = nil, time.After(browserHandover)
		case <-tick.C:
			now, err := d.ListWindows(ctx)
			if err != nil {
				return nil, desktopError(err)
			}
			for _, w := range now {
				if !slices.ContainsFunc(before, func(old sandbox.Window) bool { return old.ID == w.ID && old.Title == w.Title }) {
					return &w, nil
				}
			}
		case <-handedOver:
			return nil, nil
		case <-deadline:
			return nil, fail(connect.CodeDeadlineExceeded,
				"the browser runs but has shown no window after %s; look at the screen before you open the address again", a.browserWindow)
		case <-ctx.Done():
			return nil, cancelled(ctx)
		}
	}
}

// awaitDrawing waits until a window has content, for [browserDraw] at most: a page may
// have a single colour.
func awaitDrawing(ctx context.Context, d *desktop.Desktop, id int64) error {
	deadline := time.After(browserDraw)
	tick := time.NewTicker(windowInterval)
	defer tick.Stop()
	for {
		list, err := d.ListWindows(ctx)
		if err != nil {
			return desktopError(err)
		}
		i := slices.IndexFunc(list, func(w sandbox.Window) bool { return w.ID == id })
		if i < 0 { // closed meanwhile
			return nil
		}
		drawn := !strings.HasPrefix(list[i].Title, untitled)
		if drawn {
			drawn, err = d.Drawn(ctx, list[i].Region)
		}
		if err != nil {
			return desktopError(err)
		}
		if drawn {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline:
			return nil
		case <-ctx.Done():
			return cancelled(ctx)
		}
	}
}

// endedBrowser returns an error for a browser that has failed.
func endedBrowser(j *job) error {
	e := j.describe()
	if e.GetExitCode() == 0 && e.GetSignal() == 0 {
		return nil
	}
	_, stderr, _ := j.out.read(1, 0, 4096)
	return fail(connect.CodeFailedPrecondition, "the browser %s ended with exit code %d (%.300s); set %s to one that runs here",
		e.GetArgv()[0], e.GetExitCode(), strings.ToValidUTF8(strings.TrimSpace(string(stderr)), "\uFFFD"), browserVariable)
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
	name, path := findFirst(append([]string{filepath.Join(env["HOME"], homeBrowser)}, browsers...), env["PATH"], s.workdir)
	if path == "" {
		return nil, fail(connect.CodeNotFound, "the sandbox has no browser; install chromium, or set %s to a command that opens addresses", browserVariable)
	}
	command := []string{path}
	if acc.uid == 0 && strings.Contains(name, "chrom") && !strings.Contains(name, "/") {
		// As root it runs only without a sandbox of its own; Cove's stays.
		command = append(command, "--no-sandbox", "--no-first-run")
	}
	return command, nil
}
