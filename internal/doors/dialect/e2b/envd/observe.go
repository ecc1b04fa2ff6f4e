package envd

import (
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/e2b/access"
	"github.com/cove-sh/cove/internal/doors/dialect/e2b/answer"
	"github.com/cove-sh/cove/sandbox"
)

// usage is what a sandbox uses, in bytes but for the members that say MiB.
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

// metrics tells what the sandbox uses now.
func (p *plane) metrics(w http.ResponseWriter, r *http.Request) {
	visit, _ := access.VisitOf(r.Context())
	list, err := p.cfg.Service.ListStats(r.Context(), sandbox.StatsRequest{Sandbox: visit.Sandbox.ID})
	if err == nil && (len(list.Items) == 0 || list.Items[0].Stats == nil) {
		err = sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox does not run")
	}
	if err != nil {
		p.refuse(w, r, err)
		return
	}
	cores := max(1, visit.Sandbox.Resources.VCPUs)
	s := list.Items[0].Stats
	answer.JSON(w, http.StatusOK, usage{
		Time: time.Now().Unix(), CPUCount: cores, CPUPercent: math.Round(list.Items[0].CPUPercent/float64(cores)*100) / 100,
		MemTotal: s.MemoryMaxBytes, MemUsed: s.MemoryBytes, MemTotalMiB: s.MemoryMaxBytes >> 20, MemUsedMiB: s.MemoryBytes >> 20,
		DiskUsed: s.DiskBytes, DiskTotal: s.DiskMaxBytes,
	})
}

// envs tells the environment that the sandbox was given. Secrets are not in it.
func (p *plane) envs(w http.ResponseWriter, r *http.Request) {
	visit, _ := access.VisitOf(r.Context())
	env := map[string]string{}
	page := sandbox.Page{Limit: sandbox.MaxPageSize}
	for {
		list, err := p.cfg.Service.GetEnv(r.Context(), visit.Sandbox.ID, page)
		if err != nil {
			p.refuse(w, r, err)
			return
		}
		for _, v := range list.Items {
			if v.Source == "sandbox" {
				env[v.Name] = v.Value
			}
		}
		if page.Cursor = list.NextCursor; page.Cursor == "" {
			answer.JSON(w, http.StatusOK, env)
			return
		}
	}
}

// refuse answers a request with an error. A sandbox that has ended is told as the
// gateway tells of it.
func (p *plane) refuse(w http.ResponseWriter, r *http.Request, err error) {
	visit, _ := access.VisitOf(r.Context())
	switch {
	case p.gone(r.Context(), visit.Sandbox.ID, err):
		answer.Gone(w, access.ToE2B(visit.Sandbox.ID), sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox does not run"))
	case sandbox.ReasonOf(err) == sandbox.ReasonDiskFull:
		answer.Fail(w, http.StatusInsufficientStorage, "not enough disk space available: "+sandbox.MessageOf(err))
	case slices.Contains([]sandbox.Code{sandbox.CodeConflict, sandbox.CodeTooLarge, sandbox.CodeCancelled}, sandbox.CodeOf(err)):
		answer.Fail(w, http.StatusBadRequest, sandbox.MessageOf(err))
	default:
		answer.Error(w, err)
	}
}
