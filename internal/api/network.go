package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// NetworkLine is one line of the stream of a network log. A stream without a
// final line or an error was cut.
type NetworkLine struct {
	Event *sandbox.NetworkEvent `json:"event,omitempty"`
	Final bool                  `json:"final,omitempty"`
	Error *LineError            `json:"error,omitempty"`
}

func failedNetwork(e *LineError) any { return NetworkLine{Error: e} }

type setNetworkInput struct {
	SandboxPath
	Body sandbox.NetworkPolicy
}

// NetworkLogQuery selects events of a network log.
type NetworkLogQuery struct {
	Kind    string    `query:"kind" doc:"Only connection, dns or request."`
	Verdict string    `query:"verdict" doc:"Only allowed, blocked or failed."`
	Host    string    `query:"host" doc:"Only this domain, or those below one: *.example.com."`
	Since   time.Time `query:"since" doc:"Only events from this time on."`
	Until   time.Time `query:"until" doc:"Only events before this time."`
}

func (q *NetworkLogQuery) request() sandbox.NetworkLogRequest {
	req := sandbox.NetworkLogRequest{Kind: sandbox.NetworkKind(q.Kind), Verdict: sandbox.NetworkVerdict(q.Verdict), Host: q.Host}
	if !q.Since.IsZero() {
		req.Since = &q.Since
	}
	if !q.Until.IsZero() {
		req.Until = &q.Until
	}
	return req
}

type networkLogInput struct {
	SandboxPath
	NetworkLogQuery
	PageQuery
}

type followNetworkInput struct {
	SandboxPath
	NetworkLogQuery
}

func (h *handlers) registerNetwork(a huma.API) {
	const base = "/v1/sandboxes/{sandbox}/network"
	huma.Register(a, op(http.MethodGet, base, "get-network", "network", "Get what a sandbox may reach"),
		func(ctx context.Context, in *SandboxPath) (*Reply[sandbox.NetworkPolicy], error) {
			v, err := h.svc.GetNetwork(ctx, in.Sandbox)
			return reply(ctx, h, v, err)
		})
	set := op(http.MethodPost, base, "set-network", "network", "Replace what a sandbox may reach, at once")
	set.Description = "The whole policy is replaced. Existing connections are judged again before the answer."
	huma.Register(a, set, func(ctx context.Context, in *setNetworkInput) (*Reply[sandbox.NetworkPolicy], error) {
		v, err := h.svc.SetNetwork(ctx, in.Sandbox, in.Body)
		return reply(ctx, h, v, err)
	})
	huma.Register(a, op(http.MethodGet, base+"/log", "list-network-log", "network", "List what a sandbox tried to reach, newest first; of ended ones too"),
		func(ctx context.Context, in *networkLogInput) (*Reply[sandbox.List[sandbox.NetworkEvent]], error) {
			req := in.request()
			req.Page = in.page()
			v, err := h.svc.NetworkLog(ctx, in.Sandbox, req)
			return reply(ctx, h, v, err)
		})
	follow := op(http.MethodGet, base+"/log/follow", "follow-network-log", "network", "Stream what a sandbox tries to reach from now on")
	follow.Description = "The stream ends with the sandbox or when the client goes. With `Accept: text/event-stream` the lines are server-sent events."
	huma.Register(a, streams[NetworkLine](a, follow), h.followNetwork)
}

func (h *handlers) followNetwork(_ context.Context, in *followNetworkInput) (*huma.StreamResponse, error) {
	return h.stream(func(ctx context.Context, out *lines) error {
		err := h.svc.FollowNetworkLog(ctx, in.Sandbox, in.request(), func(ev sandbox.NetworkEvent) error {
			return out.send(NetworkLine{Event: &ev})
		})
		if err != nil {
			return err
		}
		return out.send(NetworkLine{Final: true})
	}, failedNetwork), nil
}
