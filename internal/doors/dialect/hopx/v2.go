package hopx

import (
	"context"
	"errors"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// doing is tool for v0.2, whose errors name the failed action.
func doing[In any](what string, run func(ctx context.Context, c *dialect.Call, in In) (any, error), extra ...string) runner {
	return tool(func(ctx context.Context, c *dialect.Call, in In) (any, error) {
		v, err := run(ctx, c, in)
		if err != nil {
			f := failed(true, "", err)
			f.doing = what
			return nil, f
		}
		return v, nil
	}, extra...)
}

// with adds keys to the result for an error.
func with(err error, more ...pair) error {
	f := failed(true, "", err)
	f.more = append(f.more, more...)
	return f
}

func v2Health(ctx context.Context, c *dialect.Call, in struct{}) (any, error) {
	v, err := health(ctx, c, in)
	if err != nil {
		return nil, &failure{err: err, exact: object(pair{"error", "Health check failed"}, pair{"exception", sandbox.MessageOf(err)})}
	}
	return v, nil
}

// info returns a sandbox as v0.2 shows it, without the id.
func info(ctx context.Context, s *sandbox.Sandbox) pairs {
	r := recordOf(ctx, s)
	return object(
		pair{"template_id", r.TemplateID}, pair{"template_name", r.TemplateName}, pair{"organization_id", r.OrganizationID}, pair{"node_id", r.NodeID},
		pair{"region", r.Region}, pair{"status", r.Status}, pair{"public_host", r.PublicHost}, pair{"direct_url", r.DirectURL}, pair{"preview_url", nil},
		pair{"resources", r.Resources}, pair{"internet_access", r.InternetAccess}, pair{"live_mode", r.LiveMode}, pair{"timeout_seconds", r.TimeoutSeconds},
		pair{"expires_at", r.ExpiresAt}, pair{"created_at", r.CreatedAt}, pair{"started_at", stampOrNull(s.StartedAt)}, pair{"end_at", r.ExpiresAt})
}

func infoByID(ctx context.Context, s *sandbox.Sandbox) pairs {
	return append(object(pair{"sandbox_id", s.ID}), info(ctx, s)...)
}

func v2ListSandboxes(ctx context.Context, c *dialect.Call, in listArgs) (any, error) {
	found, _, err := in.find(ctx, c)
	if err != nil {
		return nil, err
	}
	data := make([]pairs, 0, len(found))
	for i := range found {
		data = append(data, infoByID(ctx, &found[i]))
	}
	return object(pair{"data", data}, pair{"count", len(data)}), nil
}

func v2CreateSandbox(ctx context.Context, c *dialect.Call, in createArgs) (any, error) {
	s, note, err := in.make(ctx, c)
	if err != nil {
		return nil, with(err, pair{"details", object(pair{"template_id", clip.Text(in.TemplateID, maxShown)}, pair{"error_type", errorType(err)})})
	}
	r := recordOf(ctx, s)
	out := object(
		pair{"id", r.ID}, pair{"status", r.Status}, pair{"template_id", r.TemplateID}, pair{"template_name", r.TemplateName},
		pair{"region", r.Region}, pair{"created_at", r.CreatedAt}, pair{"timeout_seconds", r.TimeoutSeconds})
	if note != "" {
		out = append(out, pair{"_note", note})
	}
	return out, nil
}

// errorType returns the class of an error in the product's client.
func errorType(err error) string {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeInvalid, sandbox.CodeTooLarge:
		return "ValidationError"
	case sandbox.CodeUnauthenticated:
		return "AuthenticationError"
	case sandbox.CodeNotFound:
		return "NotFoundError"
	case sandbox.CodeQuotaExceeded:
		return "RateLimitError"
	case sandbox.CodeTimeout:
		return "TimeoutError"
	}
	return "HopxError"
}

