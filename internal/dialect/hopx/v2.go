package hopx

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// runnersV2 are the tools of v0.2, by name.
var runnersV2 = map[string]runner{
	"health":                  doing("check the server", v2Health),
	"list_sandboxes":          doing("list sandboxes", v2ListSandboxes),
	"create_sandbox":          doing("create sandbox", v2CreateSandbox),
	"get_sandbox":             doing("get sandbox", v2GetSandbox),
	"delete_sandbox":          doing("delete sandbox", v2DeleteSandbox),
	"update_sandbox_timeout":  doing("update sandbox timeout", v2UpdateTimeout),
	"resume_sandbox":          doing("resume sandbox", v2ResumeSandbox),
	"list_templates":          doing("list templates", v2ListTemplates, "category", "language"),
	"get_template":            doing("get template", getTemplate),
	"ping_vm":                 doing("ping VM", v2Ping),
	"get_vm_info":             doing("get VM info", vmInfo),
	"get_preview_url":         doing("get preview URL", v2PreviewURL),
	"get_agent_url":           doing("get agent URL", v2AgentURL),
	"execute_code":            doing("execute code", v2ExecuteCode),
	"execute_code_persistent": doing("execute code", v2InMode(modePersistent)),
	"execute_code_rich":       doing("execute code", v2InMode(modeRich)),
	"execute_code_background": doing("execute code", v2InMode(modeBackground)),
	"execute_code_isolated":   doing("execute code", v2InMode(modeIsolated)),
	"execute_list_processes":  doing("list processes", v2ExecuteListProcesses),
	"execute_kill_process":    doing("kill process", v2ExecuteKill),
	"run_command":             doing("run command", v2RunCommand),
	"run_command_background":  doing("run command", v2CommandBackground),
	"list_processes":          doing("list processes", v2ListProcesses),
	"file_read":               doing("read file", v2FileRead),
	"file_write":              doing("write file", v2FileWrite),
	"file_list":               doing("list files", v2FileList),
	"file_exists":             doing("check file", v2FileExists),
	"file_remove":             doing("remove file", v2FileRemove),
	"file_mkdir":              doing("create directory", v2FileMkdir),
	"get_system_metrics":      doing("get system metrics", v2Metrics),
	"env_get":                 doing("get environment variables", v2EnvGet),
	"env_set":                 doing("set environment variables", v2EnvSet),
	"env_clear":               doing("clear environment variables", v2EnvClear),
	"cache_clear":             doing("clear cache", v2CacheClear),
	"cache_stats":             doing("get cache statistics", cacheStats),
}

// doing is tool for v0.2, whose errors name what has failed.
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

// with adds keys to what is told of an error.
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

// info is a sandbox as v0.2 shows it, by the id under a name.
func info(s *sandbox.Sandbox) pairs {
	r := recordOf(s)
	var started *string
	if s.StartedAt != nil {
		at := stamp(*s.StartedAt)
		started = &at
	}
	return object(
		pair{"template_id", r.TemplateID}, pair{"template_name", r.TemplateName}, pair{"organization_id", r.OrganizationID}, pair{"node_id", r.NodeID},
		pair{"region", r.Region}, pair{"status", r.Status}, pair{"public_host", r.PublicHost}, pair{"direct_url", r.DirectURL}, pair{"preview_url", nil},
		pair{"resources", r.Resources}, pair{"internet_access", r.InternetAccess}, pair{"live_mode", r.LiveMode}, pair{"timeout_seconds", r.TimeoutSeconds},
		pair{"expires_at", r.ExpiresAt}, pair{"created_at", r.CreatedAt}, pair{"started_at", started}, pair{"end_at", r.ExpiresAt})
}

func infoByID(s *sandbox.Sandbox) pairs {
	return append(object(pair{"sandbox_id", s.ID}), info(s)...)
}

func v2ListSandboxes(ctx context.Context, c *dialect.Call, in listArgs) (any, error) {
	found, _, err := in.find(ctx, c)
	if err != nil {
		return nil, err
	}
	data := make([]pairs, 0, len(found))
	for i := range found {
		data = append(data, infoByID(&found[i]))
	}
	return object(pair{"data", data}, pair{"count", len(data)}), nil
}

