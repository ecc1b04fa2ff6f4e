package operation

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/sandbox"
)

// Body is the input of an operation that takes only a body.
type Body[B any] struct{ Body B }

// SandboxPath is the part of a path that names a sandbox.
type SandboxPath struct {
	Sandbox string `path:"sandbox" doc:"A sandbox's id or name."`
}

// SandboxBody is a request about a sandbox.
type SandboxBody[B any] struct {
	SandboxPath
	Body B
}

// SandboxPage asks for one part of a listing of a sandbox.
type SandboxPage struct {
	SandboxPath
	sandbox.Page
}

// PortPath is the part of a path that names a port of a sandbox.
type PortPath struct {
	SandboxPath
	Port int `path:"port" doc:"A port of the sandbox."`
}

// JobPath is the part of a path that names a job of a sandbox.
type JobPath struct {
	SandboxPath
	Job string `path:"job" doc:"A job's id."`
}

// ContextPath is the part of a path that names an interpreter of a sandbox.
type ContextPath struct {
	SandboxPath
	Language string `path:"language" doc:"python, javascript, typescript or bash."`
	Context  string `path:"context" doc:"The name of the context, such as default."`
}

func (p *ContextPath) ref() sandbox.ContextRef {
	return sandbox.ContextRef{Language: sandbox.Language(p.Language), Name: p.Context}
}

// SecretPath is the part of a path that names a secret.
type SecretPath struct {
	Secret string `path:"secret" doc:"A secret's id or name."`
}

type snapshotPath struct {
	Snapshot string `path:"snapshot" doc:"A snapshot's id or name."`
}

type volumePath struct {
	Volume string `path:"volume" doc:"A volume's id or name."`
}

type nodePath struct {
	Node string `path:"node" doc:"A node's name."`
}

type drainInput struct {
	Node string `path:"node" doc:"A node's name."`
	Body *sandbox.DrainRequest
}

type orphanPath struct {
	ID string `path:"id" doc:"An orphan's id."`
}

// ApprovalPath is the part of a path that names an approval.
type ApprovalPath struct {
	ID string `path:"id" doc:"An approval's id."`
}

type answerApprovalInput struct {
	ApprovalPath
	Body sandbox.AnswerApprovalRequest
}

type keyPath struct {
	ID string `path:"id" doc:"A key's id, which is not its secret."`
}

type templatePath struct {
	Name string `path:"name" doc:"A template's name, NAME@VERSION or an alias."`
}

// AliasPath is the part of a path that names an alias of a template.
type AliasPath struct {
	Alias string `path:"alias" doc:"The alias."`
}

type buildPath struct {
	Build string `path:"build" doc:"A build's id."`
}

func (p *SandboxPath) name() string  { return p.Sandbox }
func (p *SecretPath) name() string   { return p.Secret }
func (p *snapshotPath) name() string { return p.Snapshot }
func (p *volumePath) name() string   { return p.Volume }
func (p *nodePath) name() string     { return p.Node }
func (p *orphanPath) name() string   { return p.ID }
func (p *ApprovalPath) name() string { return p.ID }
func (p *keyPath) name() string      { return p.ID }
func (p *templatePath) name() string { return p.Name }
func (p *buildPath) name() string    { return p.Build }

// AliasBody says what an alias stands for.
type AliasBody struct {
	Name string `json:"name" doc:"A template's name or NAME@VERSION."`
}

type aliasInput struct {
	AliasPath
	Body AliasBody
}

type listInput struct {
	Namespace string          `query:"namespace" doc:"Only this namespace; absent or * is all."`
	State     []sandbox.State `query:"state,explode" doc:"Only these states; absent is all that are not final."`
	Metadata  []string        `query:"metadata,explode" doc:"Only sandboxes with this pair, key=value; if repeated, only sandboxes with all pairs. In the key, write %3D for = and %25 for %, before the query itself is encoded."`
	Name      string          `query:"name" doc:"Only the sandbox with this name."`
	Template  string          `query:"template" doc:"Only sandboxes made from this template."`
	sandbox.Page
}

