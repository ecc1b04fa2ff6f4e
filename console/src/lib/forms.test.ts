import { readdirSync, readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { type Call, form } from "./call";
import { calls } from "./calls";

const odd = `it's "odd" \\ $(x) ü`;

/** What the console does, each in the ways in which it does it. A verb without a sample does not compile. */
const SAMPLES: Record<keyof typeof calls, Call[]> = {
  create: [
    calls.create({}),
    calls.create({ template: "desktop" }),
    calls.create({
      name: "work",
      template: "node",
      network: { preset: "packages" },
      resources: { memory_mib: 512, vcpus: 2, disk_mib: 1024, max_pids: 99 },
      lifetime_seconds: 0,
      idle_timeout_seconds: 60,
      on_timeout: "pause",
      history: 3,
      user: "root",
      workdir: "/workspace",
      env: { A: odd },
      metadata: { key: odd },
    }),
    calls.create({ snapshot: "snap-1", lifetime_seconds: 60 }),
  ],
  fork: [
    calls.fork("work", { count: 3, name: "idea" }),
    calls.fork("work", { name: "one", lifetime_seconds: 9, idle_timeout_seconds: 0, env: { A: "1" }, metadata: { a: odd } }),
  ],
  snapshot: [calls.snapshot("work", { name: "ready", kind: "files", label: odd }), calls.snapshot("work", {})],
  deleteSnapshot: [calls.deleteSnapshot("snap-1")],
  restore: [calls.restore("work", { snapshot: "snap-1" }), calls.restore("work", { step: -2 })],
  pause: [calls.pause("work")],
  resume: [calls.resume("work")],
  kill: [calls.kill("work")],
  update: [
    calls.update("work", { history: 10 }),
    calls.update("work", { name: "", metadata: {} }),
    calls.update("work", {
      name: "other",
      memory_mib: 256,
      vcpus: 1,
      max_pids: 50,
      lifetime_seconds: 0,
      idle_timeout_seconds: 30,
      on_timeout: "kill",
      history: 0,
      metadata: { a: odd },
    }),
  ],
  diff: [calls.diff("work", {}), calls.diff("work", { against: "snap-1", patch: true })],
  merge: [
    calls.merge("work", { winner: "idea", kind: "whole" }),
    calls.merge("work", { winner: "idea", kind: "files", policy: "theirs", kill_winner: true, paths: ["/a b"] }),
    calls.merge("work", { winner: "idea", kind: "files", resolve: { "/a b": "ours", "/c": "theirs" } }),
  ],
  try: [
    calls.try("work", { commands: [{ shell: "make" }], count: 3, pick: "none", keep: "all" }),
    calls.try("work", { commands: [{ shell: odd }, { shell: "true" }], pick: "first_success", keep: "winners" }),
  ],
  exec: [
    calls.exec("work", { shell: odd }),
    calls.exec("work", { shell: "sleep 9", background: true }),
    calls.exec("work", { shell: "true", timeout_ms: 60_000 }),
    calls.exec("work", { command: ["echo", odd] }),
  ],
  terminal: [
    calls.terminal("work", {
      shell: "exec bash -l",
      background: true,
      open_stdin: true,
      tag: "console",
      keep_bytes: 1 << 20,
      terminal: { cols: 100, rows: 30 },
      env: { TERM: "xterm-256color" },
    }),
  ],
  interruptContext: [calls.interruptContext("work", "python", "default")],
  restartContext: [calls.restartContext("work", "python", "default")],
  viewComputer: [calls.viewComputer("work", true), calls.viewComputer("work", false)],
  code: [calls.code("work", { code: `print("${odd}")`, language: "python", context: "mine" })],
  signalJob: ["TERM", "KILL"].map((s) => calls.signalJob("work", "job-1", s)),
  signalProcess: [calls.signalProcess("work", 7, "KILL")],
  setNetwork: [
    calls.setNetwork("work", { preset: "none" }),
    calls.setNetwork("work", {
      preset: "packages",
      rules: [{ action: "allow", to: "*.example.com", protocol: "tcp", ports: ["443"] }],
      allow_out: ["example.com"],
      deny_out: ["0.0.0.0/0"],
      headers: [{ to: "api.example.com", set: { "X-Odd": odd } }],
      ask_timeout_seconds: 30,
      max_connections: 10,
    }),
  ],
  createPreview: [
    calls.createPreview("work", { port: 8080, access: "public", wake: true }),
    calls.createPreview("work", { port: 80, access: "private" }),
  ],
  linkPreview: [calls.linkPreview("work", 8080)],
  deletePreview: [calls.deletePreview("work", 8080)],
  writeFile: [
    calls.writeFile("work", "/a b", new Blob(["x"]), odd),
    calls.writeFile("work", "/large", new Blob(["x"]), undefined),
  ],
  makeDir: [calls.makeDir("work", "/a b")],
  moveFile: [calls.moveFile("work", "/a b", "/c")],
  deleteFile: [calls.deleteFile("work", "/a b", true), calls.deleteFile("work", "/c", false)],
  attachSecret: [calls.attachSecret("work", "github", "TOKEN")],
  detachSecret: [calls.detachSecret("work", "TOKEN")],
  answerApproval: [
    calls.answerApproval("apr-1", { allow: true, scope: "duration", seconds: 600 }),
    calls.answerApproval("apr-1", { allow: false, scope: "sandbox" }),
    calls.answerApproval("apr-1", { allow: true, scope: "once" }),
  ],
  createSecret: [
    calls.createSecret({ name: "github", value: odd, provider: "github" }),
    calls.createSecret({ name: "mine", value: odd, hosts: ["a.example", "*.b.example"] }),
  ],
  rotateSecret: [calls.rotateSecret("github", odd)],
  deleteSecret: [calls.deleteSecret("sec-1")],
  createKey: [
    calls.createKey({ name: "laptop", scopes: ["sandboxes:read", "files:write"], expires_in_seconds: 86_400 }),
    calls.createKey({ name: odd, scopes: ["admin"], team: "red" }),
  ],
  revokeKey: [calls.revokeKey("key-1")],
  endSession: [calls.endSession("ses-1")],
  startBuild: [
    calls.startBuild({ name: "app", force: true }),
    calls.startBuild({
      name: "app",
      spec: {
        from: { image: "python:3.12" },
        apt: ["git"],
        run: [{ run: odd }],
        files: [{ path: "/etc/motd", content: btoa("hello") }],
        env: { A: odd },
        resources: { memory_mib: 512, vcpus: 2 },
        network: { preset: "none" },
        ports: [8080],
      },
    }),
    // What the tool has no argument for.
    calls.startBuild({
      name: "app",
      registry_login: { username: "u", password: `hunter"${odd}` },
      spec: { from: { image: "ghcr.io/large/app:1" }, run: [{ run: "make", user: "u" }] },
    } as never),
  ],
  cancelBuild: [calls.cancelBuild("bld-1")],
  deleteTemplate: [calls.deleteTemplate("app")],
  createVolume: [calls.createVolume({ name: "data", size_mib: 1024 })],
  deleteVolume: [calls.deleteVolume("data")],
  recoverOrphan: [calls.recoverOrphan("orp-1")],
};

/** What a form cannot say, and why. */
const WITHOUT: Record<"cli" | "mcp" | "go", Partial<Record<keyof typeof calls, string>>> = {
  cli: {
    interruptContext: "the command line has no word for interpreters that run",
    restartContext: "the command line has no word for interpreters that run",
    endSession: "sessions of browsers are the console's own",
  },
  go: { endSession: "sessions of browsers are the console's own" },
  mcp: {
    terminal: "a model has no terminal",
    makeDir: "file_write makes the directories of a file",
    answerApproval: "people answer, not the agent that wants the connection",
    createSecret: "secrets are made by people",
    rotateSecret: "secrets are made by people",
    deleteSecret: "secrets are made by people",
    createKey: "keys are made by people",
    revokeKey: "keys are made by people",
    endSession: "sessions of browsers are the console's own",
    cancelBuild: "template_build_status only follows one",
    recoverOrphan: "it is for operators",
  },
};

describe("forms", () => {
  const all = Object.entries(SAMPLES) as [keyof typeof calls, Call[]][];
  for (const as of ["cli", "go", "mcp"] as const) {
    it.each(all)(`${as} of %s`, (verb, samples) => {
      for (const call of samples) {
        // A file that is large or not text, and all that a build may be, are no arguments of a tool.
        const large = call.path.includes("large") || JSON.stringify(call.body ?? "").includes("large");
        const none = WITHOUT[as][verb] !== undefined || (as === "mcp" && large);
        expect(form(call, as, "") === undefined, `${as}: ${call.title}`).toBe(none);
      }
    });
  }
  it.each(all)("curl of %s", (_, samples) => {
    for (const call of samples) expect(form(call, "curl", "http://x")).toContain(`http://x${call.path}`.split("?")[0]);
  });
  // The tests of Go hold each of these against the commands, the tools and the client that there are.
  it("are those that are tested", async () => {
    const written = all.flatMap(([verb, samples]) =>
      samples.map((call) => ({
        verb,
        cli: form(call, "cli", ""),
        mcp: call.mcp && JSON.parse(form(call, "mcp", "")!),
        go: form(call, "go", ""),
      })),
    );
    const text = `${JSON.stringify(written, null, 2)}\n`;
    expect(text).not.toContain("hunter");
    await expect(text).toMatchFileSnapshot("testdata/forms.json");
  });
});

describe("what changes something", () => {
  /** Requests that are no calls, and why. */
  const OTHER: [RegExp, string][] = [
    [/src\/api\/session\.ts$/, "signing in and out is the browser's own"],
    [/src\/api\/client\.ts$/, "it sends what others say"],
    [/src\/lib\/(calls|servercalls|call)\.ts$/, "the calls themselves"],
    [/src\/pages\/tabs\/terminal\.tsx$/, "what is typed into a terminal, and its size"],
  ];
  const sources = readdirSync("src", { recursive: true, encoding: "utf8" })
    .map((f) => `src/${f}`)
    .filter((f) => /\.tsx?$/.test(f) && !/\.test\.ts$|\.d\.ts$/.test(f));
  it.each(sources)("%s makes calls only", (file) => {
    const text = readFileSync(file, "utf8");
    const found = text.match(/["'`](POST|PUT|PATCH|DELETE)["'`](?!,\s+(call|made)\.path)|\.(POST|PUT|PATCH|DELETE)\(/g) ?? [];
    const known = OTHER.some(([re]) => re.test(file));
    if (!known) expect(found).toEqual([]);
    if (file.endsWith("terminal.tsx"))
      expect(text.match(/send\("(POST|PUT|PATCH|DELETE)", `[^`]*`/g)?.map((s) => s.replace(/.*\//, ""))).toEqual([
        "resize`",
        "stdin`",
      ]);
  });
});
