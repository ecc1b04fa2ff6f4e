package native

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// buildWait is how long a call waits for a build unless it says otherwise,
	// and buildWaitMax the longest: clients give up a call after 60 s.
	buildWait    = 30 * time.Second
	buildWaitMax = 50 * time.Second
	// maxBuildOutput is what a result has of a build's log: its end.
	maxBuildOutput = 8 << 10
)

// templateView is a template in a result.
type templateView struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Source      string            `json:"source"`
	State       string            `json:"state"`
	Reason      string            `json:"reason,omitempty"`
	Version     int               `json:"version,omitempty"`
	Aliases     []string          `json:"aliases,omitempty"`
	SizeBytes   int64             `json:"size_bytes,omitempty"`
	WarmBytes   int64             `json:"warm_bytes,omitempty"`
	BuiltAt     *time.Time        `json:"built_at,omitempty"`
	User        string            `json:"user,omitempty"`
	WorkDir     string            `json:"workdir,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Resources   templateShape     `json:"resources,omitzero"`
	Packages    []string          `json:"packages,omitempty"`
	Start       string            `json:"start,omitempty"`
	Ports       []int             `json:"ports,omitempty"`
	Screen      string            `json:"screen,omitempty"`
	// Of one that is asked for by name.
	Versions []int                  `json:"versions,omitempty"`
	Warm     map[string]string      `json:"warm,omitempty"`
	Network  *sandbox.NetworkPolicy `json:"network,omitempty"`
}

// templateShape is what a template says of its sandboxes' resources.
type templateShape struct {
	VCPUs     int   `json:"vcpus,omitempty"`
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	DiskMiB   int64 `json:"disk_mib,omitempty"`
	MaxPIDs   int64 `json:"max_pids,omitempty"`
}

func viewTemplate(t *sandbox.Template, all bool) templateView {
	v := templateView{
		Name: t.Name, Description: oneLine(cleanText(t.Description)), Source: t.Source, State: string(t.State), Reason: shortenText(cleanText(t.Reason), maxBuildOutput),
		Version: t.Version, Aliases: t.Aliases, SizeBytes: t.SizeBytes, WarmBytes: t.WarmBytes, BuiltAt: t.BuiltAt,
	}
	if d := t.Desktop; d != nil {
		v.Screen = fmt.Sprintf("%dx%d", d.Width, d.Height)
	}
	if all {
		v.User, v.WorkDir, v.Env, v.Resources, v.Packages, v.Ports = t.User, t.WorkDir, t.Env, templateShape(t.Resources), t.Packages, t.Ports
		v.Versions, v.Network = t.Versions, t.Network
		for language, code := range t.Warm {
			if v.Warm == nil {
				v.Warm = make(map[string]string)
			}
			v.Warm[language] = shorten([]string{code})
		}
		if t.Start != nil {
			v.Start = shorten([]string{t.Start.Command})
		}
	}
	return v
}

func (v *templateView) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", v.Name, v.State)
	if v.Version > 0 {
		fmt.Fprintf(&b, " version=%d", v.Version)
	}
	if len(v.Aliases) > 0 {
		fmt.Fprintf(&b, " aliases=%s", strings.Join(v.Aliases, ","))
	}
	if v.SizeBytes > 0 {
		fmt.Fprintf(&b, " size=%dMiB", v.SizeBytes>>20)
	}
	if v.Description != "" {
		fmt.Fprintf(&b, ": %s", v.Description)
	}
	if v.State == string(sandbox.TemplateFailed) {
		fmt.Fprintf(&b, " (%s)", oneLine(v.Reason))
	}
	return b.String()
}

func templateProps() []prop {
	return []prop{
		req("name", text("")), opt("description", text("")),
		req("source", text("What it is made from.")),
		req("state", oneOf("available is defined and not built.", string(sandbox.TemplateBuilding), string(sandbox.TemplateReady), string(sandbox.TemplateFailed), string(sandbox.TemplateAvailable))),
		opt("reason", text("Why the last build failed.")),
		opt("version", count("The newest; NAME@N names one.")), opt("aliases", array("Further names.", text(""), 0, 0)),
		opt("size_bytes", count("")), opt("warm_bytes", count("What the state of a first sandbox takes on disk, from which others begin.")), opt("built_at", moment("")),
		opt("user", text("")), opt("workdir", text("")), opt("env", pairs("", 0, 0)),
		opt("resources", object("", opt("vcpus", count("")), opt("memory_mib", count("")), opt("disk_mib", count("")), opt("max_pids", count("")))),
		opt("packages", array("", text(""), 0, 0)),
		opt("start", text("What runs in its sandboxes.")), opt("ports", array("", count(""), 0, 0)),
		opt("screen", text("Its sandboxes have one, of so many pixels.")),
	}
}

func templateList() dialect.Tool {
	return dialect.New(toolsetTemplates, &mcp.Tool{
		Name:        "template_list",
		Title:       "List templates",
		Description: "List the templates that sandbox_create can begin with, and those that template_build can build.",
		Annotations: annotations("List templates", true, false, true, false),
		InputSchema: input(),
		OutputSchema: output(
			req("templates", array("", object("", templateProps()...), 0, 0)),
		),
	}, func(ctx context.Context, c *dialect.Call, _ struct{}) (*mcp.CallToolResult, error) {
		list, err := sandbox.All(ctx, c.Service.ListTemplates)
		if err != nil {
			return nil, err
		}
		views := []templateView{}
		var b strings.Builder
		for i := range list {
			v := viewTemplate(&list[i], false)
			views = append(views, v)
			b.WriteString(v.line() + "\n")
		}
		return dialect.Text(b.String(), struct {
			Templates []templateView `json:"templates"`
		}{views}), nil
	})
}

type templateArgs struct {
	Name string `json:"name"`
}

func templateArg(description string) prop { return req("name", bounded(description, 1, 256)) }

func templateGet() dialect.Tool {
	return dialect.New(toolsetTemplates, &mcp.Tool{
		Name:        "template_get",
		Title:       "Show a template",
		Description: "Tell what a template is made of and what its sandboxes begin with.",
		Annotations: annotations("Show a template", true, false, true, false),
		InputSchema: input(templateArg("Name, NAME@VERSION or alias.")),
		OutputSchema: output(concat(templateProps(), []prop{
			opt("versions", array("Those that are kept, the newest first.", count(""), 0, 0)),
			opt("warm", pairs("Code that its sandboxes' interpreters have run, by language.", 0, 0)),
			opt("network", &jsonschema.Schema{Type: "object", Description: "What its sandboxes may reach unless they say otherwise, as network_get tells it."}),
		})...),
	}, func(ctx context.Context, c *dialect.Call, in templateArgs) (*mcp.CallToolResult, error) {
		t, err := c.Service.GetTemplate(ctx, in.Name)
		if err != nil {
			return nil, err
		}
		v := viewTemplate(t, true)
		return dialect.Text(v.line(), v), nil
	})
}

func templateDelete() dialect.Tool {
	return dialect.New(toolsetTemplates, &mcp.Tool{
		Name:         "template_delete",
		Title:        "Delete a template",
		Description:  "Delete a template with all versions, or NAME@VERSION. Its sandboxes and snapshots live on; a built-in one is only unbuilt. Templates belong to everybody on the server.",
		Annotations:  annotations("Delete a template", false, true, false, false),
		InputSchema:  input(templateArg("Name or NAME@VERSION.")),
		OutputSchema: output(req("deleted", text(""))),
	}, func(ctx context.Context, c *dialect.Call, in templateArgs) (*mcp.CallToolResult, error) {
		if err := c.Service.DeleteTemplate(ctx, in.Name); err != nil {
			return nil, err
		}
		return dialect.Text("Deleted template "+in.Name+".", struct {
			Deleted string `json:"deleted"`
		}{in.Name}), nil
	})
}

type templateFileArgs struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Mode    string `json:"mode"`
	Owner   string `json:"owner"`
}

type templateBuildArgs struct {
	Name         string                  `json:"name"`
	Force        bool                    `json:"force"`
	From         *sandbox.TemplateSource `json:"from"`
	Description  string                  `json:"description"`
	Apt          []string                `json:"apt"`
	Pip          []string                `json:"pip"`
	NPM          []string                `json:"npm"`
	Files        []templateFileArgs      `json:"files"`
	Run          []string                `json:"run"`
	Env          map[string]string       `json:"env"`
	WorkDir      string                  `json:"workdir"`
	User         string                  `json:"user"`
	VCPUs        int                     `json:"vcpus"`
	MemoryMiB    int64                   `json:"memory_mib"`
	DiskMiB      int64                   `json:"disk_mib"`
	MaxPIDs      int64                   `json:"max_pids"`
	Start        *sandbox.StartCommand   `json:"start"`
	Warm         map[string]string       `json:"warm"`
	Desktop      *sandbox.Desktop        `json:"desktop"`
	Ports        []int                   `json:"ports"`
	BuildNetwork string                  `json:"build_network"`
	Network      string                  `json:"network"`
	WaitMS       *int64                  `json:"wait_ms"`
}

func waitArg() prop {
	return opt("wait_ms", with(integer("Return after this many milliseconds though it is not done; it goes on.", 0, buildWaitMax.Milliseconds()), buildWait.Milliseconds()))
}

func packagesSchema(description string) *jsonschema.Schema {
	return array(description, bounded("", 1, 512), 0, sandbox.MaxTemplatePackages)
}

func presetSchema(description string) *jsonschema.Schema {
	return oneOf(description, string(sandbox.NetworkOpen), string(sandbox.NetworkPackages), string(sandbox.NetworkNone))
}

func templateBuild() dialect.Tool {
	source := func(description string) *jsonschema.Schema { return bounded(description, 1, 1024) }
	return dialect.New(toolsetTemplates, &mcp.Tool{
		Name:  "template_build",
		Title: "Build a template",
		Description: "Build a template, so that sandboxes begin with packages, files and programs in place. Without from, one that is defined or was built before. " +
			"It goes on in the background: poll template_build_status until its state is ready or failed. Steps that an earlier build has done the same way are not done again.",
		Annotations: annotations("Build a template", false, false, false, true),
		InputSchema: input(
			req("name", bounded("Lower-case letters, digits and dashes. One that is built gets a new version if force is set.", 1, sandbox.MaxNameLength)),
			opt("from", object("What it begins with: exactly one.",
				opt("image", source("OCI image, such as python:3.12-slim.")), opt("debian", source("Release: bookworm.")),
				opt("template", source("Another template, or NAME@VERSION.")), opt("snapshot", source("Files of a snapshot of yours.")),
				opt("host", boolean("The server's own programs.")), opt("archive", source("File on the server.")), opt("directory", source("Directory on the server.")))),
			opt("description", bounded("", 0, 1024)),
			opt("apt", packagesSchema("Debian packages.")), opt("pip", packagesSchema("Such as pandas==2.2.3.")), opt("npm", packagesSchema("Installed globally.")),
			opt("files", array("Written after the packages.", object("", req("path", bounded("Absolute.", 1, sandbox.MaxPathBytes)),
				req("content", bounded("", 0, sandbox.MaxTemplateFileBytes)), opt("mode", bounded("Octal; 0644 if left out.", 0, 6)), opt("owner", bounded("root if left out.", 0, 64))), 0, sandbox.MaxTemplateFiles)),
			opt("run", array("Then commands for /bin/sh -c, as root in workdir.", bounded("", 1, 128<<10), 0, sandbox.MaxTemplateSteps)),
			opt("env", envSchema("Of the steps and the sandboxes.")),
			opt("workdir", bounded("Where steps and sandboxes begin; made if missing.", 0, sandbox.MaxPathBytes)),
			opt("user", bounded("Who sandboxes run as; made if missing.", 0, 64)),
			opt("vcpus", integer("", 1, sandbox.MaxVCPUs)), opt("memory_mib", integer("", sandbox.MinMemoryMiB, sandbox.MaxMemoryMiB)), opt("disk_mib", integer("", sandbox.MinDiskMiB, sandbox.MaxDiskMiB)),
			opt("max_pids", integer("", sandbox.MinPIDs, sandbox.MaxPIDsLimit)),
			opt("start", object("A program that runs in each sandbox from its beginning.", req("command", bounded("", 1, 128<<10)),
				opt("ready", bounded("Command that succeeds when it is ready.", 0, 128<<10)), opt("timeout_ms", integer("", 0, sandbox.MaxStartTimeout.Milliseconds())))),
			opt("warm", pairs("Code by language (python, javascript) that has run when a sandbox begins, such as imports.", 8, sandbox.MaxCodeBytes)),
			opt("desktop", object("Sandboxes have a screen, for computer_*. Without start, the X server that is installed runs.", req("width", integer("In pixels.", 64, sandbox.MaxScreenWidth)),
				req("height", integer("", 64, sandbox.MaxScreenHeight)), opt("display", bounded(":1 if left out.", 0, 8)))),
			opt("ports", array("On which sandboxes serve something.", integer("", 1, 65535), 0, sandbox.MaxPublishedPorts)),
			opt("build_network", with(presetSchema("What the steps reach."), string(sandbox.NetworkPackages))),
			opt("network", presetSchema("What sandboxes reach unless they say otherwise.")),
			opt("force", with(boolean("Build although it is ready, without what earlier builds have kept; or a name that is made of something else."), false)),
			waitArg(),
		),
		OutputSchema: output(buildProps()...),
	}, func(ctx context.Context, c *dialect.Call, in templateBuildArgs) (*mcp.CallToolResult, error) {
		spec, err := in.spec()
		if err != nil {
			return nil, err
		}
		c.Status("building " + in.Name)
		b, err := c.Service.StartBuild(ctx, sandbox.BuildTemplateRequest{Name: in.Name, Spec: spec, Force: in.Force})
		if err != nil {
			return nil, err
		}
		return awaitBuild(ctx, c, b.ID, in.WaitMS)
	})
}

// defines returns the names of the arguments, from left out, that say what a
// template is made of.
func (in *templateBuildArgs) defines() []string {
	var names []string
	v := reflect.ValueOf(*in)
	for i := range v.NumField() {
		name, set := v.Type().Field(i).Tag.Get("json"), !v.Field(i).IsZero()
		switch v.Field(i).Kind() {
		case reflect.Slice, reflect.Map:
			set = v.Field(i).Len() > 0
		}
		switch name {
		case "name", "force", "from", "wait_ms":
			set = false
		case "build_network":
			set = in.BuildNetwork != "" && in.BuildNetwork != string(sandbox.NetworkPackages) // the default
		}
		if set {
			names = append(names, name)
		}
	}
	return names
}

// spec returns what is to be built, or nil for what is defined.
func (in *templateBuildArgs) spec() (*sandbox.TemplateSpec, error) {
	if in.From == nil {
		if idle := in.defines(); len(idle) > 0 {
			return nil, invalid("without from, what is defined or was built before is built as it was, and %s cannot be taken; set from, such as {\"debian\": \"bookworm\"}, or leave it out", strings.Join(idle, ", "))
		}
		return nil, nil
	}
	s := &sandbox.TemplateSpec{
		Description: in.Description, From: *in.From, Apt: in.Apt, Pip: in.Pip, NPM: in.NPM, Env: in.Env, WorkDir: in.WorkDir, User: in.User,
		Resources: sandbox.Resources{VCPUs: in.VCPUs, MemoryMiB: in.MemoryMiB, DiskMiB: in.DiskMiB, MaxPIDs: in.MaxPIDs},
		Start:     in.Start, Warm: in.Warm, Desktop: in.Desktop, Ports: in.Ports,
	}
	for _, f := range in.Files {
		s.Files = append(s.Files, sandbox.TemplateFile{Path: f.Path, Content: []byte(f.Content), Mode: f.Mode, Owner: f.Owner})
	}
	for _, r := range in.Run {
		s.Run = append(s.Run, sandbox.TemplateStep{Run: r})
	}
	if in.BuildNetwork != "" && in.BuildNetwork != string(sandbox.NetworkPackages) {
		s.BuildNetwork = &sandbox.NetworkPolicy{Preset: sandbox.NetworkPreset(in.BuildNetwork)}
	}
	if in.Network != "" {
		s.Network = &sandbox.NetworkPolicy{Preset: sandbox.NetworkPreset(in.Network)}
	}
	return s, nil
}

// buildView is a build in a result.
type buildView struct {
	BuildID   string     `json:"build_id"`
	Template  string     `json:"template"`
	State     string     `json:"state"`
	Reason    string     `json:"reason,omitempty"`
	Step      string     `json:"step,omitempty"`
	Fraction  float64    `json:"fraction"`
	Version   int        `json:"version,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	EndedAt   *time.Time `json:"ended_at,omitempty"`
	Log       string     `json:"log,omitempty"`
	Hint      string     `json:"hint,omitempty"`
}

