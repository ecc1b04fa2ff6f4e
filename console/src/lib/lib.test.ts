import { describe, expect, it } from "vitest";
import type { NetworkPolicy, Sandbox } from "../api/client";
import { type Call, concealed, form, goLiteral, goString, quote } from "./call";
import { calls } from "./calls";
import { filter } from "./filter";
import { bytes, span } from "./format";
import { hunks, reverse, sides } from "./patch";
import { allowing, without } from "./policy";
import { rates } from "./series";
import { clip, commandLine, isBinary, label, stripANSI, Tail } from "./text";

const ESC = "\u001b";

describe("text", () => {
  it.each([
    [`${ESC}[31mred${ESC}[0m`, "red"],
    [`${ESC}]0;title\u0007text`, "text"],
    [`${ESC}]8;;http://evil${ESC}\\link${ESC}]8;;${ESC}\\`, "link"],
    [`${ESC}P+q544e${ESC}\\x`, "x"],
    ["10%\r50%\r100%\ndone\r\n", "100%\ndone\n"],
    ["a\u0000b\u0007c", "abc"],
    ["plain <b>text</b>", "plain <b>text</b>"],
  ])("strips %j", (text, want) => expect(stripANSI(text)).toBe(want));
  it("bears an escape that never ends", () => {
    expect(stripANSI(`${ESC}]${"x".repeat(1e6)}`).length).toBeLessThan(1e6);
  });
  it("shows marks of direction as what they are", () => {
    expect(label("a\u202Egpj.exe")).toBe("a\\u202egpj.exe");
    expect(label("zero\u200bwidth\nline")).toBe("zero\\u200bwidth line");
    expect(label("x".repeat(500), 10)).toBe(`${"x".repeat(10)}…`);
    expect(label(undefined)).toBe("");
  });
  it("keeps the end of a flood", () => {
    const tail = new Tail(1000);
    for (let i = 0; i < 10_000; i++) tail.add(`line ${i}\n`);
    expect(tail.text.length).toBeLessThanOrEqual(1000);
    expect(tail.text.endsWith("line 9999\n")).toBe(true);
    expect(tail.text.startsWith("line ")).toBe(true);
    expect(tail.cut + tail.text.length).toBe(Array.from({ length: 10_000 }, (_, i) => `line ${i}\n`).join("").length);
  });
  it("writes commands as they are typed", () => {
    expect([commandLine(["/bin/bash", "-c", "ls | wc"]), commandLine(["ls", "-l"]), commandLine(null)]).toEqual([
      "ls | wc",
      "ls -l",
      "",
    ]);
  });
  it("clips, and tells what is no text", () => {
    expect(clip("abcdef", 4)).toEqual({ text: "abcd", cut: 2 });
    expect(isBinary(new Uint8Array([1, 0, 2]))).toBe(true);
    expect(isBinary(new Uint8Array([0xff, 0xfe, 0x41]))).toBe(true);
    expect(isBinary(new TextEncoder().encode("größer\n"))).toBe(false);
  });
});

describe("calls", () => {
  it.each([
    ["plain-1.txt", "plain-1.txt"],
    ["two words", "'two words'"],
    ["it's", `'it'\\''s'`],
    ["$(x)", "'$(x)'"],
    ["", "''"],
  ])("quotes %j", (word, want) => expect(quote(word)).toBe(want));
  it("writes Go that compiles", () => {
    expect(goString('a"b\u202e')).toBe('"a\\"b\\u202e"');
    expect(goLiteral({ memory_mib: 512, workdir: "/x", vcpus: 2, skip: undefined })).toBe(
      'MemoryMiB: 512, WorkDir: "/x", VCPUs: 2',
    );
    expect(goLiteral({ resolve: { "/a": "ours" } })).toBe('Resolve: map[string]sandbox.MergePolicy{"/a": "ours"}');
    expect(goLiteral({ lifetime_seconds: 0 }, "times")).toBe("LifetimeSeconds: new(int64(0))");
  });
  const each: [string, Call, string][] = [
    ["fork", calls.fork("work", { count: 5, name: "idea" }), "cove fork work -n 5 --name idea"],
    ["one fork", calls.fork("work", { count: 1 }), "cove fork work"],
    [
      "create",
      calls.create({ name: "a b", template: "node", resources: { memory_mib: 512 } } as never),
      "cove create --name 'a b' --template node --memory 512m",
    ],
    ["snapshot", calls.snapshot("w", { name: "ready", kind: "files" }), "cove snapshot create w --name ready --files-only"],
    ["restore", calls.restore("w", { step: -1 }), "cove snapshot restore w --step -1"],
    [
      "merge",
      calls.merge("w", { winner: "x", kind: "files", policy: "theirs", kill_winner: true }),
      "cove merge w x --files --policy theirs --kill-winner",
    ],
    [
      "merge path by path",
      calls.merge("w", { winner: "x", kind: "files", resolve: { "/a b": "ours", "/c": "theirs" } }),
      "cove merge w x --files --ours '/a b' --theirs /c",
    ],
    ["exec", calls.exec("w", { shell: "ls | wc" }), "cove exec -s w 'ls | wc'"],
    ["update", calls.update("w", { lifetime_seconds: 3600, metadata: {} }), "cove update w --lifetime 3600s --clear-metadata"],
  ];
  it.each(each)("%s on the command line", (_, call, want) => expect(form(call, "cli", "")).toBe(want));
  it("writes curl and MCP of the same request", () => {
    const call = calls.exec("work", { shell: "echo 'hi'" });
    expect(form(call, "curl", "http://x")).toContain(`-d '{"shell":"echo '\\''hi'\\''"}' \\\n  http://x/v1/sandboxes/work/exec`);
    expect(JSON.parse(form(call, "mcp", "")!)).toEqual({
      name: "sandbox_exec",
      arguments: { sandbox: "work", shell: "echo 'hi'" },
    });
  });
  it("hides private values in every form, and sends them all the same", () => {
    const value = 'it\'s "top" secret';
    const call: Call = {
      title: "Create a secret",
      scope: "secrets:write",
      method: "POST",
      path: "/v1/secrets",
      body: { name: "n", value, nested: [{ value }] },
      cli: `cove secret create n ${quote(value)}`,
      mcp: { tool: "secret_create", arguments: { name: "n", value } },
      go: `c.CreateSecret(ctx, ${goString(value)})`,
      private: ["value"],
    };
    for (const as of ["cli", "curl", "mcp", "go"] as const) {
      expect(form(call, as, "http://x")).toContain("…");
      expect(form(call, as, "http://x")).not.toContain("top");
    }
    expect(concealed(call).body).toEqual({ name: "n", value: "…", nested: [{ value: "…" }] });
    expect(JSON.stringify(concealed(concealed(call)))).toBe(JSON.stringify(concealed(call)));
    expect((call.body as { value: string }).value).toBe(value);
    expect(concealed(calls.kill("w"))).toEqual(calls.kill("w"));
    const login = { image: "x", registry_login: { username: "u", password: "hunter2" } };
    expect(form(calls.startBuild(login as never), "curl", "")).not.toContain("hunter2");
  });
  it("escapes what is put into paths", () => {
    expect(calls.kill("../keys").path).toBe("/v1/sandboxes/..%2Fkeys");
    expect(calls.deleteFile("w", "/a b&c=d", true).path).toBe("/v1/sandboxes/w/files?path=%2Fa%20b%26c%3Dd&recursive=true");
  });
});

