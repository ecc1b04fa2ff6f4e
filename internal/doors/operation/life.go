package operation

import (
	"context"

	"github.com/cove-sh/cove/sandbox"
)

// Limits of JSON bodies in bytes. Standard input and the text of an edit grow
// by a third or more when they are encoded.
const (
	MaxExecBody = 2*sandbox.MaxStdinBytes + 2*sandbox.MaxCommandBytes
	MaxEditBody = 4 * sandbox.MaxEditFileBytes
	// maxCodeBody is for a piece of code with its standard input.
	maxCodeBody = 2*sandbox.MaxCodeBytes + 2*sandbox.MaxStdinBytes
	// maxBuildBody has room for the files of a spec in base64.
	maxBuildBody = 16 << 20
	// maxClipboardBody has room for a text with all characters escaped in JSON.
	maxClipboardBody = 8*sandbox.MaxClipboard + 1<<10
)

// Common prefixes of paths.
const (
	inBox      = "/v1/sandboxes/{sandbox}"
	inFiles    = inBox + "/files"
	inComputer = inBox + "/computer"
	inPreviews = inBox + "/previews"
	inJob      = inBox + "/jobs/{job}"
	inContexts = inBox + "/contexts"
)

// Short names of the scopes.
const (
	anyScope  sandbox.Scope = ""
	read                    = sandbox.ScopeSandboxesRead
	write                   = sandbox.ScopeSandboxesWrite
	files                   = sandbox.ScopeFilesWrite
	secrets                 = sandbox.ScopeSecretsWrite
	templates               = sandbox.ScopeTemplatesWrite
	computers               = sandbox.ScopeComputersWrite
	admin                   = sandbox.ScopeAdmin
)

// Operations on the server itself.
var (
	GetHealth  = Info{ID: "health", Method: "GET", Path: "/healthz", Tag: "server", Open: true, Summary: "Check that the server answers", Description: "Needs no key, and checks neither the store nor sandboxes."}
	GetVersion = Info{ID: "version", Method: "GET", Path: "/v1/version", Tag: "server", Open: true, Summary: "Get the server's version", Description: "Needs no key. Every answer also has the version in the header Cove-Version."}
)

// Operations on the life of sandboxes.
var (
	Create = op(about("POST /v1/sandboxes", "create-sandbox", "sandboxes", write, "Create a sandbox; the answer comes when it runs").does("Create").created("/v1/sandboxes/").repeatable(RepeatWhole), body(sandbox.Service.Create))
	List   = op(about("GET /v1/sandboxes", "list-sandboxes", "sandboxes", read, "List sandboxes, newest first").does("List"),
		func(ctx context.Context, s sandbox.Service, in *listInput) (*sandbox.List[sandbox.Sandbox], error) {
			req, err := in.request()
			if err != nil {
				return nil, err
			}
			return s.List(ctx, req)
		})
	Get    = op(about("GET "+inBox, "get-sandbox", "sandboxes", read, "Get a sandbox in any state").does("Get"), one[SandboxPath](sandbox.Service.Get))
	Update = op(about("PATCH "+inBox, "update-sandbox", "sandboxes", write, "Change a living sandbox").does("Update"), inSandbox(sandbox.Service.Update))
	Kill   = op(about("DELETE "+inBox, "kill-sandbox", "sandboxes", write, "End a sandbox and remove its files").does("Kill"), one[SandboxPath](sandbox.Service.Kill))
	Stats  = op(about("GET "+inBox+"/stats", "get-stats", "sandboxes", read, "Get what a running sandbox uses").does("Stats"), one[SandboxPath](sandbox.Service.Stats))
	Audit  = op(about("GET /v1/audit", "list-audit", "sandboxes", admin, "List what was done, newest first").does("Audit"), query(sandbox.Service.Audit))
)

// Operations on the states of sandboxes in time.
var (
	Pause  = op(about("POST "+inBox+"/pause", "pause-sandbox", "snapshots", write, "Write a sandbox's state to disk and end its processes").does("Pause"), one[SandboxPath](sandbox.Service.Pause))
	Resume = op(about("POST "+inBox+"/resume", "resume-sandbox", "snapshots", write, "Continue a paused sandbox where it was").does("Resume"),
		func(ctx context.Context, s sandbox.Service, in *SandboxBody[*sandbox.ResumeRequest]) (*sandbox.Sandbox, error) {
			if in.Body == nil { // the body is optional
				in.Body = new(sandbox.ResumeRequest)
			}
			return s.Resume(ctx, in.Sandbox, *in.Body)
		})
	Fork = op(about("POST "+inBox+"/fork", "fork-sandbox", "snapshots", write, "Make children that continue from a sandbox's current state").does("Fork").created("").repeatable(RepeatWhole).
		says("The answer has all children, at most %d. Either all are made or none.", sandbox.MaxForks),
		inSandbox(sandbox.Service.Fork))
	RestoreSnapshot = op(about("POST "+inBox+"/restore", "restore-snapshot", "snapshots", write, "Set a sandbox back to a kept state"), inSandbox(sandbox.Service.RestoreSnapshot))
	Diff            = op(about("POST /v1/diff/{subject}", "diff", "snapshots", read, "Compare the files of a sandbox or snapshot with those of another"),
		func(ctx context.Context, s sandbox.Service, in *diffInput) (*sandbox.Diff, error) {
			return s.Diff(ctx, in.Subject, in.Body)
		})
	Merge = op(about("POST "+inBox+"/merge", "merge-sandbox", "snapshots", write, "Merge a child's changes into its parent").does("Merge").repeatable(RepeatWhole).
		says("Conflicts are not an error: the answer lists them, `merged` is false, and nothing was changed."),
		inSandbox(sandbox.Service.Merge))
	Try = streamed(about("POST "+inBox+"/try", "try", "snapshots", write, "Try commands in forks of a sandbox, all at the same time").upTo(MaxExecBody).
		says("The answer is a stream with a line for each attempt as it ends. Its last line is marked `final` and has the result, "+
			"or has an `error`. A client that disconnects ends the attempts and their forks. All commands together are at most 20 MiB of JSON."),
		func(ctx context.Context, s sandbox.Service, in *SandboxBody[sandbox.TryRequest], send func(TryLine) error) error {
			result, err := s.Try(ctx, in.Sandbox, in.Body, func(ev sandbox.TryEvent) error {
				return send(TryLine{Attempt: &ev.Attempt, Done: ev.Done, Total: ev.Total})
			})
			if err != nil {
				return err
			}
			return send(TryLine{Result: result, End: Final})
		})
	CreateSnapshot = op(about("POST "+inBox+"/snapshots", "create-snapshot", "snapshots", write, "Keep the state of a sandbox, which continues").created("/v1/snapshots/").repeatable(RepeatWhole), inSandbox(sandbox.Service.CreateSnapshot))
	ListSnapshots  = op(about("GET /v1/snapshots", "list-snapshots", "snapshots", read, "List snapshots, newest first"), query(sandbox.Service.ListSnapshots))
	GetSnapshot    = op(about("GET /v1/snapshots/{snapshot}", "get-snapshot", "snapshots", read, "Get a snapshot"), one[snapshotPath](sandbox.Service.GetSnapshot))
	DeleteSnapshot = op(about("DELETE /v1/snapshots/{snapshot}", "delete-snapshot", "snapshots", write, "Remove a snapshot; sandboxes made from it are unharmed"), one[snapshotPath](sandbox.Service.DeleteSnapshot))
)
