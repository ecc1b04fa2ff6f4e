
// Rich output.

const BUNDLES = [Symbol.for("Jupyter.mimeBundle"), Symbol.for("Jupyter.display")];
const EXTENSIONS = {
  "text/plain": ".txt", "text/html": ".html", "text/markdown": ".md", "text/latex": ".tex",
  "image/png": ".png", "image/jpeg": ".jpg", "image/svg+xml": ".svg",
};

function bundle(value) {
  let data = {};
  if (value !== null && (typeof value === "object" || typeof value === "function")) {
    for (const symbol of BUNDLES) {
      const made = value[symbol];
      if (made) data = { ...(typeof made === "function" ? made.call(value) : made) };
    }
    for (const [name, mime] of [["_toHtml", "text/html"], ["_toSvg", "image/svg+xml"], ["_toPng", "image/png"], ["_toMarkdown", "text/markdown"]]) {
      if (!(mime in data) && typeof value[name] === "function") data[mime] = value[name]();
    }
  }
  if (!("text/plain" in data)) data["text/plain"] = util.inspect(value);
  return data;
}

function keep(mime, data) {
  fs.mkdirSync("/tmp/cove-outputs", { recursive: true });
  const file = "/tmp/cove-outputs/output-" + require("crypto").randomUUID() + (EXTENSIONS[mime] || (mime.endsWith("json") ? ".json" : ".bin"));
  fs.writeFileSync(file, data);
  return file;
}

function publish(data, result) {
  if (!now) return;
  if (++now.outputs > now.limits.outputs) {
    if (now.outputs === now.limits.outputs + 1) process.stderr.write("cove: more than " + now.limits.outputs + " outputs; the rest are not shown\n");
    return;
  }
  const texts = {}, binary = {}, files = {};
  let room = now.limits.message_bytes;
  for (const [mime, value] of Object.entries(data)) {
    if (value === undefined || value === null) continue;
    const json = mime === "application/json" || mime.endsWith("+json");
    const isText = json || mime.startsWith("text/") || mime === "image/svg+xml" || mime === "application/javascript";
    let raw;
    if (json) raw = Buffer.from(stringify(value) ?? "null");
    else if (isText) raw = Buffer.from(String(value));
    else raw = typeof value === "string" ? Buffer.from(value, "base64") : Buffer.from(value);
    if (raw.length > Math.min(now.limits.output_bytes, now.left, room)) {
      files[mime] = keep(mime, raw);
      continue;
    }
    now.left -= raw.length;
    room -= raw.length;
    if (isText && raw.length <= now.limits.text_bytes) texts[mime] = raw.toString();
    else binary[mime] = raw.toString("base64");
  }
  send({ t: "rich", run: now.id, result: !!result, data: texts, binary, files, meta: {}, source: "" }, true);
}

function display(...values) {
  for (const value of values) publish(bundle(value));
}
for (const [name, mime] of Object.entries({
  html: "text/html", markdown: "text/markdown", svg: "image/svg+xml", png: "image/png", jpeg: "image/jpeg",
  latex: "text/latex", json: "application/json",
})) {
  display[name] = (value) => publish({ [mime]: value, "text/plain": mime.startsWith("image/") ? "[" + mime + "]" : String(value) });
}

// Errors.

