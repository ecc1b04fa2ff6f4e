package dialect

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

// libraryTemplate is the built-in template with Python's data libraries.
const libraryTemplate = "code-interpreter"

// libraries are Python modules that the template with libraries has and a bare Python
// lacks, with their names in pip.
var libraries = map[string]string{
	"numpy": "numpy", "pandas": "pandas", "matplotlib": "matplotlib", "plotly": "plotly", "seaborn": "seaborn", "scipy": "scipy", "sklearn": "scikit-learn", "requests": "requests", "httpx": "httpx",
	"bs4": "beautifulsoup4", "lxml": "lxml", "openpyxl": "openpyxl", "PIL": "pillow", "pytest": "pytest",
}

// noModule matches Python's last line about a missing module. The message may name a
// module in a package.
var noModule = lazyregexp.New(`(?m)^(?:ModuleNotFoundError: )?No module named '(` + strings.Join(slices.Sorted(maps.Keys(libraries)), "|") + `)(?:\.[.\w]*)?'`)

// missing is the service of a call that notes which of the libraries a program did not
// find. It does not change the program's output.
type missing struct {
	sandbox.Service

	mu       sync.Mutex
	module   string // guarded by mu
	sandbox  string // guarded by mu; empty if the sandbox has ended
	template string // guarded by mu; of a sandbox that has ended
}

func (m *missing) note(said, id, template string) {
	found := noModule.FindStringSubmatch(said)
	if found == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.module, m.sandbox, m.template = found[1], id, template
}

func (m *missing) code(res *sandbox.CodeResult, id, template string) {
	if res != nil && res.Error != nil && res.Error.Name == "ModuleNotFoundError" {
		m.note(res.Error.Message, id, template)
	}
}

func (m *missing) RunCode(ctx context.Context, id string, req sandbox.RunCodeRequest, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
	res, err := m.Service.RunCode(ctx, id, req, sink)
	m.code(res, id, "")
	return res, err
}

func (m *missing) RunIsolated(ctx context.Context, req sandbox.RunIsolatedRequest, sink sandbox.CodeSink) (*sandbox.CodeResult, error) {
	res, err := m.Service.RunIsolated(ctx, req, sink)
	m.code(res, "", req.Template)
	return res, err
}

// tail is how much of a command's last output is searched, in bytes.
const tail = 512

func (m *missing) Exec(ctx context.Context, id string, req sandbox.ExecRequest, sink sandbox.JobSink) (*sandbox.Job, error) {
	if sink == nil {
		return m.Service.Exec(ctx, id, req, nil)
	}
	var last []byte
	job, err := m.Service.Exec(ctx, id, req, func(e sandbox.JobEvent) error {
		if e.Stream == sandbox.Stderr {
			last = append(last, e.Data[max(0, len(e.Data)-tail):]...)
			last = last[max(0, len(last)-tail):]
		}
		return sink(e)
	})
	if err == nil && job.State == sandbox.JobExited && job.ExitCode != 0 {
		m.note(string(last), id, "")
	}
	return job, err
}

// hint says where the module is that was missing, or "".
func (m *missing) hint(ctx context.Context) string {
	m.mu.Lock()
	module, id, template := m.module, m.sandbox, m.template
	m.mu.Unlock()
	if module == "" {
		return ""
	}
	if id != "" {
		s, err := m.Service.Get(ctx, id)
		if err != nil {
			return ""
		}
		template = s.Template
	}
	if name, _, _ := strings.Cut(template, "@"); name == libraryTemplate {
		return "" // somebody has removed it
	}
	return fmt.Sprintf("hint: this sandbox's template has no %s; sandboxes of the template %s have it, or install it here with: pip install %s", module, libraryTemplate, libraries[module])
}

// tell adds the hint to a result, in a block of its own.
func (m *missing) tell(ctx context.Context, res *mcp.CallToolResult) {
	if hint := m.hint(ctx); hint != "" && res != nil {
		res.Content = append(res.Content, &mcp.TextContent{Text: hint})
	}
}
