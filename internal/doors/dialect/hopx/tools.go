package hopx

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// row is a tool in each generation; nil if a generation does not have it.
type row struct {
	name   string
	v1, v2 runner
}

// both makes a tool that does the same in both generations, each of which shows the result
// in its own way. what completes "Failed to …" in v0.2.
func both[In, Out any](name, what string, work func(context.Context, *dialect.Call, *In) (Out, error), v1, v2 func(*In, Out) any) row {
	shownAs := func(show func(*In, Out) any) func(context.Context, *dialect.Call, In) (any, error) {
		return func(ctx context.Context, c *dialect.Call, in In) (any, error) {
			out, err := work(ctx, c, &in)
			if err != nil {
				return nil, err
			}
			return show(&in, out), nil
		}
	}
	return row{name, tool(shownAs(v1)), doing(what, shownAs(v2))}
}

// opener is implemented by the arguments of tools that work in a sandbox.
type opener[In any] interface {
	*In
	open(ctx context.Context, c *dialect.Call) (*vm, error)
}

// inside makes the work of a tool in a sandbox, which must be running.
func inside[In any, P opener[In], Out any](work func(context.Context, *vm, *In) (Out, error)) func(context.Context, *dialect.Call, *In) (Out, error) {
	return func(ctx context.Context, c *dialect.Call, in *In) (out Out, err error) {
		m, err := P(in).open(ctx, c)
		if err != nil {
			return out, err
		}
		return work(ctx, m, in)
	}
}

// effect adapts work that has no result.
func effect[In, At any](work func(context.Context, At, *In) error) func(context.Context, At, *In) (struct{}, error) {
	return func(ctx context.Context, at At, in *In) (struct{}, error) { return struct{}{}, work(ctx, at, in) }
}

// as shows a result unchanged.
func as[In, Out any](_ *In, out Out) any { return out }

// same shows the same object whatever the result.
func same[In, Out any](pairs ...pair) func(*In, Out) any {
	return func(*In, Out) any { return object(pairs...) }
}

