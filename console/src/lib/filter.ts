// The search line of lists of sandboxes: words, and fields as key:value.
import type { Sandbox } from "../api/client";
import { at } from "./format";
import { parentOf } from "./tree";

const UNITS: Record<string, number> = { s: 1e3, m: 6e4, h: 3.6e6, d: 8.64e7 };

/** filter makes of a line what decides which sandboxes it finds. state:, template:, name:, from:, age:<1h,
 * age:>2d and any other key:value, which is metadata; what has no colon is looked for in name, id, template and metadata. */
export function filter(line: string, now: number): (s: Sandbox) => boolean {
  const tests = line
    .trim()
    .split(/\s+/)
    .filter(Boolean)
    .map((word) => test(word, now));
  return (s) => tests.every((t) => t(s));
}

function test(word: string, now: number): (s: Sandbox) => boolean {
  const colon = word.indexOf(":");
  const key = colon > 0 ? word.slice(0, colon).toLowerCase() : "";
  const value = word.slice(colon + 1).toLowerCase();
  const has = (text: string | undefined) => (text ?? "").toLowerCase().includes(value);
  if (colon > 0 && !value) return () => true; // it is still being typed
  switch (key) {
    case "":
      return (s) =>
        has(s.name) || has(s.id) || has(s.template) || Object.entries(s.metadata ?? {}).some(([k, v]) => has(k) || has(v));
    case "state":
      return (s) => value.split(",").some((v) => s.state.startsWith(v));
    case "template":
      return (s) => has(s.template);
    case "name":
      return (s) => has(s.name);
    case "from":
      return (s) => has(parentOf(s));
    case "namespace":
      return (s) => s.namespace.toLowerCase() === value;
    case "age": {
      const m = /^([<>]?)(\d+(?:\.\d+)?)([smhd])$/.exec(value);
      if (!m) return () => true;
      const bound = Number(m[2]) * UNITS[m[3]!]!;
      return (s) => (m[1] === ">" ? now - at(s.created_at) > bound : now - at(s.created_at) < bound);
    }
    default:
      return (s) => (s.metadata?.[word.slice(0, colon)] ?? "").toLowerCase().includes(value);
  }
}
