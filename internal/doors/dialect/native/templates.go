package native

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// maxBuildOutput bounds a build's log in a result, in bytes.
const maxBuildOutput = 8 << 10

// templateView is a template in a result.
type templateView struct {
	Name        string                `json:"name"`
	Description string                `json:"description,omitempty"`
	Source      string                `json:"source"`
	State       sandbox.TemplateState `json:"state"`
	Reason      string                `json:"reason,omitempty"`
	Version     int                   `json:"version,omitempty"`
	Aliases     []string              `json:"aliases,omitempty"`
	SizeBytes   int64                 `json:"size_bytes,omitempty"`
	WarmBytes   int64                 `json:"warm_bytes,omitempty"`
	BuiltAt     *time.Time            `json:"built_at,omitempty"`
	User        string                `json:"user,omitempty"`
	WorkDir     string                `json:"workdir,omitempty"`
	Env         map[string]string     `json:"env,omitempty"`
	Resources   templateShape         `json:"resources,omitzero"`
	Packages    []string              `json:"packages,omitempty"`
	Start       string                `json:"start,omitempty"`
	Ports       []int                 `json:"ports,omitempty"`
	Screen      string                `json:"screen,omitempty"`
}

// templateDetails is a template that was requested by name.
type templateDetails struct {
	templateView
	Versions []int                  `json:"versions,omitempty"`
	Warm     map[string]string      `json:"warm,omitempty"`
	Network  *sandbox.NetworkPolicy `json:"network,omitempty"`
}

// templateShape is the resources that a template gives its sandboxes.
type templateShape struct {
	VCPUs     int   `json:"vcpus,omitempty"`
	MemoryMiB int64 `json:"memory_mib,omitempty"`
	DiskMiB   int64 `json:"disk_mib,omitempty"`
	MaxPIDs   int64 `json:"max_pids,omitempty"`
}

// viewTemplate returns a template in a listing.
func viewTemplate(t *sandbox.Template) templateView {
	v := templateView{
		Name: t.Name, Description: oneLine(cleanText(t.Description)), Source: t.Source, State: t.State, Reason: shortenText(cleanText(t.Reason), maxBuildOutput),
		Version: t.Version, Aliases: t.Aliases, SizeBytes: t.SizeBytes, WarmBytes: t.WarmBytes, BuiltAt: t.BuiltAt,
	}
	if d := t.Desktop; d != nil {
		v.Screen = fmt.Sprintf("%dx%d", d.Width, d.Height)
	}
	return v
}

func detailTemplate(t *sandbox.Template) templateDetails {
	listed, v := viewTemplate(t), project[templateDetails](t)
	v.Description, v.Reason, v.Screen, v.Warm = listed.Description, listed.Reason, listed.Screen, nil
	for language, code := range t.Warm {
		if v.Warm == nil {
			v.Warm = make(map[string]string)
		}
		v.Warm[language] = shorten([]string{code})
	}
	if t.Start != nil {
		v.Start = shorten([]string{t.Start.Command})
	}
	return v
}

func (v *templateView) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", v.Name, v.State)
	if v.Version > 0 {
		fmt.Fprintf(&b, " version=%d", v.Version)
	}
	field(&b, " aliases=%s", strings.Join(v.Aliases, ","))
	if v.SizeBytes > 0 {
		fmt.Fprintf(&b, " size=%dMiB", v.SizeBytes>>20)
	}
	field(&b, ": %s", v.Description)
	if v.State == sandbox.TemplateFailed {
		fmt.Fprintf(&b, " (%s)", oneLine(v.Reason))
	}
	return b.String()
}

type templateList struct {
	Templates []templateView `json:"templates"`
}

func listTemplates(ctx context.Context, c *dialect.Call, _ struct{}) (*reply[templateList], error) {
	list, err := sandbox.All(ctx, c.Service.ListTemplates)
	if err != nil {
		return nil, err
	}
	out := templateList{[]templateView{}}
	var b strings.Builder
	for i := range list {
		v := viewTemplate(&list[i])
		out.Templates = append(out.Templates, v)
		b.WriteString(v.line() + "\n")
	}
	return answer(b.String(), out)
}

type templateRef struct {
	Name string `json:"name"`
}

func getTemplate(ctx context.Context, c *dialect.Call, in templateRef) (*reply[templateDetails], error) {
	t, err := c.Service.GetTemplate(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	v := detailTemplate(t)
	return answer(v.line(), v)
}

func deleteTemplate(ctx context.Context, c *dialect.Call, in templateRef) (*reply[deleted], error) {
	err := c.Service.DeleteTemplate(ctx, in.Name)
	return done(err, "Deleted template "+in.Name+".", deleted{in.Name})
}

// templateFile is a file of a template whose content is text, not base64.
type templateFile struct {
	sandbox.TemplateFile
	Content string `json:"content"`
}

// templateBuildArgs is a template's specification in a form that is easy to write for
// models.
type templateBuildArgs struct {
	Name  string `json:"name"`
	Force bool   `json:"force,omitempty"`
	sandbox.TemplateSpec
	sandbox.Resources
	From         *sandbox.TemplateSource `json:"from,omitempty"`
	Files        []templateFile          `json:"files,omitempty"`
	Run          []string                `json:"run,omitempty"`
	BuildNetwork sandbox.NetworkPreset   `json:"build_network,omitempty"`
	Network      sandbox.NetworkPreset   `json:"network,omitempty"`
	WaitMS       int64                   `json:"wait_ms,omitempty"`
}

func buildTemplate(ctx context.Context, c *dialect.Call, in templateBuildArgs) (*reply[buildView], error) {
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
}

// defines returns the names of the given arguments that define a template, except from.
func (in *templateBuildArgs) defines() []string {
	var names []string
	v := reflect.ValueOf(*in)
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		value := v.FieldByIndex(f.Index)
		set := !f.Anonymous && !value.IsZero()
		switch value.Kind() {
		case reflect.Slice, reflect.Map:
			set = value.Len() > 0
		}
		switch name {
		case "name", "force", "from", "wait_ms":
			set = false
		case "build_network":
			set = in.BuildNetwork != "" && in.BuildNetwork != sandbox.NetworkPackages // the default
		}
		if set {
			names = append(names, name)
		}
	}
	order := texts().tools["template_build"].args.paths
	slices.SortFunc(names, func(a, b string) int { return slices.Index(order, a) - slices.Index(order, b) })
	return names
}

