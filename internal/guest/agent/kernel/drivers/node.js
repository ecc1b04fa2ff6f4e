// The JavaScript interpreter of a context: it runs pieces of code, one after
// the other, in the global scope, and tells what came of each. It is the body
// of a function of (require, process) that knows LANGUAGE and the source PARSER
// of acorn, which is empty in a program that was built without. Frames are as in python.py. Instead of runs it takes a file JOB, if
// there is one; IMPORT is import as of outside of scripts.
"use strict";

const fs = require("fs");
const vm = require("vm");
const util = require("util");
const path = require("path");
const Module = require("module");

const IN = 3, OUT = 4, ACK = 5, MARK = 6;
const MAX_TRACEBACK = 64 << 10;
const AWAITED_INTERRUPT_MS = 50; // how soon code that awaits is interrupted

const { stringify, parse } = JSON; // code may change what it finds
let env = {}; // default environment, as last told
let now = null; // the run of the moment
const really = { exit: process.exit.bind(process), random: Math.random };

class Exit extends Error {}

// Frames.

function send(message, acknowledged) {
  const data = Buffer.from(stringify(message));
  const head = Buffer.alloc(4);
  head.writeUInt32BE(data.length);
  for (let rest = Buffer.concat([head, data]); rest.length; ) {
    rest = rest.subarray(patient(() => fs.writeSync(OUT, rest)));
  }
  if (acknowledged) patient(() => fs.readSync(ACK, Buffer.alloc(1), 0, 1, null));
}

// patient repeats a system call that a signal has interrupted.
function patient(call) {
  for (;;) {
    try {
      return call();
    } catch (err) {
      if (err.code !== "EINTR" && err.code !== "EAGAIN") really.exit(70); // code has closed the descriptor
    }
  }
}

// interruptedRun is the number of the last run that was interrupted.
function interruptedRun() {
  const number = Buffer.alloc(8);
  patient(() => fs.readSync(MARK, number, 0, 8, 0));
  return Number(number.readBigUInt64BE());
}

function listen() {
  const net = require("net");
  const input = new net.Socket({ fd: IN, readable: true, writable: false });
  let got = Buffer.alloc(0);
  input.on("data", (data) => {
    got = got.length ? Buffer.concat([got, data]) : data;
    while (got.length >= 4 && got.length - 4 >= got.readUInt32BE()) {
      const end = 4 + got.readUInt32BE();
      const frame = got.subarray(4, end);
      got = got.subarray(end);
      heard(parse(frame.toString()));
    }
  });
  input.on("close", () => really.exit(0)); // the agent is done with this interpreter
  input.on("error", () => really.exit(70));
  return input;
}

// Rewriting: what is declared at the top stays for later code and can be
// declared again, await works there, and import is a call.

// Where Node cannot load modules for a script by itself, calls of import become
// calls of ours.
const LOADER = vm.constants && vm.constants.USE_MAIN_CONTEXT_DEFAULT_LOADER;

const acorn = PARSER && (() => {
  const module = { exports: {} };
  new Function("exports", "module", PARSER)(module.exports, module);
  return module.exports;
})();

const SYNTAX = {
  ecmaVersion: "latest", sourceType: "script", allowHashBang: true,
  allowAwaitOutsideFunction: true, allowImportExportEverywhere: true,
  preserveParens: true, // so that return comes before them
};

const isFunction = (n) => /Function/.test(n.type) || n.type === "StaticBlock" || n.type === "PropertyDefinition";

// visit calls f with a node and all below it, but not into functions.
function visit(node, f, parent) {
  if (f(node, parent) === false) return;
  for (const key of Object.keys(node)) {
    const value = node[key];
    for (const child of Array.isArray(value) ? value : [value]) {
      if (child && typeof child.type === "string" && !isFunction(child)) visit(child, f, node);
    }
  }
}

// everywhere calls f with a node and all below it.
function everywhere(node, f) {
  f(node);
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) {
      if (child && typeof child.type === "string") everywhere(child, f);
    }
  }
}

function namesIn(pattern, to) {
  if (!pattern) return to;
  switch (pattern.type) {
    case "Identifier": to.push(pattern.name); break;
    case "ObjectPattern": pattern.properties.forEach((p) => namesIn(p.value || p.argument, to)); break;
    case "ArrayPattern": pattern.elements.forEach((e) => namesIn(e, to)); break;
    case "AssignmentPattern": namesIn(pattern.left, to); break;
    case "RestElement": namesIn(pattern.argument, to); break;
  }
  return to;
}

