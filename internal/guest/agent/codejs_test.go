package agent

import (
	"errors"
	"strings"
	"testing"

	"github.com/cove-sh/cove/internal/guest/agent/kernel"
	"github.com/cove-sh/cove/internal/testing/needs"
)

// needsParser requires Node.js, and the parser in this program.
func needsParser(t *testing.T) {
	t.Helper()
	needs.Command(t, "node")
	if !kernel.HasParser() {
		needs.NoError(t, errors.New("the parser of JavaScript: make build"))
	}
}

func TestJavaScriptState(t *testing.T) {
	needsParser(t)
	s := start(t)
	js := func(code string) *ran { t.Helper(); return s.code(t, in("javascript", code)) }
	for _, tt := range []struct{ code, stdout, value string }{
		{"console.log(6*7)", "42\n", ""},
		{"const a = 1; let b = [1,2,3]; class K { m() { return a } }\nfunction f() { return b.length }", "", ""},
		{"const a = 2; let b; class K { m() { return a + 1 } }", "", ""},
		{"[a, b, new K().m(), typeof f]", "", "[ 2, undefined, 3, 'function' ]"},
		{"const {x, y: [z]} = await Promise.resolve({x: 1, y: [5]}); function g() { return x + z }\nx + z", "", "6"},
		{"g() + x", "", "7"},
		{"for (var i = 0; i < 3; i++) await null; i", "", "3"},
		{"import { join, basename as base } from 'path'\nimport * as os from 'node:os'\njoin('a', base('/x/y'))", "", "'a/y'"},
		{"typeof os.cpus", "", "'function'"},
		{"(await import('fs')).existsSync('/')", "", "true"},
		{"require('path').sep + fs.constants.F_OK", "", "'/0'"},
		{"(await Promise.resolve(4))", "", "4"},
		{"{ a: await 5 }", "", "{ a: 5 }"},
		{"{ a: 1, b: [2] }", "", "{ a: 1, b: [ 2 ] }"},
		{"_", "", "{ a: 1, b: [ 2 ] }"},
		{"'just a string'", "", "'just a string'"},
		{"'use strict'; let q = 'x'; q // comment", "", "'x'"},
		{"setTimeout(() => { globalThis.late = 1 }, 1); await new Promise(r => setTimeout(r, 20)); late", "", "1"},
		{"var v = 1\nif (v) { var w = 2 }\nv + w;", "", "3"},
		{"process.stdout.write('no newline')", "no newline", "true"},
	} {
		if r := js(tt.code); r.stdout != tt.stdout || r.value() != tt.value || r.GetExitCode() != 0 {
			t.Errorf("%s: got %q, value %q, want %q, %q; %v %s", tt.code, r.stdout, r.value(), tt.stdout, tt.value, r.CodeResult, r.stderr)
		}
	}
}

func TestJavaScriptErrors(t *testing.T) {
	needsParser(t)
	s := start(t)
	js := func(code string) *ran { t.Helper(); return s.code(t, in("javascript", code)) }
	js("let kept = 1")
	for _, tt := range []struct {
		code, name, traceback string
		exit                  int32
	}{
		{"function bad() {\n  throw new TypeError('oh')\n}\nbad()", "TypeError", "<cell 2>:2:9", 1},
		{"await null\nthrow new RangeError('later')", "RangeError", "<cell 3>:2:7", 1},
		{"let = = 1", "SyntaxError", "<cell 4>:1", 1},
		{"Promise.reject(new Error('nobody'))", "Error", "nobody", 1},
		{"setTimeout(() => { throw new Error('timer') }, 1); await new Promise(() => setTimeout(() => {}, 500))", "Error", "timer", 1},
		{"throw 5", "Uncaught", "Uncaught 5", 1},
		{"await new Promise(() => {})", "Error", "nothing is left to do", 1},
		{"process.exit(4)", "", "", 4},
		{"await null; process.exit(5)", "", "", 5},
		{"process.exitCode = 6", "", "", 6},
	} {
		r := js(tt.code)
		if r.GetError().GetName() != tt.name || !strings.Contains(r.GetError().GetTraceback(), tt.traceback) || r.GetExitCode() != tt.exit ||
			strings.Contains(r.GetError().GetTraceback(), "<cove>") || strings.Contains(r.GetError().GetTraceback(), "node:vm") {
			t.Errorf("%s: got %v, want %s with %q, exit %d", tt.code, r.CodeResult, tt.name, tt.traceback, tt.exit)
		}
	}
	if r := js("kept"); r.value() != "1" {
		t.Errorf("state is lost: %v %v", r.CodeResult, r.stderr)
	}
	req := in("javascript", "const rl = require('readline').createInterface({input: process.stdin});\nlet all = []; for await (const l of rl) all.push(l);\n[all, fs.readFileSync(0, 'utf8')]")
	req.Stdin, req.HasStdin = []byte("a\nb\n"), true
	if r := s.code(t, req); r.value() != "[ [ 'a', 'b' ], '' ]" {
		t.Errorf("stdin: %q %v", r.value(), r.CodeResult)
	}
	r := js("console.log(1); display.html('<b>x</b>'); console.log(2); display({[Symbol.for('Jupyter.mimeBundle')]: {'image/png': Buffer.from('png')}})")
	if got := strings.Join(r.order, "|"); got != "out:1\n|rich:|out:2\n|rich:" || string(r.outputs[1].GetData()["image/png"]) != "png" {
		t.Errorf("display: %q %v", got, r.CodeResult)
	}
}

func TestTypeScript(t *testing.T) {
	needsParser(t)
	s := start(t)
	r := s.code(t, in("typescript", "interface P { x: number }\ntype Q = P;\nconst p: P = { x: 1 };\nenum E { A = 3 }\nconst y: number = await Promise.resolve<number>(p.x + E.A);\ny"))
	if strings.Contains(r.GetError().GetMessage(), "cannot run TypeScript") {
		needs.NoError(t, errors.New("a TypeScript compiler"))
	}
	if r.value() != "4" {
		t.Errorf("got %+v %v", r, r.CodeResult)
	}
	r = s.code(t, in("typescript", "interface Z { x: number }\n\nfunction boom(): never {\n  throw new Error('ts')\n}\nboom()"))
	if !strings.Contains(r.GetError().GetTraceback(), "<cell 2>:4") {
		t.Errorf("got %v", r.CodeResult)
	}
}
