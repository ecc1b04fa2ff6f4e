package hopx

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Defaults, in seconds, for requests to an agent that leave these out.
const (
	restTimeout    = 60
	commandTimeout = 30
	longTimeout    = 300
	asyncTimeout   = 1800
)

// agentRoutes are the routes of a sandbox's agent; fixed words come before {}. Different
// clients use different routes to kill a process.
var agentRoutes = slices.Concat(desktopRoutes, []route{
	{"GET", "/", agentIndex},
	{"GET", "/ping", inSandbox(ping, func(*target, *vm) any { return object(pair{"message", "pong"}) })},
	{"GET", "/health", inSandbox(ping, agentHealth)},
	{"GET", "/info", inSandbox(vmInfo, as)},
	{"GET", "/system", agentSystem},
	{"GET", "/metrics/snapshot", agentMetrics},
	{"GET", "/processes", inSandbox(func(ctx context.Context, m *vm, in *target) (*some[process], error) {
		return listProcesses(ctx, m, &processesArgs{target: *in})
	}, func(_ *target, found *some[process]) any {
		return object(pair{"processes", found.list}, pair{"count", len(found.list)}, pair{"timestamp", dialect.Stamp(time.Now())})
	})},
	{"GET", "/jupyter/sessions", inSandbox(contexts, sessions)},
	{"GET", "/jupyter/status", inSandbox(contexts, sessions)},

	{"POST", "/execute", withBody(restCode{codeArgs: codeArgs{Language: "python", Timeout: restTimeout, WorkingDir: home}}, restExecute)},
	{"POST", "/execute/ipython", withBody(restCode{codeArgs: codeArgs{Language: "python", Timeout: restTimeout}}, restExecute)},
	{"POST", "/execute/rich", withBody(restCode{codeArgs: codeArgs{Language: "python", Timeout: commandTimeout, WorkingDir: richDir, Rich: true}}, restRich)},
	{"POST", "/execute/background", withBody(restBackground{backgroundArgs: backgroundArgs{codeArgs: codeArgs{Language: "python", Timeout: longTimeout}}}, restInBackground(executeBackground, http.StatusOK))},
	{"POST", "/execute/async", withBody(restBackground{backgroundArgs: backgroundArgs{codeArgs: codeArgs{Language: "python", Timeout: asyncTimeout}}}, restInBackground(executeAsync, http.StatusAccepted))},
	{"GET", "/execute/processes", inSandbox(func(ctx context.Context, m *vm, in *target) (*some[*background], error) {
		return listBackground(ctx, m, &processesArgs{target: *in})
	}, restProcesses)},
	{"DELETE", "/execute/kill", func(ctx context.Context, a *apiCall) (any, error) { return a.kill(ctx, a.query.Get("process_id")) }},
	{"POST", "/execute/kill/{}", func(ctx context.Context, a *apiCall) (any, error) { return a.kill(ctx, a.parts[0]) }},
	{"POST", "/processes/{}/kill", func(ctx context.Context, a *apiCall) (any, error) { return a.kill(ctx, a.parts[0]) }},

	{"POST", "/commands/run", withBody(restCommand{commandArgs: commandArgs{Timeout: commandTimeout, WorkingDir: home}}, restRun)},
	{"POST", "/commands/background", withBody(restCommand{commandArgs: commandArgs{Timeout: longTimeout, WorkingDir: home}}, restStart)},

	{"GET", "/files/read", onPath(func(ctx context.Context, c *dialect.Call, in *pathArgs) (any, error) { return readFile(ctx, c, in) })},
	{"GET", "/files/list", onPath(restList)},
	{"GET", "/files/exists", onPath(func(ctx context.Context, c *dialect.Call, in *pathArgs) (any, error) {
		there, err := fileExists(ctx, c, in)
		return object(pair{"exists", there}, pair{"path", in.Path}), err
	})},
	{"DELETE", "/files/remove", onPath(func(ctx context.Context, c *dialect.Call, in *pathArgs) (any, error) {
		return fileDone("File removed successfully")(in, struct{}{}), removeFile(ctx, c, in)
	})},
	{"POST", "/files/mkdir", withBody(pathArgs{}, func(ctx context.Context, c *dialect.Call, in *pathArgs) (any, error) {
		return fileDone("Directory created successfully")(in, struct{}{}), makeDir(ctx, c, in)
	})},
	{"POST", "/files/write", withBody(restWrite{Overwrite: true}, restWriteFile)},

	{"GET", "/env", inSandbox(getEnv, restEnv)},
	{"PUT", "/env", withBody(envArgs{}, restSetEnv(false))},
	{"PATCH", "/env", withBody(envArgs{Merge: true}, restSetEnv(true))},
	{"DELETE", "/env", inSandbox(effect(clearEnv), func(*target, struct{}) any { return noContent })},

	{"GET", "/cache/stats", inSandbox(opened, cacheStats)},
	{"POST", "/cache/clear", inSandbox(opened, same[target, *vm](pair{"message", "Cache cleared"}, pair{"entries_removed", 0}))},
})