func (in *listInput) request() (sandbox.ListRequest, error) {
	req := sandbox.ListRequest{Namespace: in.Namespace, States: in.State, Name: in.Name, Template: in.Template, Page: in.Page}
	for _, pair := range in.Metadata {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return req, sandbox.Errorf(sandbox.CodeInvalid, "metadata filter %q is not key=value; add the value", pair)
		}
		key, err := url.PathUnescape(key)
		if err != nil {
			return req, sandbox.Errorf(sandbox.CodeInvalid, "the key of metadata filter %q is malformed; write %%25 for %% and %%3D for =", pair)
		}
		if _, twice := req.Metadata[key]; twice {
			return req, sandbox.Errorf(sandbox.CodeInvalid, "metadata key %q is given twice; no sandbox has two values of it", key)
		}
		if req.Metadata == nil {
			req.Metadata = map[string]string{}
		}
		req.Metadata[key] = value
	}
	return req, nil
}

type diffInput struct {
	Subject string `path:"subject" doc:"A sandbox's or a snapshot's id or name."`
	Body    sandbox.DiffRequest
}

type attachInput struct {
	JobPath
	sandbox.AttachRequest
}

type outputInput struct {
	JobPath
	sandbox.OutputRequest
}

type signalInput struct {
	JobPath
	Body struct {
		Signal      string `json:"signal" doc:"A name such as TERM, or a number."`
		KillAfterMS int64  `json:"kill_after_ms,omitempty" doc:"Send KILL this much later if the job still runs."`
	}
}

// StdinQuery says whether more standard input follows.
type StdinQuery struct {
	Close bool `query:"close" doc:"End standard input after these bytes."`
}

type stdinInput struct {
	JobPath
	StdinQuery
	RawBody []byte
}

type resizeInput struct {
	JobPath
	Body sandbox.TerminalSize
}

// FileQuery names a file in a sandbox.
type FileQuery struct {
	Path string `query:"path" doc:"Relative paths start at the sandbox's working directory."`
}

// DeleteFileQuery names a file or directory to delete.
type DeleteFileQuery struct {
	FileQuery
	Recursive bool `query:"recursive" doc:"Delete a directory with all its contents."`
}

// ArchiveQuery names a directory to download.
type ArchiveQuery struct {
	FileQuery
	MaxBytes int64 `query:"max_bytes" doc:"Fail if the archive grows beyond this size; absent is no bound."`
}

type statInput struct {
	SandboxPath
	FileQuery
}

type listFilesInput struct {
	SandboxPath
	sandbox.ListFilesRequest
}

type deleteInput struct {
	SandboxPath
	DeleteFileQuery
}

type watchInput struct {
	SandboxPath
	sandbox.WatchRequest
}

// ReadInput asks for the content of a file.
type ReadInput struct {
	SandboxPath
	sandbox.ReadFileRequest
}

// WriteInput says which file to write.
type WriteInput struct {
	SandboxPath
	sandbox.WriteFileRequest
}

// ArchiveInput asks for the content of a directory.
type ArchiveInput struct {
	SandboxPath
	ArchiveQuery
}

// EventsQuery selects events of a network log.
type EventsQuery struct {
	Kind    sandbox.NetworkKind    `query:"kind" doc:"Only connection, dns or request."`
	Verdict sandbox.NetworkVerdict `query:"verdict" doc:"Only allowed, blocked or failed."`
	Host    string                 `query:"host" doc:"Only this domain, or the domains below one: *.example.com."`
	Since   time.Time              `query:"since" doc:"Only events from this time on."`
	Until   time.Time              `query:"until" doc:"Only events before this time."`
}

func (q *EventsQuery) request(page sandbox.Page) sandbox.NetworkLogRequest {
	return sandbox.NetworkLogRequest{Kind: q.Kind, Verdict: q.Verdict, Host: q.Host, Since: given(q.Since), Until: given(q.Until), Page: page}
}

