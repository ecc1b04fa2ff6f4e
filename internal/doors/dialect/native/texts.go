package native

import (
	"embed"
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// What models read is written by hand, in texts/TOOLSET.txt. Its form:
//
//	# TOOL: TITLE
//	The tool's description, up to an empty line.
//
//	argument: its description
//	argument = 5: its description, and the default
//	-> member: the description of a member of the result
//
//	## TYPE
//	member: the description of a member of all results of this type
//
// The tool "*" has the defaults for all tools. A member of an object is written
// outer.inner. Properties have the order of their lines; one without a line follows
// its predecessor in the Go type.
//
// After a name, "?" makes an argument optional though its type is always set, "*"
// omits the values of a string type, and "{a b}" shows only these members of an
// object, or of the objects in a list: the others are accepted but not shown.
//
//go:embed texts
var textFiles embed.FS

// texts are the texts of tools by name, and of results by type.
var texts = sync.OnceValue(func() *textTable {
	table, err := readTexts()
	if err != nil {
		panic(err) // they are part of the program
	}
	return table
})

type textTable struct {
	tools map[string]*toolText
	types map[string]*memberTexts
}

// toolText describes a tool to models.
type toolText struct {
	toolset, title, about string
	args, result          memberTexts
}

// memberTexts are the texts of an object's members, nested ones included, by dotted
// path.
type memberTexts struct {
	paths []string // in the order of the lines
	by    map[string]memberText
}

type memberText struct {
	text     string
	value    json.RawMessage // the default
	optional bool
	open     bool     // the values of the type are omitted
	shown    []string // the only members to show, if not nil
}

// inside returns the names of the members of the object at a path, in order.
func (m *memberTexts) inside(at string) []string {
	if m == nil {
		return nil
	}
	var names []string
	for _, p := range m.paths {
		if outer, name := splitPath(p); outer == at {
			names = append(names, name)
		}
	}
	return names
}

func splitPath(p string) (outer, name string) {
	i := strings.LastIndexByte(p, '.')
	return p[:max(i, 0)], p[i+1:]
}

func joinPath(outer, name string) string {
	if outer == "" {
		return name
	}
	return outer + "." + name
}

// numbers replaces the limits and lists that texts refer to.
var numbers = strings.NewReplacer(
	"{DefaultVCPUs}", strconv.Itoa(sandbox.DefaultVCPUs),
	"{DefaultMemoryMiB}", strconv.Itoa(sandbox.DefaultMemoryMiB),
	"{DefaultDiskMiB}", strconv.Itoa(sandbox.DefaultDiskMiB),
	"{DefaultMaxPIDs}", strconv.Itoa(sandbox.DefaultMaxPIDs),
	"{DefaultVolumeMiB}", strconv.Itoa(sandbox.DefaultVolumeMiB),
	"{DefaultPreviewLink}", strconv.Itoa(int(sandbox.DefaultPreviewLink.Seconds())),
	"{DetachedTimeout}", strconv.Itoa(int(sandbox.DetachedTimeout.Milliseconds())),
	"{codeTimeout}", strconv.Itoa(int(codeTimeout.Milliseconds())),
	"{defaultScroll}", strconv.Itoa(defaultScroll),
	"{toolsets}", further(),
)

func readTexts() (*textTable, error) {
	files, err := textFiles.ReadDir("texts")
	if err != nil {
		return nil, err
	}
	table := &textTable{tools: make(map[string]*toolText), types: make(map[string]*memberTexts)}
	for _, f := range files {
		data, err := textFiles.ReadFile("texts/" + f.Name())
		if err != nil {
			return nil, err
		}
		toolset := strings.TrimSuffix(f.Name(), path.Ext(f.Name()))
		for section := range strings.SplitSeq("\n"+numbers.Replace(string(data)), "\n#") {
			if err := table.add(toolset, section); err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name(), err)
			}
		}
	}
	return table, nil
}

// add parses a section, without the first "#" of its heading.
func (t *textTable) add(toolset, section string) error {
	heading, body, _ := strings.Cut(strings.TrimSpace(section), "\n")
	switch name, isType := strings.CutPrefix(heading, "# "); {
	case heading == "":
		return nil
	case isType:
		t.types[name] = new(memberTexts)
		return addMembers(body, t.types[name], nil)
	default:
		name, title, _ := strings.Cut(heading, ": ")
		about, members, _ := strings.Cut(body, "\n\n")
		tool := &toolText{toolset: toolset, title: title, about: strings.Join(strings.Fields(about), " ")}
		t.tools[name] = tool
		return addMembers(members, &tool.args, &tool.result)
	}
}

var memberLine = lazyregexp.New(`^(-> )?([a-z_.]+)(\*)?(\{[a-z_ ]*\})?(\?)?(?: = (\S+))?:(?: (.+))?$`)

func addMembers(lines string, args, result *memberTexts) error {
	for line := range strings.Lines(lines) {
		line = strings.TrimRight(line, "\n ")
		if line == "" {
			continue
		}
		m := memberLine.FindStringSubmatch(line)
		if m == nil {
			return fmt.Errorf("not a line of a member: %q", line)
		}
		to := args
		if m[1] != "" {
			to = result
		}
		if to.by == nil {
			to.by = make(map[string]memberText)
		}
		text := memberText{text: m[7], optional: m[5] != "", open: m[3] != ""}
		if m[6] != "" {
			text.value = json.RawMessage(m[6])
		}
		if m[4] != "" {
			text.shown = append([]string{}, strings.Fields(strings.Trim(m[4], "{}"))...)
		}
		to.paths, to.by[m[2]] = append(to.paths, m[2]), text
	}
	return nil
}