func v2GetSandbox(ctx context.Context, c *dialect.Call, in idArgs) (any, error) {
	s, err := living(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	return append(info(ctx, s), pair{"id", s.ID}), nil
}

func v2DeleteSandbox(ctx context.Context, c *dialect.Call, in idArgs) (any, error) {
	if _, err := deleteSandbox(ctx, c, in); err != nil {
		return nil, err
	}
	return object(pair{"status", "deleted"}, pair{"id", in.ID}), nil
}

func v2UpdateTimeout(ctx context.Context, c *dialect.Call, in timeoutArgs) (any, error) {
	s, err := in.set(ctx, c)
	if err != nil {
		return nil, err
	}
	return object(pair{"id", s.ID}, pair{"timeout_seconds", s.LifetimeSeconds}, pair{"status", "updated"}), nil
}

func v2ResumeSandbox(ctx context.Context, c *dialect.Call, in idArgs) (any, error) {
	s, err := resumed(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	return infoByID(ctx, s), nil
}

func v2ListTemplates(ctx context.Context, c *dialect.Call, in templatesArgs) (any, error) {
	found, _, err := in.find(ctx, c)
	if err != nil {
		return nil, err
	}
	data, about, err := in.cutAll(found, true)
	if err != nil {
		return nil, err
	}
	return append(object(pair{"data", data}, pair{"count", len(data)}), about...), nil
}

type previewArgs struct {
	target
	Port int `json:"port"`
}

// v2PreviewURL makes a port public, as the product's ports are. A private preview stays
// private, and gets a link that opens it.
func v2PreviewURL(ctx context.Context, c *dialect.Call, in previewArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	if in.Port < 1 || in.Port > 65535 {
		return nil, m.failed("", dialect.Invalid("port is %d; give 1 to 65535", in.Port))
	}
	u, err := dialect.PublicURL(ctx, m.Service, m.id, in.Port)
	if err != nil {
		return nil, m.failed("", err)
	}
	return object(pair{"preview_url", u}, pair{"port", in.Port}, pair{"sandbox_id", m.id}), nil
}

func v2AgentURL(ctx context.Context, c *dialect.Call, in target) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	return object(pair{"agent_url", directURL(m.id)}, pair{"sandbox_id", m.id}), nil
}

// notRunKeys returns the keys to add to an error of code or a command.
func notRunKeys(err error) []pair {
	return []pair{{"stdout", ""}, {"stderr", sandbox.MessageOf(err)}, {"exit_code", 1}}
}

func v2RunCommand(ctx context.Context, c *dialect.Call, in commandArgs) (any, error) {
	out, err := inside(runCommand)(ctx, c, &in)
	if err != nil {
		return nil, with(err, notRunKeys(err)...)
	}
	return object(pair{"stdout", out.Stdout}, pair{"stderr", out.Stderr}, pair{"exit_code", out.ExitCode}), nil
}

// v2Files is a listing of a directory.
func v2Files(in *fileListArgs, found *some[fileInfo]) any {
	files := make([]pairs, 0, len(found.list))
	for _, f := range found.list {
		files = append(files, object(
			pair{"name", f.Name}, pair{"path", f.Path}, pair{"size", f.Size}, pair{"is_directory", f.IsDirectory},
			pair{"modified_time", f.ModifiedAt}, pair{"permissions", f.Permissions}))
	}
	return object(pair{"path", in.Path}, pair{"files", files}, pair{"count", len(files)}, pair{"truncated", found.cut()}, pair{"total_files", found.total})
}

// counted returns a list of processes. For a list that was cut, the product does not say
// how many there are.
func counted[T any](_ *processesArgs, found *some[T]) any {
	all := &found.total
	if found.cut() {
		all = nil
	}
	return object(pair{"processes", found.list}, pair{"count", len(found.list)}, pair{"truncated", found.cut()}, pair{"total_processes", all})
}

// v2Metrics returns a snapshot of the agent's own metrics. Metrics that it does not count
// are left out.
func v2Metrics(ctx context.Context, c *dialect.Call, in target) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	system, err := systemMetrics(ctx, c, in)
	if err != nil {
		return nil, err
	}
	list, err := sandbox.All(ctx, sandbox.Of(m.id, m.Service.ListJobs))
	if err != nil {
		return nil, m.missing(ctx, "/metrics/snapshot", "NOT_FOUND", err)
	}
	active := 0
	for i := range list {
		if list[i].State == sandbox.JobRunning {
			active++
		}
	}
	all, ok := system.(pairs)
	if !ok {
		return nil, errors.New("metrics are not an object")
	}
	return append(object(
		pair{"uptime_seconds", int64(m.uptime().Seconds())}, pair{"active_executions", active}, pair{"total_executions", len(list)},
		pair{"system", all}), all...), nil
}
