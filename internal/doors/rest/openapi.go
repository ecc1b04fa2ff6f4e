package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/internal/doors/sandboxdoc"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

// The content types of the interface, besides JSON.
const (
	contentJSON  = "application/json"
	contentLines = "application/x-ndjson"
	contentRaw   = "application/octet-stream"
	contentZIP   = "application/zip"

	contentEvents = "text/event-stream"
)

// maxBody bounds JSON bodies, in bytes, unless an operation has its own bound.
const maxBody = 1 << 20

func humaConfig() huma.Config {
	cfg := huma.DefaultConfig("Cove", "1")
	cfg.Info.Description = "Sandboxes for code that nobody has read. All paths but /healthz and /v1/version need an API key: " +
		"`Authorization: Bearer KEY`. Errors are problem details (RFC 9457) with a stable `code`. " +
		"Unknown members and query parameters are refused. The header " + auth.NamespaceHeader + " has a request work in one namespace of the team: " +
		"what is in others does not exist for it."
	cfg.Info.Contact = &huma.Contact{Name: "Cove", URL: "https://github.com/cove-sh/cove"}
	cfg.Info.License = &huma.License{Name: "Apache License 2.0", Identifier: "Apache-2.0"}
	cfg.Servers = []*huma.Server{{URL: "http://127.0.0.1:7777", Description: "A server on this machine, as cove serve starts it."}}
	cfg.Tags = tags()
	cfg.OpenAPIPath = "" // see serveDocument
	cfg.DocsPath = ""
	cfg.SchemasPath = ""
	// Bodies carry no links to schemas.
	cfg.CreateHooks = nil
	// The service decides which fields are required, and sets defaults.
	cfg.FieldsOptionalByDefault = true
	cfg.RejectUnknownQueryParameters = true
	cfg.Formats = map[string]huma.Format{
		contentJSON: {Marshal: encodeJSON, Unmarshal: decodeJSON},
		"json":      {Marshal: encodeJSON, Unmarshal: decodeJSON},
	}
	cfg.DefaultFormat = contentJSON
	cfg.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"key": {Type: "http", Scheme: "bearer", Description: "An API key, as `cove key create` prints it."},
	}
	cfg.Security = []map[string][]string{{"key": {}}}
	return cfg
}

// tags are the groups of operations.
func tags() []*huma.Tag {
	return []*huma.Tag{
		{Name: "sandboxes", Description: "Sandboxes, from their creation to their end, and the record of who did what."},
		{Name: "snapshots", Description: "Pausing, forking, kept states, and comparing and merging files."},
		{Name: "jobs", Description: "Commands, in the foreground, in the background and in a terminal."},
		{Name: "code", Description: "Interpreters that keep their state between runs."},
		{Name: "files", Description: "Files and directories inside a sandbox."},
		{Name: "network", Description: "What a sandbox may reach, and what it tried to."},
		{Name: "approvals", Description: "What network policies ask, and the answers."},
		{Name: "secrets", Description: "Credentials that sandboxes use and never see."},
		{Name: "previews", Description: "Ports of sandboxes as URLs and as connections."},
		{Name: "computers", Description: "Sandboxes with a desktop: screen, pointer, keyboard and browser."},
		{Name: "observe", Description: "Processes, environments, usage and webhooks."},
		{Name: "volumes", Description: "Directories that outlive sandboxes."},
		{Name: "templates", Description: "What sandboxes are made from, and the builds of it."},
		{Name: "orphans", Description: "What the server has found without a record of it."},
		{Name: "keys", Description: "API keys."},
		{Name: "nodes", Description: "Further machines on which the server runs sandboxes."},
		{Name: "server", Description: "The server itself."},
	}
}

func encodeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// decodeJSON decodes a body, and refuses ambiguous ones.
func decodeJSON(data []byte, v any) error {
	if err := limits.CheckJSON(data); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("the body holds more than one JSON value")
	}
	return nil
}

// describeNamespace adds the header for the namespace, which every key can use.
func describeNamespace(doc *huma.OpenAPI) {
	const name = "namespace"
	longest := sandbox.MaxNameLength
	doc.Components.Parameters = map[string]*huma.Param{name: {
		Name: auth.NamespaceHeader, In: "header", Schema: &huma.Schema{Type: huma.TypeString, MaxLength: &longest},
		Description: "Work in this namespace of the team only; absent or * is the whole team.",
	}}
	for _, path := range doc.Paths {
		for _, o := range []*huma.Operation{path.Get, path.Put, path.Post, path.Delete, path.Patch} {
			if o != nil && (o.Security == nil || len(o.Security) > 0) {
				o.Parameters = append(o.Parameters, &huma.Param{Ref: "#/components/parameters/" + name})
			}
		}
	}
}

