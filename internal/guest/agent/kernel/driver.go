package kernel

import (
	"bufio"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"

	"github.com/cove-sh/cove/sandbox"
)

// The build puts acorn below drivers, which is not committed. A program is built without
// it too.
//
//go:embed drivers
var drivers embed.FS

// parserFile is acorn, the parser of JavaScript.
const parserFile = "drivers/acorn/acorn.js"

// HasParser reports whether the program was built with the JavaScript parser. Without it,
// contexts and jobs run JavaScript and TypeScript as Node.js runs a script.
func HasParser() bool {
	_, err := fs.Stat(drivers, parserFile)
	return err == nil
}

// driver describes how to start an interpreter with its driver.
type driver struct {
	names []string // programs, preferred ones first
	args  []string
	hello []byte // the first data that is sent to it
	// Descriptors in the interpreter; -1: none.
	in, out, ack, mark int
	// begins is set if it says when it begins code. A signal before that would end it.
	begins bool
	codec  func(*Kernel) codec
}

// codec encodes runs for a driver and decodes its messages.
type codec interface {
	run(r *Run) ([]byte, error)
	// read returns errProtocol for an invalid message; after other errors the connection
	// is broken.
	read(r *bufio.Reader) (*message, error)
	// tidy is called after a run.
	tidy()
}

var programs = map[sandbox.Language][]string{
	sandbox.Python:     {"python3", "python"},
	sandbox.JavaScript: {"node", "nodejs"},
	sandbox.TypeScript: {"node", "nodejs"},
	sandbox.Bash:       {"bash"},
	sandbox.Go:         {"go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"},
}

// Programs lists the names of a language's interpreter, the preferred ones first; nil
// if there is none. The caller must not change the list.
func Programs(l sandbox.Language) []string { return programs[l] }

// The programs in an interpreter's arguments receive the driver and start it, so no file is
// needed and process lists stay readable.
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

// driverOf makes the driver, from files, for an interpreter that starts with this
// environment.
func driverOf(files fs.FS, l sandbox.Language, env map[string]string) (*driver, error) {
	d := &driver{names: Programs(l), in: 3, out: 4, ack: 5, mark: 6, codec: newFrames}
	var text string
	var err error
	switch l {
	case sandbox.Python:
		d.args = []string{"-c", pythonBoot}
		text, err = source(files, "python.py", "python_show.py", "python_chart.py", "python_run.py")
	case sandbox.JavaScript, sandbox.TypeScript:
		d.args = []string{"-e", nodeBoot}
		text, err = nodeSource(files, l)
	case sandbox.Bash:
		d.args = []string{"--norc", "--noprofile", "--noediting", "-i"}
		text, err = source(files, "bash.sh")
		d.in, d.out, d.ack, d.mark, d.codec = 0, 3, -1, -1, newLines
		d.begins = true
	default:
		return nil, fmt.Errorf("%s keeps no state", l)
	}
	if err != nil {
		return nil, err
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

// NodeProgram returns a program for Node that runs the file named by its argument as a
// kernel would.
func NodeProgram(l sandbox.Language) (string, error) {
	text, err := nodeSource(drivers, l)
	if err != nil {
		return "", err
	}
	return text + "(require, process, process.argv[2], (name) => import(name))\n", nil
}

// source joins files of a driver.
func source(files fs.FS, names ...string) (string, error) {
	var b strings.Builder
	for _, name := range names {
		data, err := fs.ReadFile(files, "drivers/"+name)
		if err != nil {
			return "", fmt.Errorf("read a driver: %w", err)
		}
		b.Write(data)
	}
	return b.String(), nil
}

// nodeSource returns Node's driver with the language and the parser's source, which is
// empty if there is none.
func nodeSource(files fs.FS, l sandbox.Language) (string, error) {
	text, err := source(files, "node.js", "node_run.js")
	if err != nil {
		return "", err
	}
	parser, err := fs.ReadFile(files, parserFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the parser: %w", err)
	}
	quoted, _ := json.Marshal(string(parser))
	lang, _ := json.Marshal(string(l))
	return "((require,process,JOB,IMPORT)=>{const LANGUAGE=" + string(lang) + ",PARSER=" + string(quoted) + ";" + text + "\n})", nil
}

// frames is the codec of drivers that use JSON.
type frames struct {
	k   *Kernel
	env map[string]string // as last sent
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
	return parseMessage(data)
}

func (f *frames) tidy() {}
