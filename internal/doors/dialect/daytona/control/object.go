package control

import (
	"net/http"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/access"
	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

// object is a sandbox as clients know it. Times are in minutes, memory and disk in GiB.
type object struct {
	ID                  string            `json:"id"`
	OrganizationID      string            `json:"organizationId"`
	Name                string            `json:"name"`
	State               string            `json:"state"`
	ToolboxProxyURL     string            `json:"toolboxProxyUrl"`
	User                string            `json:"user"`
	Env                 map[string]string `json:"env"`
	Labels              map[string]string `json:"labels"`
	Public              bool              `json:"public"`
	Target              string            `json:"target"`
	CPU                 int               `json:"cpu"`
	GPU                 int               `json:"gpu"`
	Memory              float64           `json:"memory"`
	Disk                float64           `json:"disk"`
	Snapshot            string            `json:"snapshot,omitempty"`
	NetworkBlockAll     bool              `json:"networkBlockAll"`
	NetworkAllowList    string            `json:"networkAllowList,omitempty"`
	DomainAllowList     string            `json:"domainAllowList,omitempty"`
	AutoStopInterval    int64             `json:"autoStopInterval"`
	AutoPauseInterval   int64             `json:"autoPauseInterval"`
	AutoArchiveInterval int64             `json:"autoArchiveInterval"`
	AutoDeleteInterval  int64             `json:"autoDeleteInterval"`
	AutoDestroyAt       *time.Time        `json:"autoDestroyAt,omitempty"`
	Volumes             []mount           `json:"volumes"`
	CreatedAt           time.Time         `json:"createdAt"`
	UpdatedAt           time.Time         `json:"updatedAt"`
	LastActivityAt      time.Time         `json:"lastActivityAt"`
	ErrorReason         string            `json:"errorReason,omitempty"`
	SandboxClass        string            `json:"sandboxClass"`
}

// mount is a volume in a sandbox.
type mount struct {
	VolumeID  string `json:"volumeId"`
	MountPath string `json:"mountPath"`
	Subpath   string `json:"subpath,omitempty"`
}

const (
	mibPerGiB = 1024
	// class is the kind of sandboxes, of those that the product knows: they run in
	// gVisor's kernel, not in a virtual machine.
	class = "container"
)

// view describes a sandbox.
func (p *plane) view(r *http.Request, box *sandbox.Sandbox) object {
	o := object{
		ID: box.ID, OrganizationID: box.Team, Name: box.Name, State: access.State(box, p.now()), ToolboxProxyURL: p.cfg.Toolbox(r),
		User: box.User, Env: box.Env, Labels: labelsOf(box), Public: box.Metadata[access.TagPublic] != "", Target: target,
		CPU: box.Resources.VCPUs, Memory: gib(box.Resources.MemoryMiB), Disk: gib(box.Resources.DiskMiB), Snapshot: snapshotOf(box),
		AutoArchiveInterval: access.ArchiveAfter(box), AutoDeleteInterval: -1, AutoDestroyAt: box.ExpiresAt, Volumes: []mount{},
		CreatedAt: box.CreatedAt, UpdatedAt: updatedAt(box), LastActivityAt: box.LastActiveAt, SandboxClass: class,
	}
	if o.Name == "" {
		o.Name = box.ID
	}
	if o.Env == nil {
		o.Env = map[string]string{}
	}
	if box.State == sandbox.StateFailed {
		o.ErrorReason = box.Reason
	}
	idle := (box.IdleTimeoutSeconds + 59) / 60
	if box.Metadata[access.TagAutoPause] != "" {
		o.AutoPauseInterval = idle
	} else {
		o.AutoStopInterval = idle
	}
	switch {
	case ephemeral(box):
		o.AutoDeleteInterval = 0
	case box.PausedLifetimeSeconds > 0:
		o.AutoDeleteInterval = (box.PausedLifetimeSeconds + 59) / 60
	}
	o.setNetwork(box.Network)
	for _, m := range box.Mounts {
		if m.Volume != "" {
			o.Volumes = append(o.Volumes, mount{VolumeID: m.Volume, MountPath: m.Target})
		}
	}
	return o
}

func gib(mib int64) float64 { return float64(mib) / mibPerGiB }

// labelsOf are the labels of a sandbox: its metadata without Cove's own.
func labelsOf(box *sandbox.Sandbox) map[string]string {
	labels := map[string]string{}
	for key, value := range box.Metadata {
		if !strings.HasPrefix(key, access.HiddenPrefix) {
			labels[key] = value
		}
	}
	return labels
}

// snapshotOf returns what a sandbox was made from, as the product calls it.
func snapshotOf(box *sandbox.Sandbox) string {
	if name := box.Metadata[access.TagSnapshot]; name != "" {
		return name
	}
	if box.Snapshot != "" {
		return box.Snapshot
	}
	name, _, _ := strings.Cut(box.Template, "@")
	return name
}

// updatedAt is when a sandbox was last set in another state.
func updatedAt(box *sandbox.Sandbox) time.Time {
	at := box.CreatedAt
	for _, t := range []*time.Time{box.StartedAt, box.PausedAt, box.EndedAt} {
		if t != nil && t.After(at) {
			at = *t
		}
	}
	return at
}

// NoSandbox is the error for a sandbox that does not exist or is not the caller's.
func NoSandbox(name string) error {
	return sandbox.Errorf(sandbox.CodeNotFound, "Sandbox with ID or name %.80s not found", name)
}

// about words an error of a call on a sandbox as the product does.
func about(name string, err error) error {
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return NoSandbox(name)
	}
	return err
}

// find returns the sandbox that a request names. It finds failed sandboxes, but not
// destroyed ones.
func (p *plane) find(r *http.Request) (*sandbox.Sandbox, error) {
	name := r.PathValue("sandbox")
	if len(name) > sandbox.MaxNameLength {
		return nil, NoSandbox(name)
	}
	box, err := p.cfg.Service.Get(r.Context(), name)
	if err != nil {
		return nil, about(name, err)
	}
	if box.State == sandbox.StateKilled {
		return nil, NoSandbox(name)
	}
	return box, nil
}

// living is find for what only a sandbox can do that has not ended.
func (p *plane) living(r *http.Request) (*sandbox.Sandbox, error) {
	box, err := p.find(r)
	if err == nil && (box.State.Final() || box.State == sandbox.StateStopping) {
		return nil, sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox is in state %s and can only be deleted", access.State(box, p.now()))
	}
	return box, err
}

// respond answers with a sandbox.
func (p *plane) respond(w http.ResponseWriter, r *http.Request, box *sandbox.Sandbox, err error) error {
	if err != nil {
		return about(r.PathValue("sandbox"), err)
	}
	o := p.view(r, box)
	answer.JSON(w, http.StatusOK, o)
	return nil
}

func (p *plane) get(w http.ResponseWriter, r *http.Request) error {
	box, err := p.find(r)
	return p.respond(w, r, box, err)
}
