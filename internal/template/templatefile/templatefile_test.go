package templatefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	yaml "go.yaml.in/yaml/v3"

	"github.com/cove-sh/cove/sandbox"
)

var update = flag.Bool("update", false, "write the published schema")

// local returns an Open for these files.
func local(files map[string]string) Open {
	return func(source string) (io.ReadCloser, error) {
		text, ok := files[source]
		if !ok {
			return nil, fs.ErrNotExist
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}
}

const full = `# yaml-language-server: $schema=x
description: all of it
from: {template: base@3}
apt: [curl, git=1:2.39]
pip: [pandas==2.2.3]
npm: [typescript@5]
files:
  - path: /etc/app.conf
    content: |
      a = 1
    mode: 0600
    owner: user
  - {path: /opt/bin, source: bin/tool, mode: "0755"}
  - {path: /x.bin, content: !!binary "AP8="}
run:
  - make all
  - run: npm ci
    user: user
    workdir: /workspace
    env: {CI: true, N: 3.10}
  - copy: {archive: upload-x, sources: [a, b/*.py], to: /app/}
env: {LANG: C.UTF-8, NO: no}
workdir: /app
user: app
resources: {vcpus: 2, memory_mib: 2048}
start: {command: serve, ready: "curl -f localhost", timeout_ms: 5000}
warm: {python: "import pandas"}
desktop: {width: 1280, height: 800}
ports: [8080, 9090]
build_network: open
network:
  preset: none
  rules:
    - {action: allow, to: example.com, ports: ["443"]}
`

func TestParse(t *testing.T) {
	got, err := Parse([]byte(full), local(map[string]string{"bin/tool": "tool"}))
	if err != nil {
		t.Fatal(err)
	}
	want := &sandbox.TemplateSpec{
		Description: "all of it", From: sandbox.TemplateSource{Template: "base@3"},
		Apt: []string{"curl", "git=1:2.39"}, Pip: []string{"pandas==2.2.3"}, NPM: []string{"typescript@5"},
		Files: []sandbox.TemplateFile{
			{Path: "/etc/app.conf", Content: []byte("a = 1\n"), Mode: "0600", Owner: "user"},
			{Path: "/opt/bin", Content: []byte("tool"), Mode: "0755"}, {Path: "/x.bin", Content: []byte{0, 255}},
		},
		Run: []sandbox.TemplateStep{{Run: "make all"}, {Run: "npm ci", User: "user", WorkDir: "/workspace", Env: map[string]string{"CI": "true", "N": "3.10"}},
			{Copy: &sandbox.TemplateCopy{Archive: "upload-x", Sources: []string{"a", "b/*.py"}, To: "/app/"}}},
		Env: map[string]string{"LANG": "C.UTF-8", "NO": "no"}, WorkDir: "/app", User: "app", Resources: sandbox.Resources{VCPUs: 2, MemoryMiB: 2048},
		Start: &sandbox.StartCommand{Command: "serve", Ready: "curl -f localhost", TimeoutMS: 5000}, Warm: map[string]string{"python": "import pandas"},
		Desktop: &sandbox.Desktop{Width: 1280, Height: 800}, Ports: []int{8080, 9090}, BuildNetwork: &sandbox.NetworkPolicy{Preset: "open"},
		Network: &sandbox.NetworkPolicy{Preset: "none", Rules: []sandbox.NetworkRule{{Action: "allow", To: "example.com", Ports: []string{"443"}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// The same as JSON, which is YAML too.
	var v any
	if err := yaml.Unmarshal([]byte(strings.Replace(full, "!!binary \"AP8=\"", "x", 1)), &v); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`{"from": "python:3.12"}`, `{"from": {"image": "python:3.12"}}`, "from: python:3.12", "from:\n  image: python:3.12\n"} {
		got, err := Parse([]byte(text), nil)
		if diff := cmp.Diff(&sandbox.TemplateSpec{From: sandbox.TemplateSource{Image: "python:3.12"}}, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", text, err, diff)
		}
	}
}

func TestParseErrors(t *testing.T) {
	deep := strings.Repeat("{a: ", 20) + "1" + strings.Repeat("}", 20)
	bomb := "a: &a [x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\nc: [*b, *b, *b, *b, *b, *b, *b, *b, *b]\n"
	for text, want := range map[string]string{
		"":                                       "empty",
		"# nothing\n":                            "empty",
		"from: a\n---\nfrom: b":                  "line 2: there is a second document",
		"from: [":                                "not valid YAML: line 1",
		"- a":                                    "line 1: the template is a list",
		"x":                                      "line 1: the template is a single value",
		"from: a\nfro: b":                        `line 2: the template has no field "fro"; use one of apt, build_network,`,
		"from: a\nfrom: b":                       "line 2: from is set twice",
		"from: {imag: x}":                        `line 1: from has no field "imag"`,
		"from: ''":                               "from is empty",
		"from: a\napt: curl":                     "line 2: apt is a single value; use a list",
		"from: a\napt: [{a: b}]":                 "line 2: apt[0] is a mapping; use a single value",
		"from: a\napt:\n  - ":                    "line 3: apt[0] is empty",
		"from: a\nresources:\n  vcpus: two":      `line 3: resources.vcpus is "two"; use a whole number`,
		"from: a\nresources: {vcpus: 1e3}":       "whole number",
		"from: {host: maybe}":                    "from.host is \"maybe\"; use true or false",
		"from: a\nenv: [A=B]":                    "line 2: env is a list; use a mapping of names to values",
		"from: a\nenv: {A: 1, A: 2}":             "twice",
		"from: a\nenv: {[a]: 1}":                 "line 2: env has",
		"from: a\nports: [99999999999999999999]": "whole number",
		"from: a\nfiles: [{path: /x}]":           "line 2: files[0] needs exactly one of content",
		"from: a\nfiles: [{content: x}]":         "files[0] has no path",
		"from: a\nfiles: [{path: /x, content: x, source: y}]":   "needs exactly one",
		"from: a\nfiles: [{path: /x, source: y}]":               "files[0].source: file does not exist",
		"from: a\nfiles: [{path: /x, content: [y]}]":            "files[0].content is a list",
		"from: a\nfiles: [{path: /x, contents: y}]":             `files[0] has no field "contents"`,
		"from: a\nfiles: [{path: /x, content: !!binary '?'}]":   "not valid base64",
		"from: a\nrun: [{cmd: x}]":                              `run[0] has no field "cmd"; use one of copy, env, run, user, workdir`,
		"from: a\nx: " + deep:                                   "levels deep",
		bomb:                                                    "line 1: anchors and aliases",
		"from: a\n<<: {run: [x]}":                               `has no field "<<"`,
		"from: \xff":                                            "not UTF-8 text",
		"from: a\x00b":                                          "not UTF-8 text",
		"from: a\nrun: [" + strings.Repeat("x,", 60_000) + "x]": "more than 50000 values",
	} {
		_, err := Parse([]byte(text), local(nil))
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%.60q: an error of %d bytes", text, len(err.Error()))
		}
	}
	_, err := Parse(bytes.Repeat([]byte("#"), MaxBytes+1), nil)
	if sandbox.CodeOf(err) != sandbox.CodeTooLarge {
		t.Errorf("too large: %v", err)
	}
	if _, err := Parse([]byte("from: a\nfiles: [{path: /x, source: y}]"), nil); err == nil || !strings.Contains(err.Error(), "cove template build") {
		t.Errorf("a source where there are none: %v", err)
	}
	// An endless source is read only as far as the bound allows.
	endless := func(string) (io.ReadCloser, error) { return io.NopCloser(zeros{}), nil }
	if _, err := Parse([]byte("from: a\nfiles: [{path: /x, source: y}]"), endless); err == nil || !strings.Contains(err.Error(), "bytes in total") {
		t.Errorf("an endless source: %v", err)
	}
	broken := func(string) (io.ReadCloser, error) { return nil, errors.New("broken") }
	if _, err := Parse([]byte("from: a\nfiles: [{path: /x, source: y}]"), broken); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a broken source: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(`{"from": {"debian": "bookworm"}, "run": ["x"]}`))
	f.Add([]byte("from: &a [*a]"))
	f.Add([]byte("from: a\nfiles: [{path: /x, content: !!binary AP8=}]\nenv: {A: ~}\n? [x]\n: y"))
	f.Fuzz(func(t *testing.T, data []byte) {
		spec, err := Parse(data, nil)
		if err != nil {
			if e, ok := errors.AsType[*sandbox.Error](err); !ok || e.Code == sandbox.CodeInternal {
				t.Fatalf("%v is no error for a caller", err)
			}
			return
		}
		if _, err := json.Marshal(spec); err != nil {
			t.Fatal(err)
		}
	})
}

const published = "../../../docs/template.schema.json"

func TestSchema(t *testing.T) {
	want := Schema()
	if *update {
		if err := os.WriteFile(published, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(published)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("the published schema is not the present one (%v); write it with go test ./internal/template/templatefile -update", err)
	}
	valid := validator(t)
	if err := valid(strings.Replace(full, "!!binary ", "", 1)); err != nil {
		t.Errorf("the schema refuses a file that is good: %v", err)
	}
	for _, text := range []string{
		"apt: [x]", "from: a\nfro: b", "from: {imag: x}", "from: {image: x, host: true}", "from: a\nfiles: [{path: /x}]", "from: a\nports: [x]",
		"from: a\nrun: [{user: x}]", "from: a\nrun: [{run: x, copy: {archive: upload-x, to: /x}}]", "from: a\nrun: [{copy: {archive: upload-x, to: /x}, user: x}]",
		"from: a\nrun: [{copy: {to: /x}}]", "from: a\nnetwork: closed", "from: a\nbuild_network: {preset: closed}", "from: a\nnetwork: {rules: [{action: drop, to: x}]}",
		"from: a\ndesktop: {width: 1}",
	} {
		if valid(text) == nil {
			t.Errorf("the schema takes %q", text)
		}
	}
	undescribed(t, "", decoded(t))
}

// decoded returns the schema as an editor reads it.
func decoded(t *testing.T) *jsonschema.Schema {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

// validator returns a function that checks texts as an editor with the schema does.
func validator(t *testing.T) func(text string) error {
	t.Helper()
	rs, err := decoded(t).Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(text string) error {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return rs.Validate(v)
	}
}

// undescribed reports names without a description for editors.
func undescribed(t *testing.T, at string, s *jsonschema.Schema) {
	for name, p := range s.Properties {
		if p.Description == "" {
			t.Errorf("%s%s has no description", at, name)
		}
		undescribed(t, at+name+".", p)
	}
	for _, other := range append(s.AnyOf, s.Items) {
		if other != nil {
			undescribed(t, at, other)
		}
	}
}

// TestExamples reads the documentation's examples, and checks them against the schema.
func TestExamples(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "..", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	valid := validator(t)
	anything := func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("x")), nil }
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(page)
		for _, e := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
			if !regexp.MustCompile("(?m)^from:").Match(e[1]) {
				continue // it belongs to another kind of file
			}
			found[name]++
			if _, err := Parse(e[1], anything); err != nil {
				t.Errorf("%s: %v in\n%s", name, err, e[1])
			}
			if err := valid(string(e[1])); err != nil {
				t.Errorf("%s: the schema refuses (%v)\n%s", name, err, e[1])
			}
		}
	}
	if found["templates.md"] < 5 || found["computers.md"] < 2 {
		t.Errorf("examples by page: %v", found)
	}
}
