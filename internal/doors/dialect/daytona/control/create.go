package control

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

// createBody describes a sandbox to be made.
type createBody struct {
	Name             string              `json:"name"`
	Snapshot         string              `json:"snapshot"`
	BuildInfo        *buildInfo          `json:"buildInfo"`
	User             string              `json:"user"`
	Env              map[string]string   `json:"env"`
	Labels           map[string]string   `json:"labels"`
	Public           bool                `json:"public"`
	Target           string              `json:"target"`
	SandboxClass     string              `json:"sandboxClass"`
	CPU              float64             `json:"cpu"`
	Memory           float64             `json:"memory"`
	Disk             float64             `json:"disk"`
	AutoStop         *int64              `json:"autoStopInterval"`
	AutoPause        *int64              `json:"autoPauseInterval"`
	AutoArchive      *int64              `json:"autoArchiveInterval"`
	AutoDelete       *int64              `json:"autoDeleteInterval"`
	TTL              *int64              `json:"ttlMinutes"`
	Volumes          []mount             `json:"volumes"`
	Secrets          []map[string]string `json:"secrets"`
	NetworkBlockAll  *bool               `json:"networkBlockAll"`
	NetworkAllowList *string             `json:"networkAllowList"`
	DomainAllowList  *string             `json:"domainAllowList"`
	// These are refused.
	GPU           json.RawMessage `json:"gpu"`
	GPUType       json.RawMessage `json:"gpuType"`
	Spot          json.RawMessage `json:"spot"`
	OutboundProxy json.RawMessage `json:"outboundProxyUrl"`
	Linked        json.RawMessage `json:"linkedSandbox"`
	OTEL          json.RawMessage `json:"otelEndpointOverride"`
	KVM           json.RawMessage `json:"kvm"`
}

// defaultAutoStop is the idle time of a sandbox in minutes, unless its client says otherwise.
const defaultAutoStop = 15

// check refuses what would have no effect.
func (b *createBody) check() error {
	for _, f := range []struct {
		name, why string
		raw       json.RawMessage
	}{
		{"gpu", "there are no GPUs", b.GPU}, {"gpuType", "there are no GPUs", b.GPUType}, {"spot", "there are no spot sandboxes", b.Spot},
		{"outboundProxyUrl", "traffic goes by the server's own gateway", b.OutboundProxy},
		{"linkedSandbox", "sandboxes have lives of their own", b.Linked}, {"otelEndpointOverride", "there is no tracing in sandboxes", b.OTEL},
		{"kvm", "there is no /dev/kvm in sandboxes", b.KVM},
	} {
		if answer.Given(f.raw) {
			return answer.Refused(f.name, f.why)
		}
	}
	switch {
	case b.Target != "" && b.Target != target:
		return answer.Refused("target", "there are no regions; leave it out and unset DAYTONA_TARGET")
	case b.SandboxClass != "" && b.SandboxClass != class:
		return answer.Refused("sandboxClass", "there is one class, "+class)
	case b.Snapshot != "" && b.BuildInfo != nil:
		return answer.Invalid("snapshot and buildInfo are both given; a sandbox is made from one of them")
	case b.BuildInfo == nil && (b.CPU != 0 || b.Memory != 0 || b.Disk != 0):
		return answer.Refused("cpu, memory, disk", "a sandbox has the resources of its snapshot; give them with an image")
	}
	return checkLabels(b.Labels)
}

func checkLabels(labels map[string]string) error {
	for key := range labels {
		if strings.HasPrefix(key, access.HiddenPrefix) {
			return answer.Invalid("labels that begin with %s are Cove's own; choose another name for %.80q", access.HiddenPrefix, key)
		}
	}
	return nil
}

// life is when a sandbox ends, is stopped or paused by itself, in Cove's terms.
type life struct {
	idle, lifetime, paused int64 // seconds; 0 is no bound
	onTimeout              sandbox.TimeoutAction
}

// maxMinutes bounds a time, in minutes.
const maxMinutes = int64(sandbox.MaxLifetime / time.Minute)

// lifeOf maps the product's times, in minutes: idle time, time from the stop to the
// deletion (less than 0: never, 0: at the stop), and time from the creation to the end
// (0: none).
func lifeOf(idle, del, ttl int64) (life, error) {
	for _, f := range []struct {
		name string
		n    int64
	}{{"autoStopInterval or autoPauseInterval", idle}, {"autoDeleteInterval", max(del, 0)}, {"ttlMinutes", ttl}} {
		if f.n < 0 || f.n > maxMinutes {
			return life{}, answer.Invalid("%s is %d; give 0 to %d minutes", f.name, f.n, maxMinutes)
		}
	}
	l := life{idle: idle * 60, lifetime: ttl * 60, paused: max(del, 0) * 60, onTimeout: sandbox.ActionKill}
	if idle > 0 && del != 0 {
		if ttl > 0 {
			return life{}, answer.Refused("ttlMinutes", "a sandbox of Cove's that ends at a time cannot be stopped when it is idle; set autoStopInterval to 0, or autoDeleteInterval to 0")
		}
		l.onTimeout = sandbox.ActionPause
	}
	return l, nil
}

