package native

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

const (
	// toolsetCore has the tools of coreTools, each of which is in another toolset too.
	toolsetCore = "core"
	// toolsetDynamic has the tools that change the list of tools.
	toolsetDynamic = "dynamic"
)

// toolsets are all toolsets in order, with what each is for. A file in texts has the
// tools of each, but for toolsetCore.
var toolsets = []struct{ name, about string }{
	{toolsetCore, "what most work needs: create, run, read and write, fork, pause, keep states"},
	{"sandboxes", "sandboxes: create, list, change limits and lifetimes, environment, use of memory and processor"},
	{"jobs", "commands: run, list and stop jobs and processes"},
	{"code", "run code in interpreters that keep variables, and control these"},
	{"files", "files: read, write, edit, list, move, delete, download as ZIP"},
	{"time", "fork, try alternatives, compare, merge, pause, resume, snapshots and history"},
	{"network", "what sandboxes may reach, and a log of what they tried"},
	{"secrets", "credentials that sandboxes use without seeing them"},
	{"previews", "URLs for servers that run in sandboxes"},
	{"computer", "sandboxes with a screen: screenshots, mouse, keyboard, windows, browser"},
	{"templates", "build and manage what sandboxes start from"},
	{"volumes", "files that outlive sandboxes"},
	{toolsetDynamic, "list the toolsets and turn them on"},
}

// coreTools are the tools of toolsetCore. They are few because models choose best
// among few tools, and read all definitions with every request.
var coreTools = []string{
	"sandbox_create", "sandbox_list", "sandbox_get", "sandbox_kill", "sandbox_exec", "run_code", "job_get", "job_stop",
	"file_read", "file_write", "file_edit", "file_list", "file_search",
	"sandbox_fork", "sandbox_merge", "sandbox_pause", "snapshot_create", "snapshot_restore",
}

// Toolsets returns the toolsets; core and dynamic are on by default.
func (d *Dialect) Toolsets() (known, defaults []string) {
	for _, s := range toolsets {
		known = append(known, s.name)
	}
	return known, []string{toolsetCore, toolsetDynamic}
}

// DynamicToolset returns the toolset of toolset_list and toolset_enable.
func (d *Dialect) DynamicToolset() string { return toolsetDynamic }

// errFixed refuses to change the list of tools on a connection where it cannot change.
func errFixed() error {
	return invalid("the list of tools is fixed on this connection; the owner of the client turns on more with --toolsets, or over HTTP with the header X-Cove-Toolsets")
}

type toolsetView struct {
	Name  string   `json:"name"`
	About string   `json:"about"`
	On    bool     `json:"on"`
	Tools []string `json:"tools"`
}

type toolsetViews struct {
	Toolsets []toolsetView `json:"toolsets"`
}

func listToolsets(_ context.Context, c *dialect.Call, _ struct{}) (*reply[toolsetViews], error) {
	if c.Toolsets == nil {
		return nil, errFixed()
	}
	on := c.Toolsets.On()
	var out []toolsetView
	var b strings.Builder
	for _, s := range toolsets {
		if s.name == toolsetDynamic {
			continue
		}
		v := toolsetView{Name: s.name, About: s.about, On: slices.Contains(on, s.name), Tools: append([]string{}, c.Toolsets.Tools(s.name)...)}
		out = append(out, v)
		mark := "off"
		if v.On {
			mark = "on"
		}
		fmt.Fprintf(&b, "%s (%s): %s; %s\n", v.Name, mark, v.About, strings.Join(v.Tools, " "))
	}
	return answer(b.String(), toolsetViews{out})
}

type enableArgs struct {
	Toolsets []string `json:"toolsets"`
}

type enableResult struct {
	On    []string `json:"on"`
	Tools []string `json:"tools"`
	Hint  string   `json:"hint,omitempty"`
}

// further names the toolsets that can be turned on.
func further() string {
	var names []string
	for _, s := range toolsets {
		if s.name != toolsetDynamic && s.name != toolsetCore {
			names = append(names, s.name)
		}
	}
	return strings.Join(names, ", ")
}

func enableToolsets(_ context.Context, c *dialect.Call, in enableArgs) (*reply[enableResult], error) {
	if c.Toolsets == nil {
		return nil, errFixed()
	}
	added, err := c.Toolsets.Enable(in.Toolsets)
	if err != nil {
		return nil, err
	}
	res := enableResult{On: c.Toolsets.On(), Tools: append([]string{}, added...)}
	if len(added) == 0 {
		return answer("These were on already; there are no new tools.", res)
	}
	res.Hint = "if you do not see them, your client does not follow changes of the list; ask its owner to start it with --toolsets or the header X-Cove-Toolsets"
	return answer(fmt.Sprintf("New tools: %s\nhint: %s\n", strings.Join(added, " "), res.Hint), res)
}