func buildProps() []prop {
	return []prop{
		req("build_id", text("Give it to template_build_status.")), req("template", text("")),
		req("state", oneOf("", string(sandbox.BuildRunning), string(sandbox.BuildReady), string(sandbox.BuildFailed), string(sandbox.BuildCancelled))),
		opt("reason", text("Why it failed.")), opt("step", text("")), req("fraction", number("0 to 1.")),
		opt("version", count("What it made of the template.")), req("created_at", moment("")), opt("ended_at", moment("")),
		opt("log", text("The end of what the steps wrote.")), opt("hint", text("What to do next.")),
	}
}

type buildStatusArgs struct {
	Build  string `json:"build_id"`
	Cancel bool   `json:"cancel"`
	WaitMS *int64 `json:"wait_ms"`
}

func templateBuildStatus() dialect.Tool {
	return dialect.New(toolsetTemplates, &mcp.Tool{
		Name:        "template_build_status",
		Title:       "Look at a build",
		Description: "Tell how a build of a template goes, with the end of its log; wait for its end. With cancel it is ended and leaves nothing.",
		Annotations: annotations("Look at a build", false, true, true, false),
		InputSchema: input(
			req("build_id", bounded("From template_build.", 1, 128)),
			opt("cancel", with(boolean("End the build."), false)),
			waitArg(),
		),
		OutputSchema: output(buildProps()...),
	}, func(ctx context.Context, c *dialect.Call, in buildStatusArgs) (*mcp.CallToolResult, error) {
		if in.Cancel {
			if _, err := c.Service.CancelBuild(ctx, in.Build); err != nil {
				return nil, err
			}
		}
		return awaitBuild(ctx, c, in.Build, in.WaitMS)
	})
}

