import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { MOST, NUMBERS, parseTemplateFile, readTemplateFile } from "./templatefile";

interface Schema {
  type?: string | string[];
  anyOf?: Schema[];
  items?: Schema;
  properties?: Record<string, Schema>;
}

describe("a template file", () => {
  it("has the short forms of the command line", async () => {
    const spec = await parseTemplateFile(`
from: python:3.12
run:
  - pip --version
  - {run: make, user: app}
start: serve
network: none
build_network: {preset: open}
files:
  - {path: /a, content: "ä", mode: 0755}
  - {path: /b, content: !!binary aGk=, mode: "0600"}
ports: [80]
`);
    expect(spec).toEqual({
      from: { image: "python:3.12" },
      run: [{ run: "pip --version" }, { run: "make", user: "app" }],
      start: { command: "serve" },
      network: { preset: "none" },
      build_network: { preset: "open" },
      files: [
        { path: "/a", content: "w6Q=", mode: "0755" },
        { path: "/b", content: "aGk=", mode: "0600" },
      ],
      ports: [80],
    });
  });

  it("has text where no number is asked for", async () => {
    const spec = await parseTemplateFile(`
from: {host: true}
user: 1000
env: {PORT: 8080, PYTHON: 3.10, DEBUG: true, NONE: null}
files: [{path: /version, content: 3.10, mode: 0o644, owner: 1000}]
network: {max_connections: 10, rules: [{action: allow, to: "*", ports: [443]}]}
resources: {vcpus: 2}
ports: [80]
`);
    expect(spec).toEqual({
      from: { host: true },
      user: "1000",
      env: { PORT: "8080", PYTHON: "3.10", DEBUG: "true", NONE: null },
      files: [{ path: "/version", content: btoa("3.10"), mode: "0o644", owner: "1000" }],
      network: { max_connections: 10, rules: [{ action: "allow", to: "*", ports: ["443"] }] },
      resources: { vcpus: 2 },
      ports: [80],
    });
  });

  it("has the numbers of the command line's schema", () => {
    const walk = (s: Schema, at: string) => {
      if (typeof s.type === "string" && !["object", "array"].includes(s.type)) {
        expect(NUMBERS.test(at), at).toBe(s.type === "integer" || s.type === "boolean");
      }
      for (const one of s.anyOf ?? []) walk(one, at);
      if (s.items) walk(s.items, at);
      for (const [name, field] of Object.entries(s.properties ?? {})) walk(field, at ? `${at}.${name}` : name);
    };
    walk(JSON.parse(readFileSync(new URL("../../../docs/template.schema.json", import.meta.url), "utf8")), "");
  });

  it("is read as a whole, or not at all", async () => {
    expect(await readTemplateFile(new File(["x".repeat(MOST)], "large"))).toHaveLength(MOST);
    await expect(readTemplateFile(new File(["x".repeat(MOST + 1)], "large"))).rejects.toThrow(/12.* MiB/);
  });

  it("is JSON too", async () => {
    expect(await parseTemplateFile('{"from": {"debian": "bookworm"}, "apt": ["git"]}')).toEqual({
      from: { debian: "bookworm" },
      apt: ["git"],
    });
  });

  it("says what is wrong", async () => {
    for (const [text, says] of [
      ["a: [", /line 1/],
      ["", /names with values/],
      ["a: &x 1\nb: *x", /alias/i],
      ["a: 1\na: 2", /unique/],
      ["files: [{path: /x, source: ./x}]", /source/],
    ] as const) {
      await expect(parseTemplateFile(text), text).rejects.toThrow(says);
    }
  });
});
