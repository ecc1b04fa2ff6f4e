package dialect

import (
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// Dynamic is implemented by a [Toolsetter] with tools that turn toolsets on at
// run time, for the session that calls them.
type Dynamic interface {
	Toolsetter
	// DynamicToolset is the toolset of these tools. Where it is off, and where a
	// client has no session, the list of tools is fixed.
	DynamicToolset() string
}

// ToolsetSwitch is what turns on further toolsets for a session. It is safe for
// concurrent use.
type ToolsetSwitch interface {
	// On returns the toolsets that are on, in the dialect's order.
	On() []string
	// Tools returns the names of the tools that a toolset has for the session, in
	// the dialect's order.
	Tools(toolset string) []string
	// Enable turns toolsets on and returns the names of the tools that are new,
	// in the dialect's order. The client is told that its list has changed if
	// there are any. An unknown toolset is refused as invalid, and then nothing
	// is changed.
	Enable(toolsets []string) (tools []string, err error)
}

// IsDynamic reports whether the tools of a server of the dialect are those by
// which a session turns on further toolsets, or some of them.
func IsDynamic(d Dialect, tools []Tool) bool {
	set := dynamicToolset(d)
	return set != "" && slices.ContainsFunc(tools, func(t Tool) bool { return t.Toolset == set })
}

// dynamicToolset returns the toolset of [Dynamic], or "".
func dynamicToolset(d Dialect) string {
	if dyn, ok := d.(Dynamic); ok {
		return dyn.DynamicToolset()
	}
	return ""
}

// In reports whether the tool is in a toolset.
func (t Tool) In(toolset string) bool {
	return t.Toolset == toolset || slices.Contains(t.Also, toolset)
}

// Off returns the error for a call of a tool that the dialect has but the selection
// does not; it says how to turn the tool on. It is nil if the dialect does not have the
// tool. dynamic says that the caller can turn on toolsets itself.
func Off(d Dialect, sel Selection, name string, dynamic bool) error {
	i := slices.IndexFunc(d.Tools(), func(t Tool) bool { return t.Def.Name == name })
	if i < 0 {
		return nil
	}
	t := d.Tools()[i]
	switch {
	case sel.ReadOnly && !t.ReadOnly():
		return sandbox.Errorf(sandbox.CodeInvalid, "tool %q is off: this connection is read-only; ask the owner of the client or server to change that", name)
	case t.Toolset == "":
		return sandbox.Errorf(sandbox.CodeInvalid, "tool %q is off; the owner of the client turns it on with --tools, or over HTTP with the header X-Cove-Tools", name)
	case t.Toolset == dynamicToolset(d):
		return sandbox.Errorf(sandbox.CodeInvalid, "tool %q is off: the list of tools is fixed here; the owner of the client turns on more with --toolsets (COVE_TOOLSETS), or over HTTP with the header X-Cove-Toolsets", name)
	}
	sets := strings.Join(append(slices.Clone(t.Also), t.Toolset), " or ")
	if dynamic {
		return sandbox.Errorf(sandbox.CodeInvalid, "tool %q is off: turn on toolset %s with toolset_enable, then call it again", name, sets)
	}
	return sandbox.Errorf(sandbox.CodeInvalid, "tool %q is off: it is in toolset %s, which the owner of the client turns on with --toolsets (COVE_TOOLSETS), or over HTTP with the header X-Cove-Toolsets", name, sets)
}
