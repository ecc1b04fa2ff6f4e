package hopx

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/internal/doors/dialect/sdkdoor"
	"github.com/cove-sh/cove/sandbox"
)

type apiArgs struct {
	Method string                     `json:"method"`
	Path   string                     `json:"path"`
	Query  map[string]json.RawMessage `json:"query"`
	Body   json.RawMessage            `json:"body"`
}

// apiCall is one call to the control plane.
type apiCall struct {
	*dialect.Call
	path  string
	parts []string // the values of {} in the route
	query url.Values
	body  json.RawMessage
	// exact refuses members of the body that the call does not have.
	exact bool
	// sandbox is the id of the sandbox, for a call to an agent.
	sandbox string
}

// route is one route of the control plane.
type route struct {
	method, path string
	run          func(ctx context.Context, a *apiCall) (any, error)
}

// routes are the routes of the control plane; fixed words come before {}.
var routes = []route{
	{"GET", "/health", func(ctx context.Context, a *apiCall) (any, error) { return health(ctx, a.Call, struct{}{}) }},
	{"GET", "/v1/sandboxes", apiListSandboxes},
	{"POST", "/v1/sandboxes", apiCreateSandbox},
	{"GET", "/v1/sandboxes/{}", func(ctx context.Context, a *apiCall) (any, error) {
		return getSandbox(ctx, a.Call, idArgs{a.parts[0]})
	}},
	{"DELETE", "/v1/sandboxes/{}", func(ctx context.Context, a *apiCall) (any, error) {
		return deleteSandbox(ctx, a.Call, idArgs{a.parts[0]})
	}},
	{"POST", "/v1/sandboxes/{}/pause", apiPause},
	{"POST", "/v1/sandboxes/{}/stop", apiPause},
	{"POST", "/v1/sandboxes/{}/resume", apiResume},
	{"POST", "/v1/sandboxes/{}/start", apiResume},
	{"PUT", "/v1/sandboxes/{}/timeout", apiTimeout},
	{"POST", "/v1/sandboxes/{}/token/refresh", apiToken},
	{"GET", "/v1/templates", apiListTemplates},
	{"POST", "/v1/templates/build", apiBuild},
	{"GET", "/v1/templates/build/{}/status", apiBuildStatus},
	{"GET", "/v1/templates/build/{}/logs", apiBuildLogs},
	{"POST", "/v1/templates/files/upload-link", apiUploadLink},
	{"GET", "/v1/templates/{}", func(ctx context.Context, a *apiCall) (any, error) {
		return getTemplate(ctx, a.Call, nameArgs{a.parts[0]})
	}},
	{"DELETE", "/v1/templates/{}", apiDeleteTemplate},
}

// callAPI answers a call to the control plane as the product's would.
func callAPI(ctx context.Context, c *dialect.Call, in apiArgs) (any, error) {
	a := &apiCall{Call: c, query: url.Values{}, body: in.Body}
	target := strings.TrimSpace(in.Path)
	if _, rest, ok := strings.Cut(target, "://"); ok { // with the server's address
		_, rest, _ = strings.Cut(rest, "/")
		target = rest
	}
	u, err := url.Parse("/" + strings.TrimLeft(target, "/"))
	if err != nil {
		return nil, control(target, "route", dialect.Invalid("path is not valid; give one such as /v1/sandboxes"))
	}
	a.path = strings.TrimRight(u.EscapedPath(), "/")
	maps.Copy(a.query, u.Query())
	for key, v := range in.Query {
		a.query.Set(key, textOf(v))
	}
	run, err := a.find(routes, strings.ToUpper(strings.TrimSpace(in.Method)))
	if err != nil {
		return nil, err
	}
	return run(ctx, a)
}

// textOf returns a query value as text.
func textOf(v json.RawMessage) string {
	var s string
	if json.Unmarshal(v, &s) == nil && string(v) != "null" {
		return s
	}
	if string(v) == "null" {
		return ""
	}
	return string(v)
}

