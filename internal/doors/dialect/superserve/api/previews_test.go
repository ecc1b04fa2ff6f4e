package api

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/cove-sh/cove/internal/doors/dialect/gate"
	"github.com/cove-sh/cove/internal/doors/dialect/superserve/terms"
	"github.com/cove-sh/cove/sandbox"
)

// listening is a service with one sandbox, on whose ports programs listen. It records which
// ports become previews.
type listening struct {
	sandbox.Service
	box  sandbox.Sandbox
	made []int
	fail error // of CreatePreview
}

func (s *listening) Look(context.Context, string) (*sandbox.Sandbox, error) { return &s.box, nil }

func (s *listening) Living(context.Context) ([]sandbox.Sandbox, error) { return nil, nil }

func (s *listening) DialPort(context.Context, string, int) (net.Conn, error) {
	one, other := net.Pipe()
	return one, other.Close()
}

func (s *listening) CreatePreview(ctx context.Context, _ string, req sandbox.CreatePreviewRequest) (*sandbox.NewPreview, error) {
	if sandbox.First(ctx) && req.Access == sandbox.PreviewPublic {
		s.made = append(s.made, req.Port)
	}
	return &sandbox.NewPreview{}, s.fail
}

// TestPublish checks that a port is opened to strangers only in a sandbox that this
// product's client has created, not in a fork, which has its parent's metadata, and not a
// second time.
func TestPublish(t *testing.T) {
	local := sandbox.LocalCaller()
	conflict := sandbox.Errorf(sandbox.CodeConflict, "port 3000 has a preview")
	for _, c := range []struct {
		name  string
		box   sandbox.Sandbox
		known bool
		fail  error
		want  int
	}{
		{name: "created by a client", want: 1},
		{name: "created by another door", box: sandbox.Sandbox{Metadata: map[string]string{}}},
		{name: "a fork", box: sandbox.Sandbox{ForkedFrom: otherID}},
		{name: "paused", box: sandbox.Sandbox{State: sandbox.StatePaused}},
		{name: "of another team", box: sandbox.Sandbox{Team: "blue"}},
		{name: "with a preview", known: true},
		{name: "with a preview from this moment", fail: conflict, want: 1},
	} {
		s := &listening{box: c.box, fail: c.fail}
		s.box.ID = oneID
		if s.box.Metadata == nil {
			s.box.Metadata = map[string]string{terms.PortsTag: local.KeyID}
		}
		if s.box.State == "" {
			s.box.State = sandbox.StateRunning
		}
		if s.box.Team == "" {
			s.box.Team = local.Team
		}
		d := New(Config{
			Service: s, Gate: NewGate(gate.Config{Sandboxes: s}), Bound: func(h http.Handler) http.Handler { return h },
			Previewed: func(context.Context, string, int) (bool, error) { return c.known, nil },
		})
		if err := d.publish(t.Context(), target{sandbox: oneID, port: 3000}); err != nil || len(s.made) != c.want {
			t.Errorf("%s: previews of %v, %v", c.name, s.made, err)
		}
	}
}