func v2CreateSandbox(ctx context.Context, c *dialect.Call, in createArgs) (any, error) {
	s, note, err := in.make(ctx, c)
	if err != nil {
		return nil, with(err, pair{"details", object(pair{"template_id", clip.Text(in.TemplateID, maxShown)}, pair{"error_type", errorType(err)})})
	}
	r := recordOf(s)
	out := object(
		pair{"id", r.ID}, pair{"status", r.Status}, pair{"template_id", r.TemplateID}, pair{"template_name", r.TemplateName},
		pair{"region", r.Region}, pair{"created_at", r.CreatedAt}, pair{"timeout_seconds", r.TimeoutSeconds})
	if note != "" {
		out = append(out, pair{"_note", note})
	}
	return out, nil
}

// errorType is an error's class in the product's client.
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
	return append(info(s), pair{"id", s.ID}), nil
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
	return infoByID(s), nil
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

func v2Ping(ctx context.Context, c *dialect.Call, in target) (any, error) {
	if _, err := pingVM(ctx, c, in); err != nil {
		return nil, err
	}
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	return object(pair{"status", "ok"}, pair{"agent_version", agentVersion}, pair{"agent", agentName}, pair{"features", features()}, pair{"uptime", uptime(m.started())}), nil
}

type previewArgs struct {
	target
	Port int `json:"port"`
}

// v2PreviewURL makes a port public, as the product's ports are. A preview that
// is private stays so, and gets a link that opens it.
func v2PreviewURL(ctx context.Context, c *dialect.Call, in previewArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	if in.Port < 1 || in.Port > 65535 {
		return nil, m.failed("", refusal("port is %d; give 1 to 65535", in.Port))
	}
	u, err := m.preview(ctx, in.Port)
	if err != nil {
		return nil, m.failed("", err)
	}
	return object(pair{"preview_url", u}, pair{"port", in.Port}, pair{"sandbox_id", m.id}), nil
}

func (m *vm) preview(ctx context.Context, port int) (string, error) {
	list, err := sandbox.All(ctx, sandbox.Of(m.id, m.Service.ListPreviews))
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(list, func(p sandbox.Preview) bool { return p.Port == port })
	if i >= 0 && list[i].Access == sandbox.PreviewPublic {
		return list[i].URL, nil
	}
	if i >= 0 {
		link, err := m.Service.LinkPreview(ctx, m.id, port, sandbox.PreviewLinkRequest{})
		if err != nil {
			return "", err
		}
		return link.URL, nil
	}
	p, err := m.Service.CreatePreview(ctx, m.id, sandbox.CreatePreviewRequest{Port: port, Access: sandbox.PreviewPublic})
	if err != nil {
		return "", err
	}
	return p.URL, nil
}

func v2AgentURL(ctx context.Context, c *dialect.Call, in target) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	return object(pair{"agent_url", directURL(m.id)}, pair{"sandbox_id", m.id}), nil
}

func v2ExecuteListProcesses(ctx context.Context, c *dialect.Call, in processesArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	found, total, err := m.backgrounds(ctx, in.Max)
	if err != nil {
		return nil, err
	}
	return counted(found, len(found), total), nil
}

func v2ListProcesses(ctx context.Context, c *dialect.Call, in processesArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	found, total, err := m.processes(ctx, in.Max)
	if err != nil {
		return nil, err
	}
	return counted(found, len(found), total), nil
}

// counted is a list of processes. Of one that was cut the product does not tell
// how many there are.
func counted(list any, n, total int) any {
	all := &total
	if n < total {
		all = nil
	}
	return object(pair{"processes", list}, pair{"count", n}, pair{"truncated", n < total}, pair{"total_processes", all})
}

func v2ExecuteKill(ctx context.Context, c *dialect.Call, in killArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	job, err := m.kill(ctx, in.ProcessID)
	if err != nil {
		return nil, err
	}
	state := "killed"
	if job.State == sandbox.JobExited && job.EndCause != sandbox.EndSignal {
		state = jobStatus(job)
	}
	return object(pair{"status", state}, pair{"process_id", in.ProcessID}), nil
}

// notRunKeys are told with an error of code and commands.
func notRunKeys(err error) []pair {
	return []pair{{"stdout", ""}, {"stderr", sandbox.MessageOf(err)}, {"exit_code", 1}}
}