// find returns the function for a call's route, and sets the parts of its path.
func (a *apiCall) find(routes []route, method string) (func(context.Context, *apiCall) (any, error), error) {
	var allowed []string
	for _, r := range routes {
		parts, ok := match(r.path, a.path)
		if !ok {
			continue
		}
		if r.method == method {
			a.parts = parts
			return r.run, nil
		}
		allowed = append(allowed, r.method)
	}
	if len(allowed) > 0 && !slices.Contains(allowed, method) {
		f := failed(false, a.path, dialect.Invalid("method %s is not for this path; use %s", clip.Text(method, maxShown), strings.Join(allowed, " or ")))
		f.status, f.code = http.StatusMethodNotAllowed, "method_not_allowed"
		return nil, f
	}
	return nil, control(a.path, "route", sandbox.Errorf(sandbox.CodeNotFound, "path %s does not exist; the control plane has /health, /v1/sandboxes and /v1/templates", clip.Text(a.path, maxShown)))
}

// match compares a path with a route's pattern, and returns the values of {}.
func match(pattern, path string) ([]string, bool) {
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return nil, false
	}
	var parts []string
	for i, w := range want {
		if w != "{}" {
			if w != got[i] {
				return nil, false
			}
			continue
		}
		part, err := url.PathUnescape(got[i])
		if err != nil || part == "" {
			return nil, false
		}
		parts = append(parts, part)
	}
	return parts, true
}

// number returns a query parameter as a number.
func (a *apiCall) number(key string, otherwise int64) (int64, error) {
	s := a.query.Get(key)
	if s == "" {
		return otherwise, nil
	}
	var n int64
	if json.Unmarshal([]byte(s), &n) != nil {
		return 0, dialect.Invalid("%s is %q; give a number", key, clip.Text(s, maxShown))
	}
	return n, nil
}

// read decodes the body.
func (a *apiCall) read(v any) error {
	if len(a.body) == 0 || string(a.body) == "null" {
		return dialect.Invalid("the request has no body; give an object as body")
	}
	if !json.Valid(a.body) {
		return dialect.Invalid("the body is not JSON; give an object")
	}
	dec := json.NewDecoder(bytes.NewReader(a.body))
	if a.exact {
		dec.DisallowUnknownFields()
	}
	err := dec.Decode(v)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:]
		return dialect.Invalid("%s of the body cannot be %s; see the documentation of this call", field, clip.Text(wrong.Value, maxShown))
	}
	if field, ok := sdkdoor.UnknownMember(err); ok {
		return dialect.Invalid("%s: Cove does not enforce this field of HOPX's; leave it out", clip.Text(field, maxShown))
	}
	if err != nil {
		return dialect.Invalid("the body is not an object; give one")
	}
	return nil
}

func (a *apiCall) value(key string) *string {
	if v := a.query.Get(key); v != "" {
		return &v
	}
	return nil
}

func apiListSandboxes(ctx context.Context, a *apiCall) (any, error) {
	limit, err := a.number("limit", sandbox.DefaultPageSize)
	if err != nil {
		return nil, control(a.path, "sandbox", err)
	}
	return listSandboxes(ctx, a.Call, listArgs{Limit: limit, Status: a.value("status"), Region: a.value("region"), Cursor: a.query.Get("cursor")})
}

func apiCreateSandbox(ctx context.Context, a *apiCall) (any, error) {
	var in struct {
		createArgs
		TemplateID   json.RawMessage `json:"template_id"` // a string or a number
		TemplateName string          `json:"template_name"`
	}
	if err := a.read(&in); err != nil {
		return nil, control(a.path, "sandbox", err)
	}
	in.createArgs.TemplateID = textOf(in.TemplateID)
	if len(in.TemplateID) == 0 {
		in.createArgs.TemplateID = in.TemplateName
	}
	return createSandbox(ctx, a.Call, in.createArgs)
}

func apiPause(ctx context.Context, a *apiCall) (any, error) {
	s, err := living(ctx, a.Call, a.parts[0])
	if err != nil {
		return nil, err
	}
	a.Status("pausing")
	if s, err = a.Service.Pause(ctx, s.ID); err != nil {
		return nil, aboutSandbox(a.path, a.parts[0], err)
	}
	return object(pair{"id", s.ID}, pair{"status", status(s.State)}), nil
}

func apiResume(ctx context.Context, a *apiCall) (any, error) {
	return resumeSandbox(ctx, a.Call, idArgs{a.parts[0]})
}

func apiTimeout(ctx context.Context, a *apiCall) (any, error) {
	in := timeoutArgs{}
	if err := a.read(&in); err != nil {
		return nil, control(a.path, "sandbox", err)
	}
	in.ID = a.parts[0]
	return updateTimeout(ctx, a.Call, in)
}

