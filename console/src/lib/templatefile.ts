// Template files, as "cove template build -f" reads them, in YAML or JSON.
import type { Schemas } from "../api/client";

type Names = Record<string, unknown>;

/** short puts a value that is one word into the field that it stands for. */
const short = (value: unknown, field: string) => (typeof value === "string" ? { [field]: value } : value);

/** parseTemplateFile returns what a template file says. The short forms are those of the command line. */
export async function parseTemplateFile(text: string): Promise<Schemas["TemplateSpec"]> {
  const { parse } = await import("yaml");
  const file: unknown = parse(text, { maxAliasCount: 0 });
  if (typeof file !== "object" || file === null || Array.isArray(file)) {
    throw new Error("write names with values, such as from: python:3.12");
  }
  const spec: Names = { ...file };
  for (const [name, field] of [
    ["from", "image"],
    ["start", "command"],
    ["network", "preset"],
    ["build_network", "preset"],
  ] as const) {
    if (name in spec) spec[name] = short(spec[name], field);
  }
  if (Array.isArray(spec.run)) spec.run = spec.run.map((step) => short(step, "run"));
  if (Array.isArray(spec.files)) spec.files = spec.files.map((f: Names) => fileOf(f));
  return spec as Schemas["TemplateSpec"];
}

/** fileOf encodes the content of a file, which is text there. */
function fileOf(f: Names): Names {
  if (f.source !== undefined) {
    throw new Error(
      `files: ${String(f.path)} has a source, a file beside the template file; write its content, or use cove template build -f`,
    );
  }
  const bytes = f.content instanceof Uint8Array ? f.content : new TextEncoder().encode(String(f.content ?? ""));
  const out: Names = { ...f, content: btoa(Array.from(bytes, (b) => String.fromCharCode(b)).join("")) };
  if (typeof f.mode === "number") out.mode = String(f.mode).padStart(4, "0"); // 0644 is a decimal number in YAML
  return out;
}
