package control

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxAnnounced bounds the builds of a team that are remembered; the oldest are forgotten.
	maxAnnounced = 128
	// maxStepText bounds the text that is kept of each instruction of a build, in bytes.
	maxStepText = 256
)

// announced has the builds that clients have announced. E2B's clients first get the id of a
// build, then send files, and last say what it is made of; only then does the service know
// the build. What is lost here, for example at a restart, clients announce again.
type announced struct {
	mu     sync.Mutex
	byTeam map[string][]*announcement // the oldest first; guarded by mu
}

// announcement is a build that was announced, and what became of it.
type announcement struct {
	id, team, name string
	tags           []string
	shape          sandbox.Resources

	mu sync.Mutex
	// begun is set while the build is begun and after; guarded by mu.
	begun bool
	// build is the service's; guarded by mu.
	build string
	// of has, for each step of the service's build, the instruction that it belongs to, and
	// texts has the shortened instructions; guarded by mu.
	of    []int
	texts []string
	// tagged is closed when the tags are set or could not be; guarded by mu. tagErr is
	// written before.
	tagged chan struct{}
	tagErr error
}

func (a *announced) add(b *announcement) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byTeam == nil {
		a.byTeam = map[string][]*announcement{}
	}
	list := append(a.byTeam[b.team], b)
	a.byTeam[b.team] = list[max(0, len(list)-maxAnnounced):]
}

// find returns a build of a team's by its id and template.
func (a *announced) find(team, name, id string) (*announcement, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range a.byTeam[team] {
		if b.id == id && b.name == name {
			return b, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.CodeNotFound, "build '%.80s' of template '%.80s' not found; announce it again, the server remembers the last %d of a team until it is restarted", id, name, maxAnnounced)
}

// announceBody announces a build of a template.
type announceBody struct {
	Name     string   `json:"name"`
	Tags     []string `json:"tags"`
	CPUCount int      `json:"cpuCount"`
	MemoryMB int64    `json:"memoryMB"`
	FreeDisk int64    `json:"minFreeDiskMb"`
	// These are sent by older clients.
	Alias  string `json:"alias"`
	TeamID string `json:"teamID"`
}

type announceAnswer struct {
	TemplateID string   `json:"templateID"`
	BuildID    string   `json:"buildID"`
	Public     bool     `json:"public"`
	Names      []string `json:"names"`
	Tags       []string `json:"tags"`
	Aliases    []string `json:"aliases"`
}

func (p *plane) announce(r *http.Request, _ []string, body *announceBody) (*response, error) {
	caller, _ := sandbox.CallerOf(r.Context())
	if err := caller.Need(sandbox.ScopeTemplatesWrite); err != nil {
		return nil, err
	}
	if body.Name == "" {
		body.Name = body.Alias
	}
	switch {
	case body.Name == "":
		return nil, invalid("Name is required")
	case body.TeamID != "" && body.TeamID != caller.Team:
		return nil, sandbox.Errorf(sandbox.CodeForbidden, "teamID is not the key's team; leave it out")
	}
	name, tag, err := p.reference(r.Context(), body.Name)
	if err != nil {
		return nil, err
	}
	tags, err := tagsOf(append([]string{tag}, body.Tags...))
	if err != nil {
		return nil, err
	}
	for _, tag := range append(tags, defaultTag) { // not only when it is built
		if alias := tagged(name, tag); len(alias) > sandbox.MaxNameLength {
			return nil, invalid("Invalid name: %.80q has %d bytes; give at most %d, a tag and the dot before it among them", alias, len(alias), sandbox.MaxNameLength)
		}
	}
	for i := range tags { // nothing of the body is kept that is around them
		tags[i] = strings.Clone(tags[i])
	}
	b := &announcement{id: strings.ToLower(rand.Text()), team: caller.Team, name: strings.Clone(name), tags: tags, tagged: make(chan struct{})}
	b.shape = sandbox.Resources{VCPUs: body.CPUCount, MemoryMiB: body.MemoryMB}
	if body.FreeDisk > 0 {
		b.shape.DiskMiB = max(body.FreeDisk, sandbox.DefaultDiskMiB)
	}
	p.announced.add(b)
	return &response{http.StatusAccepted, announceAnswer{
		TemplateID: name, BuildID: b.id, Public: true, Names: []string{name}, Aliases: []string{name}, Tags: append([]string{defaultTag}, tags...),
	}}, nil
}

// uploadLink answers with the address to which an archive is sent, whose hash the client
// has chosen.
func (p *plane) uploadLink(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	_, _, err := p.reference(r.Context(), args[0])
	if err != nil {
		return nil, err
	}
	link, err := p.cfg.Service.LinkUpload(r.Context(), sandbox.UploadLinkRequest{Name: args[1], SizeBytes: sandbox.MaxUploadBytes})
	if err != nil {
		return nil, err
	}
	to := link.URL
	if own, err := url.Parse(to); err == nil && own.Host != "" && !auth.ViaUnixSocket(r) {
		_, base := p.cfg.Address()
		to = sdkdoor.Origin(r, base) + own.RequestURI()
	}
	return &response{http.StatusCreated, map[string]any{"present": link.Present, "url": to}}, nil
}

// announcedBuild returns the build of a request, whose parts are a template and a build.
func (p *plane) announcedBuild(ctx context.Context, args []string) (*announcement, error) {
	caller, _ := sandbox.CallerOf(ctx)
	name, _, err := p.reference(ctx, args[0])
	if err != nil {
		return nil, err
	}
	return p.announced.find(caller.Team, name, args[1])
}

// startBuild begins a build that was announced.
func (p *plane) startBuild(r *http.Request, args []string, body *buildBody) (*response, error) {
	b, err := p.announcedBuild(r.Context(), args)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	was := b.begun
	b.begun = true
	b.mu.Unlock()
	if was {
		return nil, invalid("build is not in waiting state")
	}
	of, id, err := p.beginBuild(r.Context(), b, body)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.begun = false // it can be tried again
		return nil, err
	}
	b.build, b.of, b.texts = id, of, textsOf(body.Steps)
	go p.tagBuilt(context.WithoutCancel(r.Context()), b, id)
	return &response{status: http.StatusAccepted}, nil
}

