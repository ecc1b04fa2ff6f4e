package microsandbox

import (
	"context"
	"encoding/json"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

func getMetrics(ctx context.Context, c *call, params json.RawMessage) (any, error) {
	var p target
	if err := decode(params, &p); err != nil {
		return nil, err
	}
	namespace, err := p.namespace(c)
	if err != nil {
		return nil, err
	}
	if namespace != wildcard {
		if err := checkName("Namespace", namespace); err != nil {
			return nil, err
		}
	}
	if p.Sandbox != nil {
		if err := checkName("Sandbox name", *p.Sandbox); err != nil {
			return nil, err
		}
	}
	if err := permit(ctx, namespace); err != nil {
		return nil, err
	}
	boxes, err := living(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	if namespace != wildcard && len(boxes) == 0 {
		return nil, dialect.Invalid("Namespace directory '%s' does not exist", namespace)
	}
	usage, err := sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.SandboxStats], error) {
		return c.Service.ListStats(ctx, sandbox.StatsRequest{Namespace: namespace, Page: p})
	})
	if err != nil {
		return nil, err
	}
	stats := make(map[string]*sandbox.SandboxStats)
	for i := range usage {
		stats[usage[i].ID] = &usage[i]
	}
	rows := []map[string]any{}
	for i := range boxes {
		s := &boxes[i]
		if p.Sandbox == nil || *p.Sandbox == displayName(s) || *p.Sandbox == s.ID || *p.Sandbox == s.Name {
			rows = append(rows, row(s, stats[s.ID]))
		}
	}
	if p.Sandbox != nil && namespace != wildcard && len(rows) == 0 {
		return nil, internal("Error getting metrics for namespace %s: there is no sandbox %s in it", namespace, *p.Sandbox)
	}
	return map[string]any{"sandboxes": rows}, nil
}

// living returns the sandboxes of a namespace that have not ended.
func living(ctx context.Context, c *call, namespace string) ([]sandbox.Sandbox, error) {
	return sandbox.All(ctx, func(ctx context.Context, p sandbox.Page) (*sandbox.List[sandbox.Sandbox], error) {
		return c.Service.List(ctx, sandbox.ListRequest{Namespace: namespace, Page: p})
	})
}

// row returns the metrics of a sandbox: processor in percent, memory in MiB, disk in bytes.
func row(s *sandbox.Sandbox, u *sandbox.SandboxStats) map[string]any {
	r := map[string]any{
		"namespace": s.Namespace, "name": displayName(s), "running": s.State == sandbox.StateRunning,
		"cpu_usage": nil, "memory_usage": nil, "disk_usage": nil,
	}
	if s.State == sandbox.StateRunning && u != nil && u.Stats != nil {
		r["cpu_usage"], r["memory_usage"], r["disk_usage"] = decimal(u.CPUPercent), u.Stats.MemoryBytes>>20, u.Stats.DiskBytes
	}
	return r
}

// decimal is a number that is encoded with a fraction, for clients that distinguish
// integers from floats.
type decimal float64

// MarshalJSON implements [json.Marshaler].
func (d decimal) MarshalJSON() ([]byte, error) {
	data, err := json.Marshal(float64(d))
	for _, b := range data {
		if b == '.' || b == 'e' {
			return data, err
		}
	}
	return append(data, ".0"...), err
}
