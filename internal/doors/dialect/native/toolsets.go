package native

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/doors/dialect"
)

// The toolsets. All tools but those of toolsetDynamic are in one that says what
// they are about; those of coreTools are in toolsetCore too.
const (
	toolsetCore      = "core"
	toolsetSandboxes = "sandboxes"
	toolsetJobs      = "jobs"
	toolsetCode      = "code"
	toolsetFiles     = "files"
	toolsetTime      = "time"
	toolsetNetwork   = "network"
	toolsetSecrets   = "secrets"
	toolsetPreviews  = "previews"
	toolsetComputer  = "computer"
	toolsetTemplates = "templates"
	toolsetVolumes   = "volumes"
	// toolsetDynamic changes the list of tools itself.
	toolsetDynamic = "dynamic"
)

// toolsets are all of them in order, with what each is for.
var toolsets = []struct{ name, about string }{
	{toolsetCore, "what most work needs: create, run, read and write, fork, pause, keep states"},
	{toolsetSandboxes, "sandboxes: create, list, change limits and lifetimes, environment, use of memory and processor"},
	{toolsetJobs, "commands: run, list and stop jobs and processes"},
	{toolsetCode, "run code in interpreters that keep variables, and control these"},
	{toolsetFiles, "files: read, write, edit, list, move, delete, download as ZIP"},
	{toolsetTime, "fork, try alternatives, compare, merge, pause, resume, snapshots and history"},
	{toolsetNetwork, "what sandboxes may reach, and a log of what they tried"},
	{toolsetSecrets, "credentials that sandboxes use without seeing them"},
	{toolsetPreviews, "URLs for servers that run in sandboxes"},
	{toolsetComputer, "sandboxes with a screen: screenshots, mouse, keyboard, windows, browser"},
	{toolsetTemplates, "build and manage what sandboxes start from"},
	{toolsetVolumes, "files that outlive sandboxes"},
	{toolsetDynamic, "list the toolsets and turn them on"},
}

// coreTools are in toolsetCore: models and clients do best with few tools, and
// read their definitions with every request.
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

// fixed is the error where the list of tools cannot change.
func fixed() error {
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
		return nil, fixed()
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
		return nil, fixed()
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
