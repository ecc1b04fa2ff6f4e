import { describe, expect, it } from "vitest";
import { parseTemplateFile } from "./templatefile";

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
