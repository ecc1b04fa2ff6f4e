package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"

	"github.com/cove-sh/cove/sandbox"
)

// commonChecks are what every template of Debian's packages promises.
var commonChecks = [][3]string{
	{"an ordinary user", `test "$(id -un):$(id -u):$HOME" = user:1000:/home/user; touch $HOME/x; pwd`, "/workspace"},
	{"sudo", `test "$(sudo -n id -u)" = 0; sudo -n touch /usr/local/bin/x; sudo -n rm /usr/local/bin/x; sudo -n dpkg --audit`, ""},
	{"certificates", `grep -c BEGIN /etc/ssl/certs/ca-certificates.crt`, ""},
	{"UTF-8", `printf '%s\n' "$LANG"; printf 'é世😀' > ü.txt; ls`, "ü.txt"},
}

// toolChecks are for the tools of those that are worked in by hand.
var toolChecks = [][3]string{
	{"git", `rm -rf g; git init -q g; cd g; git -c user.name=x -c user.email=x@y commit -q --allow-empty -m one; git log --oneline`, "one"},
	{"curl", `printf hello > f; curl -fsS file://$PWD/f; curl --version`, "https"},
	{"archives", `printf packed > p; tar -cJf p.tar.xz p; rm p; tar -xJf p.tar.xz; file p.tar.xz; cat p; unzip -v`, "packed"},
	{"ps, less, nano", `less -FX p; nano --version; ps -e -o comm`, "ps"},
}

func useBase(u *user) {
	u.shells(commonChecks...)
	u.shells(toolChecks...)
}

func useNode(u *user) {
	u.shells(commonChecks...)
	u.shells(toolChecks...)
	for path, content := range map[string]string{
		"greet/package.json": `{"name": "greet", "version": "1.0.0", "main": "index.js", "bin": {"greet": "cli.js"}}`,
		"greet/index.js":     "module.exports = (who) => `hello ${who}`;\n",
		"greet/cli.js":       "#!/usr/bin/env node\nconsole.log(require('./index.js')('there'));\n",
		"app/package.json":   `{"name": "app", "version": "1.0.0", "type": "module", "scripts": {"test": "node --test", "start": "node main.js"}}`,
		"app/main.js":        "import greet from 'greet';\nimport { readFile } from 'node:fs/promises';\nconst { name } = JSON.parse(await readFile('package.json', 'utf8'));\nconsole.log(greet(name));\n",
		"app/main.test.js":   "import test from 'node:test';\nimport assert from 'node:assert';\ntest('adds', () => assert.equal(1 + 1, 2));\n",
		"app/typed.ts":       "interface Point { x: number; y: number }\nconst p: Point = { x: 40, y: 2 };\nexport const sum: number = p.x + p.y;\nconsole.log(`sum ${sum}`);\n",
		"app/wrong.ts":       "const n: number = 'no number';\n",
	} {
		if err := u.put("/workspace/"+path, content); err != nil {
			u.note("write "+path, err)
			return
		}
	}
	const npm = "npm --offline --no-audit --no-fund --no-update-notifier "
	u.shells(
		[3]string{"npm with a local package", "cd app; " + npm + "install ../greet; npx --offline greet; " + npm + "start", "hello app"},
		[3]string{"npm test", "cd app; " + npm + "test", "pass 1"},
		[3]string{"npm install -g as the user", "chmod +x greet/cli.js; " + npm + "install -g ./greet; command -v greet; greet", "hello there"},
		[3]string{"npm install -g as root", "sudo -n " + npm + "install -g ./greet; /usr/local/bin/greet", "hello there"},
		[3]string{"tsc", "cd app; tsc --target es2022 --module es2022 --strict typed.ts; node typed.js", "sum 42"},
		[3]string{"tsc finds mistakes", "cd app; ! tsc --noEmit wrong.ts", "not assignable"},
	)
	u.node()
}

// node runs code in Node.js's interpreters.
func (u *user) node() {
	u.code("Node.js 22", sandbox.JavaScript, "process.version.split('.')[0]", "v22")
	u.shells([3]string{"node and npm", "node --version; npm --version; echo 'console.log(6*7)' >/tmp/n.js; node /tmp/n.js", "10.9.9\n42"})
	u.code("JavaScript", sandbox.JavaScript, "const os = await import('node:os');\nos.platform() + ' ' + (6 * 7)", "linux 42")
	u.code("TypeScript", sandbox.TypeScript, "enum Color { Red = 41 }\nconst n: number = Color.Red + 1;\n`n ${n}`", "n 42")
}

