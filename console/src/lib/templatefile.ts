// Template files, as "cove template build -f" reads them, in YAML or JSON.
import type { Schemas } from "../api/client";
import { bytes } from "./format";

/** The most bytes of a template file, as on the command line. */
export const MOST = 12 << 20;

/** The names of what is a number, true or false. All else is text, however it looks: 3.10 is not 3.1. */
export const NUMBERS =
  /^(from\.host|ports|resources\.\w+|desktop\.(width|height)|start\.timeout_ms|(build_)?network\.(max_connections|\w+_seconds?))$/;

type Names = Record<string, unknown>;

/** short puts a value that is one word into the field that it stands for. */
const short = (value: unknown, field: string) => (typeof value === "string" ? { [field]: value } : value);

/** readTemplateFile returns the text of a file, and never a part of it, which may be another template. */
export async function readTemplateFile(file: File): Promise<string> {
  if (file.size > MOST) {
    throw new Error(
      `The file has ${bytes(file.size)}, and a template file may have ${bytes(MOST)}. Put large content into files of their own, name them as source, and build with: cove template build -f`,
    );
  }
  return file.text();
}

/** parseTemplateFile returns what a template file says. The short forms are those of the command line. */
export async function parseTemplateFile(text: string): Promise<Schemas["TemplateSpec"]> {
  const { isPair, parseDocument, visit } = await import("yaml");
  const doc = parseDocument(text);
  if (doc.errors[0]) throw doc.errors[0];
  visit(doc, {
    Scalar(key, node, path) {
      if (key === "key" || !["number", "boolean"].includes(typeof node.value)) return;
      const names = path.filter(isPair).map((p) => String(p.key));
      if (!NUMBERS.test(names.join("."))) node.value = node.source;
    },
  });
  const file: unknown = doc.toJS({ maxAliasCount: 0 });
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
  const data = f.content instanceof Uint8Array ? f.content : new TextEncoder().encode(String(f.content ?? ""));
  return { ...f, content: btoa(Array.from(data, (b) => String.fromCharCode(b)).join("")) };
}
