package native

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	jsonType       = "application/json"
	maxCompletions = 100 // the protocol's
)

// ListResources lists the living sandboxes, newest first: each one, and its
// working directory. A listing does not count as use of a sandbox: paused ones
// stay paused, and idle time passes.
func (d *Dialect) ListResources(ctx context.Context, svc sandbox.Service, cursor string) (page []*mcp.Resource, next string, err error) {
	list, err := svc.List(ctx, sandbox.ListRequest{Page: sandbox.Page{Limit: sandbox.DefaultPageSize, Cursor: cursor}})
	if err != nil {
		return nil, "", err
	}
	for i := range list.Items {
		sb := &list.Items[i]
		name := cmp.Or(sb.Name, sb.ID)
		page = append(page, &mcp.Resource{
			URI: sandboxURI(sb.ID), Name: name, Title: "Sandbox " + name, MIMEType: jsonType,
			Description: fmt.Sprintf("State %s, template %s, created %s.", sb.State, sb.Template, stamp(sb.CreatedAt)),
		})
		if path.IsAbs(sb.WorkDir) {
			page = append(page, &mcp.Resource{
				URI: directoryURI(sb.ID, sb.WorkDir), Name: name + ":" + sb.WorkDir, Title: "Files of sandbox " + name, MIMEType: jsonType,
				Description: "What is in its working directory, with the URIs of the files.",
			})
		}
	}
	return page, list.NextCursor, nil
}

func sandboxURI(id string) string { return strings.TrimSuffix(fileURI(id, "/"), "/") }

func directoryURI(id, dir string) string {
	return fileURI(id, strings.TrimSuffix(dir, "/")+"/")
}

func sandboxResource() dialect.ResourceTemplate {
	return dialect.ResourceTemplate{
		Def: &mcp.ResourceTemplate{
			Name: "sandbox", Title: "A sandbox", MIMEType: jsonType, URITemplate: uriSandbox,
			Description: "State, limits, environment and end of a sandbox, by its id or name.",
		},
		Read: readResource,
	}
}

func readSandbox(ctx context.Context, svc sandbox.Service, uri, id string) (*mcp.ReadResourceResult, error) {
	sb, err := svc.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return document(uri, view(sb))
}

// Watched returns the id of the sandbox of a resource. Changes of files are not
// reported: clients read files when they need them.
func (d *Dialect) Watched(ctx context.Context, svc sandbox.Service, uri string) (string, error) {
	id, file, _, err := parseURI(uri)
	if err != nil {
		return "", err
	}
	if file != "" {
		return "", invalid("changes of files are not told; subscribe to a sandbox, %s", sandboxURI(id))
	}
	sb, err := svc.Get(ctx, id)
	if err != nil {
		return "", err
	}
	return sb.ID, nil
}

// entryView is an entry of a directory as a resource.
type entryView struct {
	URI string `json:"uri"`
	fileView
}

// readDirectory lists the first entries of a directory, at most [sandbox.MaxPageSize].
func readDirectory(ctx context.Context, svc sandbox.Service, uri, id, dir string) (*mcp.ReadResourceResult, error) {
	list, err := svc.ListFiles(ctx, id, sandbox.ListFilesRequest{Path: dir, Depth: 1, Page: sandbox.Page{Limit: sandbox.MaxPageSize}})
	if err != nil {
		return nil, err
	}
	out := struct {
		Files     []entryView `json:"files"`
		Truncated bool        `json:"truncated"`
	}{[]entryView{}, list.NextCursor != ""}
	for i := range list.Items {
		f := &list.Items[i]
		e := entryView{fileURI(id, f.Path), viewFile(f)}
		if f.Type == sandbox.TypeDirectory {
			e.URI = directoryURI(id, f.Path)
		}
		out.Files = append(out.Files, e)
	}
	return document(uri, out)
}

func document(uri string, v any) (*mcp.ReadResourceResult, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode a resource: %w", err)
	}
	return contents(&mcp.ResourceContents{URI: uri, MIMEType: jsonType, Text: string(data)}), nil
}

// Complete completes names and ids of sandboxes, paths of running ones, and names
// of templates, in URIs of resources and in arguments of prompts.
func (d *Dialect) Complete(ctx context.Context, svc sandbox.Service, req *mcp.CompleteParams) (values []string, more bool, err error) {
	begin := req.Argument.Value
	switch {
	case req.Argument.Name == "sandbox":
		values, err = sandboxNames(ctx, svc)
	case req.Argument.Name == "path" && req.Ref.Type == "ref/resource" && req.Context != nil:
		values, err = pathNames(ctx, svc, req.Context.Arguments["sandbox"], begin)
	case req.Argument.Name == "template" && req.Ref.Type == "ref/prompt":
		values, err = templateNames(ctx, svc)
	}
	values = slices.DeleteFunc(values, func(v string) bool { return !strings.HasPrefix(v, begin) })
	if len(values) > maxCompletions {
		return values[:maxCompletions], true, err
	}
	return values, false, err
}

// sandboxNames returns the names and ids of living sandboxes, names first.
func sandboxNames(ctx context.Context, svc sandbox.Service) ([]string, error) {
	list, err := svc.List(ctx, sandbox.ListRequest{Page: sandbox.Page{Limit: sandbox.MaxPageSize}})
	if err != nil {
		return nil, err
	}
	var names, ids []string
	for i := range list.Items {
		ids = append(ids, list.Items[i].ID)
		if name := list.Items[i].Name; name != "" {
			names = append(names, name)
		}
	}
	return append(names, ids...), nil
}

// pathNames returns the paths in the directory of an incomplete path. It does not
// resume a paused sandbox, and a missing directory has no paths.
func pathNames(ctx context.Context, svc sandbox.Service, id, begin string) ([]string, error) {
	if id == "" || !strings.HasPrefix(begin, "/") {
		return []string{"/"}, nil
	}
	sb, err := svc.Get(ctx, id)
	if err != nil || sb.State != sandbox.StateRunning {
		return nil, ignoreIncomplete(err)
	}
	list, err := svc.ListFiles(ctx, id, sandbox.ListFilesRequest{Path: begin[:strings.LastIndexByte(begin, '/')+1], Depth: 1, Page: sandbox.Page{Limit: sandbox.MaxPageSize}})
	if err != nil {
		return nil, ignoreIncomplete(err)
	}
	var names []string
	for i := range list.Items {
		name := list.Items[i].Path
		if list.Items[i].Type == sandbox.TypeDirectory {
			name += "/"
		}
		names = append(names, name)
	}
	return names, nil
}

// ignoreIncomplete drops an error that is caused by what the user has typed so far.
func ignoreIncomplete(err error) error {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound, sandbox.CodeInvalid, sandbox.CodeConflict:
		return nil
	}
	return err
}

func templateNames(ctx context.Context, svc sandbox.Service) ([]string, error) {
	list, err := sandbox.All(ctx, svc.ListTemplates)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range list {
		names = append(names, list[i].Name)
	}
	slices.Sort(names)
	return names, nil
}