func useCode(u *user) {
	u.shells(commonChecks...)
	u.shells(toolChecks...)
	u.code("pandas", sandbox.Python, `import pandas as pd, io
df = pd.read_csv(io.StringIO("city,people\nBern,134\nGenève,203\nBern,1\n"))
df.to_excel("/workspace/t.xlsx", index=False)
assert pd.read_excel("/workspace/t.xlsx").equals(df)
df.groupby("city").people.sum().to_frame()`, "203")
	u.code("numpy, scipy, sklearn", sandbox.Python, `import numpy as np
from scipy import optimize
from sklearn.linear_model import LinearRegression
X = np.arange(10.).reshape(-1, 1)
m = LinearRegression().fit(X, 3 * X[:, 0] + 1)
round(float(m.coef_[0]), 3), round(optimize.brentq(lambda x: x * x - 4, 0, 5), 3)`, "(3.0, 2.0)")
	u.code("text and pages", sandbox.Python, `import bs4, lxml.etree, requests, httpx
from PIL import Image
Image.new("RGB", (4, 4), "red").save("/workspace/r.png")
bs4.BeautifulSoup("<p>one<p>two", "lxml").find_all("p")[1].text`, "two")
	if r := u.code("matplotlib", sandbox.Python, "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2]); plt.title('Größe'); None", ""); r != nil {
		u.note("its plot is a picture", plotted(r))
	}
	u.code("plotly and seaborn", sandbox.Python, `import pandas as pd, plotly.graph_objects as go, seaborn as sns
ax = sns.barplot(data=pd.DataFrame({"x": ["a", "b"], "y": [1, 3]}), x="x", y="y")
fig = go.Figure(go.Bar(x=["a", "b"], y=[1, 3]))
len(ax.patches), fig.to_dict()["data"][0]["type"]`, "(2, 'bar')")
	u.node()
	u.code("Go", sandbox.Go, "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(6 * 7) }", "42")
	u.code("bash", sandbox.Bash, "echo $((6*7))", "42")
	for path, content := range map[string]string{
		"c/main.c":           "#include <stdio.h>\nint main(void) { puts(\"from C\"); }\n",
		"c/main.cc":          "#include <iostream>\n#include <vector>\nint main() { std::vector v{1, 2}; std::cout << \"from C++ \" << v.size() << '\\n'; }\n",
		"c/Makefile":         "all: a b\na: main.c\n\t$(CC) -o $@ $<\nb: main.cc\n\t$(CXX) -std=c++17 -o $@ $<\n",
		"pkg/pyproject.toml": "[build-system]\nrequires = [\"setuptools\"]\nbuild-backend = \"setuptools.build_meta\"\n[project]\nname = \"answer\"\nversion = \"1.0\"\n[tool.setuptools]\npy-modules = [\"answer\"]\n",
		"pkg/answer.py":      "value = 42\n",
		"pkg/test_answer.py": "import answer\n\ndef test_value():\n    assert answer.value == 42\n",
	} {
		if err := u.put("/workspace/"+path, content); err != nil {
			u.note("write "+path, err)
			return
		}
	}
	u.shells(
		[3]string{"C and C++", "cd c; make -s; ./a; ./b", "from C++ 2"},
		[3]string{"pytest", "cd pkg; pytest -q 2>&1", "1 passed"},
		[3]string{"pip", "pip install -q --no-index --no-build-isolation ./pkg; cd /; python -c 'import answer; print(answer.value)'", "42"},
		[3]string{"venv", "python3 -m venv v; v/bin/pip --version", "/workspace/v/"},
		[3]string{"sqlite3, jq, rg, zip", `sqlite3 :memory: 'select 6*7'; echo '{"a":[1,2]}' | jq -c .a; rg -l from c; zip -q c.zip c/main.c; unzip -l c.zip`, "c/main.c"},
		[3]string{"vim, wget, ssh, patch", "vim --version | head -1; wget --version | head -1; ssh -V 2>&1; patch --version | head -1", "GNU patch"},
	)
}

// plotted checks that a result has a figure with something in it.
func plotted(r *sandbox.CodeResult) error {
	for _, o := range r.Outputs {
		var text string
		if o.Data["image/png"] == nil {
			continue
		}
		if err := json.Unmarshal(o.Data["image/png"], &text); err != nil {
			return err
		}
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return err
		}
		img, err := png.Decode(bytes.NewReader(data))
		if err != nil {
			return err
		}
		if n := colours(img, img.Bounds()); n < 10 {
			return fmt.Errorf("the figure has %d colours", n)
		}
		return nil
	}
	return errors.New("there is no figure among the outputs")
}
