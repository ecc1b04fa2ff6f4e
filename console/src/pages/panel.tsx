import { useComputed } from "@preact/signals";
import { Link, useLocation } from "wouter-preact";
import type { Sandbox, Snapshot } from "../api/client";
import { calls } from "../lib/calls";
import { at, bytes, clock, day, span } from "../lib/format";
import { label } from "../lib/text";
import { parentOf } from "../lib/tree";
import { sandboxes } from "../state/live";
import { stateName, statesOf } from "../state/steps";
import { isEnded } from "../state/world";
import { CopyAs, confirmed } from "../ui/dialog";
import { Button, Empty, ID, Menu, Name, StateBadge } from "../ui/kit";
import { askKill, askRestore, creating, forking, snapshotting, togglePause } from "./dialogs";

/** Panel tells of the sandbox, or the snapshot, that is selected in a list. */
export function Panel({
  of: s,
  snapshot,
  select,
  close,
}: {
  of: Sandbox;
  snapshot?: Snapshot;
  select: (id: string) => void;
  close: () => void;
}) {
  return (
    <aside class="panel" aria-label="Selected">
      {snapshot ? (
        <OfSnapshot of={snapshot} sandbox={s} select={select} close={close} />
      ) : (
        <OfSandbox of={s} select={select} close={close} />
      )}
    </aside>
  );
}

function OfSandbox({ of: s, select, close }: { of: Sandbox; select: (id: string) => void; close: () => void }) {
  const [, go] = useLocation();
  const ended = isEnded(s);
  const from = parentOf(s);
  const made = s.forked_from ? undefined : s.made_from;
  const parent = sandboxes.value.get(from ?? "");
  const children = useComputed(() => [...sandboxes.value.values()].filter((c) => parentOf(c) === s.id));
  const states = useComputed(() => statesOf(s.id));
  const steps = states.value.filter((x) => x.automatic);
  const now = Date.now();
  return (
    <>
      <header>
        <div class="grow">
          <h2>
            <Name of={s} />
          </h2>
          <ID id={s.id} />
        </div>
        <Button kind="ghost" icon="close" aria-label="Close" onClick={close} />
      </header>
      <div class="panel-body">
        <div class="row">
          <StateBadge state={s.state} />
          {s.desktop && <span class="badge violet">computer</span>}
        </div>
        {s.reason && <p class="note">{label(s.reason, 500)}</p>}
        <div class="row">
          <Button kind="primary" icon="open" onClick={() => go(`/s/${s.id}`)}>
            Open
          </Button>
          {!ended && (
            <>
              <Button
                icon="fork"
                scope="sandboxes:write"
                onClick={() => {
                  forking.value = s;
                }}
              >
                Fork
              </Button>
              <Button
                icon="camera"
                scope="sandboxes:write"
                title="Snapshot"
                aria-label="Snapshot"
                onClick={() => {
                  snapshotting.value = s;
                }}
              />
              <Button
                icon={s.state === "paused" ? "play" : "pause"}
                scope="sandboxes:write"
                aria-label={s.state === "paused" ? "Resume" : "Pause"}
                title={s.state === "paused" ? "Resume" : "Pause"}
                onClick={() => togglePause(s)}
              />
            </>
          )}
          <Menu
            label="More actions"
            icon="more"
            items={[
              { text: "Compare with…", icon: "diff", run: () => go(`/compare?a=${s.id}`) },
              ...(parent && !made && !isEnded(parent) && !ended
                ? [{ text: "Merge into its parent…", icon: "merge" as const, run: () => go(`/compare?a=${parent.id}&b=${s.id}`) }]
                : []),
              { text: "History", icon: "clock" as const, run: () => go(`/s/${s.id}/history`) },
              ...(ended
                ? []
                : [{ text: "Kill…", icon: "kill" as const, danger: true, scope: "sandboxes:write", run: () => askKill(s) }]),
            ]}
          />
        </div>
        <dl class="facts">
          <dt>{ended ? "Lived" : "Age"}</dt>
          <dd title={s.created_at}>
            {span((ended ? at(s.ended_at) : now) - at(s.created_at))}
            <span class="muted"> since {now - at(s.created_at) > 86_400_000 ? day(s.created_at) : clock(s.created_at)}</span>
          </dd>
          <dt>Template</dt>
          <dd>{label(s.template)}</dd>
          {s.snapshot && !made && (
            <>
              <dt>Began with</dt>
              <dd class="mono">{label(s.snapshot)}</dd>
            </>
          )}
          {from && (
            <>
              <dt>{made ? "Made from" : "Forked from"}</dt>
              <dd>
                <button type="button" class="as-link" onClick={() => select(from)} disabled={!parent}>
                  {label(parent?.name || from)}
                </button>
                {made && (
                  <span class="muted" title={label(made.snapshot)}>
                    {" "}
                    as it was at {(now - at(made.state_at) > 86_400_000 ? day : clock)(at(made.state_at))}
                  </span>
                )}
              </dd>
            </>
          )}
          <dt>Limits</dt>
          <dd>
            {s.resources.vcpus} vCPU · {bytes((s.resources.memory_mib ?? 0) * 1_048_576)} ·{" "}
            {bytes((s.resources.disk_mib ?? 0) * 1_048_576)} disk
          </dd>
          <dt>Network</dt>
          <dd>
            {label(s.network?.preset ?? "open")}
            {s.network?.rules?.length ? `, ${s.network.rules.length} rules` : ""}
          </dd>
          {s.expires_at && !ended && (
            <>
              <dt>Ends in</dt>
              <dd>
                {span(at(s.expires_at) - now)} <span class="muted">({s.on_timeout})</span>
              </dd>
            </>
          )}
          <dt>User</dt>
          <dd class="mono">
            {label(s.user)} in {label(s.workdir)}
          </dd>
        </dl>
        {Object.keys(s.metadata ?? {}).some((k) => k !== "forked_from") && (
          <section>
            <h3>Metadata</h3>
            <dl class="facts">
              {Object.entries(s.metadata ?? {})
                .filter(([k]) => k !== "forked_from")
                .map(([k, v]) => (
                  <>
                    <dt class="cut" title={label(k)}>
                      {label(k)}
                    </dt>
                    <dd class="cut" title={label(v)}>
                      {label(v)}
                    </dd>
                  </>
                ))}
            </dl>
          </section>
        )}
        <States title="Snapshots" of={states.value.filter((x) => !x.automatic).slice(0, 20)} select={select} />
        <States title="Steps" of={steps} steps={steps} select={select} />
        <Descendants title="Forks" of={children.value.filter((c) => c.forked_from)} select={select} />
        <Descendants title="Made from its states" of={children.value.filter((c) => !c.forked_from)} select={select} />
      </div>
    </>
  );
}

