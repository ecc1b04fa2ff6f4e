package toolbox

import (
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect/daytona/answer"
	"github.com/cove-sh/cove/sandbox"
)

func (p *plane) homeDir(w http.ResponseWriter, r *http.Request) error {
	out, err := p.tool(r.Context(), boxOf(r).ID, sandbox.ExecRequest{Shell: `cd && pwd`, WorkDir: "/"})
	if err != nil {
		return err
	}
	dir := strings.TrimSuffix(out.stdout, "\n")
	if out.code != 0 || !path.IsAbs(dir) {
		dir = "/"
	}
	return ok(w, map[string]string{"dir": dir})
}

func (p *plane) workDir(w http.ResponseWriter, r *http.Request) error {
	dir := boxOf(r).WorkDir
	if !path.IsAbs(dir) {
		dir = "/"
	}
	return ok(w, map[string]string{"dir": path.Clean(dir)})
}

func (p *plane) version(w http.ResponseWriter, _ *http.Request) error {
	return ok(w, map[string]string{"version": "cove"})
}

// metrics answers with what the sandbox uses now.
func (p *plane) metrics(w http.ResponseWriter, r *http.Request) error {
	box := boxOf(r)
	s, err := p.svc.Stats(r.Context(), box.ID)
	if err != nil {
		return err
	}
	used := 0.0
	points, err := p.svc.StatsSeries(r.Context(), box.ID, sandbox.StatsSeriesRequest{})
	if err != nil {
		return err
	}
	if n := len(points.Items); n > 0 {
		used = points.Items[n-1].CPUPercent
	}
	now := time.Now().UTC()
	return ok(w, map[string]any{
		"cpuCount": box.Resources.VCPUs, "cpuUsedPct": used, "memTotal": s.MemoryMaxBytes, "memUsed": s.MemoryBytes, "memCache": 0,
		"diskTotal": s.DiskMaxBytes, "diskUsed": s.DiskBytes, "diskFree": max(0, s.DiskMaxBytes-s.DiskBytes),
		"timestamp": now.Format(time.RFC3339), "timestampUnix": now.Unix(),
	})
}

type envBody struct {
	Set         map[string]string `json:"set"`
	Unset       []string          `json:"unset"`
	ValuePrefix string            `json:"unsetValuePrefix"`
}

// setEnv changes the environment of the commands that are started from now on.
func (p *plane) setEnv(w http.ResponseWriter, r *http.Request, body *envBody) error {
	if body.ValuePrefix != "" {
		return answer.Refused("unsetValuePrefix", "name the variables in unset")
	}
	// What is in both is set.
	unset := slices.DeleteFunc(body.Unset, func(name string) bool { _, set := body.Set[name]; return set })
	_, err := p.svc.SetEnv(r.Context(), boxOf(r).ID, sandbox.SetEnvRequest{Set: body.Set, Unset: unset})
	if err != nil {
		return err
	}
	return done(w, http.StatusOK)
}
