// Two or more forks beside each other: try commands, see what each changed,
// merge the one that works.
import { useComputed, useSignal } from "@preact/signals";
import { Link, useLocation, useSearchParams } from "wouter-preact";
import { type Diff, type MergeResult, type Sandbox, type Schemas, send, stream } from "../api/client";
import { calls } from "../lib/calls";
import { plural, span } from "../lib/format";
import { pooled } from "../lib/pooled";
import { clip, label, stripANSI } from "../lib/text";
import { living, sandboxes, snapshots } from "../state/live";
import { isEnded } from "../state/world";
import { Comparison, Counts, useDiff } from "../ui/changes";
import { CallDialog, CopyAs } from "../ui/dialog";
import { perform, remember, toast } from "../ui/do";
import { Check, Field, Input, NumberInput, Select, TextArea } from "../ui/fields";
import { Button, Empty, Failure, Name, StateBadge, Tabs } from "../ui/kit";
import "../styles/sandbox.css";
import "../styles/compare.css";

type Attempt = Schemas["Attempt"];

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
  return (
    <div class="page">
      <header class="bar compare-bar">
        <h1>Compare</h1>
        <Pick name="First" value={a} set={(v) => set({ a: v })} />
        <Button
          kind="ghost"
          icon="diff"
          aria-label="Swap the two"
          title="Swap the two"
          disabled={!b}
          onClick={() => set({ a: b, b: a })}
        />
        <Pick name="Second" value={b} set={(v) => set({ b: v })} none="its template" />
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

function Pick({ name, value, set, none }: { name: string; value: string; set: (v: string) => void; none?: string }) {
  const boxes = useComputed(() =>
    [...living.value].sort((x, y) => (x.name || x.id).localeCompare(y.name || y.id, "en", { numeric: true })).slice(0, 1000),
  );
  const kept = [...snapshots.value.values()].filter((s) => !s.automatic).slice(0, 500);
  const known = boxes.value.some((s) => s.id === value) || kept.some((s) => s.id === value);
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
      {kept.length > 0 && (
        <optgroup label="Snapshots">
          {kept.map((s) => (
            <option key={s.id} value={s.id}>
              {label(s.name || s.label || s.id, 60)}
            </option>
          ))}
        </optgroup>
      )}
    </select>
  );
}

/** Files shows what leads from a to b: with no b, what a has changed since its template. */
function Files({ a, b }: { a: string; b: string }) {
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
  const x = sandboxes.value.get(id) ?? snapshots.value.get(id);
  return label(x?.name || id, 60);
}

function Merge({ parent, winner }: { parent: Sandbox; winner: Sandbox }) {
  const [, go] = useLocation();
  const open = useSignal(false);
  const kind = useSignal(winner.forked_from === parent.id ? "whole" : "files");
  const policy = useSignal("");
  const kill = useSignal(false);
  const result = useSignal<MergeResult | undefined>(undefined);
  const call = calls.merge(parent.id, {
    winner: winner.id,
    kind: kind.value,
    ...(kind.value === "files" ? { policy: policy.value || undefined, kill_winner: kill.value || undefined } : {}),
  });
  const close = () => {
    open.value = false;
    result.value = undefined;
  };
  const done = (got: MergeResult) => {
    result.value = got;
    if (!got.merged) return;
    toast("ok", `${label(winner.name || winner.id)} is merged into ${label(parent.name || parent.id)}`, call);
    close();
    go(`/s/${parent.id}`);
  };
  const conflicts = result.value?.conflicts ?? [];
  return (
    <>
      <Button
        kind="primary"
        icon="merge"
        scope="sandboxes:write"
        onClick={() => {
          open.value = true;
        }}
      >
        Merge…
      </Button>
      {open.value && (
        <CallDialog
          title={`Merge ${label(winner.name || winner.id, 40)} into ${label(parent.name || parent.id, 40)}`}
          action="Merge"
          icon="merge"
          wide={conflicts.length > 0}
          call={call}
          close={close}
          done={done}
        >
          {conflicts.length > 0 && (
            <div class="stack">
              <p class="note amber">
                Nothing was merged: both sides changed {plural(conflicts.length, "path")}. Say whose version is kept.
              </p>
              <div class="scroll-x conflicts">
                <table class="data">
                  <thead>
                    <tr>
                      <th>Path</th>
                      <th>{label(parent.name || "parent", 24)}</th>
                      <th>{label(winner.name || "winner", 24)}</th>
                    </tr>
                  </thead>
                  <tbody>
                    {conflicts.map((c) => (
                      <tr key={c.path}>
                        <td class="mono cut" title={label(c.path)}>
                          {label(c.path)}
                        </td>
                        <td class="muted">{label(c.ours)}</td>
                        <td class="muted">{label(c.theirs)}</td>
                      </tr>
                    ))}
                  </tbody>
                </table>
              </div>
            </div>
          )}
          <label class="check">
            <input
              type="radio"
              name="kind"
              checked={kind.value === "whole"}
              onChange={() => {
                kind.value = "whole";
                result.value = undefined;
              }}
            />
            <span>
              <b>Whole</b> <span class="muted">The parent becomes what the winner is: memory, processes and files.</span>
            </span>
          </label>
          <label class="check">
            <input
              type="radio"
              name="kind"
              checked={kind.value === "files"}
              onChange={() => {
                kind.value = "files";
              }}
            />
            <span>
              <b>Files</b> <span class="muted">The parent runs on, and gets what the winner changed since the fork.</span>
            </span>
          </label>
          {kind.value === "files" && (
            <>
              <Field label="Where both changed the same path">
                <Select value={policy}>
                  <option value="">change nothing, and list the conflicts</option>
                  <option value="ours">keep the version of {label(parent.name || "the parent", 30)}</option>
                  <option value="theirs">take the version of {label(winner.name || "the winner", 30)}</option>
                </Select>
              </Field>
              <Check value={kill}>End {label(winner.name || winner.id, 40)} afterwards</Check>
            </>
          )}
        </CallDialog>
      )}
    </>
  );
}