function describe(err, name, map) {
  if (!util.types.isNativeError(err) && !(err instanceof Error)) {
    let text = "";
    try { text = util.inspect(err); } catch { text = "a value that cannot be shown"; }
    return { name: "Uncaught", message: text.slice(0, MAX_TRACEBACK), traceback: ("Uncaught " + text).slice(0, MAX_TRACEBACK) };
  }
  let stack = "";
  try { stack = String(err.stack || err); } catch { stack = "an error that cannot be shown"; }
  const lines = [];
  for (const line of stack.split("\n")) {
    if (/^\s+at .*(<cove>|\(?node:(vm|internal)|\[eval\]-wrapper|evalmachine)/.test(line)) continue;
    lines.push(map ? line.replace(/(<cell \d+>):(\d+)/, (all, file, at) => file + ":" + ((map[at - 1] ?? at - 1) + 1)) : line);
  }
  stack = lines.join("\n");
  if (err.cause !== undefined) {
    try { stack += "\n[cause]: " + describe(err.cause, name, map).traceback; } catch {}
  }
  return {
    name: String(err.name || "Error"), message: String(err.message).slice(0, MAX_TRACEBACK),
    traceback: stack.slice(0, MAX_TRACEBACK),
  };
}

// Random numbers. Math.random is one that can be seeded; what OpenSSL has in
// memory cannot be, so after a fork the kernel's numbers take its place.

let words = new Uint32Array(4);

function random() {
  const next = () => { // sfc32
    const t = (words[0] + words[1] + words[3]) | 0;
    words[3] = words[3] + 1;
    words[0] = words[1] ^ (words[1] >>> 9);
    words[1] = words[2] + (words[2] << 3);
    words[2] = ((words[2] << 21) | (words[2] >>> 11)) + t;
    return t >>> 0;
  };
  return (next() * 0x200000 + (next() >>> 11)) / 0x20000000000000;
}

function reseed(seed) {
  for (let i = 0; i < 4; i++) words[i] = seed.readUInt32LE(4 * i);
  for (let i = 0; i < 16; i++) random();
}

function kernelRandom() {
  const crypto = require("crypto");
  const fd = fs.openSync("/dev/urandom");
  const fill = (buffer, offset = 0, size) => {
    const view = ArrayBuffer.isView(buffer) ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength) : new Uint8Array(buffer);
    const unit = buffer.BYTES_PER_ELEMENT || 1;
    const end = size === undefined ? view.length : (offset + size) * unit;
    for (let at = offset * unit; at < end; ) at += fs.readSync(fd, view, at, end - at, null);
    return buffer;
  };
  const later = (make) => (...args) => {
    const done = args.at(-1);
    if (typeof done !== "function") return make(...args);
    let value;
    try { value = make(...args.slice(0, -1)); } catch (err) { return void process.nextTick(done, err); }
    process.nextTick(done, null, value);
  };
  const uuid = () => {
    const b = fill(Buffer.alloc(16));
    b[6] = (b[6] & 15) | 64;
    b[8] = (b[8] & 63) | 128;
    return b.toString("hex").replace(/(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
  };
  const integer = (low, high) => {
    if (high === undefined) [low, high] = [0, low];
    const range = high - low, limit = 2 ** 48 - (2 ** 48 % range);
    for (;;) {
      const n = fill(Buffer.alloc(6)).readUIntBE(0, 6);
      if (n < limit) return low + (n % range);
    }
  };
  const own = {
    randomBytes: later((n) => fill(Buffer.alloc(n))), randomFillSync: fill, randomFill: later(fill),
    randomUUID: uuid, randomInt: later(integer), getRandomValues: fill, pseudoRandomBytes: later((n) => fill(Buffer.alloc(n))),
  };
  for (const [name, value] of Object.entries(own)) replace(crypto, name, value);
  for (const web of [crypto.webcrypto, globalThis.crypto]) {
    if (!web) continue;
    replace(web, "getRandomValues", (array) => fill(array));
    replace(web, "randomUUID", uuid);
  }
  Module.syncBuiltinESMExports();
}

function replace(object, name, value) {
  try {
    Object.defineProperty(object, name, { value, configurable: true, writable: true, enumerable: true });
  } catch {} // what cannot be replaced stays
}

let owned = false;

// Running.

const load = (name) => IMPORT(/^\.{0,2}\//.test(name) ? require("url").pathToFileURL(path.resolve(name)).href : resolve(name));

function resolve(name) {
  try {
    const found = here().resolve(name);
    return path.isAbsolute(found) ? require("url").pathToFileURL(found).href : found;
  } catch {
    return name;
  }
}

// here is require as of a file in the working directory.
function here() {
  const dir = process.cwd();
  if (here.dir !== dir) {
    here.dir = dir;
    here.require = Module.createRequire(path.join(dir, "cell.js"));
  }
  return here.require;
}

function setEnv(changes) {
  const before = {};
  for (const [key, value] of Object.entries(changes)) {
    before[key] = key in process.env ? process.env[key] : null;
    if (value === null || value === undefined) delete process.env[key];
    else process.env[key] = value;
  }
  return before;
}

function giveInput(text) {
  fs.closeSync(0);
  if (text === undefined) {
    fs.openSync("/dev/null", "r"); // the lowest free descriptor
    return;
  }
  const file = path.join(require("os").tmpdir(), "cove-stdin-" + process.pid + "-" + Date.now());
  fs.writeFileSync(file, Buffer.from(text, "base64"), { mode: 0o600 });
  fs.openSync(file, "r");
  fs.unlinkSync(file);
}

// In a program without the parser, code runs as a script of Node's.

const UNPARSED = "this Cove was built without its JavaScript parser, which 'make build' puts in: put await into (async () => { ... })(), " +
  "which is waited for, take modules by require() or import(), and declare each const, let and class once";

// unparsed is what to run without the parser, as rewrite tells it.
function unparsed(code) {
  return { code: bracketed(code, (text) => new vm.Script(text)), shift: 0, names: [], waits: true, shows: true };
}

// lacking says in an error what the parser would have done about it. The code
// runs already if it is a script by itself.
function lacking(err, code, runs) {
  if (acorn || !(err instanceof Error)) return err;
  if (!(runs ? /^await is not defined$|has already been declared$/.test(err.message) : /\b(await|import|export)\b/.test(code))) return err;
  err.stack += "\n" + UNPARSED;
  err.message += "; " + UNPARSED;
  return err;
}

// planned is what to run for code, as rewrite tells it.
function planned(code, name) {
  if (!acorn) return unparsed(code);
  try {
    return rewrite(code);
  } catch (err) {
    // V8 tells better what is wrong, or knows what the parser does not.
    new vm.Script(code, { filename: name, importModuleDynamically: LOADER });
    if (/await|import|export/.test(code)) throw new SyntaxError(err.message + " in " + name);
    return { code, shift: 0, names: [], waits: false, shows: false };
  }
}

// evaluate runs code and returns the value to show, if there is one.
async function evaluate(run, code, name) {
  if (LANGUAGE === "typescript") {
    const out = typescript(code);
    code = out.code;
    run.map = out.map;
  }
  const plan = planned(code, name);
  const options = { filename: name, columnOffset: -plan.shift, importModuleDynamically: LOADER };
  if (plan.names.length) new vm.Script("var " + plan.names.join(", ")).runInThisContext();
  let script, value;
  try {
    script = new vm.Script(plan.code, options);
    if (!JOB && interruptedRun() === run.id) throw INTERRUPTED; // reading it may have taken long
    value = script.runInThisContext({ breakOnSigint: !JOB, displayErrors: false });
  } catch (err) {
    throw lacking(err, code, script);
  }
  if (plan.waits) value = await value;
  return plan.shows ? value : undefined;
}

async function handle(message) {
  let back;
  try {
    if (message.home) process.chdir(message.home);
    if (message.cwd) {
      back = process.cwd();
      process.chdir(message.cwd);
    }
  } catch (err) {
    send({ t: "refused", run: message.run, why: err.code || String(err) });
    return;
  }
  if (message.env) {
    const changes = {};
    for (const key of new Set([...Object.keys(env), ...Object.keys(message.env)])) {
      if (env[key] !== message.env[key]) changes[key] = message.env[key] ?? null;
    }
    setEnv(changes);
    env = message.env;
  }
  if (message.reseed) {
    reseed(Buffer.from(message.reseed, "hex"));
    if (!owned) kernelRandom();
    owned = true;
  }
  if (message.stdin !== undefined) giveInput(message.stdin);
  const before = setEnv(message.setenv || {});
  const run = { id: message.run, outputs: 0, limits: message.limits, left: message.limits.outputs_bytes };
  const failed = new Promise((_, reject) => { run.fail = reject; });
  failed.catch(() => {});
  now = run;
  control.unref(); // so that it is seen when nothing is left to do
  const unwatch = watchdog?.whileAwaiting(run);
  const name = "<cell " + message.count + ">";
  let outcome = { exit: 0 };
  try {
    await settle(run);
    const value = await Promise.race([evaluate(run, message.code, name), failed]);
    await Promise.race([new Promise((done) => setImmediate(done)), failed]); // rejections are reported late
    if (value !== undefined) {
      globalThis._ = value;
      publish(bundle(value), true);
    }
  } catch (err) {
    outcome = verdict(err, name, run);
  }
  unwatch?.();
  control.ref();
  if (outcome.exit === 0 && (run.exit ?? process.exitCode)) outcome.exit = (run.exit ?? process.exitCode) & 255;
  process.exitCode = undefined;
  now = null;
  setEnv(before);
  if (message.stdin !== undefined) giveInput(undefined);
  let cwd = "";
  try {
    if (back) process.chdir(back);
    cwd = process.cwd();
  } catch {}
  send({ t: "done", run: message.run, cwd, ...outcome });
}

let settled = 0; // the signal for this run's interrupt, and for earlier ones, was taken

// settle sees to it that a run is interrupted by its own signals only: by one that came
// before it began, and by none that was for an earlier run and is still to be taken.
async function settle(run) {
  const interrupted = interruptedRun();
  if (interrupted === run.id) throw INTERRUPTED;
  if (interrupted !== settled) await (watchdog ? watchdog.flush() : new Promise((done) => setImmediate(done)));
  settled = interrupted;
  run.settled = true;
}

function verdict(err, name, run) {
  if (err instanceof Exit) return { exit: run.exit & 255 };
  if (err && (err.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED" || err === INTERRUPTED)) {
    return { exit: 130, interrupted: true, error: { name: "Interrupted", message: "the code was interrupted", traceback: "Interrupted: the code was interrupted" } };
  }
  return { exit: 1, error: describe(err, name, run.map) };
}

const INTERRUPTED = new Error("interrupted");
let watchdog = null;

// startWatchdog makes Node's watchdog, which stops scripts, the handler of SIGINT for good.
// Node itself takes all handlers away before a script, starts the watchdog, and puts them
// back after: a signal in between ends the process. So handlers of the code's own are called
// from here, and Node does not hear of them. A Node without all that gives null.
function startWatchdog() {
  const { setInterval, clearInterval, setTimeout, setImmediate, performance } = globalThis; // code may change them
  const kill = process.kill.bind(process);
  const warn = process.emitWarning;
  process.emitWarning = () => {}; // that bindings may go
  let binding;
  try {
    binding = process.binding("contextify");
  } catch {} finally {
    process.emitWarning = warn;
  }
  const { startSigintWatchdog: start, stopSigintWatchdog: stop, watchdogHasPendingSigint: pending } = binding || {};
  const hooks = [["newListener", "startListeningIfSignal"], ["removeListener", "stopListeningIfSignal"]]
    .map(([event, name]) => [event, process.listeners(event).find((f) => f.name === name)]);
  if (!start || !stop || !pending || !hooks.every(([, hook]) => hook)) return null;

  for (const [event, hook] of hooks) {
    process.removeListener(event, hook);
    process.prependListener(event, (name) => { if (name !== "SIGINT") hook(name); });
  }
  start();
  const forget = () => { start(); stop(); }; // one that stops within another's time forgets the signal

  return {
    // whileAwaiting interrupts a run when a signal for it comes while no script runs, until
    // what it returns is called. Handlers of the code's own take other signals.
    whileAwaiting(run) {
      forget();
      const timer = setInterval(() => {
        const interrupted = interruptedRun() === run.id;
        if (!interrupted && !(run.settled && pending())) return;
        forget();
        if (!process.emit("SIGINT", "SIGINT", 2) || interrupted) run.fail(INTERRUPTED);
      }, AWAITED_INTERRUPT_MS);
      timer.unref();
      return () => clearInterval(timer);
    },
    // flush takes the signals that were sent before. One of its own comes last, and those
    // that another thread has begun to take are taken soon.
    async flush() {
      forget();
      kill(process.pid, "SIGINT");
      for (const end = performance.now() + 1000; !pending() && performance.now() < end; ) await new Promise((done) => setImmediate(done));
      await new Promise((done) => setTimeout(done, 5));
      forget();
    },
  };
}

let queue = Promise.resolve();
let control;

function heard(message) {
  if (message.t === "hello") {
    env = message.env;
    send({ t: "ready" });
  } else {
    queue = queue.then(() => handle(message)).catch((err) => {
      process.stderr.write("cove: " + (err && err.stack) + "\n");
      really.exit(71);
    });
  }
}

function stray(err) {
  if (now) return now.fail(err);
  if (err instanceof Exit) return;
  process.stderr.write("Uncaught " + describe(err, "", null).traceback + "\n");
}

// outputs makes standard output and error streams that write at once, in the
// order of the code, whatever is at the other end.
function outputs() {
  const { Writable } = require("stream");
  for (const [name, fd] of [["stdout", 1], ["stderr", 2]]) {
    const stream = new Writable({
      decodeStrings: true,
      write(chunk, encoding, done) {
        try {
          while (chunk.length) {
            try {
              chunk = chunk.subarray(fs.writeSync(fd, chunk));
            } catch (err) {
              if (err.code !== "EAGAIN" && err.code !== "EINTR") throw err;
            }
          }
          done();
        } catch (err) {
          done(err);
        }
      },
    });
    stream.fd = fd;
    stream.destroySoon = stream.destroy = () => stream; // it can be written to for ever
    stream._type = "fs";
    stream.on("error", () => {});
    Object.defineProperty(process, name, { get: () => stream, configurable: true, enumerable: true });
  }
}

function defineGlobals() {
  const call = (name) => here()(name);
  Object.defineProperties(call, {
    resolve: { get: () => here().resolve }, cache: { get: () => here().cache }, main: { value: undefined },
    extensions: { get: () => here().extensions },
  });
  const module = { exports: {} };
  const globals = { __cove_import: load, require: call, module, exports: module.exports, display, console };
  for (const [name, value] of Object.entries(globals)) {
    Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
  }
  for (const name of Module.builtinModules) { // as in Node's own shell
    if (/^_|\//.test(name) || name in globalThis) continue;
    Object.defineProperty(globalThis, name, {
      configurable: true, enumerable: false,
      get: () => require(name),
      set: (value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: true }),
    });
  }
}

// job runs a file and leaves the rest to Node.
async function job(file) {
  process.argv = [process.argv[0], file];
  try {
    await evaluate({}, fs.readFileSync(file, "utf8"), file);
  } catch (err) {
    process.stderr.write("Uncaught " + describe(err, file, null).traceback + "\n");
    process.exit(1);
  }
}

function start() {
  defineGlobals();
  if (JOB) return void job(JOB);
  const seed = Buffer.alloc(16);
  for (let i = 0; i < 4; i++) seed.writeUInt32LE(Math.floor(really.random() * 2 ** 32), 4 * i);
  reseed(seed);
  Math.random = random;
  process.exit = (code) => {
    const exit = Number(code ?? process.exitCode ?? 0) || 0;
    if (now) now.exit = exit;
    throw new Exit("process.exit(" + exit + ")");
  };
  const warn = process.emitWarning; // not of what the driver uses
  process.emitWarning = (text, ...rest) => {
    if (!String(text).includes("USE_MAIN_CONTEXT_DEFAULT_LOADER")) warn.call(process, text, ...rest);
  };
  process.on("uncaughtException", stray);
  process.on("unhandledRejection", stray);
  watchdog = startWatchdog();
  if (!watchdog) {
    process.on("SIGINT", () => {
      if (now && (now.settled || interruptedRun() === now.id)) now.fail(INTERRUPTED);
    });
  }
  process.on("beforeExit", () => {
    if (now) now.fail(new Error("the code awaits what can never happen: nothing is left to do" +
      (fs.fstatSync(0).isFile() ? "" : "; if it reads standard input, pass stdin")));
  });
  outputs();
  let stdin = null, stdinOf = null;
  Object.defineProperty(process, "stdin", {
    configurable: true, enumerable: true,
    get() {
      if (!stdin || stdinOf !== now) [stdin, stdinOf] = [new fs.ReadStream(null, { fd: 0, autoClose: false }), now];
      return stdin;
    },
  });
  control = listen();
}

start();
