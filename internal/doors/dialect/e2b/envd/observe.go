package envd

import (
	"math"
	"net/http"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/sandbox"
)

// usage is what a sandbox uses, in bytes except for the members that say MiB.
type usage struct {
	Time        int64   `json:"ts"` // Unix seconds
	CPUCount    int     `json:"cpu_count"`
	CPUPercent  float64 `json:"cpu_used_pct"` // of all processors
	MemTotal    int64   `json:"mem_total"`
	MemUsed     int64   `json:"mem_used"`
	MemCache    int64   `json:"mem_cache"`
	MemTotalMiB int64   `json:"mem_total_mib"`
	MemUsedMiB  int64   `json:"mem_used_mib"`
	DiskUsed    int64   `json:"disk_used"`
	DiskTotal   int64   `json:"disk_total"`
}

// metrics serves what the sandbox uses now.
func (p *plane) metrics(w http.ResponseWriter, r *http.Request) error {
	box, _ := gate.SandboxOf(r.Context())
	list, err := p.cfg.Service.ListStats(r.Context(), sandbox.StatsRequest{Sandbox: box.ID})
	if err != nil {
		return err
	}
	if len(list.Items) == 0 || list.Items[0].Stats == nil {
		return errNotRunning
	}
	cores := max(1, box.Resources.VCPUs)
	s := list.Items[0].Stats
	answer.JSON(w, http.StatusOK, usage{
		Time: time.Now().Unix(), CPUCount: cores, CPUPercent: math.Round(list.Items[0].CPUPercent/float64(cores)*100) / 100,
		MemTotal: s.MemoryMaxBytes, MemUsed: s.MemoryBytes, MemTotalMiB: s.MemoryMaxBytes >> 20, MemUsedMiB: s.MemoryBytes >> 20,
		DiskUsed: s.DiskBytes, DiskTotal: s.DiskMaxBytes,
	})
	return nil
}

// envs serves the environment that the sandbox was given. Secrets are not in it.
func (p *plane) envs(w http.ResponseWriter, r *http.Request) error {
	box, _ := gate.SandboxOf(r.Context())
	env := map[string]string{}
	for v, err := range sandbox.Each(r.Context(), sandbox.Of(box.ID, p.cfg.Service.GetEnv)) {
		if err != nil {
			return err
		}
		if v.Source == "sandbox" {
			env[v.Name] = v.Value
		}
	}
	answer.JSON(w, http.StatusOK, env)
	return nil
}