var noContent = &Answer{Status: http.StatusNoContent}

// aim sets the sandbox of a call to an agent. The body must not name one.
func (t *target) aim(id string) error {
	if *t != (target{}) {
		return dialect.Invalid("vm_url, auth_token and sandbox_id are not for this call, whose URL names the sandbox; leave them out")
	}
	t.SandboxID = id
	return nil
}

// aimed is implemented by the arguments of calls in a sandbox.
type aimed[In any] interface {
	*In
	aim(id string) error
}

// withBody makes a route that works in a sandbox and takes a body. defaults holds the
// values of members that the body leaves out.
func withBody[In any, P aimed[In]](defaults In, work func(context.Context, *dialect.Call, *In) (any, error)) func(context.Context, *apiCall) (any, error) {
	return func(ctx context.Context, a *apiCall) (any, error) {
		in := defaults
		err := a.read(&in)
		if err == nil {
			err = P(&in).aim(a.sandbox)
		}
		if err != nil {
			return nil, failed(true, a.path, err)
		}
		return work(ctx, a.Call, &in)
	}
}

// inSandbox makes a route that works in a sandbox and takes no arguments.
func inSandbox[Out any](work func(context.Context, *vm, *target) (Out, error), show func(*target, Out) any) func(context.Context, *apiCall) (any, error) {
	run := inside(work)
	return func(ctx context.Context, a *apiCall) (any, error) {
		in := &target{SandboxID: a.sandbox}
		out, err := run(ctx, a.Call, in)
		if err != nil {
			return nil, err
		}
		return show(in, out), nil
	}
}

// onPath makes a route that works on the file that the query names.
func onPath(work func(context.Context, *dialect.Call, *pathArgs) (any, error)) func(context.Context, *apiCall) (any, error) {
	return func(ctx context.Context, a *apiCall) (any, error) {
		if len(a.query["path"]) > 1 {
			return nil, failed(true, a.path, dialect.Invalid("the query has more than one path; give one"))
		}
		return work(ctx, a.Call, &pathArgs{target{SandboxID: a.sandbox}, a.query.Get("path")})
	}
}

func agentIndex(context.Context, *apiCall) (any, error) {
	return object(pair{"agent", agentName}, pair{"version", agentVersion}, pair{"status", "running"}), nil
}

func agentHealth(_ *target, m *vm) any {
	return object(
		pair{"status", "healthy"}, pair{"agent", agentName}, pair{"version", agentVersion}, pair{"uptime", uptime(m.started())},
		pair{"uptime_seconds", int64(m.uptime().Seconds())}, pair{"vm_id", m.id}, pair{"features", features(true)})
}

func agentSystem(ctx context.Context, a *apiCall) (any, error) {
	return systemMetrics(ctx, a.Call, target{SandboxID: a.sandbox})
}

func agentMetrics(ctx context.Context, a *apiCall) (any, error) {
	return v2Metrics(ctx, a.Call, target{SandboxID: a.sandbox})
}

func contexts(ctx context.Context, m *vm, _ *target) ([]sandbox.CodeContext, error) {
	list, err := m.Service.ListContexts(ctx, m.id)
	if err != nil {
		return nil, m.failed("/jupyter/sessions", err)
	}
	return list.Items, nil
}

func sessions(_ *target, list []sandbox.CodeContext) any {
	out := []pairs{}
	for i := range list {
		k := &list[i]
		out = append(out, object(
			pair{"kernel_id", string(k.Language) + "/" + k.Name}, pair{"kernel_name", k.Language}, pair{"execution_state", k.State},
			pair{"connections", k.Queued}, pair{"created_at", dialect.Stamp(k.CreatedAt)}))
	}
	return object(pair{"sessions", out})
}