/** Descendants are sandboxes that began with the state of one. */
function Descendants({ title, of, select }: { title: string; of: Sandbox[]; select: (id: string) => void }) {
  if (!of.length) return null;
  return (
    <section>
      <h3>{title}</h3>
      <ul class="plain">
        {of.slice(0, 40).map((c) => (
          <li key={c.id}>
            <button type="button" onClick={() => select(c.id)}>
              <i class={`dot ${isEnded(c) ? "" : c.state === "paused" ? "amber" : "green"}`} />
              <Name of={c} class="grow" />
              <span class="muted small">{c.state}</span>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

/** States are those that a sandbox can go back to. */
function States({
  title,
  of,
  steps,
  select,
}: {
  title: string;
  of: Snapshot[];
  steps?: Snapshot[];
  select: (id: string) => void;
}) {
  if (!of.length) return null;
  return (
    <section>
      <h3>{title}</h3>
      <ul class="plain">
        {of.map((x) => (
          <li key={x.id}>
            <button type="button" onClick={() => select(x.id)}>
              <i class={x.automatic ? "l-step" : "l-snap"} />
              <bdi class="cut grow">
                {label(stateName(x, steps))}
                {x.automatic && <span class="muted small"> {label(x.label, 60)}</span>}
              </bdi>
              <span class="muted small">{clock(x.created_at)}</span>
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

function OfSnapshot({
  of: x,
  sandbox: s,
  select,
  close,
}: {
  of: Snapshot;
  sandbox: Sandbox;
  select: (id: string) => void;
  close: () => void;
}) {
  const [, go] = useLocation();
  const name = label(stateName(x));
  const remove = calls.deleteSnapshot(x.id);
  return (
    <>
      <header>
        <div class="grow">
          <h2 class="cut" title={name}>
            <i class={x.automatic ? "l-step" : "l-snap"} /> {name}
          </h2>
          <ID id={x.id} />
        </div>
        <Button kind="ghost" icon="close" aria-label="Close" onClick={close} />
      </header>
      <div class="panel-body">
        <div class="row">
          <Button
            kind="primary"
            icon="plus"
            scope="sandboxes:write"
            onClick={() => {
              creating.value = { snapshot: x.id };
            }}
          >
            New from here
          </Button>
          {!isEnded(s) && (
            <Button icon="back" scope="sandboxes:write" onClick={() => askRestore(s, x.id, name)}>
              Restore
            </Button>
          )}
          <Button icon="diff" onClick={() => go(`/compare?a=${x.id}&b=${isEnded(s) ? "" : s.id}`)}>
            Diff
          </Button>
          <Button
            icon="trash"
            aria-label="Delete"
            title="Delete"
            scope="sandboxes:write"
            onClick={() =>
              confirmed(
                remove,
                `Delete the ${x.automatic ? "step" : "snapshot"}?`,
                `${name} is removed. Sandboxes made from it are unharmed.`,
                "Delete",
                "Deleted",
                (done) => done && close(),
              )
            }
          />
        </div>
        <dl class="facts">
          <dt>Of</dt>
          <dd>
            <button type="button" class="as-link" onClick={() => select(s.id)}>
              {label(s.name || s.id)}
            </button>
          </dd>
          <dt>Kept</dt>
          <dd>{day(x.created_at)}</dd>
          <dt>Holds</dt>
          <dd>{x.kind === "files" ? "changed files" : "memory, processes and files"}</dd>
          <dt>Size</dt>
          <dd>{bytes(x.size_bytes)}</dd>
          {x.label && (
            <>
              <dt>Label</dt>
              <dd>{label(x.label, 500)}</dd>
            </>
          )}
        </dl>
        <CopyAs call={calls.restore(s.id, { snapshot: x.id })} />
      </div>
    </>
  );
}

/** Missing is shown where a sandbox is not known. */
export function Missing({ id }: { id: string }) {
  return (
    <Empty icon="search" title="There is no such sandbox" action={<Link href="/">To the sandboxes</Link>}>
      {label(id)} does not exist, or your key may not see it.
    </Empty>
  );
}