interface Run {
  text: string;
  exit?: number;
  took?: number;
  error?: string;
}

/** How many forks a command runs in at a time. */
const AT_ONCE = 3;

/** Siblings runs one command in a sandbox and its forks, and shows what each says. */
function Siblings({ of: parent, pick }: { of?: Sandbox; pick: (id: string) => void }) {
  const line = useSignal("");
  const runs = useSignal<Record<string, Run | "running">>({});
  const diffs = useSignal<Record<string, Diff | string>>({});
  if (!parent)
    return (
      <Empty icon="table" title="Choose a sandbox with forks">
        Its forks are shown side by side, with what each has changed.
      </Empty>
    );
  const above = sandboxes.value.get(parent.forked_from ?? "");
  const root = above && !isEnded(above) ? above.id : parent.id;
  const all = living.value.filter((s) => s.id === root || s.forked_from === root).slice(0, 33);
  const run = async (e: Event) => {
    e.preventDefault();
    const shell = line.value.trim();
    if (!shell) return;
    // The browser has few connections to the server, and others wait for theirs.
    const running = all.filter((s) => s.state === "running");
    runs.value = { ...runs.value, ...Object.fromEntries(running.map((s) => [s.id, "running" as const])) };
    await pooled(running, AT_ONCE, async (s) => {
      const call = calls.exec(s.id, { shell, timeout_ms: 60_000 });
      remember(call);
      const begun = performance.now();
      const r: Run = await send("POST", call.path, call.body)
        .then((r) => r.json() as Promise<{ job: Schemas["Job"]; stdout: string; stderr: string }>)
        .then((r) => ({ text: r.stdout + r.stderr, exit: r.job.exit_code, took: performance.now() - begun }))
        .catch((err: Error) => ({ text: "", error: err.message }));
      runs.value = { ...runs.value, [s.id]: r };
    });
  };
  const compare = async () => {
    for (const s of all) {
      if (s.id === root) continue;
      const found = await perform(calls.diff(s.id, { against: root })).catch((err: Error) => err.message);
      diffs.value = { ...diffs.value, [s.id]: found };
    }
  };
  return (
    <>
      <form class="run-line" onSubmit={run}>
        <span class="mono accent">$</span>
        <Input
          class="mono"
          aria-label="Command for all"
          placeholder="Run a command in each of them"
          spellcheck={false}
          value={line}
        />
        <Button kind="primary" type="submit" scope="sandboxes:write">
          Run in {all.length}
        </Button>
        <Button icon="diff" onClick={() => void compare()}>
          What each changed
        </Button>
      </form>
      <div class="siblings">
        {all.map((s) => {
          const r = runs.value[s.id];
          const d = diffs.value[s.id];
          const out = r && r !== "running" ? clip(stripANSI(r.text), 20_000) : undefined;
          return (
            <section class="card" key={s.id}>
              <header>
                <h2 class="grow">
                  <Link href={`/s/${s.id}`}>
                    <Name of={s} />
                  </Link>
                </h2>
                {s.id === root && <span class="badge violet">parent</span>}
                <StateBadge state={s.state} />
                {s.id !== root && (
                  <Button small icon="diff" onClick={() => pick(s.id)}>
                    Diff
                  </Button>
                )}
              </header>
              <div class="body">
                {d && (
                  <p class="small">
                    {typeof d === "string" ? (
                      <span class="red-text">{label(d)}</span>
                    ) : (
                      <>
                        <Counts of={d} />{" "}
                        <span class="muted">
                          {(d.changes ?? [])
                            .slice(0, 4)
                            .map((c) => label(c.path, 60))
                            .join(", ")}
                        </span>
                      </>
                    )}
                  </p>
                )}
                {r === "running" ? (
                  <span class="spinner" />
                ) : r?.error ? (
                  <Failure error={r.error} />
                ) : r ? (
                  <>
                    <p class="small">
                      <span class={`badge ${r.exit ? "red" : "green"}`}>exit {r.exit}</span>{" "}
                      <span class="muted">{span(r.took ?? 0)}</span>
                    </p>
                    <pre class="out" tabIndex={0}>
                      {out!.text || "It wrote nothing."}
                      {out!.cut > 0 && <em>{`\n… ${out!.cut.toLocaleString("en")} more characters`}</em>}
                    </pre>
                  </>
                ) : (
                  !d && <p class="muted small">Run a command to see what each says.</p>
                )}
              </div>
            </section>
          );
        })}
      </div>
    </>
  );
}

