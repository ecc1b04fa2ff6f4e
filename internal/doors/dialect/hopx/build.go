package hopx

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// The product's documented limits of a template.
const (
	maxCPU          = 64
	minBuildMemory  = 512
	maxBuildMemory  = 64000
	maxBuildDisk    = 250
	maxReadyTimeout = int64(600_000)
)

// buildRequest describes a template in the product's terms.
type buildRequest struct {
	Name        string       `json:"name"`
	FromImage   string       `json:"from_image"`
	CPU         int64        `json:"cpu"`
	Memory      int64        `json:"memory"`
	Disk        int64        `json:"diskGB"`
	Steps       []buildStep  `json:"steps"`
	Start       string       `json:"startCmd"`
	Ready       *readiness   `json:"readyCmd"`
	SkipCache   bool         `json:"skipCache"`
	Update      bool         `json:"update"`
	Credentials *credentials `json:"registry_credentials"`
	// Agent is the version of the product's agent. It is refused.
	Agent string `json:"agent_version"`
}

// buildStep is an instruction of a build. Some clients send its arguments as a list, others
// by name.
type buildStep struct {
	Type  string   `json:"type"`
	Args  []string `json:"args"`
	Key   string   `json:"key"`
	Value string   `json:"value"`
	Path  string   `json:"path"`
	// FilesHash is the client's name for the archive that it has uploaded for COPY.
	FilesHash string `json:"filesHash"`
	SkipCache bool   `json:"skipCache"`
	// Owner and Permissions are the options of COPY.
	Owner       string `json:"owner"`
	Permissions string `json:"permissions"`
}

// readiness says how to check whether the start command is ready.
type readiness struct {
	Type        string `json:"type"`
	Timeout     int64  `json:"timeout"` // in milliseconds
	Port        int    `json:"port"`
	URL         string `json:"url"`
	Path        string `json:"path"`
	ProcessName string `json:"processName"`
	Name        string `json:"name"`
	Command     string `json:"command"`
}

// anew reports whether the build must not reuse results of earlier builds. One step that
// must not be cached is enough.
func (r *buildRequest) anew() bool {
	return r.SkipCache || slices.ContainsFunc(r.Steps, func(s buildStep) bool { return s.SkipCache })
}

// spec returns the template in the service's terms. archive finds an uploaded archive by
// the client's name for it.
func (r *buildRequest) spec(archive func(name string) (string, error)) (*sandbox.TemplateSpec, error) {
	switch {
	case r.Name == "" || r.FromImage == "":
		return nil, dialect.Invalid("name and from_image are needed; give both")
	case r.CPU < 1 || r.CPU > maxCPU:
		return nil, dialect.Invalid("cpu is %d; give 1 to %d", r.CPU, maxCPU)
	case r.Memory < minBuildMemory || r.Memory > maxBuildMemory:
		return nil, dialect.Invalid("memory is %d; give %d to %d, in MB", r.Memory, minBuildMemory, maxBuildMemory)
	case r.Disk < 1 || r.Disk > maxBuildDisk:
		return nil, dialect.Invalid("diskGB is %d; give 1 to %d", r.Disk, maxBuildDisk)
	case r.Agent != "":
		return nil, dialect.Invalid("agent_version: sandboxes have Cove's own agent; leave it out")
	case len(r.Steps) > sandbox.MaxTemplateSteps:
		return nil, dialect.Invalid("there are %d steps; give at most %d", len(r.Steps), sandbox.MaxTemplateSteps)
	}
	spec := &sandbox.TemplateSpec{
		From:      sandbox.TemplateSource{Image: r.FromImage},
		Resources: sandbox.Resources{VCPUs: int(r.CPU), MemoryMiB: r.Memory, DiskMiB: r.Disk << 10},
		WorkDir:   home,
	}
	b := builder{spec: spec, archive: archive, start: r.Start}
	for i := range r.Steps {
		if err := b.step(&r.Steps[i]); err != nil {
			return nil, fmt.Errorf("step %d: %w", i+1, err)
		}
	}
	if b.start != "" {
		spec.Start = &sandbox.StartCommand{Command: b.start}
	}
	if r.Ready == nil {
		return spec, nil
	}
	if spec.Start == nil {
		return nil, dialect.Invalid("readyCmd needs a startCmd; give one, or leave readyCmd out")
	}
	var err error
	if spec.Start.Ready, err = r.Ready.command(); err != nil {
		return nil, err
	}
	if spec.Start.TimeoutMS = r.Ready.Timeout; r.Ready.Timeout < 0 || r.Ready.Timeout > maxReadyTimeout {
		return nil, dialect.Invalid("readyCmd.timeout is %d; give up to %d milliseconds", r.Ready.Timeout, maxReadyTimeout)
	}
	return spec, nil
}

// builder processes the instructions in order: each affects those after it.
type builder struct {
	spec      *sandbox.TemplateSpec
	archive   func(name string) (string, error)
	env       map[string]string
	dir, user string
	start     string
}

