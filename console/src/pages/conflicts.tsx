// The paths that both sides of a merge have changed: what each side has there, and whose version is kept.
import { type Signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ApiError, api, enc, type Sandbox, type Schemas, send, want } from "../api/client";
import { bytes } from "../lib/format";
import { isBinary, label } from "../lib/text";
import { Button, Failure, Loading, Rows } from "../ui/kit";
import { SideBySide } from "../ui/lazy";

export type Side = "ours" | "theirs";
type Conflict = Schemas["Conflict"];

/** The largest text of a side that is shown, in bytes. */
const MAX_TEXT = 1 << 20;

/** Version is what a side has at a path: a text, or what it is instead. */
interface Version {
  text: string;
  /** Why there is no text. */
  instead?: string;
}

/** versionOf reads what a sandbox has at a path, and no more of it than is shown. */
async function versionOf(id: string, path: string, signal: AbortSignal): Promise<Version> {
  const params = { path: { sandbox: id }, query: { path } };
  const info = await want(api.GET("/v1/sandboxes/{sandbox}/files/stat", { params, signal })).catch((err: Error) => {
    if (err instanceof ApiError && err.status === 404) return undefined;
    throw err;
  });
  if (!info) return { text: "", instead: "It is not there." };
  if (info.type === "symlink") return { text: `→ ${info.symlink_target ?? ""}\n` };
  if (info.type !== "file") return { text: "", instead: `It is a ${label(info.type)}.` };
  if (info.size > MAX_TEXT) return { text: "", instead: `It has ${bytes(info.size)}, too many to show.` };
  const response = await send("GET", `/v1/sandboxes/${enc(id)}/files/content?path=${enc(path)}`, undefined, { signal });
  const data = new Uint8Array(await response.arrayBuffer());
  if (isBinary(data)) return { text: "", instead: `It is no text (${bytes(data.length)}).` };
  return { text: new TextDecoder().decode(data) };
}

export function Conflicts({
  of: conflicts,
  parent,
  winner,
  chosen,
}: {
  of: readonly Conflict[];
  parent: Sandbox;
  winner: Sandbox;
  chosen: Signal<Readonly<Record<string, Side>>>;
}) {
  const at = useSignal(0);
  const names = { ours: label(parent.name || "parent", 24), theirs: label(winner.name || "winner", 24) };
  const open = conflicts.filter((c) => !chosen.value[c.path]).length;
  const choose = (path: string, side: Side) => {
    chosen.value = { ...chosen.value, [path]: side };
  };
  const all = (side: Side) => () => {
    chosen.value = Object.fromEntries(conflicts.map((c) => [c.path, side]));
  };
  const shown = conflicts[at.value];
  return (
    <div class="resolve">
      <div class="row resolve-head">
        <span class={`grow small ${open ? "amber-text" : "green-text"}`} role="status">
          {open ? `${open.toLocaleString("en")} of ${conflicts.length.toLocaleString("en")} to choose` : "Every path is chosen"}
        </span>
        <Button small onClick={all("ours")}>
          All of {names.ours}
        </Button>
        <Button small onClick={all("theirs")}>
          All of {names.theirs}
        </Button>
      </div>
      <Rows
        class="conflicts"
        role="list"
        aria-label="Paths that both sides changed"
        items={conflicts}
        height={34}
        at={at.value}
        render={(c, i) => (
          <div key={c.path} role="listitem" class={`conflict ${i === at.value ? "on" : ""}`} style={{ height: 34 }}>
            <button
              type="button"
              class="as-link mono cut grow"
              title={label(c.path)}
              aria-current={i === at.value}
              onClick={() => {
                at.value = i;
              }}
            >
              <bdi>{label(c.path)}</bdi>
            </button>
            <div class="seg" role="group" aria-label={`Whose ${label(c.path)} is kept`}>
              {(["ours", "theirs"] as const).map((side) => (
                <Button
                  key={side}
                  small
                  aria-pressed={chosen.value[c.path] === side}
                  title={`${label(c[side])} in ${names[side]}`}
                  onClick={() => {
                    at.value = i;
                    choose(c.path, side);
                  }}
                >
                  {names[side]}
                </Button>
              ))}
            </div>
          </div>
        )}
      />
      {shown && <Versions key={shown.path} of={shown} parent={parent} winner={winner} names={names} />}
    </div>
  );
}

/** Versions shows what both sides have at a path beside each other. */
function Versions({
  of: c,
  parent,
  winner,
  names,
}: {
  of: Conflict;
  parent: Sandbox;
  winner: Sandbox;
  names: Record<Side, string>;
}) {
  const both = useSignal<Record<Side, Version> | undefined>(undefined);
  const error = useSignal("");
  useEffect(() => {
    const stop = new AbortController();
    Promise.all([versionOf(parent.id, c.path, stop.signal), versionOf(winner.id, c.path, stop.signal)]).then(
      ([ours, theirs]) => {
        if (!stop.signal.aborted) both.value = { ours, theirs };
      },
      (err: Error) => {
        if (!stop.signal.aborted) error.value = err.message;
      },
    );
    return () => stop.abort();
  }, [c.path, parent.id, winner.id]);
  if (error.value) return <Failure error={error.value} />;
  if (!both.value) return <Loading rows={3} />;
  const { ours, theirs } = both.value;
  return (
    <div class="versions">
      <div class="versions-head small muted">
        {(["ours", "theirs"] as const).map((side) => (
          <span key={side} class="cut">
            <b>{names[side]}</b> {label(c[side])}
            {both.value?.[side].instead && ` · ${both.value[side].instead}`}
          </span>
        ))}
      </div>
      {ours.instead && theirs.instead ? null : <SideBySide name={c.path} before={ours.text} after={theirs.text} />}
    </div>
  );
}