func or(n *int64, def int64) int64 {
	if n == nil {
		return def
	}
	return *n
}

func (p *plane) create(w http.ResponseWriter, r *http.Request) error {
	var body createBody
	if err := answer.Decode(w, r, &body); err != nil {
		return err
	}
	if err := body.check(); err != nil {
		return err
	}
	req, err := body.request()
	if err != nil {
		return err
	}
	if body.BuildInfo != nil {
		err = p.fromImage(r.Context(), &body, req)
	} else {
		err = p.fromSnapshot(r.Context(), body.Snapshot, req)
	}
	if err != nil {
		return err
	}
	box, err := p.cfg.Service.Create(r.Context(), *req)
	if err != nil {
		return err
	}
	answer.JSON(w, http.StatusOK, p.view(r, box))
	return nil
}

// request translates a client's request into Cove's, except for what the sandbox is made
// from.
func (b *createBody) request() (*sandbox.CreateRequest, error) {
	idle, err := b.idle()
	if err != nil {
		return nil, err
	}
	l, err := lifeOf(idle, or(b.AutoDelete, -1), or(b.TTL, 0))
	if err != nil {
		return nil, err
	}
	req := &sandbox.CreateRequest{
		Name: b.Name, User: b.User, Env: b.Env, Metadata: map[string]string{},
		LifetimeSeconds: &l.lifetime, IdleTimeoutSeconds: &l.idle, PausedLifetimeSeconds: l.paused, OnTimeout: l.onTimeout,
	}
	for key, value := range b.Labels {
		req.Metadata[key] = value
	}
	if or(b.AutoPause, 0) > 0 {
		req.Metadata[access.TagAutoPause] = "on"
	}
	if or(b.AutoDelete, -1) == 0 {
		req.Metadata[access.TagEphemeral] = "on"
	}
	if b.Public {
		req.Metadata[access.TagPublic] = "on"
	}
	if b.AutoArchive != nil {
		if *b.AutoArchive < 0 || *b.AutoArchive > access.MaxArchive {
			return nil, answer.Invalid("autoArchiveInterval is %d; give 0 to %d minutes", *b.AutoArchive, access.MaxArchive)
		}
		req.Metadata[access.TagArchive] = strconv.FormatInt(*b.AutoArchive, 10)
	}
	for _, m := range b.Volumes {
		if m.Subpath != "" {
			return nil, answer.Refused("volumes.subpath", "a volume is mounted whole")
		}
		req.Mounts = append(req.Mounts, sandbox.Mount{Volume: m.VolumeID, Target: m.MountPath})
	}
	req.Secrets = secretsOf(b.Secrets)
	req.Network, err = policyOf(nil, networkBody{b.NetworkBlockAll, b.NetworkAllowList, b.DomainAllowList})
	return req, err
}

// idle is the idle time in minutes.
func (b *createBody) idle() (int64, error) {
	pause := or(b.AutoPause, 0)
	if pause == 0 {
		return or(b.AutoStop, defaultAutoStop), nil
	}
	if or(b.AutoStop, 0) != 0 || or(b.AutoDelete, -1) == 0 {
		return 0, answer.Invalid("autoPauseInterval excludes autoStopInterval and autoDeleteInterval 0; give one of them")
	}
	return pause, nil
}

// resources converts the resources that a client requests with an image.
func resources(cpu, memory, disk float64) (sandbox.Resources, error) {
	for _, f := range []struct {
		name string
		n    float64
		most float64
	}{{"cpu", cpu, sandbox.MaxVCPUs}, {"memory", memory, sandbox.MaxMemoryMiB / mibPerGiB}, {"disk", disk, sandbox.MaxDiskMiB / mibPerGiB}} {
		if math.IsNaN(f.n) || f.n < 0 || f.n > f.most {
			return sandbox.Resources{}, answer.Invalid("%s is %v; give at most %v", f.name, f.n, f.most)
		}
	}
	if cpu != math.Trunc(cpu) {
		return sandbox.Resources{}, answer.Invalid("cpu is %v; give whole cores", cpu)
	}
	return sandbox.Resources{VCPUs: int(cpu), MemoryMiB: int64(memory * mibPerGiB), DiskMiB: int64(disk * mibPerGiB)}, nil
}

// splitList splits a list of names or ranges at its commas.
func splitList(text string) []string {
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return slices.DeleteFunc(parts, func(s string) bool { return s == "" })
}
