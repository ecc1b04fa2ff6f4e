// The changed files of a comparison, and what changed in one of them.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { type Change, type Diff, enc, send } from "../api/client";
import { calls } from "../lib/calls";
import { bytes, plural } from "../lib/format";
import { reverse, sides } from "../lib/patch";
import { isBinary, label } from "../lib/text";
import { perform } from "./do";
import { useKeys } from "./keys";
import { Empty, Failure, Loading, Rows } from "./kit";
import { SideBySide } from "./lazy";
import { useLoad } from "./load";

const LETTER: Record<string, [string, string]> = { added: ["A", "green"], removed: ["D", "red"], modified: ["M", "amber"] };

/** The largest text that is shown side by side in full, in bytes. */
const MAX_FULL = 1 << 20;

/** useDiff compares a sandbox or snapshot with another one, or with its template if that is empty. */
export function useDiff(subject: string, against: string) {
  const call = calls.diff(subject, { against: against || undefined, patch: true });
  return { call, load: useLoad(() => perform(call), [subject, against]) };
}

/** Comparison shows what useDiff loads. */
export function Comparison({ load, readable }: { load: ReturnType<typeof useDiff>["load"]; readable?: string }) {
  if (load.busy.value) return <Loading />;
  if (load.error.value) return <Failure error={load.error.value} again={load.again} />;
  return load.data.value ? <Changes diff={load.data.value} readable={readable} /> : null;
}

/** Counts shows how many files a comparison has, by what became of them. */
export function Counts({ of: diff }: { of: Diff }) {
  return (
    <>
      <span class="green-text">+{diff.added}</span> <span class="amber-text">~{diff.modified}</span>{" "}
      <span class="red-text">−{diff.removed}</span>
    </>
  );
}

function Changes({
  diff,
  readable,
}: {
  diff: Diff;
  /** A sandbox that has the new state of the files. */
  readable?: string;
}) {
  const changes = diff.changes ?? [];
  const at = useSignal(changes.length ? 0 : -1);
  useKeys({
    j: () => {
      at.value = Math.min(changes.length - 1, at.value + 1);
    },
    k: () => {
      at.value = Math.max(0, at.value - 1);
    },
  });
  if (!changes.length) {
    return (
      <Empty icon="check" title="No file differs">
        /tmp, /dev and /proc are not compared. Put work that you want to compare in /workspace.
      </Empty>
    );
  }
  const change = changes[at.value];
  return (
    <div class="changes">
      <div class="changes-list">
        <div class="changes-head small muted">
          {plural(changes.length, "file")}
          <span class="grow" />
          <Counts of={diff} />
        </div>
        {diff.truncated && <div class="note amber">There are more changes than are listed.</div>}
        <Rows
          role="listbox"
          aria-label="Changed files"
          items={changes}
          height={28}
          at={at.value}
          render={(c, i) => {
            const [letter, colour] = LETTER[c.kind] ?? ["?", "grey"];
            return (
              <div
                key={c.path}
                role="option"
                tabIndex={-1}
                aria-selected={i === at.value}
                class="change"
                onClick={() => {
                  at.value = i;
                }}
              >
                <b class={`${colour}-text`} title={c.kind}>
                  {letter}
                </b>
                <bdi class="cut from-end" title={label(c.path)}>
                  {label(c.path)}
                </bdi>
              </div>
            );
          }}
        />
      </div>
      {change && <OneChange key={change.path} of={change} readable={readable} />}
    </div>
  );
}

function OneChange({ of: c, readable }: { of: Change; readable?: string }) {
  const texts = useSignal<{ before: string; after: string } | undefined>(undefined);
  useEffect(() => {
    let left = false;
    void (async () => {
      if (!c.patch) return;
      let both = sides(c.patch);
      if (readable && c.kind === "modified" && (c.new_size ?? 0) <= MAX_FULL) {
        const after = await send("GET", `/v1/sandboxes/${enc(readable)}/files/content?path=${enc(c.path)}`)
          .then((r) => r.arrayBuffer())
          .catch(() => undefined);
        const text = after && !isBinary(new Uint8Array(after)) ? new TextDecoder().decode(after) : undefined;
        const before = text === undefined ? undefined : reverse(text, c.patch);
        if (text !== undefined && before !== undefined) both = { before, after: text };
      }
      if (!left) texts.value = both;
    })();
    return () => {
      left = true;
    };
  }, [c.path, c.patch, readable]);
  return (
    <div class="change-view">
      <div class="changes-head small">
        <bdi class="mono cut" title={label(c.path)}>
          {label(c.path)}
        </bdi>
        <span class="grow" />
        <span class="muted">
          {c.type}
          {c.aspects?.length ? ` · ${c.aspects.join(", ")}` : ""}
          {c.old_size !== undefined && c.new_size !== undefined
            ? ` · ${bytes(c.old_size)} → ${bytes(c.new_size)}`
            : c.new_size !== undefined
              ? ` · ${bytes(c.new_size)}`
              : ""}
          {c.old_mode && c.new_mode && c.old_mode !== c.new_mode ? ` · ${c.old_mode} → ${c.new_mode}` : ""}
        </span>
      </div>
      {!c.patch ? (
        <Empty icon="file" title={`It was ${c.kind}`}>
          {c.type === "file" ? "It is no text, or too long to be compared line by line." : `It is a ${label(c.type)}.`}
        </Empty>
      ) : texts.value ? (
        <SideBySide name={c.path} {...texts.value} />
      ) : (
        <Loading />
      )}
    </div>
  );
}
