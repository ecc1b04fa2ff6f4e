package templatefile

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// SchemaID is where the schema of template files is published.
const SchemaID = "https://raw.githubusercontent.com/cove-sh/cove/main/docs/template.schema.json"

// about tells what names of a template file mean, by where they are.
var about = map[string]string{
	"description":          "What the template is for.",
	"from":                 "What it begins with: an image as text, or one of these.",
	"from.image":           "An OCI image, such as python:3.12 or ghcr.io/org/name@sha256:….",
	"from.archive":         "A file on the server that docker save or an OCI tool wrote, in a directory that its operator allows.",
	"from.directory":       "A root file system on the server, in a directory that its operator allows.",
	"from.debian":          "A release of Debian: bookworm.",
	"from.template":        "Another template that is ready: NAME, NAME@VERSION or an alias.",
	"from.snapshot":        "A snapshot of your team, by id or name. Its files are taken.",
	"from.host":            "The server's own programs.",
	"apt":                  "Debian packages, such as curl or git=1:2.39.5-0+deb12u2.",
	"pip":                  "Python packages, such as pandas==2.2.3.",
	"npm":                  "Packages for Node.js, installed globally, such as typescript@5.",
	"files":                "Files to write, after the packages and before the steps.",
	"files[].path":         "Where it is in the template, absolute.",
	"files[].content":      "Its text, or base64 with the tag !!binary.",
	"files[].source":       "A file beside the template file, in place of content.",
	"files[].mode":         "Octal; 0644 if left out.",
	"files[].owner":        "A user, or uid:gid; root if left out.",
	"run":                  "Commands for /bin/sh -c, as root unless they say otherwise. Each one alone, or with more.",
	"run[].run":            "The command.",
	"run[].user":           "Who runs it.",
	"run[].workdir":        "Where.",
	"run[].env":            "Environment of this step only.",
	"env":                  "Environment of the steps after the packages, and of sandboxes.",
	"workdir":              "Where steps and sandboxes begin. It is made if missing.",
	"user":                 "Who sandboxes run as. It is made if missing.",
	"resources":            "Of the template's sandboxes, and of the build.",
	"start":                "A program that sandboxes have running: its command, or with more.",
	"start.command":        "For /bin/sh -c, in the background.",
	"start.ready":          "A command that succeeds when the program is ready.",
	"start.timeout_ms":     "How long that may take.",
	"warm":                 "Code by language, such as python, that has run in the default interpreter when a sandbox begins.",
	"desktop":              "The screen, of a template whose start command runs an X server.",
	"ports":                "On which sandboxes serve something.",
	"build_network":        "What the steps reach: a preset or a policy; packages if left out.",
	"network":              "What sandboxes reach that ask for nothing else: a preset or a policy.",
	"network.preset":       "open, packages or none.",
	"network.rules[].to":   "A domain, *.domain, an address, a range, sandbox:NAME or *.",
	"network.rules":        "The first that matches decides.",
	"network.allow_out":    "Domains, addresses and ranges that are allowed.",
	"network.deny_out":     "Addresses and ranges that are denied.",
	"resources.vcpus":      "Processors.",
	"resources.max_pids":   "Processes and threads.",
	"resources.disk_mib":   "What may be written, in MiB.",
	"resources.memory_mib": "In MiB.",
}

// Schema returns the JSON Schema of template files.
func Schema() []byte {
	s := schemaOf(reflect.TypeFor[sandbox.TemplateSpec](), "")
	s["$schema"], s["$id"], s["title"] = "https://json-schema.org/draft/2020-12/schema", SchemaID, "Cove template"
	s["required"] = []string{"from"}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic("templatefile: the schema: " + err.Error())
	}
	return append(data, '\n')
}

type schema = map[string]any

func schemaOf(t reflect.Type, at string) schema {
	s := bareSchema(t, at)
	if text := about[strings.TrimPrefix(at, "build_")]; text != "" && s["description"] == nil {
		s["description"] = text
	}
	if text := about[at]; text != "" {
		s["description"] = text
	}
	return s
}

func bareSchema(t reflect.Type, at string) schema {
	switch t.Kind() {
	case reflect.Pointer:
		return bareSchema(t.Elem(), at)
	case reflect.Struct:
		s := objectSchema(t, at)
		switch t {
		case reflect.TypeFor[sandbox.TemplateSource](), reflect.TypeFor[sandbox.TemplateStep](), reflect.TypeFor[sandbox.StartCommand](), reflect.TypeFor[sandbox.NetworkPolicy]():
			return schema{"anyOf": []schema{{"type": "string"}, s}}
		}
		return s
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": schema{"type": []string{"string", "number", "boolean"}}}
	case reflect.Slice:
		return schema{"type": "array", "items": schemaOf(t.Elem(), at+"[]")}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return schema{"type": "integer"}
	}
	return schema{"type": "string"}
}

func objectSchema(t reflect.Type, at string) schema {
	props := schema{}
	for name, index := range fields(t) {
		props[name] = schemaOf(t.FieldByIndex(index).Type, join(at, name))
	}
	s := schema{"type": "object", "properties": props, "additionalProperties": false}
	switch t {
	case reflect.TypeFor[sandbox.TemplateFile]():
		props["content"] = schema{"type": "string", "description": about["files[].content"]}
		props["source"] = schema{"type": "string", "description": about["files[].source"]}
		props["mode"] = schema{"type": []string{"string", "integer"}, "description": about["files[].mode"]}
		s["required"] = []string{"path"}
		s["oneOf"] = []schema{{"required": []string{"content"}}, {"required": []string{"source"}}}
	case reflect.TypeFor[sandbox.TemplateSource]():
		s["minProperties"], s["maxProperties"] = 1, 1
	case reflect.TypeFor[sandbox.TemplateStep]():
		s["required"] = []string{"run"}
	case reflect.TypeFor[sandbox.StartCommand]():
		s["required"] = []string{"command"}
	}
	return s
}
