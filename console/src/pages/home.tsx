import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { filter } from "../lib/filter";
import { plural } from "../lib/format";
import { layout } from "../lib/tree";
import { loadError, loaded, sandboxes, snapshots } from "../state/live";
import { useSteps } from "../state/steps";
import { isEnded } from "../state/world";
import { Select } from "../ui/fields";
import { useKeys } from "../ui/keys";
import { Button, Empty, Failure, Loading } from "../ui/kit";
import { askKill, creating, forking, snapshotting, togglePause } from "./dialogs";
import { FirstStart, isTouring } from "./first";
import { Panel } from "./panel";
import { Table } from "./table";
import { Tree } from "./tree";

function kept(name: string, otherwise: string): string {
  try {
    return localStorage.getItem(name) ?? otherwise;
  } catch {
    return otherwise;
  }
}
function keep(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // Without storage it lasts as long as the page.
  }
}

const STATES = ["running", "paused", "ended"] as const;

export function HomePage() {
  const [, go] = useLocation();
  const view = useSignal(kept("cove-view", "tree"));
  const line = useSignal("");
  const ended = useSignal(kept("cove-ended", "recent"));
  const selected = useSignal<string | undefined>(undefined);
  const folded = useSignal<ReadonlySet<string>>(new Set());
  const search = useRef<HTMLInputElement>(null);

  const matches = useComputed(() => filter(line.value, Date.now()));
  const rows = useComputed(() => {
    const hour = Date.now() - 3_600_000;
    const wanted = (s: Parameters<typeof matches.value>[0]) =>
      (ended.value === "all" ||
        !isEnded(s) ||
        /state:/.test(line.value) ||
        (ended.value === "recent" && Date.parse(s.ended_at ?? "") > hour)) &&
      matches.value(s);
    return layout(sandboxes.value.values(), snapshots.value.values(), wanted, folded.value);
  });
  const current = useComputed(() => {
    const id = selected.value;
    if (!id) return undefined;
    const snap = snapshots.value.get(id);
    return snap ? sandboxes.value.get(snap.sandbox_id) : sandboxes.value.get(id);
  });
  useSteps(current.value);
  const index = useComputed(() => rows.value.findIndex((r) => r.sandbox.id === current.value?.id));
  const counts = useComputed(() => {
    const n = { running: 0, paused: 0, ended: 0 };
    for (const s of sandboxes.value.values()) n[isEnded(s) ? "ended" : s.state === "paused" ? "paused" : "running"]++;
    return n;
  });

  useEffect(() => keep("cove-view", view.value), [view.value]);
  useEffect(() => keep("cove-ended", ended.value), [ended.value]);

  const move = (step: number) => {
    const next = rows.value[Math.min(rows.value.length - 1, Math.max(0, index.value + step))];
    if (next) selected.value = next.sandbox.id;
  };
  const alive = () => (current.value && !isEnded(current.value) ? current.value : undefined);
  useKeys({
    "/": () => search.current?.focus(),
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => current.value && go(`/s/${current.value.id}`),
    Escape: () => {
      selected.value = undefined;
    },
    c: () => {
      creating.value = {};
    },
    t: () => {
      view.value = view.value === "tree" ? "table" : "tree";
    },
    f: () => {
      forking.value = alive() ?? null;
    },
    s: () => {
      snapshotting.value = alive() ?? null;
    },
    p: () => {
      const s = alive();
      if (s) togglePause(s);
    },
    x: () => {
      const s = alive();
      if (s) askKill(s);
    },
  });

  if (!loaded.value) return loadError.value ? <Failure error={loadError.value} /> : <Loading rows={10} />;
  if (isTouring() || !sandboxes.value.size || (!rows.value.length && !line.value && ended.value === "recent"))
    return <FirstStart />;
  const props = {
    rows: rows.value,
    selected: selected.value,
    at: index.value,
    select: (id: string) => {
      selected.value = id;
    },
    open: (id: string) => go(`/s/${id}`),
  };
  return (
    <div class={`page home ${current.value ? "with-panel" : ""}`}>
      <header class="bar">
        <h1>Sandboxes</h1>
        <span class="muted small counts">
          {STATES.filter((s) => counts.value[s]).map((s) => (
            <span key={s}>
              {counts.value[s].toLocaleString("en")} {s}
            </span>
          ))}
        </span>
        <span class="grow" />
        <label class="search">
          <span class="vh">Search sandboxes</span>
          <input
            ref={search}
            class="input"
            type="search"
            placeholder="Search, or state:paused age:<1h key:value"
            value={line.value}
            spellcheck={false}
            onInput={(e) => {
              line.value = e.currentTarget.value;
            }}
            onKeyDown={(e) => {
              if (e.key === "Escape" || e.key === "Enter" || e.key === "ArrowDown") {
                if (e.key === "Escape") line.value = "";
                search.current?.blur();
                if (e.key !== "Escape" && index.value < 0) move(1);
              }
            }}
          />
          <kbd>/</kbd>
        </label>
        <Select class="narrow" aria-label="Which ended sandboxes are shown" value={ended}>
          <option value="recent">Ended lately</option>
          <option value="all">All ended</option>
          <option value="none">Living only</option>
        </Select>
        <div class="seg">
          <Button
            icon="tree"
            aria-label="Tree"
            title="Tree (t)"
            aria-pressed={view.value === "tree"}
            onClick={() => {
              view.value = "tree";
            }}
          />
          <Button
            icon="table"
            aria-label="Table"
            title="Table (t)"
            aria-pressed={view.value === "table"}
            onClick={() => {
              view.value = "table";
            }}
          />
        </div>
        <Button
          kind="primary"
          icon="plus"
          scope="sandboxes:write"
          onClick={() => {
            creating.value = {};
          }}
        >
          New sandbox
        </Button>
      </header>
      <div class="home-body">
        {rows.value.length === 0 ? (
          <Empty
            icon="search"
            title="No sandbox matches"
            action={
              <Button
                onClick={() => {
                  line.value = "";
                  ended.value = "all";
                }}
              >
                Show all
              </Button>
            }
          >
            {plural(sandboxes.value.size, "sandbox", "sandboxes")} are here that do not.
          </Empty>
        ) : view.value === "tree" ? (
          <Tree
            {...props}
            folded={folded.value}
            fold={(id) => {
              const next = new Set(folded.value);
              if (!next.delete(id)) next.add(id);
              folded.value = next;
            }}
          />
        ) : (
          <Table {...props} />
        )}
        {current.value && (
          <Panel
            key={selected.value}
            of={current.value}
            snapshot={snapshots.value.get(selected.value ?? "")}
            select={(id) => {
              selected.value = id;
            }}
            close={() => {
              selected.value = undefined;
            }}
          />
        )}
      </div>
    </div>
  );
}
