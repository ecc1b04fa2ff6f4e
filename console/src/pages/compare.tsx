// Two or more forks beside each other: what each changed, commands in all of them, and merging the one that works.
import { useComputed } from "@preact/signals";
import { useSearchParams } from "wouter-preact";
import type { Sandbox, Snapshot } from "../api/client";
import { byName } from "../lib/format";
import { label } from "../lib/text";
import { kept, living, sandboxes, snapshots } from "../state/live";
import { stateName, stepsOf, useSteps } from "../state/steps";
import { isEnded } from "../state/world";
import { Comparison, useDiff } from "../ui/changes";
import { CopyAs } from "../ui/dialog";
import { Button, Empty, Tabs } from "../ui/kit";
import { Merge } from "./merge";
import { Siblings } from "./siblings";
import { Try } from "./try";
import "../styles/sandbox.css";
import "../styles/compare.css";

export function ComparePage() {
  const [params, setParams] = useSearchParams();
  const a = params.get("a") ?? "";
  const b = params.get("b") ?? "";
  const tab = params.get("tab") ?? "diff";
  const set = (by: Record<string, string>) => {
    const next = { a, b, tab, ...by };
    setParams(Object.fromEntries(Object.entries(next).filter(([, v]) => v)), { replace: true });
  };
  const one = sandboxes.value.get(a);
  const other = sandboxes.value.get(b);
  const first = ownerOf(a);
  const second = ownerOf(b);
  useSteps(first);
  useSteps(second === first ? undefined : second);
  const steps = [...new Set([first, second])].flatMap((s) => (s ? stepsOf(s.id) : []));
  return (
    <div class="page">
      <header class="bar compare-bar">
        <h1>Compare</h1>
        <Pick name="First" value={a} steps={steps} set={(v) => set({ a: v })} />
        <Button
          kind="ghost"
          icon="diff"
          aria-label="Swap the two"
          title="Swap the two"
          disabled={!b}
          onClick={() => set({ a: b, b: a })}
        />
        <Pick name="Second" value={b} steps={steps} set={(v) => set({ b: v })} none="its template" />
        <span class="grow" />
        {one && other && !isEnded(one) && !isEnded(other) && <Merge parent={one} winner={other} />}
      </header>
      <Tabs
        name="Ways to compare"
        current={tab}
        pick={(t) => set({ tab: t })}
        tabs={[
          { id: "diff", text: "Files", icon: "diff" },
          { id: "siblings", text: "Side by side", icon: "table" },
          { id: "try", text: "Try", icon: "bolt" },
        ]}
      />
      <div class="tab-body" role="tabpanel" aria-label="Comparison">
        {tab === "siblings" ? (
          <Siblings of={one} pick={(v) => set({ b: v, tab: "diff" })} />
        ) : tab === "try" ? (
          <Try of={one} key={a} />
        ) : a ? (
          <Files a={a} b={b} />
        ) : (
          <Empty icon="diff" title="Choose what to compare">
            Two sandboxes, or a sandbox and a snapshot. With one alone you see what it has changed since its template.
          </Empty>
        )}
      </div>
    </div>
  );
}

interface PickProps {
  name: string;
  value: string;
  /** The steps of the sandboxes that are compared. */
  steps: Snapshot[];
  set: (v: string) => void;
  none?: string;
}

function Pick({ name, value, steps, set, none }: PickProps) {
  const boxes = useComputed(() => [...living.value].sort((x, y) => byName(x.name || x.id, y.name || y.id)).slice(0, 1000));
  const choices = kept.value.slice(0, 500);
  const known = [boxes.value, choices, steps].some((list) => list.some((s) => s.id === value));
  return (
    <select class="select pick" aria-label={name} value={value} onChange={(e) => set(e.currentTarget.value)}>
      <option value="">{none ?? "Choose a sandbox"}</option>
      {value && !known && <option value={value}>{label(value)}</option>}
      <optgroup label="Sandboxes">
        {boxes.value.map((s) => (
          <option key={s.id} value={s.id}>
            {label(s.name || s.id, 60)}
          </option>
        ))}
      </optgroup>
      {choices.length > 0 && (
        <optgroup label="Snapshots">
          {choices.map((s) => (
            <option key={s.id} value={s.id}>
              {label(s.name || s.label || s.id, 60)}
            </option>
          ))}
        </optgroup>
      )}
      {steps.length > 0 && (
        <optgroup label="Steps of the two">
          {steps.map((s) => (
            <option key={s.id} value={s.id}>
              {stepName(s, steps)}
            </option>
          ))}
        </optgroup>
      )}
    </select>
  );
}

/** Files shows what leads from a to b: with no b, what a has changed since its template. */
export function Files({ a, b }: { a: string; b: string }) {
  const subject = b || a;
  const { call, load } = useDiff(subject, b ? a : "");
  return (
    <>
      <div class="files-tools">
        <span class="muted small grow cut">
          {b ? `What leads from ${named(a)} to ${named(b)}` : `What ${named(a)} has changed since its template`}
        </span>
        <Button small kind="ghost" icon="back" aria-label="Compare again" title="Compare again" onClick={load.again} />
        <CopyAs call={call} small />
      </div>
      <Comparison load={load} readable={sandboxes.value.get(subject)?.state === "running" ? subject : undefined} />
    </>
  );
}

function named(id: string): string {
  const x = snapshots.value.get(id);
  if (x?.automatic) return stepName(x);
  return label((x ?? sandboxes.value.get(id))?.name || id, 60);
}

/** stepName is what a step is called beside those of other sandboxes. */
function stepName(x: Snapshot, steps?: Snapshot[]): string {
  const of = steps?.filter((s) => s.sandbox_id === x.sandbox_id);
  return label(`${sandboxes.value.get(x.sandbox_id)?.name || x.sandbox_id}, ${stateName(x, of)} ${x.label ?? ""}`, 80);
}

/** ownerOf is a sandbox itself, or that of a state. */
function ownerOf(id: string): Sandbox | undefined {
  return sandboxes.value.get(snapshots.value.get(id)?.sandbox_id ?? id);
}