const blank = (text) => text.replace(/[^\n]/g, " ");
const linesOf = (text) => "\n".repeat(text.split("\n").length - 1);

// bracketed puts an object into brackets, as nobody types a lone block. What is
// one is known by parse, which throws.
function bracketed(code, parse) {
  if (!/^\s*\{[^]*\}\s*$/.test(code)) return code;
  try {
    parse("(" + code + "\n)");
    return "(" + code + "\n)";
  } catch {
    return code;
  }
}

// rewrite returns what to run for code, by how much its first line is shifted,
// whether that makes a promise, and whether it ends in an expression.
function rewrite(code) {
  const syntax = (text) => acorn.parse(text, SYNTAX);
  code = bracketed(code, syntax);
  const tree = syntax(code);
  const edits = [], names = [], functions = [];
  const edit = (start, end, text) => edits.push({ start, end, text, order: edits.length });
  let waits = false;
  visit(tree, (n) => {
    if (n.type === "AwaitExpression" || n.type === "ImportDeclaration" || (n.type === "ForOfStatement" && n.await)) waits = true;
  });
  if (!LOADER) {
    everywhere(tree, (n) => {
      if (n.type === "ImportExpression") edit(n.start, n.start + 6, "__cove_import");
    });
  }
  const body = [];
  for (const node of tree.body) {
    if (node.type === "ImportDeclaration") importing(node);
    else if (node.type === "ExportNamedDeclaration" && node.declaration) {
      edit(node.start, node.declaration.start, blank(code.slice(node.start, node.declaration.start)));
      body.push(node.declaration);
    } else if (node.type === "ExportDefaultDeclaration") {
      edit(node.start, node.declaration.start, blank(code.slice(node.start, node.declaration.start)));
      if (node.declaration.id) body.push(node.declaration);
    } else if (/^Export/.test(node.type)) edit(node.start, node.end, blank(code.slice(node.start, node.end)));
    else body.push(node);
  }
  function importing(node) {
    const from = "await " + (LOADER ? "import(" : "__cove_import(") + node.source.raw + ")";
    const space = node.specifiers.find((s) => s.type === "ImportNamespaceSpecifier");
    const named = node.specifiers.filter((s) => s !== space).map((s) => {
      names.push(s.local.name);
      const imported = s.imported ? code.slice(s.imported.start, s.imported.end) : "default";
      return imported + ": " + s.local.name;
    });
    let text = from;
    if (space) names.push(space.local.name);
    if (space && named.length) text = "void ({" + named.join(", ") + "} = " + space.local.name + " = " + from + ")";
    else if (space) text = "void (" + space.local.name + " = " + from + ")";
    else if (named.length) text = "void ({" + named.join(", ") + "} = " + from + ")";
    edit(node.start, node.end, ";" + text + ";" + linesOf(code.slice(node.start, node.end)));
  }
  function declaring(node, inFor) {
    for (const d of node.declarations) namesIn(d.id, names);
    const first = node.declarations[0];
    if (!waits) {
      edit(node.start, node.start + node.kind.length, "var".padEnd(node.kind.length));
    } else if (inFor) {
      edit(node.start, first.start, "");
    } else {
      edit(node.start, first.start, "void (");
      edit(node.declarations.at(-1).end, node.declarations.at(-1).end, ")");
    }
    if (inFor) return;
    for (const d of node.declarations) {
      if (!d.init && node.kind !== "var") edits.push({ start: d.end, end: d.end, text: " = undefined", order: -1 });
    }
  }
  for (const node of body) {
    if (node.type === "VariableDeclaration") declaring(node, false);
    else if (node.type === "ClassDeclaration") {
      names.push(node.id.name);
      edit(node.start, node.start, (waits ? "" : "var ") + node.id.name + " = ");
      edit(node.end, node.end, ";");
    } else if (node.type === "FunctionDeclaration") {
      functions.push(node.id.name);
    } else if (waits) {
      visit(node, (n, parent) => { // var in blocks is of the whole piece
        if (n.type !== "VariableDeclaration" || n.kind !== "var") return;
        declaring(n, parent && /^For/.test(parent.type) && (parent.init === n || parent.left === n));
      });
    }
  }
  const last = body.at(-1);
  const shows = !!last && last.type === "ExpressionStatement";
  if (waits && shows) {
    edit(last.expression.start, last.expression.start, "return (");
    edit(last.expression.end, last.expression.end, ")");
  }
  edits.sort((a, b) => b.start - a.start || b.end - a.end || b.order - a.order);
  for (const e of edits) code = code.slice(0, e.start) + e.text + code.slice(e.end);
  if (!waits) return { code, shift: 0, names: [], waits, shows };
  const open = "(async () => { " + functions.map((f) => "globalThis." + f + " = " + f + "; ").join("");
  return { code: open + code + "\n})()", shift: open.length, names, waits, shows };
}

