package templatefile

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// SchemaID is where the schema of template files is published.
const SchemaID = "https://raw.githubusercontent.com/cove-sh/cove/main/docs/template.schema.json"

// about has the descriptions of names in a template file, by their paths.
var about = map[string]string{
	"description":          "What the template is for.",
	"from":                 "What the template starts from: an image as text, or one of these.",
	"from.image":           "An OCI image, such as python:3.12 or ghcr.io/org/name@sha256:….",
	"from.archive":         "A file on the server that docker save or an OCI tool wrote, in a directory that the operator allows.",
	"from.directory":       "A root file system on the server, in a directory that the operator allows.",
	"from.debian":          "A Debian release: bookworm.",
	"from.template":        "Another template that is ready: NAME, NAME@VERSION or an alias.",
	"from.snapshot":        "A snapshot of your team, by id or name. The template gets its files.",
	"from.host":            "The server's own programs.",
	"apt":                  "Debian packages, such as curl or git=1:2.39.5-0+deb12u2.",
	"pip":                  "Python packages, such as pandas==2.2.3.",
	"npm":                  "Node.js packages, installed globally, such as typescript@5.",
	"files":                "Files to write after the packages and before the steps.",
	"files[].path":         "Absolute path in the template.",
	"files[].content":      "Content as text, or as base64 with the tag !!binary.",
	"files[].source":       "A file next to the template file, instead of content.",
	"files[].mode":         "Octal; 0644 by default.",
	"files[].owner":        "A user, or uid:gid; root by default.",
	"run":                  "Commands for /bin/sh -c, run as root by default, as text or as a mapping; and files of an archive to copy.",
	"run[].run":            "The command.",
	"run[].copy":           "Files of an archive that was uploaded before, instead of a command.",
	"run[].copy.archive":   "Id that the upload returned: upload-….",
	"run[].copy.sources":   "Names in the archive, or patterns such as src/*.py; all by default. For a directory, its content is copied.",
	"run[].copy.to":        "An absolute path: a directory, or for a single file its new name, unless it ends in a slash.",
	"run[].copy.owner":     "Owner of the files: a user, or user:group, as names or numbers; root by default.",
	"run[].copy.mode":      "Octal, for all files and directories; by default as in the archive.",
	"run[].user":           "User to run the command as.",
	"run[].workdir":        "Where.",
	"run[].env":            "Environment of this step only.",
	"env":                  "Environment of the steps after the packages, and of sandboxes.",
	"workdir":              "Working directory of steps and sandboxes. Created if missing.",
	"user":                 "User of sandboxes. Created if missing.",
	"resources":            "Limits of the template's sandboxes, and of the build.",
	"start":                "A program that runs in every sandbox from the start: its command as text, or a mapping.",
	"start.command":        "Run by /bin/sh -c, in the background.",
	"start.ready":          "A command that succeeds when the program is ready.",
	"start.timeout_ms":     "How long the program may take to become ready.",
	"warm":                 "Code by language, such as python, to run in the default interpreter before the checkpoint is made.",
	"desktop":              "The screen of a template that has an X server.",
	"desktop.width":        "In pixels.",
	"desktop.height":       "In pixels.",
	"desktop.display":      "The X display; :1 by default.",
	"ports":                "Ports on which sandboxes serve something.",
	"build_network":        "Network policy of the steps: a preset or a policy; packages by default.",
	"network":              "Default network policy of sandboxes: a preset or a policy.",
	"resources.vcpus":      "Processors.",
	"resources.max_pids":   "Limit on processes and threads.",
	"resources.disk_mib":   "Limit on disk use, in MiB.",
	"resources.memory_mib": "In MiB.",

	"network.preset":                 "Decides what nothing else matches; open by default.",
	"network.rules":                  "The first rule that matches decides.",
	"network.rules[].action":         "What to do with what the rule matches.",
	"network.rules[].to":             "A domain, *.domain, an address, a range, sandbox:NAME or *.",
	"network.rules[].protocol":       "All by default.",
	"network.rules[].ports":          "Such as 443 or 8000-8999; all by default.",
	"network.allow_out":              "Domains, addresses and ranges to allow.",
	"network.deny_out":               "Addresses and ranges to deny.",
	"network.headers":                "Headers to set on HTTPS requests; not for build_network.",
	"network.headers[].to":           "A domain, or *.domain.",
	"network.headers[].set":          "Headers by name; ${secret:NAME} is the value of a secret.",
	"network.placeholders":           "What to do with a secret's placeholder sent to a host that the secret is not for; forward by default.",
	"network.ask_timeout_seconds":    "How long a connection waits for an answer when a rule says ask.",
	"network.max_connections":        "Limit on open connections.",
	"network.connections_per_second": "Limit on new connections and DNS queries.",
	"network.bytes_per_second":       "Limit in each direction; no limit by default.",
}

// words are the values of enumerated types.
var words = map[reflect.Type][]string{
	reflect.TypeFor[sandbox.NetworkPreset]():     {string(sandbox.NetworkOpen), string(sandbox.NetworkPackages), string(sandbox.NetworkNone)},
	reflect.TypeFor[sandbox.NetworkAction]():     {string(sandbox.NetworkAllow), string(sandbox.NetworkDeny), string(sandbox.NetworkAsk)},
	reflect.TypeFor[sandbox.PlaceholderAction](): {string(sandbox.PlaceholderForward), string(sandbox.PlaceholderBlock)},
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
		case reflect.TypeFor[sandbox.TemplateSource](), reflect.TypeFor[sandbox.TemplateStep](), reflect.TypeFor[sandbox.StartCommand]():
			return schema{"anyOf": []schema{{"type": "string"}, s}}
		case reflect.TypeFor[sandbox.NetworkPolicy]():
			return schema{"anyOf": []schema{bareSchema(reflect.TypeFor[sandbox.NetworkPreset](), at), s}}
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
	if few := words[t]; few != nil {
		return schema{"type": "string", "enum": few}
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
		s["oneOf"] = []schema{{"required": []string{"run"}, "not": schema{"required": []string{"copy"}}}, {"required": []string{"copy"}, "maxProperties": 1}}
	case reflect.TypeFor[sandbox.TemplateCopy]():
		s["required"] = []string{"archive", "to"}
	case reflect.TypeFor[sandbox.NetworkRule]():
		s["required"] = []string{"action", "to"}
		props["protocol"].(schema)["enum"] = []string{"tcp", "udp", "icmp"}
	case reflect.TypeFor[sandbox.Desktop]():
		s["required"] = []string{"width", "height"}
	case reflect.TypeFor[sandbox.StartCommand]():
		s["required"] = []string{"command"}
	}
	return s
}