// beginBuild starts the service's build. It returns the build's id, and which instruction
// each of its steps belongs to.
func (p *plane) beginBuild(ctx context.Context, b *announcement, body *buildBody) (of []int, id string, err error) {
	login, err := body.Registry.login()
	if err != nil {
		return nil, "", err
	}
	recipe, err := p.recipeOf(ctx, body, b.shape)
	if err != nil {
		return nil, "", err
	}
	req := sandbox.BuildTemplateRequest{Name: b.name, Spec: recipe.spec, Force: body.Force, Login: login}
	build, err := p.cfg.Service.StartBuild(ctx, req)
	if !req.Force && sandbox.CodeOf(err) == sandbox.CodeConflict {
		req.Force = true // the template is made of something else now
		build, err = p.cfg.Service.StartBuild(ctx, req)
	}
	if err != nil {
		return nil, "", err
	}
	return recipe.of, build.ID, nil
}

// textsOf describes instructions, as the log names them.
func textsOf(steps []buildStep) []string {
	texts := make([]string, len(steps))
	for i, s := range steps {
		texts[i] = clip.Text("["+strconv.Itoa(i+1)+"/"+strconv.Itoa(len(steps))+"] "+s.Type+" "+strings.Join(s.Args, " "), maxStepText)
	}
	return texts
}

// tagBuilt waits for the end of a build, and sets the tags that it was announced with. It
// ends with the build, or with the server.
func (p *plane) tagBuilt(ctx context.Context, b *announcement, id string) {
	defer close(b.tagged)
	if len(b.tags) == 0 {
		return
	}
	built, err := p.cfg.Service.FollowBuild(ctx, id, func(sandbox.BuildEvent) error { return nil })
	if err == nil && built.State == sandbox.BuildReady {
		err = p.tag(ctx, b.name, built.Version, b.tags)
	}
	b.tagErr = err
}