// describe adds what is for readers of the document only: which members of an answer
// are always present, and which parameters the service requires.
func describe(doc *huma.OpenAPI) {
	texts := sandboxdoc.Texts()
	describeFields(doc, texts)
	describeNamespace(doc)
	for _, path := range doc.Paths {
		for _, o := range []*huma.Operation{path.Get, path.Put, path.Post, path.Delete, path.Patch} {
			if o == nil {
				continue
			}
			describeOperation(o, texts)
			if refused := o.Responses["default"]; refused != nil {
				o.Responses["4XX"] = &huma.Response{Description: "Refused: the request, or the state of what it names, does not allow it.", Content: refused.Content}
			}
			for _, p := range o.Parameters {
				if p.In == "query" && (p.Name == "path" || p.Name == "stream") {
					p.Required = true
				}
			}
		}
	}
	for _, t := range []reflect.Type{
		reflect.TypeFor[sandbox.Sandbox](), reflect.TypeFor[sandbox.Stats](), reflect.TypeFor[sandbox.Job](),
		reflect.TypeFor[sandbox.Output](), reflect.TypeFor[sandbox.FileInfo](), reflect.TypeFor[sandbox.EditFileResult](),
		reflect.TypeFor[sandbox.Template](), reflect.TypeFor[sandbox.Key](), reflect.TypeFor[sandbox.NewKey](),
		reflect.TypeFor[sandbox.AuditEvent](), reflect.TypeFor[ExecResult](), reflect.TypeFor[Problem](),
		reflect.TypeFor[operation.VersionInfo](), reflect.TypeFor[sandbox.Snapshot](), reflect.TypeFor[sandbox.Diff](),
		reflect.TypeFor[sandbox.Change](), reflect.TypeFor[sandbox.Conflict](), reflect.TypeFor[sandbox.MergeResult](),
		reflect.TypeFor[sandbox.NetworkEvent](), reflect.TypeFor[sandbox.Approval](), reflect.TypeFor[sandbox.Secret](), reflect.TypeFor[sandbox.Provider](),
		reflect.TypeFor[sandbox.Preview](), reflect.TypeFor[sandbox.NewPreview](), reflect.TypeFor[sandbox.PreviewLink](),
		reflect.TypeFor[sandbox.Attempt](), reflect.TypeFor[sandbox.TryResult](),
		reflect.TypeFor[sandbox.CodeResult](), reflect.TypeFor[sandbox.CodeOutput](), reflect.TypeFor[sandbox.CodeError](),
		reflect.TypeFor[sandbox.CodeContext](), reflect.TypeFor[sandbox.Process](), reflect.TypeFor[sandbox.EnvVar](),
		reflect.TypeFor[sandbox.StatsPoint](), reflect.TypeFor[sandbox.SandboxStats](), reflect.TypeFor[sandbox.Volume](), reflect.TypeFor[sandbox.Orphan](), reflect.TypeFor[sandbox.Recovered](), reflect.TypeFor[sandbox.Delivery](),
	} {
		schema := doc.Components.Schemas.Map()[t.Name()]
		if schema == nil {
			continue
		}
		schema.Required = alwaysThere(t)
		slices.Sort(schema.Required)
	}
}

//go:generate go run ./gen ../../../api/openapi.yaml

// describeFields describes each member with its comment in package sandbox.
func describeFields(doc *huma.OpenAPI, texts map[string]string) {
	for name, schema := range doc.Components.Schemas.Map() {
		if schema.Description == "" {
			schema.Description = texts[name]
		}
		for member, s := range schema.Properties {
			// Everything beside a reference is ignored.
			if text := texts[name+"."+member]; s.Ref == "" && s.Description == "" {
				s.Description = text
			}
		}
	}
}

// alwaysThere returns the members that are always in the JSON of t.
func alwaysThere(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		if f.Anonymous {
			names = append(names, alwaysThere(f.Type)...)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && !strings.Contains(options, "omit") {
			names = append(names, name)
		}
	}
	return names
}
