// Rich output of code. What can run anything is shown in a frame that has an
// origin of its own and no way to the server; all else is text or a picture.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Schemas } from "../api/client";
import { clip, label, stripANSI } from "../lib/text";
import { isDark } from "./theme";

type Output = Schemas["CodeOutput"];

const MAX_FRAME_HEIGHT = 900;
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/** What the frame draws, the best first. */
const FRAMED = ["text/html", "image/svg+xml"];
const CHART = "application/vnd.cove.chart+json";

export function Rich({ of: out }: { of: Output }) {
  const data = (out.data ?? {}) as Record<string, unknown>;
  const kinds = [CHART, ...PICTURES, ...FRAMED, "text/markdown", "application/json", "text/latex", "text/plain"].filter(
    (k) => k in data,
  );
  const rest = Object.keys(data).filter((k) => !kinds.includes(k));
  const usual = kinds.find((k) => k !== CHART) ?? kinds[0] ?? rest[0];
  const shown = useSignal(usual);
  if (!usual) {
    const files = Object.entries(out.files ?? {});
    return (
      <p class="muted">
        {files.map(([mime, path]) => `${label(mime)} is too large to be shown; it is in ${label(path)}`).join("; ") ||
          "No output."}
      </p>
    );
  }
  return (
    <div class="rich">
      {kinds.length > 1 && (
        <div class="rich-kinds small">
          {kinds.map((k) => (
            <button
              type="button"
              key={k}
              aria-pressed={k === shown.value}
              onClick={() => {
                shown.value = k;
              }}
            >
              {k === CHART ? "data" : k.replace(/^(text|image|application)\//, "").replace("svg+xml", "svg")}
            </button>
          ))}
        </div>
      )}
      <Kind mime={shown.value ?? usual} value={data[shown.value ?? usual]} />
    </div>
  );
}

function Kind({ mime, value }: { mime: string; value: unknown }) {
  if (PICTURES.includes(mime) && typeof value === "string")
    return (
      <img class="rich-picture" src={`data:${mime};base64,${value.replace(/[^A-Za-z0-9+/=]/g, "")}`} alt="Output of the code" />
    );
  if (FRAMED.includes(mime))
    return <Frame mime={mime} data={mime === "image/svg+xml" ? svgText(String(value)) : String(value)} />;
  if (mime === CHART) return <Chart of={value as ChartData} />;
  const { text, cut } = clip(typeof value === "string" ? stripANSI(value) : JSON.stringify(value, null, 2), 100_000);
  return (
    <pre class="out">
      {text}
      {cut > 0 && <em>{`\n… ${cut.toLocaleString("en")} more characters are not shown`}</em>}
    </pre>
  );
}

/** svgText returns the text of a picture that may come in base64, as all that is no text does. */
function svgText(value: string): string {
  if (value.trimStart().startsWith("<")) return value;
  try {
    return new TextDecoder().decode(Uint8Array.from(atob(value), (c) => c.charCodeAt(0)));
  } catch {
    return value;
  }
}

/** Frame shows HTML of a sandbox in an isolated origin: scripts in it may run, and reach nothing of ours. */
function Frame({ mime, data }: { mime: string; data: string }) {
  const ref = useRef<HTMLIFrameElement>(null);
  const height = useSignal(120);
  // Pictures are drawn for white paper.
  const dark = isDark() && mime === "text/html";
  useEffect(() => {
    const said = (e: MessageEvent) => {
      if (e.source !== ref.current?.contentWindow) return;
      const m = e.data as { type?: unknown; height?: unknown } | null;
      if (m?.type === "size" && typeof m.height === "number" && Number.isFinite(m.height))
        height.value = Math.min(MAX_FRAME_HEIGHT, Math.max(24, Math.ceil(m.height)));
    };
    addEventListener("message", said);
    return () => removeEventListener("message", said);
  }, []);
  return (
    <iframe
      ref={ref}
      title="Output of the code"
      sandbox="allow-scripts"
      src="/console/frame"
      class={`rich-frame ${dark ? "" : "paper"}`}
      style={{ height: height.value, colorScheme: dark ? "dark" : "light" }}
      key={String(dark)}
      // Its origin is opaque, so that no other target can be named; only this document gets the message.
      onLoad={() => ref.current?.contentWindow?.postMessage({ type: "render", mime, data, dark }, "*")}
    />
  );
}

interface ChartData {
  type?: string;
  title?: string;
  elements?: unknown[];
}

/** Chart shows the data of a figure as a table. */
function Chart({ of: chart }: { of: ChartData }) {
  const rows: string[][] = [];
  for (const e of (chart.elements ?? []) as Record<string, unknown>[]) {
    const points = e.points as unknown[][] | undefined;
    const name = String(e.label ?? e.group ?? "");
    if (points) for (const p of points) rows.push([name, ...p.map(String)]);
    else
      rows.push([
        name,
        ...Object.entries(e)
          .filter(([k, v]) => k !== "label" && k !== "group" && typeof v !== "object")
          .map(([k, v]) => `${k} ${v}`),
      ]);
  }
  return (
    <div class="rich-table">
      <p class="muted small">
        {label(chart.type)} {label(chart.title)}
      </p>
      <table class="data">
        <tbody>
          {rows.slice(0, 500).map((r, i) => (
            <tr key={i}>
              {r.map((c, k) => (
                <td key={k} class={k ? "num" : ""}>
                  {label(c, 80)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > 500 && <p class="muted small">{(rows.length - 500).toLocaleString("en")} more points are not shown.</p>}
    </div>
  );
}
