import { describe, expect, it } from "vitest";
import { leaving } from "./keys";

const key = (name: string, ...held: string[]) => ({
  key: name,
  ctrlKey: held.includes("ctrl"),
  metaKey: held.includes("meta"),
  shiftKey: held.includes("shift"),
  altKey: held.includes("alt"),
});

describe("leaving a terminal", () => {
  it.each([
    ["out", key("Escape", "ctrl", "shift")],
    ["palette", key("k", "ctrl")],
    ["palette", key("K", "ctrl")],
    ["palette", key("k", "meta")],
    [undefined, key("Escape")],
    [undefined, key("Tab")],
    [undefined, key("k")],
    [undefined, key("K", "ctrl", "shift")],
    [undefined, key("k", "ctrl", "alt")],
  ])("%s", (want, pressed) => expect(leaving(pressed)).toBe(want));
});
