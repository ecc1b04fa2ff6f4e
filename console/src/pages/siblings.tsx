// A sandbox and its forks side by side, with what a command says in each.
import { useSignal } from "@preact/signals";
import { Link } from "wouter-preact";
import { type Diff, type Sandbox, type Schemas, send } from "../api/client";
import { calls } from "../lib/calls";
import { span } from "../lib/format";
import { pooled } from "../lib/pooled";
import { clip, label, stripANSI } from "../lib/text";
import { living, sandboxes } from "../state/live";
import { isEnded } from "../state/world";
import { Counts } from "../ui/changes";
import { CostLine, useCosts } from "../ui/cost";
import { perform, remember } from "../ui/do";
import { Input } from "../ui/fields";
import { Button, Empty, Failure, Name, StateBadge } from "../ui/kit";

interface Run {
  text: string;
  exit?: number;
  took?: number;
  error?: string;
}

/** How many forks a command runs in at a time. */
const AT_ONCE = 3;

/** Siblings runs one command in a sandbox and its forks, and shows what each says. */
export function Siblings({ of: parent, pick }: { of?: Sandbox; pick: (id: string) => void }) {
  const line = useSignal("");
  const runs = useSignal<Record<string, Run | "running">>({});
  const diffs = useSignal<Record<string, Diff | string>>({});
  const ended = useSignal(false);
  const above = sandboxes.value.get(parent?.forked_from ?? "");
  const root = above && !isEnded(above) ? above.id : parent?.id;
  const family = (list: Iterable<Sandbox>) => [...list].filter((s) => s.id === root || s.forked_from === root);
  const gone = ended.value ? family(sandboxes.value.values()).filter(isEnded) : [];
  const all = root ? [...family(living.value), ...gone].slice(0, 33) : [];
  const running = all.filter((s) => s.state === "running");
  const { costs, again } = useCosts(all);
  if (!parent)
    return (
      <Empty icon="table" title="Choose a sandbox with forks">
        Its forks are shown side by side, with what each has changed.
      </Empty>
    );
  const run = async (e: Event) => {
    e.preventDefault();
    const shell = line.value.trim();
    if (!shell) return;
    // The browser has few connections to the server, and others wait for theirs.
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
    void again();
  };
  const compare = async () => {
    for (const s of all) {
      if (s.id === root || isEnded(s)) continue;
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
          Run in {running.length}
        </Button>
        <Button icon="diff" onClick={() => void compare()}>
          What each changed
        </Button>
        <Button
          kind="ghost"
          aria-pressed={ended.value}
          title="Show forks that have ended too, with what they have cost"
          onClick={() => {
            ended.value = !ended.value;
          }}
        >
          Ended too
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
                {s.id !== root && !isEnded(s) && (
                  <Button small icon="diff" onClick={() => pick(s.id)}>
                    Diff
                  </Button>
                )}
              </header>
              <div class="body">
                <CostLine of={costs.value?.get(s.id)} known={!!costs.value?.has(s.id)} />
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
                  !d && (
                    <p class="muted small">
                      {s.state === "running"
                        ? "Run a command to see what each says."
                        : `It is ${s.state}, and runs no command from here.`}
                    </p>
                  )
                )}
              </div>
            </section>
          );
        })}
      </div>
    </>
  );
}
