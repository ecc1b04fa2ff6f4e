import { useComputed, useSignal } from "@preact/signals";
import type { Sandbox } from "../api/client";
import { at, byName, bytes, short } from "../lib/format";
import { label } from "../lib/text";
import { parentOf, type Row } from "../lib/tree";
import { sandboxes } from "../state/live";
import { isEnded } from "../state/world";
import { Icon } from "../ui/icons";
import { Name, Rows, StateBadge } from "../ui/kit";
import { useEvery } from "../ui/load";

const ROW = 36;

interface Column {
  id: string;
  text: string;
  value: (s: Sandbox) => string | number;
  width: string;
}

const COLUMNS: Column[] = [
  { id: "name", text: "Name", value: (s) => s.name || s.id, width: "minmax(170px, 2.2fr)" },
  { id: "state", text: "State", value: (s) => s.state, width: "96px" },
  { id: "template", text: "Template", value: (s) => s.template, width: "minmax(90px, 1fr)" },
  { id: "from", text: "From", value: (s) => parentOf(s) ?? "", width: "minmax(90px, 1fr)" },
  { id: "limits", text: "Limits", value: (s) => s.resources.memory_mib ?? 0, width: "112px" },
  { id: "age", text: "Age", value: (s) => -at(s.created_at), width: "64px" },
  { id: "active", text: "Active", value: (s) => -at(s.last_active_at), width: "70px" },
  { id: "ends", text: "Ends in", value: (s) => at(s.expires_at) || Number.MAX_SAFE_INTEGER, width: "74px" },
  { id: "metadata", text: "Metadata", value: (s) => JSON.stringify(s.metadata ?? {}), width: "minmax(120px, 1.6fr)" },
];
const GRID = COLUMNS.map((c) => c.width).join(" ");

export function Table({
  rows,
  selected,
  select,
  open,
}: {
  rows: Row[];
  selected?: string;
  select: (id: string) => void;
  open: (id: string) => void;
}) {
  const sort = useSignal({ id: "age", up: true });
  const now = useSignal(Date.now());
  useEvery(5000, () => {
    now.value = Date.now();
  });
  const version = useSignal(rows);
  version.value = rows;
  const items = useComputed(() => {
    const column = COLUMNS.find((c) => c.id === sort.value.id)!;
    const sign = sort.value.up ? 1 : -1;
    return version.value
      .filter((r) => !r.context)
      .map((r) => r.sandbox)
      .sort((a, b) => {
        const x = column.value(a);
        const y = column.value(b);
        return sign * (typeof x === "number" && typeof y === "number" ? x - y : byName(String(x), String(y)));
      });
  });
  return (
    <div class="table" role="table" aria-label="Sandboxes" aria-rowcount={items.value.length + 1}>
      <div role="rowgroup">
        <div class="table-head" role="row" style={{ gridTemplateColumns: GRID }}>
          {COLUMNS.map((c) => (
            <div
              role="columnheader"
              key={c.id}
              class={c.id}
              aria-sort={sort.value.id === c.id ? (sort.value.up ? "ascending" : "descending") : "none"}
            >
              <button
                type="button"
                onClick={() => {
                  sort.value = { id: c.id, up: sort.value.id === c.id ? !sort.value.up : true };
                }}
              >
                {c.text}
                {sort.value.id === c.id && <Icon name="down" size={10} class={sort.value.up ? "" : "turned"} />}
              </button>
            </div>
          ))}
        </div>
      </div>
      <Rows
        role="rowgroup"
        class="table-body"
        items={items.value}
        height={ROW}
        at={items.value.findIndex((s) => s.id === selected)}
        render={(s, i) => {
          const parent = parentOf(s);
          return (
            <div
              key={s.id}
              role="row"
              tabIndex={-1}
              aria-rowindex={i + 2}
              class={`table-row ${s.id === selected ? "on" : ""} ${isEnded(s) ? "ended" : ""}`}
              style={{ gridTemplateColumns: GRID, height: ROW }}
              onClick={() => select(s.id)}
              onDblClick={() => open(s.id)}
            >
              <div role="cell" class="name">
                <Name of={s} />
              </div>
              <div role="cell" class="state">
                <StateBadge state={s.state} />
              </div>
              <div role="cell" class="template cut soft">
                {label(s.template)}
              </div>
              <div role="cell" class="from cut muted">
                {parent ? label(sandboxes.value.get(parent)?.name || parent) : "–"}
              </div>
              <div role="cell" class="limits muted cut">
                {s.resources.vcpus} × {bytes((s.resources.memory_mib ?? 0) * 1_048_576)}
              </div>
              <div role="cell" class="age num soft">
                {short(now.value - at(s.created_at))}
              </div>
              <div role="cell" class="active num muted">
                {short(now.value - at(s.last_active_at))}
              </div>
              <div role="cell" class="ends num muted">
                {s.expires_at && !isEnded(s) ? short(at(s.expires_at) - now.value) : "–"}
              </div>
              <div role="cell" class="metadata">
                {Object.entries(s.metadata ?? {})
                  .filter(([k]) => k !== "forked_from")
                  .slice(0, 3)
                  .map(([k, v]) => (
                    <span class="tag" key={k} title={label(`${k}=${v}`)}>
                      <span>{label(`${k}=${v}`, 60)}</span>
                    </span>
                  ))}
              </div>
            </div>
          );
        }}
      />
    </div>
  );
}