describe("filter", () => {
  const now = Date.now();
  const s = {
    id: "sbx-1",
    name: "Web-1",
    state: "paused",
    template: "node",
    namespace: "default",
    metadata: { owner: "alice", env: "prod" },
    made_from: { sandbox_id: "sbx-0" },
    created_at: new Date(now - 7.2e6).toISOString(),
  } as unknown as Sandbox;
  it.each([
    ["", true],
    ["web", true],
    ["alice", true],
    ["nothing", false],
    ["state:paused", true],
    ["state:run,pau", true],
    ["state:running", false],
    ["template:no", true],
    ["owner:ali", true],
    ["owner:bob", false],
    ["age:<1h", false],
    ["age:>1h", true],
    ["age:<1d web", true],
    ["state:", true],
    ["from:sbx-0", true],
    ["from:sbx-1", false],
  ])("%j", (line, want) => expect(filter(line, now)(s)).toBe(want));
});

describe("patches", () => {
  const patch = "--- a/x\n+++ b/x\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2b\n three\n@@ -9,1 +10,1 @@\n-nine\n+-- 9\n";
  const after = "one\n2\n2b\nthree\n4\n5\n6\n7\n8\n-- 9\nten";
  it("reads hunks, whatever their lines look like", () => expect(hunks(patch).map((h) => h.lines.length)).toEqual([5, 2]));
  it("goes back", () => expect(reverse(after, patch)).toBe("one\ntwo\nthree\n4\n5\n6\n7\n8\nnine\nten"));
  it("refuses a patch of another text", () => expect(reverse("something else", patch)).toBeUndefined());
  it("has both sides", () =>
    expect(sides(patch)).toEqual({ before: "one\ntwo\nthree\n⋯\nnine", after: "one\n2\n2b\nthree\n⋯\n-- 9" }));
  it("knows of removed lines alone", () => expect(reverse("a\nc\n", "@@ -2,1 +1,0 @@\n-b\n")).toBe("a\nb\nc\n"));
});

describe("the rest", () => {
  it("allows a name before all other rules, once", () => {
    const policy = {
      preset: "none",
      rules: [
        { action: "deny", to: "x.com" },
        { action: "allow", to: "y.com" },
      ],
    } as unknown as NetworkPolicy;
    expect(allowing(policy, "x.com.").rules).toEqual([
      { action: "allow", to: "x.com" },
      { action: "allow", to: "y.com" },
    ]);
  });
  it("takes a rule out of a policy that has changed since it was shown", () => {
    const policy = {
      preset: "none",
      rules: [
        { action: "allow", to: "new.com" },
        { to: "old.com", action: "deny" },
        { action: "deny", to: "old.com", ports: ["443"] },
      ],
    } as unknown as NetworkPolicy;
    const next = without(policy, { action: "deny", to: "old.com" } as never);
    expect(next.rules).toEqual([policy.rules![0], policy.rules![2]]);
    expect(next.preset).toBe("none");
    expect(without(next, { action: "deny", to: "old.com" } as never)).toBe(next);
  });
  it("makes rates of counters that begin anew", () =>
    expect(rates([0, 2, 4, 5], [0, 100, 10, 20])).toEqual([null, 50, null, 10]));
  it("writes sizes and spans", () => {
    expect([bytes(0), bytes(1536), bytes(1 << 30), bytes(undefined)]).toEqual(["0 B", "1.5 KiB", "1.0 GiB", "–"]);
    expect([span(20), span(5000), span(65_000), span(7.5e6), span(3e8)]).toEqual([
      "20 ms",
      "5.0 s",
      "1 min 5 s",
      "2 h 5 min",
      "3 d",
    ]);
  });
});