func v2RunCommand(ctx context.Context, c *dialect.Call, in commandArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, with(err, notRunKeys(err)...)
	}
	out, err := m.command(ctx, &in)
	if err != nil {
		return nil, with(err, notRunKeys(err)...)
	}
	return object(pair{"stdout", out.Stdout}, pair{"stderr", out.Stderr}, pair{"exit_code", out.ExitCode}), nil
}

func v2CommandBackground(ctx context.Context, c *dialect.Call, in commandArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	job, err := m.startCommand(ctx, &in)
	if err != nil {
		return nil, err
	}
	return object(pair{"process_id", commandPrefix + job.ID}, pair{"status", "running"}, pair{"message", "Started in the background; execute_list_processes tells how it goes"}), nil
}

func v2FileRead(ctx context.Context, c *dialect.Call, in pathArgs) (any, error) {
	f, err := in.read(ctx, c)
	if err != nil {
		return nil, err
	}
	return object(pair{"path", f.Path}, pair{"content", f.Content}), nil
}

func v2FileWrite(ctx context.Context, c *dialect.Call, in writeArgs) (any, error) {
	if err := in.write(ctx, c); err != nil {
		return nil, err
	}
	return object(pair{"path", in.Path}, pair{"size", len([]rune(in.Content))}), nil
}

func v2FileList(ctx context.Context, c *dialect.Call, in fileListArgs) (any, error) {
	found, total, err := in.list(ctx, c)
	if err != nil {
		return nil, err
	}
	files := make([]pairs, 0, len(found))
	for _, f := range found {
		files = append(files, object(
			pair{"name", f.Name}, pair{"path", f.Path}, pair{"size", f.Size}, pair{"is_directory", f.IsDirectory},
			pair{"modified_time", f.ModifiedAt}, pair{"permissions", f.Permissions}))
	}
	return object(pair{"path", in.Path}, pair{"files", files}, pair{"count", len(files)}, pair{"truncated", len(files) < total}, pair{"total_files", total}), nil
}

func v2FileExists(ctx context.Context, c *dialect.Call, in pathArgs) (any, error) {
	exists, err := in.exists(ctx, c)
	if err != nil {
		return nil, err
	}
	return object(pair{"path", in.Path}, pair{"exists", exists}), nil
}

func v2FileRemove(ctx context.Context, c *dialect.Call, in pathArgs) (any, error) {
	if err := in.remove(ctx, c); err != nil {
		return nil, err
	}
	return object(pair{"status", "removed"}, pair{"path", in.Path}), nil
}

func v2FileMkdir(ctx context.Context, c *dialect.Call, in pathArgs) (any, error) {
	if err := in.mkdir(ctx, c); err != nil {
		return nil, err
	}
	return object(pair{"status", "created"}, pair{"path", in.Path}), nil
}

func v2EnvGet(ctx context.Context, c *dialect.Call, in target) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	env, err := m.env(ctx)
	if err != nil {
		return nil, err
	}
	return object(pair{"env_vars", env}), nil
}

func v2EnvSet(ctx context.Context, c *dialect.Call, in envArgs) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := m.setEnv(ctx, &in); err != nil {
		return nil, err
	}
	names := slices.AppendSeq([]string{}, maps.Keys(in.Vars))
	slices.Sort(names)
	return object(
		pair{"status", "success"}, pair{"message", fmt.Sprintf("Set %d environment variables", len(names))},
		pair{"variables_set", names}, pair{"merge_mode", in.Merge}), nil
}

func v2EnvClear(ctx context.Context, c *dialect.Call, in target) (any, error) {
	if _, err := envClear(ctx, c, in); err != nil {
		return nil, err
	}
	return object(pair{"status", "cleared"}), nil
}

func v2CacheClear(ctx context.Context, c *dialect.Call, in target) (any, error) {
	if _, err := in.open(ctx, c); err != nil {
		return nil, err
	}
	return object(pair{"status", "success"}), nil
}

// v2Metrics is the snapshot of the agent's own figures. What it does not count
// is not made up: it is left out.
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
		return nil, errors.New("metrics are no object")
	}
	return append(object(
		pair{"uptime_seconds", int64(m.uptime().Seconds())}, pair{"active_executions", active}, pair{"total_executions", len(list)},
		pair{"system", all}), all...), nil
}
