package agent

import (
	"bytes"
	"encoding/json"
	"image/png"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/testing/needs"
	"github.com/cove-sh/cove/sandbox"
)

// eachPython runs a test with the system's Python, which has libraries, with
// IPython and without.
func eachPython(t *testing.T, test func(t *testing.T, s *server)) {
	needs.File(t, "/usr/lib/python3/dist-packages/matplotlib/pyplot.py")
	needs.File(t, "/usr/lib/python3/dist-packages/pandas/__init__.py")
	needs.File(t, "/usr/lib/python3/dist-packages/IPython/__init__.py")
	for name, env := range map[string]string{"IPython": "", "plain": "1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			_, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{
				Env: map[string]string{"PATH": "/usr/bin:/bin", "COVE_NO_IPYTHON": env, "MPLCONFIGDIR": s.dir},
			}))
			if err != nil {
				t.Fatal(err)
			}
			if r := s.py(t, "'get_ipython' in dir(__builtins__)"); (r.value() == "True") != (env == "") {
				t.Fatalf("the wrong shell: %s %q", r.value(), r.stderr)
			}
			test(t, s)
		})
	}
}

func mimes(o *agentv1.CodeOutput) string {
	return strings.Join(slices.Sorted(maps.Keys(o.GetData())), " ")
}

func TestRichOutput(t *testing.T) {
	eachPython(t, func(t *testing.T, s *server) {
		s.py(t, "import matplotlib.pyplot") // the first import on a machine may speak of its fonts
		r := s.py(t, "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nl = ax.plot([1, 2, 3])\nprint('before')")
		if len(r.outputs) != 1 || r.outputs[0].GetSource() != "matplotlib" || strings.Join(r.order, "|") != "out:before\n|rich:matplotlib" {
			t.Fatalf("an open figure: %v %v %s", r.order, r.CodeResult, r.stderr)
		}
		img, err := png.Decode(bytes.NewReader(r.outputs[0].GetData()["image/png"]))
		if err != nil || img.Bounds().Dx() < 200 {
			t.Errorf("the figure: %v", err)
		}
		if r := s.py(t, "plt.plot([1]); plt.show(); print('after'); plt.get_fignums()"); len(r.outputs) != 2 || r.order[0] != "rich:matplotlib" || r.value() != "[]" {
			t.Errorf("plt.show: %v %v", r.order, r.CodeResult)
		}
		r = s.py(t, "plt.plot([1, 2]); plt.savefig('p.png'); plt.close()")
		if len(r.outputs) != 1 || !strings.Contains(string(r.outputs[0].GetMetadata()["image/png"]), "p.png") {
			t.Errorf("savefig: %v %v %s", r.outputs, r.CodeResult, r.stderr)
		}
		if r := s.py(t, "plt.plot([1, 2]); plt.savefig('p.png')"); len(r.outputs) != 1 {
			t.Errorf("savefig of what is open: %d outputs", len(r.outputs))
		}
		if r := s.py(t, "fig = plt.figure(); l = fig.add_subplot().plot([1])\nfig"); len(r.outputs) != 1 || !r.outputs[0].GetResult() || mimes(r.outputs[0]) != "image/png text/plain" {
			t.Errorf("a figure as a value: %v %v", r.order, r.CodeResult)
		}
		req := in("python", "l = plt.plot([1, 2])")
		req.Env = map[string]string{"COVE_FIGURES": "png,svg", "MPLBACKEND": "Agg"}
		if r := s.code(t, req); len(r.outputs) != 1 || !strings.Contains(mimes(r.outputs[0]), "image/svg+xml") {
			t.Errorf("svg: %v %v", r.outputs, r.CodeResult)
		}

		r = s.py(t, "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2], 'b': ['x', None]})\ndf")
		if len(r.outputs) != 1 || mimes(r.outputs[0]) != "application/vnd.dataframe+json text/html text/plain" || r.outputs[0].GetSource() != "pandas" {
			t.Fatalf("a table: %v %v %s", r.outputs, r.CodeResult, r.stderr)
		}
		var table struct {
			Columns []string         `json:"columns"`
			Records []map[string]any `json:"records"`
			Rows    int              `json:"rows"`
		}
		if err := json.Unmarshal(r.outputs[0].GetData()["application/vnd.dataframe+json"], &table); err != nil || table.Rows != 2 || table.Records[1]["a"] != 2.0 || table.Records[1]["b"] != nil {
			t.Errorf("the table: %v %+v", err, table)
		}
		if r := s.py(t, "pd.DataFrame({'a': range(5000)})"); !strings.Contains(string(r.outputs[0].GetData()["application/vnd.dataframe+json"]), `"rows": 5000`) ||
			len(r.outputs[0].GetData()["application/vnd.dataframe+json"]) > 100_000 {
			t.Errorf("a long table: %v", r.CodeResult)
		}

		r = s.py(t, "class R:\n    def _repr_html_(self): return '<b>r</b>'\n    def _repr_png_(self): return b'png'\n    def _repr_json_(self): return {'n': float('nan')}\n    def __repr__(self): return 'R'\ndisplay(R()); print('mid'); display({'text/markdown': '*m*'}, raw=True)\nR();")
		if strings.Join(r.order, "|") != "rich:|out:mid\n|rich:" || !strings.Contains(mimes(r.outputs[0]), "text/html") ||
			string(r.outputs[0].GetData()["image/png"]) != "png" || string(r.outputs[1].GetData()["text/markdown"]) != "*m*" {
			t.Errorf("display: %v %v %v %s", r.order, r.outputs, r.CodeResult, r.stderr)
		}

		r = s.py(t, "display({'text/plain': 'x' * 5_000_000}, raw=True)")
		if file := r.outputs[0].GetFiles()["text/plain"]; file == "" {
			t.Errorf("a large output: %v", r.CodeResult)
		} else if st, err := os.Stat(file); err != nil || st.Size() != 5_000_000 {
			t.Errorf("its file: %v", err)
		} else {
			_ = os.Remove(file)
		}
		r = s.py(t, "display({'text/plain': '\\x01' * 4_000_000, 'text/html': '<é>' * 900_000, 'application/json': ['\\x02' * 300_000]}, raw=True)")
		if len(r.outputs) != 1 || len(r.outputs[0].GetData()["text/plain"]) != 4_000_000 || len(r.outputs[0].GetData()["text/html"]) != 3_600_000 ||
			r.outputs[0].GetFiles()["application/json"] == "" || r.GetRestarted() {
			t.Errorf("long texts: %v", r.CodeResult)
		}
		for _, o := range r.outputs {
			for _, file := range o.GetFiles() {
				_ = os.Remove(file)
			}
		}
		if r := s.py(t, "for i in range(100): display(i)"); len(r.outputs) != sandbox.MaxOutputs || !strings.Contains(r.stderr, "more than 64 outputs") {
			t.Errorf("many outputs: %d %q", len(r.outputs), r.stderr)
		}
		if r := s.py(t, "import warnings\nwarnings.warn('careful')"); !strings.Contains(r.stderr, "<cell") || !strings.Contains(r.stderr, "careful") {
			t.Errorf("a warning: %q %v", r.stderr, r.CodeResult)
		}
		if r := s.py(t, "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e"); !strings.Contains(r.GetError().GetTraceback(), "direct cause") ||
			strings.Contains(r.GetError().GetTraceback(), "IPython") || strings.Contains(r.GetError().GetTraceback(), "cove>") || !strings.Contains(r.GetError().GetTraceback(), "line 2") {
			t.Errorf("a traceback: %s", r.GetError().GetTraceback())
		}
	})
}

