package rest

import (
	"context"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// Reply is an answer with a body.
type Reply[T any] struct {
	Body *T
}

// created is an answer with the location of what was made.
type created[T any] struct {
	Location string `header:"Location"`
	Body     *T
}

// infoKey is the key of the [operation.Info] in an operation's metadata.
const infoKey = "info"

func infoOf(o *huma.Operation) *operation.Info {
	info, _ := o.Metadata[infoKey].(*operation.Info)
	return info
}

// describeRoute describes an operation to huma.
func describeRoute(info operation.Info) huma.Operation {
	o := huma.Operation{
		OperationID: info.ID, Method: info.Method, Path: info.Path, Summary: info.Summary, Description: info.Description,
		Tags: []string{info.Tag}, DefaultStatus: info.Status, MaxBodyBytes: maxBody,
		Metadata: map[string]any{infoKey: &info},
		// The router sets deadlines.
		BodyReadTimeout: -1,
	}
	if info.MaxBody != 0 {
		o.MaxBodyBytes = info.MaxBody
	}
	if info.Open {
		o.Security = []map[string][]string{}
	}
	if info.Repeat != operation.RepeatNone {
		o.Parameters = append(o.Parameters, keyParameter(info.Repeat))
	}
	return o
}

// serve makes the route of an operation.
func serve[In, Out any](h *handlers, a huma.API, op operation.Op[In, Out]) {
	serveAs(h, a, describeRoute(op.Info), op)
}

// serveAs makes the route of an operation with a given description.
func serveAs[In, Out any](h *handlers, a huma.API, o huma.Operation, op operation.Op[In, Out]) {
	switch {
	case reflect.TypeFor[Out]() == reflect.TypeFor[operation.Empty]():
		huma.Register(a, o, func(ctx context.Context, in *In) (*struct{}, error) {
			if _, err := op.Do(ctx, h.svc, in); err != nil {
				return nil, h.fail(ctx, err)
			}
			return nil, nil
		})
	case op.Location != "":
		huma.Register(a, o, func(ctx context.Context, in *In) (*created[Out], error) {
			v, err := op.Do(ctx, h.svc, in)
			if err != nil {
				return nil, h.fail(ctx, err)
			}
			return &created[Out]{Location: op.Location + reflect.ValueOf(v).Elem().FieldByName("ID").String(), Body: v}, nil
		})
	default:
		huma.Register(a, o, func(ctx context.Context, in *In) (*Reply[Out], error) {
			v, err := op.Do(ctx, h.svc, in)
			if err != nil {
				return nil, h.fail(ctx, err)
			}
			return &Reply[Out]{Body: v}, nil
		})
	}
}

// serveStream makes the route of an operation that answers with lines.
func serveStream[In, Line any, P operation.Line[Line]](h *handlers, a huma.API, op operation.Stream[In, Line]) {
	huma.Register(a, answers[Line](a, describeRoute(op.Info), contentLines), func(_ context.Context, in *In) (*huma.StreamResponse, error) {
		return stream[Line, P](h, func(ctx context.Context, out *lines) error {
			return op.Do(ctx, h.svc, in, func(l Line) error { return out.send(l) })
		}), nil
	})
}

func (h *handlers) register(a huma.API) {
	h.registerServer(a)
	h.registerSandboxes(a)
	h.registerInside(a)
	h.registerOutside(a)
	h.registerTeam(a)
	h.registerTemplates(a)
}

func (h *handlers) registerServer(a huma.API) {
	serve(h, a, operation.Op[struct{}, operation.Health]{Info: operation.GetHealth, Do: func(context.Context, sandbox.Service, *struct{}) (*operation.Health, error) {
		return &operation.Health{Status: "ok"}, nil
	}})
	serve(h, a, operation.Op[struct{}, operation.VersionInfo]{Info: operation.GetVersion, Do: func(context.Context, sandbox.Service, *struct{}) (*operation.VersionInfo, error) {
		return &operation.VersionInfo{Version: h.version, API: "v1"}, nil
	}})
}

// registerSandboxes registers the operations on the life of sandboxes and on their
// states.
func (h *handlers) registerSandboxes(a huma.API) {
	serve(h, a, operation.Create)
	serve(h, a, operation.List)
	serve(h, a, operation.Get)
	serve(h, a, operation.Update)
	serve(h, a, operation.Kill)
	serve(h, a, operation.Stats)
	serve(h, a, operation.Audit)
	serve(h, a, operation.Pause)
	serve(h, a, operation.Resume)
	serve(h, a, operation.Fork)
	serve(h, a, operation.RestoreSnapshot)
	serve(h, a, operation.Diff)
	serve(h, a, operation.Merge)
	serveStream(h, a, operation.Try)
	serve(h, a, operation.CreateSnapshot)
	serve(h, a, operation.ListSnapshots)
	serve(h, a, operation.GetSnapshot)
	serve(h, a, operation.DeleteSnapshot)
}

// registerInside registers the operations that work inside a sandbox.
func (h *handlers) registerInside(a huma.API) {
	h.registerExec(a)
	serve(h, a, operation.ListJobs)
	serve(h, a, operation.GetJob)
	serveStream(h, a, operation.Attach)
	serve(h, a, operation.ReadOutput)
	serve(h, a, operation.SignalJob)
	stdin := describeRoute(operation.WriteStdin.Info)
	stdin.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{}}
	serveAs(h, a, stdin, operation.WriteStdin)
	serve(h, a, operation.ResizeTerminal)
	h.registerTerminal(a)
	h.registerCode(a)
	serve(h, a, operation.ListContexts)
	serve(h, a, operation.InterruptContext)
	serve(h, a, operation.RestartContext)
	serve(h, a, operation.DeleteContext)
	serve(h, a, operation.ListFiles)
	serve(h, a, operation.StatFile)
	serve(h, a, operation.EditFile)
	serve(h, a, operation.MakeDir)
	serve(h, a, operation.MakeSymlink)
	serve(h, a, operation.MoveFile)
	serve(h, a, operation.DeleteFile)
	serveStream(h, a, operation.WatchFiles)
	h.registerTransfers(a)
	serve(h, a, operation.ListProcesses)
	serve(h, a, operation.SignalProcess)
	serve(h, a, operation.GetEnv)
	serve(h, a, operation.SetEnv)
	serve(h, a, operation.ListStats)
	serve(h, a, operation.StatsSeries)
	serve(h, a, operation.ListDeliveries)
	serveStream(h, a, operation.FollowEvents)
}

