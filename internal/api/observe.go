package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

type signalProcessInput struct {
	SandboxPath
	PID  int `path:"pid" doc:"The id of a process inside, as the list shows it."`
	Body struct {
		Signal string `json:"signal" doc:"A name such as TERM, or a number."`
	}
}

type setEnvInput struct {
	SandboxPath
	Body sandbox.SetEnvRequest
}

type listStatsInput struct {
	Namespace string `query:"namespace" doc:"Only this namespace; absent or * is all."`
	Sandbox   string `query:"sandbox" doc:"Only this sandbox, by id or name."`
	PageQuery
}

type seriesInput struct {
	SandboxPath
	Since     time.Time `query:"since" doc:"At most an hour ago, which is also the default."`
	MaxPoints int       `query:"max_points" doc:"Thin the series out to this many points; absent is all."`
}

func (h *handlers) registerObserve(a huma.API) {
	const base = "/v1/sandboxes/{sandbox}"
	huma.Register(a, op(http.MethodGet, base+"/processes", "list-processes", "observe", "List the processes inside a sandbox, by id"),
		func(ctx context.Context, in *sandboxPage) (*Reply[sandbox.List[sandbox.Process]], error) {
			v, err := h.svc.ListProcesses(ctx, in.Sandbox, in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, base+"/processes/{pid}/signal", "signal-process", "observe", "Send a signal to one process"),
		func(ctx context.Context, in *signalProcessInput) (*struct{}, error) {
			return done(ctx, h, h.svc.SignalProcess(ctx, in.Sandbox, in.PID, in.Body.Signal))
		})
	huma.Register(a, op(http.MethodGet, base+"/env", "get-env", "observe", "Tell the default environment of a sandbox, by name"),
		func(ctx context.Context, in *sandboxPage) (*Reply[sandbox.List[sandbox.EnvVar]], error) {
			v, err := h.svc.GetEnv(ctx, in.Sandbox, in.page())
			return reply(ctx, h, v, err)
		})
	huma.Register(a, says(op(http.MethodPatch, base+"/env", "set-env", "observe", "Change the default environment of a sandbox"),
		"Commands and code that are started from then on see it. The answer has the first %d variables by name; the list of the environment goes on at its `next_cursor`.", sandbox.MaxPageSize),
		func(ctx context.Context, in *setEnvInput) (*Reply[sandbox.List[sandbox.EnvVar]], error) {
			v, err := h.svc.SetEnv(ctx, in.Sandbox, in.Body)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/stats", "list-stats", "observe", "Tell what sandboxes use now, newest first"),
		func(ctx context.Context, in *listStatsInput) (*Reply[sandbox.List[sandbox.SandboxStats]], error) {
			v, err := h.svc.ListStats(ctx, sandbox.StatsRequest{Namespace: in.Namespace, Sandbox: in.Sandbox, Page: in.page()})
			return reply(ctx, h, v, err)
		})
	huma.Register(a, says(op(http.MethodGet, base+"/stats/series", "get-stats-series", "observe", "Tell what a sandbox has used, oldest first"),
		"There is a point for every %d seconds in which it ran, of the last %d minutes: at most %d, all in one answer.",
		sandbox.StatsInterval/time.Second, sandbox.StatsRetention/time.Minute, sandbox.StatsRetention/sandbox.StatsInterval),
		func(ctx context.Context, in *seriesInput) (*Reply[sandbox.List[sandbox.StatsPoint]], error) {
			req := sandbox.StatsSeriesRequest{MaxPoints: in.MaxPoints}
			if !in.Since.IsZero() {
				req.Since = &in.Since
			}
			v, err := h.svc.StatsSeries(ctx, in.Sandbox, req)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, base+"/deliveries", "list-deliveries", "observe", "List the webhooks of a sandbox's jobs, newest first"),
		func(ctx context.Context, in *sandboxPage) (*Reply[sandbox.List[sandbox.Delivery]], error) {
			v, err := h.svc.ListDeliveries(ctx, in.Sandbox, in.page())
			return reply(ctx, h, v, err)
		})
}