func TestIPython(t *testing.T) {
	eachPython(t, func(t *testing.T, s *server) {
		if s.py(t, "'get_ipython' in dir(__builtins__)").value() != "True" {
			return
		}
		if r := s.py(t, "import os\nos.path.exists(get_ipython().profile_dir.location)"); r.value() != "False" {
			t.Errorf("IPython's directory stays: %v", r.CodeResult)
		}
		if r := s.py(t, "exit(3)"); r.GetExitCode() != 3 || r.GetError() != nil {
			t.Errorf("exit(3): %v", r.CodeResult)
		}
		for _, tt := range []struct{ code, stdout, value, err string }{
			{"!echo from the shell", "from the shell\n", "", ""},
			{"x = !echo a; echo b\nx", "", "['a', 'b']", ""},
			{"%cd /usr\n%pwd", "/usr\n", "'/usr'", ""},
			{"%%bash\necho cell", "cell\n", "", ""},
			{"from IPython.display import display, HTML\ndisplay(HTML('<i>'))", "", "", ""},
			{"import asyncio\nawait asyncio.sleep(0.01, 7)", "", "7", ""},
			{"_ + 1", "", "8", ""},
			{"1/0", "", "", "ZeroDivisionError"},
			{"if True print", "", "", "SyntaxError"},
			{"%nosuchmagic", "", "", "UsageError"},
			{"exit", "", "", ""},
			{"exit()", "", "", ""},
			{"exit()", "", "", ""},
			{"6*7", "", "42", ""},
		} {
			r := s.py(t, tt.code)
			if r.stdout != tt.stdout || r.value() != tt.value || r.GetError().GetName() != tt.err || r.GetRestarted() {
				t.Errorf("%s: got %q, %q, %v; %q", tt.code, r.stdout, r.value(), r.CodeResult, r.stderr)
			}
		}
	})
}
