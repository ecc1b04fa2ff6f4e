package hopx

import (
	"context"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// masked replaces values whose names look secret. If a client sends it back, the value is
// kept.
const masked = "***MASKED***"

var secretWords = []string{"KEY", "SECRET", "PASSWORD", "TOKEN"}

func looksSecret(name string) bool {
	name = strings.ToUpper(name)
	for _, w := range secretWords {
		if strings.Contains(name, w) {
			return true
		}
	}
	return false
}

// getEnv returns the variables, by name, as clients may see them.
func getEnv(ctx context.Context, m *vm, _ *target) (pairs, error) {
	list, err := sandbox.All(ctx, sandbox.Of(m.id, m.Service.GetEnv))
	if err != nil {
		return nil, m.failed("/env", err)
	}
	out := object()
	for _, v := range list {
		value := v.Value
		if looksSecret(v.Name) || v.Source == "secret" {
			value = masked
		}
		out = append(out, pair{v.Name, value})
	}
	return out, nil
}

type envArgs struct {
	target
	Vars  map[string]string `json:"env_vars"`
	Merge bool              `json:"merge"`
}

func setEnv(ctx context.Context, m *vm, in *envArgs) error {
	req := sandbox.SetEnvRequest{Set: make(map[string]string, len(in.Vars)), Replace: !in.Merge}
	kept := false
	for name, value := range in.Vars {
		if value == masked {
			kept = true
			continue
		}
		req.Set[name] = value
	}
	if kept && req.Replace { // set the kept ones again
		list, err := sandbox.All(ctx, sandbox.Of(m.id, m.Service.GetEnv))
		if err != nil {
			return m.failed("/env", err)
		}
		for _, v := range list {
			if in.Vars[v.Name] == masked && v.Source == "sandbox" {
				req.Set[v.Name] = v.Value
			}
		}
	}
	if len(req.Set) == 0 && !req.Replace {
		return nil // unchanged
	}
	if _, err := m.Service.SetEnv(ctx, m.id, req); err != nil {
		return m.failed("/env", err)
	}
	return nil
}

func clearEnv(ctx context.Context, m *vm, _ *target) error {
	if _, err := m.Service.SetEnv(ctx, m.id, sandbox.SetEnvRequest{Replace: true}); err != nil {
		return m.failed("/env", err)
	}
	return nil
}
