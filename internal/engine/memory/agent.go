package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/agent"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
	"github.com/cove-sh/cove/internal/template/layer/apply"
)

// workDir is the working directory of an instance's commands, below the instance's own
// directory, which stands for its root.
const workDir = "workspace"

// serve answers connections to the agent until ctx ends.
func (i *instance) serve(ctx context.Context) error {
	_, tamed := agentv1connect.NewAgentHandler(&tame{Agent: i.agent, i: i}, connect.WithCompression("gzip", nil, nil))
	all := i.agent.Handler()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case agentv1connect.AgentConfigureProcedure, agentv1connect.AgentApplyProcedure:
				tamed.ServeHTTP(w, r)
			default:
				all.ServeHTTP(w, r)
			}
		}),
		Protocols:         &protocols,
		ReadHeaderTimeout: 30 * time.Second,
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(closed); _ = srv.Close() })
	err := srv.Serve(i.listener)
	if !stop() {
		<-closed // Serve returns before the connections are closed
	}
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve agent: %w", err)
}

// tame is an agent that does not change the host: calls that would change a whole machine
// act on the instance's directory.
type tame struct {
	*agent.Agent
	i *instance
}

// Configure only records host name, user and working directory.
func (t *tame) Configure(ctx context.Context, req *connect.Request[agentv1.ConfigureRequest]) (*connect.Response[agentv1.ConfigureResponse], error) {
	m := req.Msg
	t.i.state.mu.Lock()
	spec := &t.i.spec
	for _, f := range []struct{ have, want *string }{{&spec.Hostname, m.Hostname}, {&spec.User, m.User}, {&spec.WorkDir, m.Workdir}} {
		if f.want != nil {
			*f.have = *f.want
		}
	}
	t.i.state.mu.Unlock()
	dir := filepath.Join(t.i.dir, workDir)
	m.Hostname, m.User, m.Workdir = nil, nil, &dir
	return t.Agent.Configure(ctx, req)
}

// Apply applies a merge to the instance's directory.
func (t *tame) Apply(ctx context.Context, s *connect.ClientStream[agentv1.ApplyRequest]) (*connect.Response[agentv1.ApplyResponse], error) {
	root, err := os.Open(t.i.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	r := &applyReader{s: s}
	if err := apply.Apply(ctx, root, r); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	return connect.NewResponse(&agentv1.ApplyResponse{}), nil
}

// applyReader reads the data of a stream.
type applyReader struct {
	s    *connect.ClientStream[agentv1.ApplyRequest]
	rest []byte
}

func (r *applyReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.s.Receive() {
			if err := r.s.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		r.rest = r.s.Msg().GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
