import { useComputed } from "@preact/signals";
import { Link, useLocation } from "wouter-preact";
import { api, type Sandbox, want } from "../../api/client";
import { calls } from "../../lib/calls";
import { at, bytes, clock, day } from "../../lib/format";
import { label } from "../../lib/text";
import { parentOf } from "../../lib/tree";
import { sandboxes, snapshots } from "../../state/live";
import { stateName, statesOf, useSteps } from "../../state/steps";
import { isEnded } from "../../state/world";
import { confirmed } from "../../ui/dialog";
import { attempt } from "../../ui/do";
import { Icon, type IconName } from "../../ui/icons";
import { Button, Empty, Failure, Loading, Menu } from "../../ui/kit";
import { useLoad } from "../../ui/load";
import { askRestore, creating, snapshotting } from "../dialogs";

const ICONS: [RegExp, IconName][] = [
  [/fork/, "fork"],
  [/merge/, "merge"],
  [/snapshot/, "camera"],
  [/restore/, "back"],
  [/pause/, "pause"],
  [/resume/, "play"],
  [/kill/, "kill"],
  [/create/, "plus"],
  [/job|exec/, "terminal"],
  [/code/, "code"],
  [/file/, "file"],
  [/network/, "globe"],
  [/preview/, "link"],
  [/secret/, "lock"],
];

export function HistoryTab({ of: s }: { of: Sandbox }) {
  const [, go] = useLocation();
  const steps = useSteps(s);
  const done = useLoad(
    () => want(api.GET("/v1/audit", { params: { query: { sandbox_id: s.id, limit: 200 } } })),
    [s.id, s.state, snapshots.value.size, sandboxes.value.size],
  );
  const kept = useComputed(() => statesOf(s.id));
  const numbered = kept.value.filter((x) => x.automatic);
  const alive = !isEnded(s);
  const from = parentOf(s);
  return (
    <div class="content history">
      <section class="card">
        <header>
          <h2 class="grow">States to go back to</h2>
          {alive && (
            <>
              {!s.history && (
                <Button
                  small
                  icon="clock"
                  scope="sandboxes:write"
                  title="Keep a step before each command"
                  onClick={() =>
                    void attempt(calls.update(s.id, { history: 10 }), "A step is kept before each command, ten at most")
                  }
                >
                  Keep a history
                </Button>
              )}
              <Button
                small
                icon="camera"
                scope="sandboxes:write"
                onClick={() => {
                  snapshotting.value = s;
                }}
              >
                Snapshot
              </Button>
            </>
          )}
        </header>
        {steps.error.value && !kept.value.length ? (
          <Failure error={steps.error.value} again={steps.again} />
        ) : kept.value.length === 0 ? (
          <Empty icon="camera" title="No state is kept">
            A snapshot keeps memory, processes and files until it is deleted. With a history, a step is kept before each command.
          </Empty>
        ) : (
          <ol class="timeline">
            {kept.value.map((x) => {
              const name = label(stateName(x, numbered), 80);
              return (
                <li key={x.id}>
                  <i class={x.automatic ? "l-step" : "l-snap"} />
                  <div class="grow">
                    <bdi class="cut" title={x.id}>
                      {name}
                    </bdi>
                    <span class="muted small">
                      {" "}
                      {day(x.created_at)} · {bytes(x.size_bytes)}
                      {x.kind === "files" ? " · files only" : ""}
                      {(x.automatic || x.name) && x.label ? ` · ${label(x.label, 60)}` : ""}
                    </span>
                  </div>
                  {alive && (
                    <Button small icon="back" scope="sandboxes:write" onClick={() => askRestore(s, x.id, name)}>
                      Restore
                    </Button>
                  )}
                  <Menu
                    small
                    kind="ghost"
                    icon="more"
                    label={`More actions on ${name}`}
                    items={[
                      {
                        text: "New sandbox from here…",
                        icon: "plus",
                        scope: "sandboxes:write",
                        run: () => {
                          creating.value = { snapshot: x.id };
                        },
                      },
                      ...(alive
                        ? [{ text: "What changed since", icon: "diff" as const, run: () => go(`/compare?a=${x.id}&b=${s.id}`) }]
                        : []),
                      {
                        text: "Delete…",
                        icon: "trash" as const,
                        danger: true,
                        scope: "sandboxes:write",
                        run: () =>
                          confirmed(
                            calls.deleteSnapshot(x.id),
                            `Delete ${name}?`,
                            "Sandboxes made from it are unharmed.",
                            "Delete",
                            "Deleted",
                          ),
                      },
                    ]}
                  />
                </li>
              );
            })}
          </ol>
        )}
      </section>
      <section class="card">
        <header>
          <h2 class="grow">What was done</h2>
        </header>
        {done.error.value ? (
          <Failure error={done.error.value} again={done.again} />
        ) : !done.data.value ? (
          <Loading />
        ) : (
          <ol class="timeline">
            {(done.data.value.items ?? []).map((e) => {
              const other = /sbx-[a-z0-9]+/.exec(e.detail ?? "")?.[0];
              return (
                <li key={e.id}>
                  <Icon name={ICONS.find(([re]) => re.test(e.action))?.[1] ?? "right"} size={14} class="muted" />
                  <div class="grow">
                    <span>{label(e.action)}</span>
                    {e.code && <span class="badge red">{label(e.code)}</span>}
                    <span class="muted small cut">
                      {" "}
                      {other ? <Link href={`/s/${other}`}>{label(e.detail, 160)}</Link> : label(e.detail, 160)}
                    </span>
                  </div>
                  <span class="muted small">{label(e.key_id, 24)}</span>
                  <span class="muted small" title={e.time}>
                    {Date.now() - at(e.time) > 86_400_000 ? day(e.time) : clock(e.time)}
                  </span>
                </li>
              );
            })}
            {from && (
              <li>
                <Icon name={s.forked_from ? "fork" : "camera"} size={14} class="muted" />
                <div class="grow">
                  {s.forked_from ? "began as a fork of" : `began with the state of ${clock(at(s.made_from?.state_at))} of`}{" "}
                  <Link href={`/s/${from}`}>{label(sandboxes.value.get(from)?.name || from)}</Link>
                </div>
                <span class="muted small">{clock(s.created_at)}</span>
              </li>
            )}
          </ol>
        )}
      </section>
    </div>
  );
}
