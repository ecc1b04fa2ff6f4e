// A call of the server, and how it is written down in every form: for the command line, curl, MCP and the Go client.

/** A call of the server; T is its answer. */
export interface Call<T = unknown> {
  /** What it does, in a few words. */
  title: string;
  /** The scope that it needs. */
  scope: string;
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  body?: unknown;
  /** The command line; undefined where it cannot do it. */
  cli?: string;
  mcp?: { tool: string; arguments: Record<string, unknown> };
  go?: string;
  /** Members of the request whose values are sent, but neither kept nor shown. */
  private?: readonly string[];
  /** The type of the answer, which has no value. */
  answer?: T;
}

/** quote writes a word for a POSIX shell. */
export function quote(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export function flags(pairs: [string, string | number | boolean | undefined | null][]): string {
  return pairs
    .filter(([, v]) => v !== undefined && v !== null && v !== "" && v !== false)
    .map(([k, v]) => (v === true ? ` ${k}` : ` ${k} ${quote(String(v))}`))
    .join("");
}

export function each(flag: string, map: Record<string, string> | undefined): string {
  return Object.entries(map ?? {})
    .map(([k, v]) => ` ${flag} ${quote(`${k}=${v}`)}`)
    .join("");
}

/** goString writes a string of Go. */
export function goString(s: string): string {
  return JSON.stringify(s).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

const WORDS: Record<string, string> = {
  ms: "MS",
  mib: "MiB",
  vcpus: "VCPUs",
  id: "ID",
  pids: "PIDs",
  url: "URL",
  ttl: "TTL",
  workdir: "WorkDir",
  npm: "NPM",
};

/** Fields that are pointers, so that absent is not zero. */
const POINTERS = new Set([
  "lifetime_seconds",
  "idle_timeout_seconds",
  "history",
  "paused_lifetime_seconds",
  "vcpus",
  "memory_mib",
  "max_pids",
  "on_timeout",
  "name",
]);

/** goLiteral writes the members of a request as fields of a Go struct. With pointers, those that an update may leave out are. */
export function goLiteral(body: Record<string, unknown>, pointers: "none" | "times" | "update" = "none"): string {
  const fields = Object.entries(body)
    .filter(([k, v]) => v !== undefined && v !== null && v !== false && (v !== "" || (pointers === "update" && POINTERS.has(k))))
    .map(([k, v]) => {
      const name = k
        .split("_")
        .map((w) => WORDS[w] ?? w[0]!.toUpperCase() + w.slice(1))
        .join("");
      let text = goValue(v);
      const pointed =
        pointers === "update"
          ? POINTERS.has(k)
          : pointers === "times" && (k === "lifetime_seconds" || k === "idle_timeout_seconds");
      if (pointed)
        text = `new(${/_seconds$|_mib$|_pids$/.test(k) ? `int64(${text})` : k === "on_timeout" ? `sandbox.TimeoutAction(${text})` : text})`;
      if (k === "resources") text = `sandbox.Resources${text}`;
      if (k === "value") text = `sandbox.NewSecretValue(${text})`;
      if (k === "terminal") text = `&sandbox.TerminalSize${text}`;
      if (k === "scopes") text = text.replace("[]string", "[]sandbox.Scope");
      if (k === "resolve") text = text.replace("map[string]string", "map[string]sandbox.MergePolicy");
      if (k === "network") text = `&sandbox.NetworkPolicy${text}`;
      if (k === "rules")
        text = `[]sandbox.NetworkRule{${(v as Record<string, unknown>[]).map((r) => `{${goLiteral(r)}}`).join(", ")}}`;
      if (k === "headers")
        text = `[]sandbox.HeaderRule{${(v as Record<string, unknown>[]).map((r) => `{${goLiteral(r)}}`).join(", ")}}`;
      if (k === "commands")
        text = `[]sandbox.TryCommand{${(v as Record<string, unknown>[]).map((r) => `{${goLiteral(r)}}`).join(", ")}}`;
      return `${name}: ${text}`;
    });
  return fields.join(", ");
}

function goValue(v: unknown): string {
  if (typeof v === "string") return goString(v);
  if (typeof v === "number" || typeof v === "boolean") return String(v);
  if (Array.isArray(v)) return `[]string{${v.map(goValue).join(", ")}}`;
  const o = v as Record<string, unknown>;
  if (Object.values(o).every((x) => typeof x === "string") && !("preset" in o)) {
    return `map[string]string{${Object.entries(o)
      .map(([k, x]) => `${goString(k)}: ${goValue(x)}`)
      .join(", ")}}`;
  }
  return `{${goLiteral(o)}}`;
}

/** compact drops members without a value. */
export function compact<T extends object>(o: T): T {
  return Object.fromEntries(Object.entries(o).filter(([, v]) => v !== undefined && v !== "")) as T;
}

const HIDDEN = "…";

/** concealed returns a call as it may be kept and shown: without the values of its private members. */
export function concealed<T>(call: Call<T>): Call<T> {
  const names = call.private;
  if (!names?.length || call.body instanceof Blob) return call;
  const values: string[] = [];
  const hide = (v: unknown): unknown => {
    if (Array.isArray(v)) return v.map(hide);
    if (!v || typeof v !== "object") return v;
    return Object.fromEntries(
      Object.entries(v).map(([k, x]) => {
        if (!names.includes(k) || x === undefined || x === "" || x === HIDDEN) return [k, hide(x)];
        values.push(String(x));
        return [k, HIDDEN];
      }),
    );
  };
  const body = hide(call.body);
  const mcp = call.mcp && { ...call.mcp, arguments: hide(call.mcp.arguments) as Record<string, unknown> };
  return { ...call, body, mcp, cli: without(call.cli, values), go: without(call.go, values) };
}

/** without takes values out of a line of code, however they are quoted there. */
function without(text: string | undefined, values: readonly string[]): string | undefined {
  const json = (v: string) => JSON.stringify(v).slice(1, -1);
  const inner = (v: string) => [
    goString(json(v)).slice(1, -1),
    quote(json(v)).replace(/^'|'$/g, ""),
    quote(v).replace(/^'|'$/g, ""),
    goString(v).slice(1, -1),
    v,
  ];
  return text && values.flatMap(inner).reduce((line, v) => line.replaceAll(v, HIDDEN), text);
}

export type CallForm = "cli" | "curl" | "mcp" | "go";

/** form writes a call down, or returns undefined where that form cannot say it. */
export function form(made: Call, as: CallForm, origin: string): string | undefined {
  const call = concealed(made);
  switch (as) {
    case "cli":
      return call.cli;
    case "curl":
      return curl(call, origin);
    case "mcp":
      return call.mcp && JSON.stringify({ name: call.mcp.tool, arguments: call.mcp.arguments }, null, 2);
    case "go":
      return call.go;
  }
}

function curl(call: Call, origin: string): string {
  const parts = [`curl -sS${call.method === "GET" ? "" : ` -X ${call.method}`} -H "Authorization: Bearer $COVE_API_KEY"`];
  if (call.body instanceof Blob) parts.push("--data-binary @FILE");
  else if (call.body !== undefined) parts.push(`-H 'Content-Type: application/json' -d ${quote(JSON.stringify(call.body))}`);
  parts.push(quote(origin + call.path));
  return parts.join(" \\\n  ");
}
