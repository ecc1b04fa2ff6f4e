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
	// browserVariable names a command with its arguments, separated by spaces,
	// that opens the address which comes after them.
	browserVariable = "COVE_BROWSER"
	// browserWindow bounds how long a browser may take to show a window.
	browserWindow = 30 * time.Second
	// browserHandover bounds how long to wait for a change of the windows when
	// the program has ended well: it handed the address to a browser that runs
	// already, which may show it without any.
	browserHandover = 3 * time.Second
	// browserDraw bounds how long to wait for a window that is there to have a
	// title and show more than one colour.
	browserDraw = 10 * time.Second
	// untitled begins the title of a window of Chromium until an address answers.
	untitled = "Untitled"
	// windowInterval is how often to look at the windows.
	windowInterval = 50 * time.Millisecond
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

// awaitPage waits until the browser that j has started shows a window in which
// something is drawn. The browser goes on whatever comes of this.
func (a *Agent) awaitPage(ctx context.Context, d *desktop.Desktop, j *job, before []sandbox.Window) error {
	w, err := a.awaitWindow(ctx, d, j, before)
	if err != nil || w == nil {
		return err
	}
	return awaitDrawing(ctx, d, w.ID)
}

// awaitWindow waits until there is a window that before has not, or that had
// another title. It returns nil when the browser has ended well without one: it
// has handed the address to another.
func (a *Agent) awaitWindow(ctx context.Context, d *desktop.Desktop, j *job, before []sandbox.Window) (*sandbox.Window, error) {
	deadline := time.NewTimer(a.browserWindow)
	defer deadline.Stop()
	look := time.NewTicker(windowInterval)
	defer look.Stop()
	ended := j.done
	var handedOver <-chan time.Time
	for {
		select {
		case <-ended:
			if err := endedBrowser(j); err != nil {
				return nil, err
			}
			ended, handedOver = nil, time.After(browserHandover)
		case <-look.C:
			now, err := d.ListWindows(ctx)
			if err != nil {
				return nil, desktopError(err)
			}
			if i := slices.IndexFunc(now, func(w sandbox.Window) bool { return isNewWindow(&w, before) }); i >= 0 {
				return &now[i], nil
			}
		case <-handedOver:
			return nil, nil
		case <-deadline.C:
			return nil, fail(connect.CodeDeadlineExceeded,
				"the browser runs but has shown no window after %s; look at the screen before you open the address again", a.browserWindow)
		case <-ctx.Done():
			return nil, cancelled(ctx)
		}
	}
}

func isNewWindow(w *sandbox.Window, before []sandbox.Window) bool {
	return !slices.ContainsFunc(before, func(old sandbox.Window) bool { return old.ID == w.ID && old.Title == w.Title })
}

// awaitDrawing waits until something is shown in a window, for [browserDraw] at
// most: a page may be of one colour.
func awaitDrawing(ctx context.Context, d *desktop.Desktop, id int64) error {
	deadline := time.NewTimer(browserDraw)
	defer deadline.Stop()
	look := time.NewTicker(windowInterval)
	defer look.Stop()
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
		case <-look.C:
		case <-deadline.C:
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
	_, said, _ := j.out.read(1, 0, 4096)
	return fail(connect.CodeFailedPrecondition, "the browser %s ended with exit code %d (%.300s); set %s to one that runs here",
		e.GetArgv()[0], e.GetExitCode(), strings.ToValidUTF8(strings.TrimSpace(string(said)), "\uFFFD"), browserVariable)
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
