// Trying commands in forks, in one call.
import { useSignal } from "@preact/signals";
import { Link } from "wouter-preact";
import { type Sandbox, type Schemas, stream } from "../api/client";
import { calls } from "../lib/calls";
import { span } from "../lib/format";
import { clip, label, stripANSI } from "../lib/text";
import { sandboxes } from "../state/live";
import { isEnded } from "../state/world";
import { Counts } from "../ui/changes";
import { CostLine, useCosts } from "../ui/cost";
import { CopyAs } from "../ui/dialog";
import { remember } from "../ui/do";
import { Field, NumberInput, Select, TextArea } from "../ui/fields";
import { Button, Empty, Failure } from "../ui/kit";
import { Merge } from "./merge";

type Attempt = Schemas["Attempt"];

interface TryLine {
  attempt?: Attempt;
  result?: Schemas["TryResult"];
}

/** Try forks a sandbox, runs commands in the forks, and merges the one that is picked. */
export function Try({ of: s }: { of?: Sandbox }) {
  const lines = useSignal("");
  const count = useSignal(3);
  const pick = useSignal("none");
  const keep = useSignal("all");
  const attempts = useSignal<Attempt[]>([]);
  const result = useSignal<Schemas["TryResult"] | undefined>(undefined);
  const busy = useSignal(false);
  const error = useSignal("");
  const { costs } = useCosts(
    attempts.value.map((x) => ({ id: x.sandbox_id, state: sandboxes.value.get(x.sandbox_id)?.state ?? "" })),
  );
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
                <h2 class="grow">{fork ? <Link href={`/s/${fork.id}`}>Attempt {x.index}</Link> : `Attempt ${x.index}`}</h2>
                {result.value?.picked === x.index && <span class="badge violet">merged</span>}
                <span class={`badge ${x.exit_code ? "red" : "green"}`}>exit {x.exit_code}</span>
                <span class="muted small">{span(x.duration_ms)}</span>
              </header>
              <div class="body stack">
                <CostLine of={costs.value?.get(x.sandbox_id)} known={!!costs.value?.has(x.sandbox_id)} />
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
