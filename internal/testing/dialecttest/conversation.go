package dialecttest

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// Caller calls a tool, over whatever is between the test and the dialect.
type Caller func(ctx context.Context, tool string, args json.RawMessage) (*mcp.CallToolResult, error)

// Direct is a [Caller] with nothing in between: one session of a dialect.
func Direct(t testing.TB, d dialect.Dialect, svc sandbox.Service) Caller {
	tools := make(map[string]dialect.Tool)
	for _, tool := range d.Tools() {
		tools[tool.Def.Name] = tool
	}
	session := dialect.NewSession()
	t.Cleanup(func() { session.End(context.WithoutCancel(t.Context())) })
	return func(ctx context.Context, name string, args json.RawMessage) (*mcp.CallToolResult, error) {
		tool, ok := tools[name]
		if !ok {
			return nil, fmt.Errorf("no tool %s", name)
		}
		return dialect.Invoke(ctx, d, tool, &dialect.Call{
			Service: svc, Args: args, Session: func() *dialect.Session { return session }, Status: func(string) {}, Tell: func(string) {}, Output: func(dialect.Output) {}, Env: func(string) string { return "" },
			Protocol: "2025-11-25", Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
	}
}

// Conversations runs each script of a directory (*.txtar). A script's files
// come in pairs: "call <tool>" holds the arguments, "result" what comes back.
//
// Where runs differ, results are normalised: identifiers become <id-1>,
// <id-2> … in the order of their appearance, which calls may then use; times
// become <time>, durations <n> and cursors <cursor-1>, and limits that the
// machine does not enforce are left out. In arguments, <nul> is a NUL byte and
// <repeat:X:N> N times X. Every structured result is checked against the
// tool's output schema. connect also returns what hides other differences of
// the service that it talks to.
func Conversations(t *testing.T, d dialect.Dialect, dir string, connect func(t *testing.T) (call Caller, hide func(string) string)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations in %s: %v", dir, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			script, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			call, hide := connect(t)
			c := &conversation{call: call, hide: hide, schemas: schemas(t, d), ids: make(map[string]string), counts: make(map[string]int)}
			c.run(t, script)
			if *update {
				if err := os.WriteFile(file, txtar.Format(script), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func schemas(t *testing.T, d dialect.Dialect) map[string]*jsonschema.Resolved {
	t.Helper()
	out := make(map[string]*jsonschema.Resolved)
	for _, tool := range d.Tools() {
		if tool.Def.OutputSchema == nil {
			continue
		}
		data, err := json.Marshal(tool.Def.OutputSchema)
		if err != nil {
			t.Fatal(err)
		}
		var s jsonschema.Schema
		if err := json.Unmarshal(data, &s); err != nil {
			t.Fatal(err)
		}
		if out[tool.Def.Name], err = s.Resolve(nil); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

type conversation struct {
	call    Caller
	hide    func(string) string
	schemas map[string]*jsonschema.Resolved
	ids     map[string]string // real to shown
	order   []string
	counts  map[string]int // of each kind
}

func (c *conversation) run(t *testing.T, script *txtar.Archive) {
	t.Helper()
	for i := 0; i < len(script.Files); i++ {
		tool, ok := strings.CutPrefix(script.Files[i].Name, "call ")
		if !ok {
			t.Fatalf("file %q is not a call", script.Files[i].Name)
		}
		got := c.step(t, tool, script.Files[i].Data)
		if i+1 < len(script.Files) && script.Files[i+1].Name == "result" {
			i++
		} else if *update {
			script.Files = append(script.Files[:i+1], append([]txtar.File{{Name: "result"}}, script.Files[i+1:]...)...)
			i++
		} else {
			t.Fatalf("call %s has no result (run with -update)", tool)
		}
		if *update {
			script.Files[i].Data = got
		} else if diff := cmp.Diff(string(script.Files[i].Data), string(got)); diff != "" {
			t.Errorf("call %d, %s (-want +got):\n%s", i/2+1, tool, diff)
		}
	}
}

func (c *conversation) step(t *testing.T, tool string, args []byte) []byte {
	t.Helper()
	res, err := c.call(t.Context(), tool, c.arguments(t, args))
	if err != nil {
		return c.normalize([]byte("protocol error: " + err.Error() + "\n"))
	}
	var b bytes.Buffer
	if res.IsError {
		b.WriteString("isError\n")
	}
	if res.StructuredContent != nil {
		data, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		var v any
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		if s := c.schemas[tool]; s != nil {
			if err := s.Validate(v); err != nil {
				t.Errorf("%s: the result does not match the output schema: %v", tool, err)
			}
		}
		c.learn(v)
		b.WriteString("structured: ")
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	for _, block := range res.Content {
		if text, ok := block.(*mcp.TextContent); ok && res.StructuredContent == nil {
			c.learnText(text.Text)
		}
		show(&b, block)
	}
	return c.normalize(b.Bytes())
}

func show(b *bytes.Buffer, block mcp.Content) {
	switch v := block.(type) {
	case *mcp.TextContent:
		fmt.Fprintf(b, "text: %s", v.Text)
	case *mcp.ImageContent:
		fmt.Fprintf(b, "image: %s %s", v.MIMEType, base64.StdEncoding.EncodeToString(v.Data))
	case *mcp.EmbeddedResource:
		if v.Resource.Blob != nil {
			fmt.Fprintf(b, "resource: %s %s", v.Resource.URI, v.Resource.MIMEType)
		} else {
			fmt.Fprintf(b, "resource: %s %s %s", v.Resource.URI, v.Resource.MIMEType, v.Resource.Text)
		}
	case *mcp.ResourceLink:
		fmt.Fprintf(b, "link: %s %s %s", v.URI, v.Name, v.MIMEType)
	default:
		fmt.Fprintf(b, "%T", v)
	}
	if !bytes.HasSuffix(b.Bytes(), []byte("\n")) {
		b.WriteByte('\n')
	}
}

var repeat = regexp.MustCompile(`<repeat:([^:]+):(\d+)>`)

func (c *conversation) arguments(t *testing.T, args []byte) json.RawMessage {
	t.Helper()
	s := strings.TrimSpace(string(args))
	for real, shown := range c.ids {
		s = strings.ReplaceAll(s, shown, real)
	}
	s = strings.ReplaceAll(s, "<nul>", `\u0000`)
	s = repeat.ReplaceAllStringFunc(s, func(m string) string {
		parts := repeat.FindStringSubmatch(m)
		var n int
		fmt.Sscan(parts[2], &n)
		return strings.Repeat(parts[1], n)
	})
	return json.RawMessage(s)
}

// learn gives the identifiers of a result their names.
func (c *conversation) learn(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			c.learn(e)
		}
	case map[string]any:
		for _, key := range []string{"id", "job_id", "build_id", "sandbox_id", "parent", "next_cursor"} {
			id, _ := v[key].(string)
			kind := "id"
			if key == "next_cursor" {
				kind = "cursor"
			}
			c.name(kind, id)
		}
		if v["kind"] == "restored" { // a moment, of what may be in no list
			step, _ := v["snapshot"].(string)
			c.name("step", step)
		}
		children, _ := v["children"].([]any)
		for _, child := range children {
			id, _ := child.(string)
			c.name("id", id)
		}
		for _, e := range v {
			c.learn(e)
		}
	}
}

// told are identifiers in a result that is JSON as text only.
var told = regexp.MustCompile(`"(id|job_id|sandbox_id|process_id|execution_id|build_id|auth_token)": "([a-z]+_)?((?:sbx|job|bld)-[a-z0-9]{16,}|eyJ[A-Za-z0-9._-]+)"`)

// learnText gives the identifiers of a result without structured content their
// names.
func (c *conversation) learnText(text string) {
	for _, m := range told.FindAllStringSubmatch(text, -1) {
		kind := "id"
		if m[1] == "auth_token" {
			kind = "token"
		}
		c.name(kind, m[3])
	}
}

// name gives an identifier its name, if it has none.
func (c *conversation) name(kind, id string) {
	if id == "" || c.ids[id] != "" {
		return
	}
	c.counts[kind]++
	c.ids[id] = fmt.Sprintf("<%s-%d>", kind, c.counts[kind])
	c.order = append(c.order, id)
}

// fold writes long runs of one character as <repeat:X:N>.
func fold(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		n := 1
		for i+n < len(s) && s[i+n] == s[i] {
			n++
		}
		if n < 100 {
			b.WriteString(s[i : i+n])
		} else {
			fmt.Fprintf(&b, "<repeat:%c:%d>", s[i], n)
		}
		i += n
	}
	return b.String()
}

var (
	moment   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
	duration = regexp.MustCompile(`("duration_ms": )\d+|(after )\d+\.\d s`)
	// What a machine cannot enforce differs from one to the next.
	unenforced = regexp.MustCompile(`,\n *"unenforced": \[[^\]]*\]|\nNot enforced on this machine: [^\n]*`)
)

func (c *conversation) normalize(b []byte) []byte {
	s := string(b)
	for _, id := range c.order {
		s = strings.ReplaceAll(s, id, c.ids[id])
	}
	s = c.hide(s)
	s = unenforced.ReplaceAllString(s, "")
	s = moment.ReplaceAllString(s, "<time>")
	s = duration.ReplaceAllString(s, "$1$2<n>")
	s = fold(s)
	// A line that begins a file would end this one.
	return []byte(strings.ReplaceAll(s, "\n-- ", "\n\\-- "))
}