// restCode is the code argument of the REST API. Generations of clients use different names
// for the directory.
type restCode struct {
	codeArgs
	Dir string `json:"workdir"`
}

func (in *restCode) normal() *codeArgs {
	if in.Dir != "" {
		in.WorkingDir = in.Dir
	}
	return &in.codeArgs
}

// restExecute runs code. Clients read outputs only from fields and drop the note, so the
// note becomes a line of stderr.
func restExecute(ctx context.Context, c *dialect.Call, in *restCode) (any, error) {
	args := in.normal()
	m, err := args.open(ctx, c)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	out, res, err := m.execute(ctx, "/execute", args)
	if err != nil {
		return nil, err
	}
	return m.shown(ctx, out, res, args, began), nil
}

// shown adds the outputs, and the notes about them, to a result.
func (m *vm) shown(ctx context.Context, out *executed, res *sandbox.CodeResult, in *codeArgs, began time.Time) *executed {
	var text, others leftOut
	out.flat, text, others = flatOf(res, maxRich)
	out.remark(append(text, others...).note("Save what is larger to a file."))
	if len(out.PNG) == 0 && in.WorkingDir != "" && saves(in.Code) {
		if images := m.savedImages(ctx, in.WorkingDir, began); len(images) > 0 {
			out.PNG = images[0].Data[typePNG]
		}
	}
	if out.Note != "" {
		out.Stderr = dialect.Line(out.Stderr) + out.Note + "\n"
	}
	return out
}

func restRich(ctx context.Context, c *dialect.Call, in *restCode) (any, error) {
	return executeRich(ctx, c, *in.normal())
}

type restBackground struct {
	backgroundArgs
	Dir string `json:"workdir"`
}

// restInBackground starts code in the background, and answers with a status.
func restInBackground(start func(context.Context, *dialect.Call, backgroundArgs) (any, error), status int) func(context.Context, *dialect.Call, *restBackground) (any, error) {
	return func(ctx context.Context, c *dialect.Call, in *restBackground) (any, error) {
		if in.Dir != "" {
			in.WorkingDir = in.Dir
		}
		v, err := start(ctx, c, in.backgroundArgs)
		if s, ok := v.(*started); ok {
			s.Message = "Started in the background; GET /execute/processes tells how it goes"
		}
		return &Answer{Status: status, Value: v}, err
	}
}

// restProcess is a background process with the field names of all clients.
type restProcess struct {
	*background
	StartedAt     string  `json:"started_at"`
	CompletedAt   *string `json:"completed_at,omitempty"`
	ExecutionTime float64 `json:"execution_time"`
}

func restProcesses(_ *target, found *some[*background]) any {
	list := []restProcess{}
	for _, b := range found.list {
		list = append(list, restProcess{b, b.StartTime, b.EndTime, b.Duration})
	}
	return object(pair{"processes", list}, pair{"count", len(list)}, pair{"timestamp", dialect.Stamp(time.Now())})
}

func (a *apiCall) kill(ctx context.Context, process string) (any, error) {
	in := &killArgs{target: target{SandboxID: a.sandbox}, ProcessID: process}
	job, err := inside(killProcess)(ctx, a.Call, in)
	if err != nil {
		return nil, err
	}
	state, _ := killed(job)
	return object(pair{"message", "Process killed"}, pair{"process_id", clip.Text(process, maxShown)}, pair{"status", state}), nil
}

type restCommand struct {
	commandArgs
	Dir string `json:"workdir"`
}

func (in *restCommand) normal() *commandArgs {
	if in.Dir != "" {
		in.WorkingDir = in.Dir
	}
	return &in.commandArgs
}

func restRun(ctx context.Context, c *dialect.Call, in *restCommand) (any, error) {
	return inside(runCommand)(ctx, c, in.normal())
}

func restStart(ctx context.Context, c *dialect.Call, in *restCommand) (any, error) {
	job, err := inside(startCommand)(ctx, c, in.normal())
	if err != nil {
		return nil, err
	}
	s := startedOf(commandPrefix, job, in.Name)
	s.Message = "Started in the background; GET /execute/processes tells how it goes"
	return s, nil
}