interface TryLine {
  attempt?: Attempt;
  result?: Schemas["TryResult"];
}

/** Try forks a sandbox, runs commands in the forks, and merges the one that is picked. */
function Try({ of: s }: { of?: Sandbox }) {
  const lines = useSignal("");
  const count = useSignal(3);
  const pick = useSignal("none");
  const keep = useSignal("all");
  const attempts = useSignal<Attempt[]>([]);
  const result = useSignal<Schemas["TryResult"] | undefined>(undefined);
  const busy = useSignal(false);
  const error = useSignal("");
  if (!s || isEnded(s))
    return (
      <Empty icon="bolt" title="Choose a sandbox to try in">
        It is forked, each fork runs a command, and the one that works can be merged back: all in one call.
      </Empty>
    );
  const commands = lines.value
    .split("\n")
    .map((l) => l.trim())
    .filter(Boolean);
  const call = calls.try(s.id, {
    commands: commands.map((shell) => ({ shell })),
    count: commands.length === 1 ? count.value : undefined,
    pick: pick.value,
    keep: keep.value,
  });
  const run = async (e: Event) => {
    e.preventDefault();
    busy.value = true;
    error.value = "";
    attempts.value = [];
    result.value = undefined;
    try {
      await stream<TryLine>("POST", call.path, call.body, (line) => {
        if (line.attempt) attempts.value = [...attempts.value, line.attempt].sort((x, y) => x.index - y.index);
        if (line.result) {
          result.value = line.result;
          attempts.value = line.result.attempts ?? attempts.value;
        }
      });
      remember(call);
    } catch (err) {
      error.value = (err as Error).message;
      remember(call, true);
    }
    busy.value = false;
  };
  return (
    <div class="content">
      <form class="card try-form" onSubmit={run}>
        <div class="body stack">
          <Field
            label={`Commands to try in forks of ${label(s.name || s.id)}, one a line`}
            hint="One line runs in each fork; several lines run in a fork each. COVE_FORK_INDEX tells the forks apart."
          >
            <TextArea
              rows={3}
              spellcheck={false}
              placeholder={"pip install a && pytest -q\npip install b && pytest -q"}
              value={lines}
            />
          </Field>
          <div class="grid2">
            {commands.length < 2 && (
              <Field label="Forks">
                <NumberInput min="1" max="32" value={count} read={(text) => Number(text) || 1} />
              </Field>
            )}
            <Field label="Merge back">
              <Select value={pick}>
                <option value="none">none: decide afterwards</option>
                <option value="first_success">the first that ends with exit code 0</option>
              </Select>
            </Field>
            <Field label="Of the others, keep">
              <Select value={keep}>
                <option value="all">all</option>
                <option value="winners">those with exit code 0</option>
                <option value="none">none</option>
              </Select>
            </Field>
          </div>
          <div class="row">
            <Button
              kind="primary"
              type="submit"
              icon="bolt"
              scope="sandboxes:write"
              busy={busy.value}
              disabled={!commands.length}
            >
              Try
            </Button>
            {commands.length > 0 && <CopyAs call={call} />}
          </div>
        </div>
      </form>
      {error.value && <Failure error={error.value} />}
      <div class="siblings flush">
        {attempts.value.map((x) => {
          const fork = x.kept ? sandboxes.value.get(x.sandbox_id) : undefined;
          return (
            <section class="card" key={x.index}>
              <header>
                <h2 class="grow">
                  Attempt {x.index} {fork && <Link href={`/s/${fork.id}`}>open</Link>}
                </h2>
                {result.value?.picked === x.index && <span class="badge violet">merged</span>}
                <span class={`badge ${x.exit_code ? "red" : "green"}`}>exit {x.exit_code}</span>
                <span class="muted small">{span(x.duration_ms)}</span>
              </header>
              <div class="body stack">
                {x.error && <Failure error={x.error} />}
                {x.changes && (
                  <p class="small">
                    <Counts of={x.changes} />{" "}
                    <span class="muted">
                      {(x.changes.changes ?? [])
                        .slice(0, 6)
                        .map((c) => label(c.path, 60))
                        .join(", ")}
                    </span>
                  </p>
                )}
                <pre class="out" tabIndex={0}>
                  {clip(stripANSI(x.stdout + x.stderr), 20_000).text || "It wrote nothing."}
                </pre>
                {fork && !isEnded(fork) && (
                  <div>
                    <Merge parent={s} winner={fork} />
                  </div>
                )}
              </div>
            </section>
          );
        })}
      </div>
    </div>
  );
}
