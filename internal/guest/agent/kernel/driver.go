package kernel

import (
	"bufio"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

//go:embed drivers
var drivers embed.FS

// driver tells how to start an interpreter with its driver.
type driver struct {
	names []string // of programs, in the order of preference
	args  []string
	hello []byte // what it is sent first
	// Descriptors of the interpreter; -1: it has none.
	in, out, ack int
	codec        func(*Kernel) codec
}

// codec puts runs into the words of a driver and understands what it says.
type codec interface {
	run(r *Run) ([]byte, error)
	// read returns a message; with an error, one that is not nil says that the
	// rules were broken rather than the connection.
	read(r *bufio.Reader) (*message, error)
	// tidy is called after a run.
	tidy()
}

// Programs lists the names of a language's interpreter, in the order of
// preference; nil if there is none.
func Programs(l sandbox.Language) []string {
	switch l {
	case sandbox.Python:
		return []string{"python3", "python"}
	case sandbox.JavaScript, sandbox.TypeScript:
		return []string{"node", "nodejs"}
	case sandbox.Bash:
		return []string{"bash"}
	case sandbox.Go:
		return []string{"go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"}
	}
	return nil
}

// The first words of an interpreter receive the driver and start it, so that
// no file is needed and a list of processes stays readable.
const (
	pythonBoot = `import os
def r(n):
 b=b''
 while len(b)<n:b+=os.read(3,n-len(b))
 return b
exec(compile(r(int.from_bytes(r(4),'big')),'<cove>','exec'),{'__name__':'cove'})`
	nodeBoot = `(()=>{const f=require('fs'),r=n=>{const b=Buffer.alloc(n);for(let i=0;i<n;)i+=f.readSync(3,b,i,n-i,null);return b},` +
		`s=r(r(4).readUInt32BE()).toString();new(require('vm').Script)(s,{filename:'<cove>'}).runInThisContext()(require,process,undefined,n=>import(n))})()`
)

// driverOf makes the driver for an interpreter that starts with this environment.
func driverOf(l sandbox.Language, env map[string]string) (*driver, error) {
	d := &driver{names: Programs(l), in: 3, out: 4, ack: 5, codec: newFrames}
	var files []string
	switch l {
	case sandbox.Python:
		d.args, files = []string{"-c", pythonBoot}, []string{"python.py", "python_show.py", "python_chart.py", "python_run.py"}
	case sandbox.JavaScript, sandbox.TypeScript:
		d.args, files = []string{"-e", nodeBoot}, []string{"node.js", "node_run.js"}
	case sandbox.Bash:
		d.args = []string{"--norc", "--noprofile", "--noediting", "-i"}
		files = []string{"bash.sh"}
		d.in, d.out, d.ack, d.codec = 0, 3, -1, newLines
	default:
		return nil, fmt.Errorf("%s keeps no state", l)
	}
	var source strings.Builder
	for _, name := range files {
		data, err := drivers.ReadFile("drivers/" + name)
		if err != nil {
			return nil, fmt.Errorf("read a driver: %w", err)
		}
		source.Write(data)
	}
	text := source.String()
	if strings.HasPrefix(files[0], "node") {
		text = nodeSource(text, l)
	}
	d.hello = []byte(text)
	if l != sandbox.Bash {
		first, err := json.Marshal(map[string]any{"t": "hello", "env": env})
		if err != nil {
			return nil, fmt.Errorf("encode the environment: %w", err)
		}
		d.hello = append(frame(d.hello), frame(first)...)
	}
	return d, nil
}

// NodeProgram returns a program for Node that runs the file that its argument
// names as a kernel would.
func NodeProgram(l sandbox.Language) (string, error) {
	var text strings.Builder
	for _, name := range []string{"node.js", "node_run.js"} {
		data, err := drivers.ReadFile("drivers/" + name)
		if err != nil {
			return "", fmt.Errorf("read a driver: %w", err)
		}
		text.Write(data)
	}
	return nodeSource(text.String(), l) + "(require, process, process.argv[2], (name) => import(name))\n", nil
}

// nodeSource makes the driver a function of the parser's source and the
// language.
func nodeSource(text string, l sandbox.Language) string {
	parser, err := drivers.ReadFile("drivers/acorn/acorn.js")
	if err != nil {
		parser = nil // without it plain scripts run all the same
	}
	quoted, _ := json.Marshal(string(parser))
	lang, _ := json.Marshal(string(l))
	return "((require,process,JOB,IMPORT)=>{const LANGUAGE=" + string(lang) + ",PARSER=" + string(quoted) + ";" + text + "\n})"
}

// frames is the codec of drivers that speak JSON.
type frames struct {
	k   *Kernel
	env map[string]string // as last told
}

func newFrames(k *Kernel) codec { return &frames{k: k, env: k.cfg.Env} }

func (f *frames) run(r *Run) ([]byte, error) {
	m := runFrame{
		Type: "run", Run: f.k.run, Count: r.Count, Code: r.Code, SetEnv: r.SetEnv, Home: r.Home, Dir: r.Dir,
		Reseed: hex.EncodeToString(r.Reseed), Limits: codeLimits,
	}
	if !maps.Equal(f.env, r.Env) {
		m.Env = r.Env
		f.env = r.Env
	}
	if r.Given {
		text := base64.StdEncoding.EncodeToString(r.Stdin)
		m.Stdin = &text
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode a run: %w", err)
	}
	return frame(data), nil
}

func (f *frames) read(r *bufio.Reader) (*message, error) {
	data, err := readFrame(r)
	if err != nil {
		return nil, err
	}
	m, err := parseMessage(data)
	if err != nil {
		return &message{}, err
	}
	return m, nil
}

func (f *frames) tidy() {}

// sortedKeys returns the keys of m in order.
func sortedKeys(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