// spec returns the specification to build, or nil to build the one that is defined.
func (in *templateBuildArgs) spec() (*sandbox.TemplateSpec, error) {
	if in.From == nil {
		if idle := in.defines(); len(idle) > 0 {
			return nil, invalid("without from, what is defined or was built before is built as it was, and %s cannot be taken; set from, such as {\"debian\": \"bookworm\"}, or leave it out", strings.Join(idle, ", "))
		}
		return nil, nil
	}
	s := in.TemplateSpec
	s.From, s.Resources = *in.From, in.Resources
	for _, f := range in.Files {
		f.TemplateFile.Content = []byte(f.Content)
		s.Files = append(s.Files, f.TemplateFile)
	}
	for _, r := range in.Run {
		s.Run = append(s.Run, sandbox.TemplateStep{Run: r})
	}
	if in.BuildNetwork != "" && in.BuildNetwork != sandbox.NetworkPackages {
		s.BuildNetwork = &sandbox.NetworkPolicy{Preset: in.BuildNetwork}
	}
	if in.Network != "" {
		s.Network = &sandbox.NetworkPolicy{Preset: in.Network}
	}
	return &s, nil
}

// buildView is a build in a result.
type buildView struct {
	BuildID   string             `json:"build_id"`
	Template  string             `json:"template"`
	State     sandbox.BuildState `json:"state"`
	Reason    string             `json:"reason,omitempty"`
	Step      string             `json:"step,omitempty"`
	Fraction  float64            `json:"fraction"`
	Version   int                `json:"version,omitempty"`
	CreatedAt time.Time          `json:"created_at"`
	EndedAt   *time.Time         `json:"ended_at,omitempty"`
	Log       string             `json:"log,omitempty"`
	Hint      string             `json:"hint,omitempty"`
}

type buildStatusArgs struct {
	Build  string `json:"build_id"`
	Cancel bool   `json:"cancel,omitempty"`
	WaitMS int64  `json:"wait_ms,omitempty"`
}

func followBuild(ctx context.Context, c *dialect.Call, in buildStatusArgs) (*reply[buildView], error) {
	if in.Cancel {
		if _, err := c.Service.CancelBuild(ctx, in.Build); err != nil {
			return nil, err
		}
	}
	return awaitBuild(ctx, c, in.Build, in.WaitMS)
}

// awaitBuild follows a build until it has ended or the wait is over, and reports
// its state.
func awaitBuild(ctx context.Context, c *dialect.Call, id string, waitMS int64) (*reply[buildView], error) {
	wait := time.Duration(waitMS) * time.Millisecond
	log := newCapture(maxBuildOutput)
	// The log so far comes at once, so even a wait of 0 needs some time to read it.
	b, err := followFor(ctx, c, max(wait, 500*time.Millisecond), id, func(ev sandbox.BuildEvent) error {
		log.write([]byte(ev.Log))
		if ev.Step != "" {
			c.Progress(ev.Fraction, oneLine(ev.Step))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	v := project[buildView](b)
	v.BuildID, v.Reason, v.Step = b.ID, shortenText(cleanText(b.Reason), maxBuildOutput), oneLine(cleanText(b.Step))
	v.Log = log.result(func(n int64) string { return fmt.Sprintf("\n… %s left out …\n", plural(n, "byte")) }).text
	text, shown := fmt.Sprintf("Build %s of template %s ", v.BuildID, v.Template), v.Log
	switch b.State {
	case sandbox.BuildReady:
		v.Hint = fmt.Sprintf("sandbox_create with template %q begins with it.", b.Template)
		text, shown = text+fmt.Sprintf("is ready as version %d. %s", v.Version, v.Hint), ""
	case sandbox.BuildRunning:
		v.Hint = fmt.Sprintf("call template_build_status with build_id %q again.", b.ID)
		text += fmt.Sprintf("is under way (%d %%): %s; %s", int(v.Fraction*100), v.Step, v.Hint)
	case sandbox.BuildCancelled:
		text += "was cancelled: " + v.Reason
	default:
		text += "has failed: " + v.Reason
		shown = strings.TrimSuffix(strings.TrimRight(shown, "\n"), v.Reason) // which it ends with
	}
	if shown != "" {
		text += "\n\n" + shown
	}
	return answer(text, v)
}
