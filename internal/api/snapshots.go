package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/sandbox"
)

// SnapshotPath is the part of a path that names a snapshot.
type SnapshotPath struct {
	Snapshot string `path:"snapshot" doc:"A snapshot's id or name."`
}

type resumeInput struct {
	SandboxPath
	// Absent is to resume with everything.
	Body *sandbox.ResumeRequest
}

type forkInput struct {
	SandboxPath
	Body sandbox.ForkRequest
}

type createSnapshotInput struct {
	SandboxPath
	Body sandbox.CreateSnapshotRequest
}

type createSnapshotReply struct {
	Location string `header:"Location"`
	Body     *sandbox.Snapshot
}

type listSnapshotsInput struct {
	Sandbox   string `query:"sandbox" doc:"Only those of this sandbox, by id or name."`
	Automatic bool   `query:"automatic" doc:"The steps of histories too."`
	PageQuery
}

type restoreInput struct {
	SandboxPath
	Body sandbox.RestoreRequest
}

type diffInput struct {
	Subject string `path:"subject" doc:"A sandbox's or a snapshot's id or name."`
	Body    sandbox.DiffRequest
}

type mergeInput struct {
	SandboxPath
	Body sandbox.MergeRequest
}

type tryInput struct {
	SandboxPath
	Body sandbox.TryRequest
}

func (h *handlers) registerSnapshots(a huma.API) {
	const base = "/v1/sandboxes/{sandbox}"
	huma.Register(a, op(http.MethodPost, base+"/pause", "pause-sandbox", "snapshots", "Write a sandbox's state to disk and end its processes"),
		func(ctx context.Context, in *SandboxPath) (*Reply[sandbox.Sandbox], error) {
			v, err := h.svc.Pause(ctx, in.Sandbox)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodPost, base+"/resume", "resume-sandbox", "snapshots", "Continue a paused sandbox where it was"), h.resume)
	fork := mayRepeat(op(http.MethodPost, base+"/fork", forkSandbox, "snapshots", "Make children that continue from a sandbox's present instant"), repeatWhole)
	fork.DefaultStatus = http.StatusCreated
	fork = says(fork, "The answer has all children, at most %d. Either all are made or none.", sandbox.MaxForks)
	huma.Register(a, fork, func(ctx context.Context, in *forkInput) (*Reply[sandbox.List[sandbox.Sandbox]], error) {
		v, err := h.svc.Fork(ctx, in.Sandbox, in.Body)
		return reply(ctx, h, v, err)
	})
	huma.Register(a, op(http.MethodPost, base+"/restore", "restore-snapshot", "snapshots", "Put a sandbox back into a kept state"),
		func(ctx context.Context, in *restoreInput) (*Reply[sandbox.Sandbox], error) {
			v, err := h.svc.RestoreSnapshot(ctx, in.Sandbox, in.Body)
			return reply(ctx, h, v, err)
		})
	diff := needs(op(http.MethodPost, "/v1/diff/{subject}", "diff", "snapshots", "Compare the files of a sandbox or snapshot with those of another"), sandbox.ScopeSandboxesRead)
	huma.Register(a, diff, func(ctx context.Context, in *diffInput) (*Reply[sandbox.Diff], error) {
		v, err := h.svc.Diff(ctx, in.Subject, in.Body)
		return reply(ctx, h, v, err)
	})
	merge := mayRepeat(op(http.MethodPost, base+"/merge", "merge-sandbox", "snapshots", "Bring a fork's state into its parent"), repeatWhole)
	merge.Description = "Conflicts are no error: the answer lists them, `merged` is false, and nothing was changed."
	huma.Register(a, merge, func(ctx context.Context, in *mergeInput) (*Reply[sandbox.MergeResult], error) {
		v, err := h.svc.Merge(ctx, in.Sandbox, in.Body)
		return reply(ctx, h, v, err)
	})
	try := op(http.MethodPost, base+"/try", "try", "snapshots", "Try commands in forks of a sandbox, all at the same time")
	try.Description = "The answer is a stream with a line for each attempt as it ends, and at its end a line marked `final`, which has the result, " +
		"or an `error`. A client that disconnects ends the attempts and their forks. All commands together are at most 20 MiB of JSON."
	try.MaxBodyBytes = maxExecBody
	huma.Register(a, streams[TryLine](a, try), h.try)
	h.registerKept(a)
}

// registerKept registers what is done with snapshots themselves.
func (h *handlers) registerKept(a huma.API) {
	create := mayRepeat(op(http.MethodPost, "/v1/sandboxes/{sandbox}/snapshots", "create-snapshot", "snapshots", "Keep the state of a sandbox, which goes on"), repeatWhole)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a, create, h.createSnapshot)
	huma.Register(a, op(http.MethodGet, "/v1/snapshots", "list-snapshots", "snapshots", "List snapshots, newest first"),
		func(ctx context.Context, in *listSnapshotsInput) (*Reply[sandbox.List[sandbox.Snapshot]], error) {
			v, err := h.svc.ListSnapshots(ctx, sandbox.ListSnapshotsRequest{Sandbox: in.Sandbox, Automatic: in.Automatic, Page: in.page()})
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodGet, "/v1/snapshots/{snapshot}", "get-snapshot", "snapshots", "Get a snapshot"),
		func(ctx context.Context, in *SnapshotPath) (*Reply[sandbox.Snapshot], error) {
			v, err := h.svc.GetSnapshot(ctx, in.Snapshot)
			return reply(ctx, h, v, err)
		})
	huma.Register(a, op(http.MethodDelete, "/v1/snapshots/{snapshot}", "delete-snapshot", "snapshots", "Remove a snapshot; sandboxes made from it are unharmed"),
		func(ctx context.Context, in *SnapshotPath) (*Reply[sandbox.Snapshot], error) {
			v, err := h.svc.DeleteSnapshot(ctx, in.Snapshot)
			return reply(ctx, h, v, err)
		})
}

func (h *handlers) resume(ctx context.Context, in *resumeInput) (*Reply[sandbox.Sandbox], error) {
	var req sandbox.ResumeRequest
	if in.Body != nil {
		req = *in.Body
	}
	v, err := h.svc.Resume(ctx, in.Sandbox, req)
	return reply(ctx, h, v, err)
}

func (h *handlers) createSnapshot(ctx context.Context, in *createSnapshotInput) (*createSnapshotReply, error) {
	v, err := h.svc.CreateSnapshot(ctx, in.Sandbox, in.Body)
	if err != nil {
		return nil, h.fail(ctx, err)
	}
	return &createSnapshotReply{Location: "/v1/snapshots/" + v.ID, Body: v}, nil
}

func (h *handlers) try(_ context.Context, in *tryInput) (*huma.StreamResponse, error) {
	return h.stream(func(ctx context.Context, out *lines) error {
		result, err := h.svc.Try(ctx, in.Sandbox, in.Body, func(ev sandbox.TryEvent) error {
			return out.send(TryLine{Attempt: &ev.Attempt, Done: ev.Done, Total: ev.Total})
		})
		if err != nil {
			return err
		}
		return out.send(TryLine{Result: result, Final: true})
	}, failedTry), nil
}