func restList(ctx context.Context, c *dialect.Call, in *pathArgs) (any, error) {
	if in.Path == "" {
		in.Path = home
	}
	found, err := listFiles(ctx, c, &fileListArgs{pathArgs: *in})
	if err != nil {
		return nil, err
	}
	return object(pair{"files", found.list}, pair{"path", in.Path}, pair{"count", len(found.list)}), nil
}

type restWrite struct {
	writeArgs
	Encoding  string `json:"encoding"`
	Mode      string `json:"mode"`
	Overwrite bool   `json:"overwrite"`
}

func restWriteFile(ctx context.Context, c *dialect.Call, in *restWrite) (any, error) {
	var content []byte
	info, err := in.store(ctx, c, "/files/write", sandbox.WriteFileRequest{Mode: in.Mode, Exclusive: !in.Overwrite}, func() (io.Reader, error) {
		var err error
		content, err = in.decoded()
		return bytes.NewReader(content), err
	})
	if err != nil {
		return nil, aboutExisting(err)
	}
	return stored("File written successfully", in.Path, info), nil
}

func stored(message, name string, info *sandbox.FileInfo) any {
	return object(
		pair{"message", message}, pair{"path", name}, pair{"success", true}, pair{"size", info.Size}, pair{"timestamp", dialect.Stamp(time.Now())})
}

// aboutExisting gives a conflict about an existing file the product's code.
func aboutExisting(err error) error {
	if f, ok := err.(*failure); ok && sandbox.CodeOf(f.err) == sandbox.CodeConflict {
		f.code = "FILE_ALREADY_EXISTS"
	}
	return err
}

func (in *restWrite) decoded() ([]byte, error) {
	content := []byte(in.Content)
	switch in.Encoding {
	case "", "utf-8", "utf8", "text":
	case "base64":
		var err error
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, dialect.Invalid("content is not base64; send such, or leave encoding out")
		}
	default:
		return nil, dialect.Invalid("encoding %q is not known; use base64, or leave it out for text", clip.Text(in.Encoding, maxShown))
	}
	if len(content) > maxWrite {
		return nil, sandbox.Errorf(sandbox.CodeTooLarge, "content has %d bytes; write at most %d at once, or send it to POST /files/upload", len(content), maxWrite)
	}
	return content, nil
}

func restEnv(_ *target, env pairs) any {
	return object(pair{"env_vars", env}, pair{"count", len(env)}, pair{"timestamp", dialect.Stamp(time.Now())})
}

// restSetEnv sets variables, and answers with all variables.
func restSetEnv(merge bool) func(context.Context, *dialect.Call, *envArgs) (any, error) {
	return func(ctx context.Context, c *dialect.Call, in *envArgs) (any, error) {
		if in.Merge && !merge {
			return nil, failed(true, "/env", dialect.Invalid("merge is not for PUT; use PATCH to keep the other variables"))
		}
		in.Merge = merge
		if _, err := inside(effect(setEnv))(ctx, c, in); err != nil {
			return nil, err
		}
		env, err := inside(getEnv)(ctx, c, &in.target)
		if err != nil {
			return nil, err
		}
		return restEnv(&in.target, env), nil
	}
}

// OpenFile opens a sandbox's file for a raw download.
func OpenFile(ctx context.Context, c *dialect.Call, id, name string) (*sandbox.FileReader, error) {
	in := &pathArgs{target{SandboxID: id}, name}
	m, p, at, err := in.file(ctx, c, "/files/download")
	if err != nil {
		return nil, err
	}
	file, err := m.Service.ReadFile(ctx, m.id, sandbox.ReadFileRequest{Path: p})
	if err != nil {
		return nil, m.failedFile(ctx, at, name, err)
	}
	return file, nil
}

// StoreFile writes a sandbox's file of any size, and returns the answer.
func StoreFile(ctx context.Context, c *dialect.Call, id, name string, content io.Reader) (any, error) {
	in := &pathArgs{target{SandboxID: id}, name}
	info, err := in.store(ctx, c, "/files/upload", sandbox.WriteFileRequest{}, func() (io.Reader, error) { return content, nil })
	if err != nil {
		return nil, err
	}
	return stored("File uploaded successfully", name, info), nil
}