// rows are the tools of both generations, by name.
var rows = []row{
	{"health", tool(health), doing("check the server", v2Health)},
	{"list_sandboxes", tool(listSandboxes), doing("list sandboxes", v2ListSandboxes)},
	{"create_sandbox", tool(createSandbox), doing("create sandbox", v2CreateSandbox)},
	{"get_sandbox", tool(getSandbox), doing("get sandbox", v2GetSandbox)},
	{"delete_sandbox", tool(deleteSandbox), doing("delete sandbox", v2DeleteSandbox)},
	{"update_sandbox_timeout", tool(updateTimeout), doing("update sandbox timeout", v2UpdateTimeout)},
	{"resume_sandbox", tool(resumeSandbox), doing("resume sandbox", v2ResumeSandbox)},
	{"list_templates", tool(listTemplates, "category", "language"), doing("list templates", v2ListTemplates, "category", "language")},
	{"get_template", tool(getTemplate), doing("get template", getTemplate)},
	{"call_api", tool(callAPI), nil},

	both("ping_vm", "ping VM", inside(ping),
		func(*target, *vm) any {
			return object(pair{"message", "pong"}, pair{"status", "ok"}, pair{"timestamp", dialect.Stamp(time.Now())})
		},
		func(_ *target, m *vm) any {
			return object(pair{"status", "ok"}, pair{"agent_version", agentVersion}, pair{"agent", agentName}, pair{"features", features(false)}, pair{"uptime", uptime(m.started())})
		}),
	both("get_vm_info", "get VM info", inside(vmInfo), as, as),
	{"get_preview_url", nil, doing("get preview URL", v2PreviewURL)},
	{"get_agent_url", nil, doing("get agent URL", v2AgentURL)},
	{"get_system_metrics", tool(systemMetrics), doing("get system metrics", v2Metrics)},

	{"execute_code", tool(executeCode), doing("execute code", v2ExecuteCode)},
	{"execute_code_persistent", nil, doing("execute code", v2InMode(modePersistent))},
	{"execute_code_rich", tool(executeRich), doing("execute code", v2InMode(modeRich))},
	{"execute_code_background", tool(executeBackground), doing("execute code", v2InMode(modeBackground))},
	{"execute_code_isolated", tool(executeIsolated), doing("execute code", v2InMode(modeIsolated))},
	{"execute_code_async", tool(executeAsync), nil},
	both("execute_list_processes", "list processes", inside(listBackground),
		func(_ *processesArgs, found *some[*background]) any {
			out := object(pair{"processes", found.list}, pair{"count", len(found.list)}, pair{"timestamp", dialect.Stamp(time.Now())})
			return append(out, found.showing("processes")...)
		}, counted),
	both("execute_kill_process", "kill process", inside(killProcess),
		func(in *killArgs, job *sandbox.Job) any {
			state, already := killed(job)
			message := "Process killed"
			if already {
				message = "Process had ended already"
			}
			return object(pair{"message", message}, pair{"process_id", in.ProcessID}, pair{"status", state})
		},
		func(in *killArgs, job *sandbox.Job) any {
			state, _ := killed(job)
			return object(pair{"status", state}, pair{"process_id", in.ProcessID})
		}),

	{"run_command", tool(command), doing("run command", v2RunCommand)},
	both("run_command_background", "run command", inside(startCommand),
		func(in *commandArgs, job *sandbox.Job) any { return startedOf(commandPrefix, job, in.Name) },
		func(_ *commandArgs, job *sandbox.Job) any {
			return object(pair{"process_id", commandPrefix + job.ID}, pair{"status", "running"}, pair{"message", "Started in the background; execute_list_processes tells how it goes"})
		}),
	both("list_processes", "list processes", inside(listProcesses),
		func(_ *processesArgs, found *some[process]) any {
			if found.cut() {
				return append(object(pair{"processes", found.list}), found.showing("processes")...)
			}
			return object(pair{"processes", found.list}, pair{"count", found.total})
		}, counted),

	both("file_read", "read file", readFile, as,
		func(_ *pathArgs, f *fileRead) any { return object(pair{"path", f.Path}, pair{"content", f.Content}) }),
	both("file_write", "write file", effect(writeFile),
		func(in *writeArgs, _ struct{}) any {
			return object(pair{"message", "File written successfully"}, pair{"path", in.Path}, pair{"success", true},
				pair{"size", len(in.Content)}, pair{"timestamp", dialect.Stamp(time.Now())})
		},
		func(in *writeArgs, _ struct{}) any {
			return object(pair{"path", in.Path}, pair{"size", len([]rune(in.Content))})
		}),
	both("file_list", "list files", listFiles,
		func(in *fileListArgs, found *some[fileInfo]) any {
			return append(object(pair{"files", found.list}, pair{"path", in.Path}, pair{"count", len(found.list)}), found.showing("files")...)
		}, v2Files),
	both("file_exists", "check file", fileExists,
		func(in *pathArgs, exists bool) any { return object(pair{"exists", exists}, pair{"path", in.Path}) },
		func(in *pathArgs, exists bool) any { return object(pair{"path", in.Path}, pair{"exists", exists}) }),
	both("file_remove", "remove file", effect(removeFile), fileDone("File removed successfully"),
		func(in *pathArgs, _ struct{}) any { return object(pair{"status", "removed"}, pair{"path", in.Path}) }),
	both("file_mkdir", "create directory", effect(makeDir), fileDone("Directory created successfully"),
		func(in *pathArgs, _ struct{}) any { return object(pair{"status", "created"}, pair{"path", in.Path}) }),

	both("env_get", "get environment variables", inside(getEnv),
		func(_ *target, env pairs) any {
			return object(pair{"env_vars", env}, pair{"count", len(env)}, pair{"timestamp", dialect.Stamp(time.Now())})
		},
		func(_ *target, env pairs) any { return object(pair{"env_vars", env}) }),
	both("env_set", "set environment variables", inside(effect(setEnv)), same[envArgs, struct{}](pair{"text", ""}), // the answer has no body
		func(in *envArgs, _ struct{}) any {
			names := slices.AppendSeq([]string{}, maps.Keys(in.Vars))
			slices.Sort(names)
			return object(
				pair{"status", "success"}, pair{"message", fmt.Sprintf("Set %d environment variables", len(names))},
				pair{"variables_set", names}, pair{"merge_mode", in.Merge})
		}),
	both("env_clear", "clear environment variables", inside(effect(clearEnv)),
		same[target, struct{}](pair{"text", ""}), same[target, struct{}](pair{"status", "cleared"})),
	// The result cache is always empty: code has side effects, so it always runs.
	both("cache_clear", "clear cache", inside(opened),
		same[target, *vm](pair{"message", "Cache cleared"}, pair{"entries_removed", 0}), same[target, *vm](pair{"status", "success"})),
	both("cache_stats", "get cache statistics", inside(opened), cacheStats, cacheStats),
}
