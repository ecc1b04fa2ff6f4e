package service

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/agentclient"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
	"github.com/cove-sh/cove/sandbox"
)

// livingAgent is an agent that only answers that it is alive.
type livingAgent struct {
	agentv1connect.UnimplementedAgentHandler
}

func (livingAgent) Health(context.Context, *connect.Request[agentv1.HealthRequest]) (*connect.Response[agentv1.HealthResponse], error) {
	return connect.NewResponse(&agentv1.HealthResponse{}), nil
}

// oneListener accepts the connections that are sent to it.
type oneListener chan net.Conn

func (l oneListener) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l oneListener) Close() error   { return nil }
func (l oneListener) Addr() net.Addr { return &net.UnixAddr{} }

// TestExplain waits for the engine to say why a sandbox does not answer, but not if the
// sandbox answers again.
func TestExplain(t *testing.T) {
	broke := sandbox.Errorf(sandbox.CodeUnavailable, "the disk is full")
	over := sandbox.Errorf(sandbox.CodeNotRunning, "it has ended")
	for name, c := range map[string]struct {
		lives bool
		ends  time.Duration // when the engine tells, if it does
		err   error
		want  error
		waits time.Duration
	}{
		"it lives":               {lives: true, err: broke, want: broke},
		"nobody knows":           {err: broke, want: broke, waits: failureNotice},
		"it has ended":           {ends: time.Second, err: broke, want: over, waits: time.Second},
		"an error of the caller": {err: errors.ErrUnsupported, want: errors.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conns := make(oneListener)
				mux := http.NewServeMux()
				mux.Handle(agentv1connect.NewAgentHandler(livingAgent{}))
				srv := &http.Server{Handler: mux, Protocols: new(http.Protocols)}
				srv.Protocols.SetUnencryptedHTTP2(true)
				served := make(chan struct{})
				go func() {
					defer close(served)
					_ = srv.Serve(conns)
				}()
				h := &handle{gone: make(chan struct{}), client: agentclient.New("sbx", func(context.Context) (net.Conn, error) {
					if !c.lives {
						return nil, net.ErrClosed
					}
					near, far := net.Pipe()
					conns <- far
					return near, nil
				})}
				if c.ends > 0 {
					time.AfterFunc(c.ends, func() {
						h.why = over
						close(h.gone)
					})
				}
				began := time.Now()
				if got := h.explain(t.Context(), c.err); !errors.Is(got, c.want) {
					t.Errorf("got %v, want %v", got, c.want)
				}
				if took := time.Since(began); took != c.waits {
					t.Errorf("it took %v, want %v", took, c.waits)
				}
				h.client.Close()
				close(conns)
				if err := srv.Close(); err != nil {
					t.Error(err)
				}
				<-served
			})
		})
	}
}
