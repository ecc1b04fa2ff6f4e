package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// clientID is a constant that clients store and do not use.
	clientID = "cove"
	// envdVersion tells clients which features the data plane has.
	envdVersion = "0.6.13"
)

// created is the answer to calls after which a client uses a sandbox.
type created struct {
	SandboxID          string `json:"sandboxID"`
	TemplateID         string `json:"templateID"`
	Alias              string `json:"alias,omitempty"`
	ClientID           string `json:"clientID"`
	EnvdVersion        string `json:"envdVersion"`
	EnvdAccessToken    string `json:"envdAccessToken"`
	TrafficAccessToken string `json:"trafficAccessToken"`
	Domain             string `json:"domain,omitempty"`
}

// created describes a sandbox to the caller of a request.
func (p *plane) created(ctx context.Context, box *sandbox.Sandbox) created {
	c, _ := sandbox.CallerOf(ctx)
	domain, _ := p.cfg.Address()
	return created{
		SandboxID: access.ToE2B(box.ID), TemplateID: templateOf(box), Alias: box.Template,
		ClientID: clientID, EnvdVersion: envdVersion, Domain: domain,
		EnvdAccessToken:    p.cfg.Gate.Token(access.Envd, c, box.ID),
		TrafficAccessToken: p.cfg.Gate.Token(access.Traffic, c, box.ID),
	}
}

// templateOf returns the template that a sandbox was made from, without a version.
func templateOf(box *sandbox.Sandbox) string {
	name, _, _ := strings.Cut(box.Template, "@")
	return name
}

type volumeMount struct {
	Name string `json:"name"`
	Path string `json:"path"`
}

// listed is a sandbox in a list.
type listed struct {
	SandboxID    string            `json:"sandboxID"`
	TemplateID   string            `json:"templateID"`
	Alias        string            `json:"alias,omitempty"`
	ClientID     string            `json:"clientID"`
	EnvdVersion  string            `json:"envdVersion"`
	StartedAt    time.Time         `json:"startedAt"`
	EndAt        time.Time         `json:"endAt"`
	State        string            `json:"state"`
	CPUCount     int               `json:"cpuCount"`
	MemoryMB     int64             `json:"memoryMB"`
	DiskSizeMB   int64             `json:"diskSizeMB"`
	Metadata     map[string]string `json:"metadata"`
	VolumeMounts []volumeMount     `json:"volumeMounts,omitempty"`
}

func viewListed(box *sandbox.Sandbox) listed {
	l := listed{
		SandboxID: access.ToE2B(box.ID), TemplateID: templateOf(box), Alias: box.Template, ClientID: clientID, EnvdVersion: envdVersion,
		StartedAt: startedAt(box), EndAt: endAt(box), State: "running",
		CPUCount: box.Resources.VCPUs, MemoryMB: box.Resources.MemoryMiB, DiskSizeMB: box.Resources.DiskMiB,
		Metadata: map[string]string{},
	}
	if box.State == sandbox.StatePaused {
		l.State = "paused"
	}
	for key, value := range box.Metadata {
		if !strings.HasPrefix(key, access.TagPrefix) {
			l.Metadata[key] = value
		}
	}
	for _, m := range box.Mounts {
		if m.Volume != "" {
			l.VolumeMounts = append(l.VolumeMounts, volumeMount{m.Volume, m.Target})
		}
	}
	return l
}

func startedAt(box *sandbox.Sandbox) time.Time {
	if box.StartedAt != nil {
		return *box.StartedAt
	}
	return box.CreatedAt
}

// endAt is when a sandbox ends, or was paused. The field is mandatory: without a bound
// it is the longest lifetime.
func endAt(box *sandbox.Sandbox) time.Time {
	switch {
	case box.State == sandbox.StatePaused && box.PausedAt != nil:
		return *box.PausedAt
	case box.ExpiresAt != nil:
		return *box.ExpiresAt
	}
	return startedAt(box).Add(sandbox.MaxLifetime)
}

type lifecycle struct {
	OnTimeout  string `json:"onTimeout"`
	AutoResume bool   `json:"autoResume"`
}

// detail is one sandbox.
type detail struct {
	listed
	Domain              string     `json:"domain,omitempty"`
	EnvdAccessToken     string     `json:"envdAccessToken"`
	AllowInternetAccess *bool      `json:"allowInternetAccess"`
	Network             *egress    `json:"network,omitempty"`
	Lifecycle           *lifecycle `json:"lifecycle"`
}

func (p *plane) detail(ctx context.Context, box *sandbox.Sandbox) detail {
	c, _ := sandbox.CallerOf(ctx)
	d := detail{listed: viewListed(box), EnvdAccessToken: p.cfg.Gate.Token(access.Envd, c, box.ID)}
	d.Domain, _ = p.cfg.Address()
	d.Lifecycle = &lifecycle{OnTimeout: string(box.OnTimeout), AutoResume: box.Metadata[access.TagAutoResume] != ""}
	if d.Lifecycle.OnTimeout == "" {
		d.Lifecycle.OnTimeout = string(sandbox.ActionKill)
	}
	if n := box.Network; n != nil {
		if slices.Contains(n.DenyOut, allTraffic) && len(n.AllowOut) == 0 {
			d.AllowInternetAccess = new(bool)
		}
		public := box.Metadata[access.TagPorts] != ""
		d.Network = &egress{AllowOut: n.AllowOut, DenyOut: n.DenyOut, Rules: viewRules(n.Headers), AllowPublicTraffic: &public}
	}
	return d
}