// TypeScript.

let strip = null;

function typescript(code) {
  strip = strip || stripper();
  return strip(code);
}

function stripper() {
  if (Module.stripTypeScriptTypes) {
    return (code) => {
      const warn = process.emitWarning;
      process.emitWarning = () => {}; // that it is experimental
      try {
        return { code: Module.stripTypeScriptTypes(code, { mode: "strip" }) };
      } catch (err) {
        if (err.code !== "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX") throw err;
        return { code: Module.stripTypeScriptTypes(code, { mode: "transform" }) };
      } finally {
        process.emitWarning = warn;
      }
    };
  }
  const ts = anywhere("typescript");
  if (ts) {
    return (code) => {
      const options = { target: "ESNext", module: "ESNext", sourceMap: true, isolatedModules: true };
      options[parseInt(ts.version) >= 5 ? "verbatimModuleSyntax" : "preserveValueImports"] = true;
      const compilerOptions = ts.convertCompilerOptionsFromJson(options, ".").options;
      const out = ts.transpileModule(code, { compilerOptions, reportDiagnostics: true, fileName: "cell.ts" });
      const bad = (out.diagnostics || []).find((d) => d.category === ts.DiagnosticCategory.Error && d.file);
      if (bad) {
        const line = bad.file.getLineAndCharacterOfPosition(bad.start).line + 1;
        throw new SyntaxError(ts.flattenDiagnosticMessageText(bad.messageText, "\n") + " (line " + line + ")");
      }
      return { code: out.outputText.replace(/\n?\/\/# sourceMappingURL=.*$/, ""), map: lineMap(JSON.parse(out.sourceMapText).mappings) };
    };
  }
  const esbuild = anywhere("esbuild");
  if (esbuild) {
    return (code) => {
      const tsconfigRaw = { compilerOptions: { verbatimModuleSyntax: true } };
      const out = esbuild.transformSync(code, { loader: "ts", format: "esm", sourcemap: "external", tsconfigRaw, logLevel: "silent" });
      return { code: out.code, map: lineMap(JSON.parse(out.map).mappings) };
    };
  }
  throw new Error("this template cannot run TypeScript: Node.js " + process.version +
    " does not know it, and neither typescript nor esbuild is installed; use Node.js 22.13 or later, or npm install -g typescript");
}

// anywhere loads a module from where programs are usually installed.
function anywhere(name) {
  const prefix = path.join(path.dirname(process.execPath), "..", "lib", "node_modules");
  const places = [process.cwd() + "/node_modules", ...(process.env.NODE_PATH || "").split(":"), prefix,
    "/usr/local/lib/node_modules", "/usr/lib/node_modules", "/usr/share/nodejs", "/usr/share/node_modules"];
  for (const place of places.filter(Boolean)) {
    try {
      return require(path.join(place, name));
    } catch {}
  }
  return null;
}

// lineMap reads which line each line of a program comes from.
function lineMap(mappings) {
  const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  let source = 0;
  return mappings.split(";").map((line) => {
    let first = null;
    for (const segment of line.split(",").filter(Boolean)) {
      const fields = [];
      let value = 0, bits = 0;
      for (const c of segment) {
        const digit = digits.indexOf(c);
        value += (digit & 31) << bits;
        bits += 5;
        if (digit & 32) continue;
        fields.push(value & 1 ? -(value >> 1) : value >> 1);
        value = bits = 0;
      }
      if (fields.length >= 4) {
        source += fields[2];
        first = first ?? source;
      }
    }
    return first;
  });
}
