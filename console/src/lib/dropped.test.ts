import { describe, expect, it } from "vitest";
import { dropped, MOST } from "./dropped";

const file = (path: string) => ({
  isFile: true,
  fullPath: path,
  file: (ok: (f: File) => void) => ok(new File([], path)),
});

/** folder is one that a browser reads a hundred entries at a time, as Chromium does. */
const folder = (path: string, ...inside: object[]) => ({
  isFile: false,
  fullPath: path,
  createReader: () => {
    const rest = [...inside];
    return { readEntries: (ok: (e: object[]) => void) => ok(rest.splice(0, 100)) };
  },
});

const many = (n: number) => Array.from({ length: n }, (_, i) => file(`/many/${i}`));
const drop = (...entries: object[]) => dropped(entries as FileSystemEntry[]);

describe("what was dropped", () => {
  it("is all files with their paths, and the folders that are empty", async () => {
    const found = await drop(
      file("/a.txt"),
      folder("/src", file("/src/b.go"), folder("/src/deep", folder("/src/deep/none"))),
      folder("/empty"),
    );
    expect(found?.files.map((f) => f.path)).toEqual(["a.txt", "src/b.go"]);
    expect(found?.empty).toEqual(["src/deep/none", "empty"]);
  });

  it("is sent as a whole, or not at all", async () => {
    expect((await drop(folder("/many", ...many(MOST))))?.files).toHaveLength(MOST);
    expect(await drop(folder("/many", ...many(MOST)), folder("/empty"))).toBeUndefined();
    expect(await drop(folder("/many", ...many(MOST + 1)))).toBeUndefined();
  });
});