func apiToken(ctx context.Context, a *apiCall) (any, error) {
	s, err := living(ctx, a.Call, a.parts[0])
	if err != nil {
		return nil, err
	}
	r := withToken(ctx, s)
	return object(pair{"auth_token", r.AuthToken}, pair{"token_expires_at", r.TokenExpiresAt}), nil
}

func apiListTemplates(ctx context.Context, a *apiCall) (any, error) {
	limit, err := a.number("limit", sandbox.MaxPageSize)
	if err != nil {
		return nil, control(a.path, "template", err)
	}
	return listTemplates(ctx, a.Call, templatesArgs{Limit: limit, Fields: allFields, Category: a.query.Get("category"), Language: a.query.Get("language")})
}

func apiDeleteTemplate(ctx context.Context, a *apiCall) (any, error) {
	name := templateNamed(a.parts[0])
	if name == interpreter || name == baseTemplate {
		return nil, control(a.path, "template", sandbox.Errorf(sandbox.CodeForbidden, "template %s is public and stays", name))
	}
	if err := a.Service.DeleteTemplate(ctx, name); err != nil {
		return nil, control(a.path, "template", noTemplate(name, err))
	}
	return object(pair{"id", templateID(name)}, pair{"status", "deleted"}), nil
}

func apiUploadLink(ctx context.Context, a *apiCall) (any, error) {
	var in struct {
		Hash   string `json:"files_hash"`
		Length int64  `json:"content_length"`
	}
	err := a.read(&in)
	switch {
	case err != nil:
	case in.Hash == "":
		err = dialect.Invalid("files_hash is empty; give the hash of the files")
	case in.Length < 1 || in.Length > sandbox.MaxUploadBytes:
		err = dialect.Invalid("content_length is %d; give 1 to %d", in.Length, int64(sandbox.MaxUploadBytes))
	}
	var link *sandbox.UploadLink
	if err == nil {
		link, err = a.Service.LinkUpload(ctx, sandbox.UploadLinkRequest{Name: in.Hash, SizeBytes: in.Length})
	}
	if err != nil {
		return nil, control(a.path, "route", err)
	}
	at, _ := placeOf(ctx)
	return object(
		pair{"present", link.Present}, pair{"upload_url", at.reached(link.URL)}, pair{"expires_at", dialect.Stamp(link.ExpiresAt)}, pair{"files_hash", in.Hash}), nil
}

// archive finds the archive that a client has uploaded under a hash.
func (a *apiCall) archive(ctx context.Context) func(string) (string, error) {
	return func(hash string) (string, error) {
		link, err := a.Service.LinkUpload(ctx, sandbox.UploadLinkRequest{Name: hash, SizeBytes: 1})
		if err == nil && !link.Present {
			err = dialect.Invalid("filesHash %q is of no files that are here, or not any more; send them to upload_url of POST /v1/templates/files/upload-link", clip.Text(hash, maxShown))
		}
		if err != nil {
			return "", err
		}
		return link.Archive, nil
	}
}

func apiBuild(ctx context.Context, a *apiCall) (any, error) {
	var in buildRequest
	if err := a.read(&in); err != nil {
		return nil, control(a.path, "template", err)
	}
	login, err := in.Credentials.login(in.FromImage)
	if err != nil {
		return nil, control(a.path, "template", err)
	}
	spec, err := in.spec(a.archive(ctx))
	if err != nil {
		return nil, control(a.path, "template", err)
	}
	old, err := a.Service.GetTemplate(ctx, in.Name)
	switch {
	case err == nil && old.State == sandbox.TemplateFailed: // it was never built; try again
	case err == nil && !in.Update:
		err = sandbox.Errorf(sandbox.CodeConflict, "Template '%s' exists already; choose another name, or set update", clip.Text(in.Name, maxShown))
	case err != nil && sandbox.CodeOf(err) == sandbox.CodeNotFound && !in.Update:
		err = nil
	}
	if err != nil {
		return nil, control(a.path, "template", noTemplate(in.Name, err))
	}
	a.Status("starting the build")
	req := sandbox.BuildTemplateRequest{Name: in.Name, Spec: spec, Force: in.anew(), Login: login}
	b, err := a.Service.StartBuild(ctx, req)
	if in.Update && !req.Force && sandbox.CodeOf(err) == sandbox.CodeConflict {
		// It is made of something else now, which is what an update is for.
		req.Force = true
		b, err = a.Service.StartBuild(ctx, req)
	}
	if err != nil {
		return nil, control(a.path, "template", err)
	}
	return object(pair{"build_id", b.ID}, pair{"template_id", templateID(b.Template)}, pair{"status", "building"}, pair{"logs_url", "/v1/templates/build/" + b.ID + "/logs"}), nil
}

