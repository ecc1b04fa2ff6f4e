package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sh/cove/client"
	"github.com/cove-sh/cove/sandbox"
)

// create makes a sandbox. If its template is defined but not built yet, it is built
// first: on a terminal after a question, elsewhere at once.
func (a *app) create(ctx context.Context, c *client.Client, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	sb, err := c.Create(ctx, req)
	if sandbox.CodeOf(err) != sandbox.CodeConflict || req.Template == "" {
		return sb, err
	}
	t, getErr := c.GetTemplate(ctx, req.Template)
	if getErr != nil || t.State != sandbox.TemplateAvailable {
		return nil, err // another error
	}
	a.say("template %s is not built yet; building it downloads its parts and takes a few minutes", clean(t.Name))
	if isTerminal(a.Stdin) && isTerminal(a.Stderr) {
		yes, askErr := a.confirm(ctx, "build it now?")
		if askErr != nil {
			return nil, askErr
		}
		if !yes {
			return nil, err
		}
	}
	show := a.showBuild(buildOptions{})
	_, buildErr := c.BuildTemplate(ctx, sandbox.BuildTemplateRequest{Name: t.Name}, show.event)
	if more := show.end(buildErr); more {
		a.sayBuild(ctx, c, t.Name, buildErr)
	}
	if sandbox.CodeOf(buildErr) == sandbox.CodeForbidden {
		return nil, sandbox.Wrap(sandbox.CodeForbidden, buildErr, fmt.Sprintf("template %s is not built yet, and this key cannot build templates; ask the server's operator to run 'cove template build %[1]s'", clean(t.Name)))
	}
	if buildErr != nil {
		return nil, buildErr
	}
	return c.Create(ctx, req)
}

// confirm asks a question at the terminal; an empty answer is yes.
func (a *app) confirm(ctx context.Context, question string) (bool, error) {
	fmt.Fprintf(a.Stderr, "cove: %s [Y/n] ", question)
	answer := make(chan string, 1)
	go func() { // if the wait is interrupted, it lasts until the process ends
		line := make([]byte, 1024)
		n, err := a.Stdin.Read(line) // a terminal gives one line, and keeps what follows
		if err != nil {
			n = copy(line, "no") // it was closed
		}
		answer <- strings.ToLower(strings.TrimSpace(string(line[:n])))
	}()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case said := <-answer:
		return said == "" || said == "y" || said == "yes", nil
	}
}