// given returns nil for an absent time.
func given(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

type networkLogInput struct {
	SandboxPath
	EventsQuery
	sandbox.Page
}

type followNetworkInput struct {
	SandboxPath
	EventsQuery
}

type followEventsInput struct {
	Sandbox     string              `query:"sandbox" doc:"Only events of this sandbox, by id or name."`
	Kind        []sandbox.EventKind `query:"kind,explode" doc:"Only events of these kinds; absent is all."`
	After       string              `query:"after" doc:"The id of the last event that you have seen, or \"oldest\"; absent is from now on."`
	Once        bool                `query:"once" doc:"End after the events that the server keeps, instead of waiting for more."`
	LastEventID string              `header:"Last-Event-ID" doc:"The same as after, which takes precedence. Browsers send this when they reconnect."`
}

type rotateSecretInput struct {
	SecretPath
	Body sandbox.RotateSecretRequest
}

// AttachSecretBody says which secret a sandbox gets, and how.
type AttachSecretBody struct {
	Secret string `json:"secret" doc:"The secret's id or name."`
	Env    string `json:"env" doc:"The environment variable that gets the placeholder."`
}

type detachSecretInput struct {
	SandboxPath
	Env string `path:"env" doc:"The environment variable that has the placeholder."`
}

type linkPreviewInput struct {
	PortPath
	Body sandbox.PreviewLinkRequest
}

type signalProcessInput struct {
	SandboxPath
	PID  int `path:"pid" doc:"The id of a process in the sandbox, as in the list of processes."`
	Body struct {
		Signal string `json:"signal" doc:"A name such as TERM, or a number."`
	}
}

type seriesInput struct {
	SandboxPath
	Since     time.Time `query:"since" doc:"At most an hour ago, which is also the default."`
	MaxPoints int       `query:"max_points" doc:"Thin the series out to this many points; absent is all."`
}

// ScreenshotInput asks for a picture of the screen.
type ScreenshotInput struct {
	SandboxPath
	Region   string              `query:"region" doc:"X,Y,WIDTH,HEIGHT in pixels; absent is the whole screen."`
	Width    int                 `query:"width" doc:"Scale the picture down to fit this width; it is never enlarged."`
	Height   int                 `query:"height" doc:"Scale the picture down to fit this height; it is never enlarged."`
	Cursor   bool                `query:"cursor" doc:"Show the pointer."`
	StableMS int64               `query:"stable_ms" doc:"Wait until the screen has not changed for this long."`
	Format   sandbox.ImageFormat `query:"format" doc:"png, which is the default, or jpeg."`
	Quality  int                 `query:"quality" doc:"Of JPEG, 1 to 100; 80 when absent."`
}

// Request returns what the query asks for.
func (in *ScreenshotInput) Request() (sandbox.ScreenshotRequest, error) {
	req := sandbox.ScreenshotRequest{
		Width: in.Width, Height: in.Height, Cursor: in.Cursor, StableMS: in.StableMS, Format: in.Format, Quality: in.Quality,
	}
	if in.Region == "" {
		return req, nil
	}
	var n [4]int
	parts := strings.Split(in.Region, ",")
	if len(parts) != len(n) {
		return req, sandbox.Errorf(sandbox.CodeInvalid, "region %.40q is not one; write X,Y,WIDTH,HEIGHT", in.Region)
	}
	for i, part := range parts {
		v, err := strconv.ParseInt(part, 10, 32)
		if err != nil {
			return req, sandbox.Errorf(sandbox.CodeInvalid, "region %.40q is not one; write X,Y,WIDTH,HEIGHT", in.Region)
		}
		n[i] = int(v)
	}
	req.Region = &sandbox.Region{X: n[0], Y: n[1], Width: n[2], Height: n[3]}
	return req, nil
}

type inputInput struct {
	SandboxPath
	Body struct {
		Inputs []sandbox.Input `json:"inputs" doc:"Performed in order."`
	}
}

// ClipboardText is the text in a clipboard.
type ClipboardText struct {
	Text string `json:"text"`
}

type openInput struct {
	SandboxPath
	Body struct {
		URL string `json:"url" doc:"http, https, file or about."`
	}
}

// Health is what GET /healthz answers.
type Health struct {
	Status string `json:"status" enum:"ok"`
}

// VersionInfo is what GET /v1/version answers.
type VersionInfo struct {
	Version string `json:"version" doc:"The server's version."`
	API     string `json:"api" doc:"The version of this interface: v1."`
}
