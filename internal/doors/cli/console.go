package cli

import (
	"context"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sh/cove/internal/doors/console"
	"github.com/cove-sh/cove/internal/durable"
	"github.com/cove-sh/cove/sandbox"
)

// openFile is a page in the state directory that redirects a browser to the console.
// All users of the machine can see a browser's arguments, so these name the page and
// not the link.
const openFile = "console-open.html"

func (a *app) consoleCommand() *cobra.Command {
	var noOpen bool
	return a.make(command{
		Use: "console [flags]", Short: "Open the web console",
		Long: "Print a link to the console, the web page for seeing and controlling sandboxes, and open it in a\n" +
			"browser if there is a display. The link signs in once and is valid for a minute. The daemon is started\n" +
			"if necessary, and does not stop for idleness while a page is open.\n\n" +
			"With --url, print the address of that server's console, which asks for an API key.",
		Example: "  cove console\n  cove console --no-open\n  cove console --url https://cove.example.com",
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&noOpen, "no-open", false, "Print the link, but do not open it")
		},
		Do: action{here: true, json: true, run: func(ctx context.Context, c *call) error { return c.openConsole(ctx, !noOpen) }},
	})
}

func (c *call) openConsole(ctx context.Context, open bool) error {
	if base := strings.TrimRight(c.globals.URL, "/"); base != "" {
		c.say("sign in there with an API key")
		return c.showLink(console.Link{URL: base + console.Path})
	}
	link, err := c.consoleLink(ctx)
	if err != nil {
		return err
	}
	if err := c.showLink(*link); err != nil {
		return err
	}
	if open && !c.json && (c.Env("DISPLAY") != "" || c.Env("WAYLAND_DISPLAY") != "") {
		if err := c.browse(ctx, link.URL); err != nil {
			c.say("cannot open a browser (%s); open the link above", clean(err.Error()))
		}
	}
	return nil
}

func (c *call) showLink(link console.Link) error {
	if !c.json {
		return c.print(clean(link.URL) + "\n")
	}
	shown := map[string]any{"url": link.URL}
	if !link.ExpiresAt.IsZero() {
		shown["expires_at"] = link.ExpiresAt
	}
	return c.printJSON(shown)
}

// consoleLink requests a link from the local daemon, which is started if necessary.
func (a *app) consoleLink(ctx context.Context) (*console.Link, error) {
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	d := a.localDaemon(dir)
	ctx, cancel := context.WithTimeout(ctx, startTime+addressTime)
	defer cancel()
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: d.dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+console.LinkPath, nil)
	if err != nil {
		return nil, err
	}
	resp, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	defer closeQuietly(resp.Body)
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAddress))
	if err != nil {
		return nil, err
	}
	var problem struct{ Code, Detail string }
	if resp.StatusCode != http.StatusOK && json.Unmarshal(data, &problem) == nil && problem.Detail != "" && resp.StatusCode != http.StatusNotFound {
		return nil, sandbox.Errorf(sandbox.Code(problem.Code), "%s", problem.Detail)
	}
	var link console.Link
	if resp.StatusCode != http.StatusOK || json.Unmarshal(data, &link) != nil || link.URL == "" {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the running daemon has no console, because it is another version; run: cove daemon restart")
	}
	return &link, nil
}

// browse makes the user's browser open a link, through a page that only the user can
// read.
func (a *app) browse(ctx context.Context, link string) error {
	opener, err := exec.LookPath("xdg-open")
	if err != nil {
		return errors.New("xdg-open is not installed")
	}
	dir, err := a.stateDir()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, openFile)
	page := "<!doctype html><meta charset=utf-8><title>Cove</title><meta name=referrer content=no-referrer>" +
		`<meta http-equiv=refresh content="0;url=` + html.EscapeString(link) + `">` + "\n"
	if err := durable.WriteFile(file, []byte(page)); err != nil {
		return err
	}
	return exec.CommandContext(ctx, opener, file).Run()
}