func (b *builder) step(s *buildStep) error {
	text := strings.Join(s.Args, " ")
	switch strings.ToUpper(s.Type) {
	case "RUN":
		if strings.TrimSpace(text) == "" {
			return dialect.Invalid("RUN has no command; give it in args")
		}
		b.spec.Run = append(b.spec.Run, sandbox.TemplateStep{Run: text, User: b.user, WorkDir: b.dir, Env: maps.Clone(b.env)})
	case "ENV":
		if err := b.setEnv(s); err != nil {
			return err
		}
		if len(b.env) > sandbox.MaxEnvPairs { // each step has them
			return dialect.Invalid("ENV: there are %d variables; give at most %d", len(b.env), sandbox.MaxEnvPairs)
		}
	case "WORKDIR":
		if s.Path != "" {
			text = s.Path
		}
		if !strings.HasPrefix(text, "/") {
			return dialect.Invalid("WORKDIR %q is not absolute; give a path such as /app", clip.Text(text, maxShown))
		}
		b.dir, b.spec.WorkDir = text, text
	case "USER":
		if text == "" {
			return dialect.Invalid("USER has no name; give it in args")
		}
		b.user, b.spec.User = text, text
	case "CMD":
		if b.start == "" {
			b.start = text
		}
	case "COPY":
		return b.copy(s)
	default:
		return dialect.Invalid("type %q is not known; use RUN, COPY, ENV, WORKDIR, USER or CMD", clip.Text(s.Type, maxShown))
	}
	return nil
}

// copy adds files of an uploaded archive. Its arguments are their names, separated by
// commas, and the destination.
func (b *builder) copy(s *buildStep) error {
	if len(s.Args) < 2 || s.Args[0] == "" || s.Args[1] == "" {
		return dialect.Invalid("COPY needs what to copy and where to; give both in args")
	}
	if len(s.Args) > 2 && strings.Join(s.Args[2:], "") != "" {
		return dialect.Invalid("COPY takes two args; give owner and permissions beside them")
	}
	if s.FilesHash == "" {
		return dialect.Invalid("COPY has no filesHash; send the files first, to upload_url of POST /v1/templates/files/upload-link")
	}
	archive, err := b.archive(s.FilesHash)
	if err != nil {
		return err
	}
	c := &sandbox.TemplateCopy{Archive: archive, Owner: s.Owner, Mode: s.Permissions}
	for source := range strings.SplitSeq(s.Args[0], ",") {
		if source = strings.TrimSpace(source); source != "" {
			c.Sources = append(c.Sources, source)
		}
	}
	dir := b.dir
	if dir == "" {
		dir = home
	}
	to := s.Args[1]
	if !path.IsAbs(to) {
		to = dir + "/" + to
	}
	if c.To = path.Clean(to); c.To != "/" && (strings.HasSuffix(to, "/") || strings.HasSuffix(to, "/.")) {
		c.To += "/"
	}
	b.spec.Run = append(b.spec.Run, sandbox.TemplateStep{Copy: c})
	return nil
}

func (b *builder) setEnv(s *buildStep) error {
	set := func(key, value string) {
		if b.env == nil {
			b.env, b.spec.Env = make(map[string]string), make(map[string]string)
		}
		b.env[key], b.spec.Env[key] = value, value
	}
	if s.Key != "" {
		set(s.Key, s.Value)
		return nil
	}
	if len(s.Args) == 2 && !strings.Contains(s.Args[0], "=") {
		set(s.Args[0], s.Args[1])
		return nil
	}
	for _, a := range s.Args {
		key, value, ok := strings.Cut(a, "=")
		if !ok || key == "" {
			return dialect.Invalid("ENV %q is not NAME=VALUE; give such, or a name and a value", clip.Text(a, maxShown))
		}
		set(key, value)
	}
	if len(s.Args) == 0 {
		return dialect.Invalid("ENV has no variable; give NAME=VALUE in args")
	}
	return nil
}

// command returns a command that succeeds once the start command is ready.
func (r *readiness) command() (string, error) {
	switch r.Type {
	case "port":
		if r.Port < 1 || r.Port > 65535 {
			return "", dialect.Invalid("readyCmd.port is %d; give 1 to 65535", r.Port)
		}
		return fmt.Sprintf("bash -c '</dev/tcp/127.0.0.1/%d'", r.Port), nil
	case "url":
		if r.URL != "" {
			return "curl -fsS -o /dev/null -- " + dialect.Quote(r.URL), nil
		}
	case "file":
		if r.Path != "" {
			return "test -e " + dialect.Quote(r.Path), nil
		}
	case "process":
		if name := r.ProcessName + r.Name; name != "" && (r.ProcessName == "" || r.Name == "") {
			return "pgrep -f -- " + dialect.Quote(name), nil
		}
	case "command":
		if r.Command != "" {
			return r.Command, nil
		}
	default:
		return "", dialect.Invalid("readyCmd.type %q is not known; use port, url, file, process or command", clip.Text(r.Type, maxShown))
	}
	return "", dialect.Invalid("readyCmd of type %s does not say what to wait for", r.Type)
}