// build returns a build by its id, or a template's newest build.
func (a *apiCall) build(ctx context.Context) (*sandbox.Build, error) {
	id := a.parts[0]
	b, err := a.Service.GetBuild(ctx, id)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound || sandbox.CodeOf(err) == sandbox.CodeInvalid {
		list, listErr := a.Service.ListBuilds(ctx, sandbox.ListBuildsRequest{Template: templateNamed(id), Page: sandbox.Page{Limit: 1}})
		if listErr == nil && len(list.Items) > 0 {
			return &list.Items[0], nil
		}
		err = sandbox.Errorf(sandbox.CodeNotFound, "Build '%s' does not exist", clip.Text(id, maxShown))
	}
	if err != nil {
		return nil, control(a.path, "build", err)
	}
	return b, nil
}

// buildStatus returns the product's name of a state.
func buildStatus(s sandbox.BuildState) string {
	switch s {
	case sandbox.BuildReady:
		return "success"
	case sandbox.BuildRunning:
		return "building"
	}
	return "failed"
}

func apiBuildStatus(ctx context.Context, a *apiCall) (any, error) {
	b, err := a.build(ctx)
	if err != nil {
		return nil, err
	}
	end := time.Now()
	out := object(
		pair{"build_id", b.ID}, pair{"template_id", templateID(b.Template)}, pair{"status", buildStatus(b.State)},
		pair{"progress", int(100 * min(1, max(0, b.Fraction)))}, pair{"current_step", b.Step}, pair{"started_at", dialect.Stamp(b.CreatedAt)})
	if b.EndedAt != nil {
		end = *b.EndedAt
		out = append(out, pair{"completed_at", dialect.Stamp(end)})
	}
	out = append(out, pair{"build_duration_ms", end.Sub(b.CreatedAt).Milliseconds()})
	if b.Reason != "" {
		out = append(out, pair{"error_message", b.Reason})
	}
	return out, nil
}

const (
	// maxLogs bounds the part of a build's log that one answer returns, in bytes, and
	// logsWait is how long to listen to a running build.
	maxLogs  = 256 << 10
	logsWait = 2 * time.Second
)

func apiBuildLogs(ctx context.Context, a *apiCall) (any, error) {
	offset, err := a.number("offset", 0)
	if err == nil && offset < 0 {
		err = dialect.Invalid("offset is %d; give 0 or more", offset)
	}
	if err != nil {
		return nil, control(a.path, "build", err)
	}
	b, err := a.build(ctx)
	if err != nil {
		return nil, err
	}
	logs := &logWindow{skip: offset}
	listen, cancel := context.WithTimeout(ctx, logsWait)
	defer cancel()
	ended, err := a.Service.FollowBuild(listen, b.ID, logs.take)
	switch {
	case err == nil:
		b = ended
	case listen.Err() == nil && !logs.full:
		return nil, control(a.path, "build", err)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	status := buildStatus(b.State)
	return object(
		pair{"logs", strings.ToValidUTF8(logs.text.String(), "\uFFFD")}, pair{"offset", offset + int64(logs.text.Len())},
		pair{"status", status}, pair{"complete", status != "building" && !logs.full}), nil
}

// logWindow collects a part of a build's log.
type logWindow struct {
	skip int64
	text bytes.Buffer
	full bool
}

var errFull = errors.New("enough of the log")

func (l *logWindow) take(e sandbox.BuildEvent) error {
	piece := e.Log
	if piece == "" {
		return nil
	}
	if !strings.HasSuffix(piece, "\n") {
		piece += "\n"
	}
	n := min(l.skip, int64(len(piece)))
	l.skip -= n
	piece = piece[n:]
	head := clip.Head(piece, maxLogs-l.text.Len()) // the next window begins with the whole character
	l.text.WriteString(head)
	if l.full = len(head) < len(piece) || l.text.Len() == maxLogs; l.full {
		return errFull
	}
	return nil
}