// registerOutside registers the operations on what a sandbox can reach, and on how it
// is reached.
func (h *handlers) registerOutside(a huma.API) {
	serve(h, a, operation.GetNetwork)
	serve(h, a, operation.SetNetwork)
	serve(h, a, operation.NetworkLog)
	serveStream(h, a, operation.FollowNetworkLog)
	serve(h, a, operation.ListApprovals)
	serve(h, a, operation.GetApproval)
	serve(h, a, operation.AnswerApproval)
	serve(h, a, operation.CreatePreview)
	serve(h, a, operation.ListSandboxPreviews)
	serve(h, a, operation.ListPreviews)
	serve(h, a, operation.LinkPreview)
	serve(h, a, operation.DeletePreview)
	h.registerTunnel(a)
	serve(h, a, operation.GetScreen)
	h.registerScreenshot(a)
	serve(h, a, operation.SendInput)
	serve(h, a, operation.GetClipboard)
	serve(h, a, operation.SetClipboard)
	serve(h, a, operation.ListWindows)
	serve(h, a, operation.ControlWindow)
	serve(h, a, operation.OpenURL)
	serve(h, a, operation.ViewComputer)
}

// registerTeam registers the operations on what belongs to a team.
func (h *handlers) registerTeam(a huma.API) {
	serve(h, a, operation.CreateSecret)
	serve(h, a, operation.ListSecrets)
	serve(h, a, operation.GetSecret)
	serve(h, a, operation.RotateSecret)
	serve(h, a, operation.DeleteSecret)
	serve(h, a, operation.RotateSecretsKey)
	serve(h, a, operation.ListProviders)
	serve(h, a, operation.AttachSecret)
	serve(h, a, operation.DetachSecret)
	serve(h, a, operation.CreateVolume)
	serve(h, a, operation.ListVolumes)
	serve(h, a, operation.GetVolume)
	serve(h, a, operation.DeleteVolume)
	serve(h, a, operation.ListOrphans)
	serve(h, a, operation.RecoverOrphan)
	serve(h, a, operation.CheckMachine)
	serve(h, a, operation.ListNodes)
	serve(h, a, operation.CreateJoinToken)
	serve(h, a, operation.DrainNode)
	serve(h, a, operation.UndrainNode)
	serve(h, a, operation.RemoveNode)
	serve(h, a, operation.CreateKey)
	serve(h, a, operation.ListKeys)
	serve(h, a, operation.RevokeKey)
}

func (h *handlers) registerTemplates(a huma.API) {
	serve(h, a, operation.ListTemplates)
	serve(h, a, operation.GetTemplate)
	serveStream(h, a, operation.BuildTemplate)
	serve(h, a, operation.DeleteTemplate)
	serve(h, a, operation.AliasTemplate)
	serve(h, a, operation.DeleteTemplateAlias)
	serve(h, a, operation.LinkUpload)
	h.registerUpload(a)
	serve(h, a, operation.StartBuild)
	serve(h, a, operation.ListBuilds)
	serve(h, a, operation.GetBuild)
	serveStream(h, a, operation.FollowBuild)
	serve(h, a, operation.CancelBuild)
}