// logEntry is a line of a build's log. Its time is when it is sent, since the log of a build
// has no times.
type logEntry struct {
	Time    time.Time `json:"timestamp"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
	Step    string    `json:"step,omitempty"`
}

// reason says why a build failed.
type reason struct {
	Message string     `json:"message"`
	Step    string     `json:"step,omitempty"`
	Entries []logEntry `json:"logEntries"`
}

type buildStatus struct {
	TemplateID string     `json:"templateID"`
	BuildID    string     `json:"buildID"`
	Status     string     `json:"status"`
	Entries    []logEntry `json:"logEntries"`
	Logs       []string   `json:"logs"`
	Reason     *reason    `json:"reason,omitempty"`
}

const (
	// maxEntries is how much of a log is returned at once.
	maxEntries = 100
	// logPatience is how long a build under way is listened to if it says nothing new.
	logPatience = time.Second
)

var errEnough = errors.New("enough of the log")

// buildStatus answers with the state of a build, and its log from an offset.
func (p *plane) buildStatus(_ http.ResponseWriter, r *http.Request, args []string) (*response, error) {
	b, err := p.announcedBuild(r.Context(), args)
	if err != nil {
		return nil, err
	}
	offset, limit, err := readWindow(r)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	id := b.build
	b.mu.Unlock()
	out := buildStatus{TemplateID: b.name, BuildID: b.id, Status: "waiting", Entries: []logEntry{}, Logs: []string{}}
	if id == "" {
		return &response{http.StatusOK, out}, nil
	}
	now, err := p.cfg.Service.GetBuild(r.Context(), id)
	if err != nil {
		return nil, err
	}
	log := &logWindow{skip: offset, limit: limit, of: b}
	ctx, cancel := context.WithTimeout(r.Context(), logPatience)
	defer cancel()
	ended, err := p.cfg.Service.FollowBuild(ctx, id, log.take)
	switch {
	case err == nil:
		now = ended
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	case !log.enough && ctx.Err() == nil:
		return nil, err
	}
	if log.entries != nil {
		out.Entries = log.entries
	}
	for _, e := range out.Entries {
		out.Logs = append(out.Logs, e.Message)
	}
	return &response{http.StatusOK, p.stateOf(r.Context(), b, now, out)}, nil
}

// stateOf adds the state of a build, which is ready when its tags are set.
func (p *plane) stateOf(ctx context.Context, b *announcement, now *sandbox.Build, out buildStatus) buildStatus {
	switch now.State {
	case sandbox.BuildRunning:
		out.Status = "building"
	case sandbox.BuildReady:
		out.Status = "building"
		select {
		case <-b.tagged:
			if out.Status = "ready"; b.tagErr != nil {
				out.Status, out.Reason = "error", &reason{Message: "the template is built, but not tagged: " + sandbox.MessageOf(b.tagErr), Step: "finalize", Entries: []logEntry{}}
			}
		case <-ctx.Done():
		}
	default:
		out.Status, out.Reason = "error", &reason{Message: now.Reason, Step: b.failedAt(now.Reason), Entries: []logEntry{}}
	}
	return out
}

// readWindow reads which part of a log a client wants.
func readWindow(r *http.Request) (offset, limit int, err error) {
	query := r.URL.Query()
	limit = maxEntries
	for name, to := range map[string]*int{"logsOffset": &offset, "limit": &limit} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		if *to, err = strconv.Atoi(text); err != nil || *to < 0 {
			return 0, 0, invalid("validation error: %s %.80q is not a number from 0", name, text)
		}
	}
	if level := query.Get("level"); level != "" && !slices.Contains([]string{"debug", levelInfo}, level) {
		return 0, 0, refused("level")
	}
	return offset, min(limit, maxEntries), nil
}

const levelInfo = "info"

// logWindow keeps a part of a build's log. An event of a build is an entry if it writes
// something, and one if a step begins with it.
type logWindow struct {
	skip, limit int
	of          *announcement
	step        string
	entries     []logEntry
	enough      bool
}

func (l *logWindow) take(e sandbox.BuildEvent) error {
	if e.Step != "" && e.Step != l.step {
		l.step = e.Step
		if err := l.add(l.of.stepText(e.Step)); err != nil {
			return err
		}
	}
	if e.Log == "" || e.Failed { // the reason of a failure comes with the state
		return nil
	}
	return l.add(strings.TrimRight(strings.ToValidUTF8(e.Log, "\uFFFD"), "\n"))
}

func (l *logWindow) add(message string) error {
	if l.skip > 0 {
		l.skip--
		return nil
	}
	if l.enough = len(l.entries) >= l.limit; l.enough {
		return errEnough
	}
	l.entries = append(l.entries, logEntry{Time: time.Now().UTC(), Level: levelInfo, Message: message, Step: l.of.instruction(l.step)})
	return nil
}

// builtStep recognizes a step of the service's: its number, and how many there are.
var builtStep = lazyregexp.New(`^(?:step )?(\d+)(?:/| of )(\d+) `)

// instruction returns the number of the client's instruction that a step of the service
// belongs to, or "".
func (b *announcement) instruction(step string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := builtStep.FindStringSubmatch(step)
	if m == nil {
		return ""
	}
	n, err := strconv.Atoi(m[1])
	total, err2 := strconv.Atoi(m[2])
	// The service's own steps, which make the user and the directory, come first.
	at := n - 1 - (total - len(b.of))
	if err != nil || err2 != nil || at < 0 || at >= len(b.of) || b.of[at] < 1 {
		return ""
	}
	return strconv.Itoa(b.of[at])
}

// stepText describes a step by the client's instruction.
func (b *announcement) stepText(step string) string {
	n, err := strconv.Atoi(b.instruction(step))
	if err != nil {
		return step
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.texts[n-1]
}

// failedAt returns the product's name of the step at which a build failed.
func (b *announcement) failedAt(why string) string {
	if n := b.instruction(why); n != "" {
		return n
	}
	if strings.Contains(why, "start command") {
		return "finalize"
	}
	return "base"
}