// awaitBuild follows a build until it has ended or the wait is over, and tells
// how it goes.
func awaitBuild(ctx context.Context, c *dialect.Call, id string, waitMS *int64) (*mcp.CallToolResult, error) {
	wait := max(c.Handover, buildWait)
	if waitMS != nil {
		wait = time.Duration(*waitMS) * time.Millisecond
	}
	log := newCapture(maxBuildOutput)
	enough := errors.New("enough")
	// What there is comes at once, and more until the time is over.
	bounded, cancel := context.WithTimeoutCause(ctx, max(wait, 500*time.Millisecond), enough)
	defer cancel()
	b, err := c.Service.FollowBuild(bounded, id, func(ev sandbox.BuildEvent) error {
		log.write([]byte(ev.Log))
		if ev.Step != "" {
			c.Progress(ev.Fraction, oneLine(ev.Step))
		}
		return nil
	})
	if err != nil && ctx.Err() == nil && context.Cause(bounded) == enough {
		b, err = c.Service.GetBuild(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	v := buildView{
		BuildID: b.ID, Template: b.Template, State: string(b.State), Reason: shortenText(cleanText(b.Reason), maxBuildOutput), Step: oneLine(cleanText(b.Step)),
		Fraction: b.Fraction, Version: b.Version, CreatedAt: b.CreatedAt, EndedAt: b.EndedAt,
		Log: log.result(func(n int64) string { return fmt.Sprintf("\n… %s left out …\n", plural(n, "byte")) }).text,
	}
	text, told := fmt.Sprintf("Build %s of template %s ", v.BuildID, v.Template), v.Log
	switch b.State {
	case sandbox.BuildReady:
		v.Hint = fmt.Sprintf("sandbox_create with template %q begins with it.", b.Template)
		text, told = text+fmt.Sprintf("is ready as version %d. %s", v.Version, v.Hint), ""
	case sandbox.BuildRunning:
		v.Hint = fmt.Sprintf("call template_build_status with build_id %q again.", b.ID)
		text += fmt.Sprintf("is under way (%d %%): %s; %s", int(v.Fraction*100), v.Step, v.Hint)
	case sandbox.BuildCancelled:
		text += "was cancelled: " + v.Reason
	default:
		text += "has failed: " + v.Reason
		told = strings.TrimSuffix(strings.TrimRight(told, "\n"), v.Reason) // which it ends with
	}
	if told != "" {
		text += "\n\n" + told
	}
	return dialect.Text(text, v), nil
}
