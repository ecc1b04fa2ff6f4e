package remote_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/cove-sh/cove/internal/engine"
	"github.com/cove-sh/cove/internal/engine/memory"
	"github.com/cove-sh/cove/internal/engine/remote"
)

// TestUnanswered checks that an error says whether the node may have made an instance.
func TestUnanswered(t *testing.T) {
	refused := errors.New("refused")
	for name, tt := range map[string]struct {
		when   memory.When
		trap   func(e *remote.Engine, cancel context.CancelFunc) error
		values error // of the secrets
		want   bool
	}{
		"refused":                {when: memory.Before, trap: func(*remote.Engine, context.CancelFunc) error { return refused }},
		"cancelled":              {when: memory.Before, trap: func(_ *remote.Engine, cancel context.CancelFunc) error { cancel(); return refused }},
		"without secrets":        {when: memory.Before, trap: func(*remote.Engine, context.CancelFunc) error { return nil }, values: refused},
		"reset":                  {when: memory.After, trap: func(*remote.Engine, context.CancelFunc) error { panic(http.ErrAbortHandler) }, want: true},
		"cut off":                {when: memory.After, trap: func(e *remote.Engine, _ context.CancelFunc) error { return e.Close() }, want: true},
		"cancelled, and cut off": {when: memory.After, trap: func(e *remote.Engine, cancel context.CancelFunc) error { cancel(); return e.Close() }, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newState(t)
			n := newNode(t, memory.New(s), engine.Root{Dir: "/"})
			e := n.settle(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s.Trap(memory.StepCreate, tt.when, func(context.Context) error { return tt.trap(e, cancel) })
			spec := smallSpec()
			spec.ID = "one"
			if tt.values != nil {
				spec.Network = &engine.Network{Values: func(func(string, []byte) error) error { return tt.values }}
			}
			_, err := e.Create(ctx, spec)
			if err == nil || errors.Is(err, remote.ErrUnanswered) != tt.want {
				t.Errorf("Create: %v, which says that nobody knows: %v", err, !tt.want)
			}
		})
	}
}
