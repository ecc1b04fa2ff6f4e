// The turns of the sandboxes in the family tree: merges into them, and restores.
import type { ComponentChildren } from "preact";
import { clock } from "../lib/format";
import { label } from "../lib/text";
import type { Restore, Row, Scale } from "../lib/tree";

interface Props {
  rows: Row[];
  first: number;
  last: number;
  scale: Scale;
  /** y is the middle of a row. */
  y: (row: number) => number;
  select: (id: string) => void;
}

/** Turns draws those that are seen between row first and row last. */
export function Turns({ rows, first, last, scale, y, select }: Props) {
  const drawn: ComponentChildren[] = [];
  const here = (i: number) => i >= first && i < last;
  const far = new Set<string>();
  // Whether a line between two rows is drawn: those that come from elsewhere to the same
  // place look alike.
  const drawsLine = (from: number, to: number, x: number): boolean => {
    if (from < 0 || Math.max(from, to) < first || Math.min(from, to) >= last) return false;
    const where = `${Math.round(x)} ${to}`;
    if (!here(from) && far.has(where)) return false;
    if (!here(from)) far.add(where);
    return true;
  };
  const pick = (r: Row, back: Restore) => {
    const of = rows[back.from];
    const known = of && [...of.snapshots, ...of.steps].some((s) => s.id === back.snapshot);
    select(known ? back.snapshot : r.sandbox.id);
  };
  for (const [i, r] of rows.entries()) {
    for (const m of r.merges) {
      const x = scale.x(m.at);
      const line = drawsLine(m.from, i, x);
      if (!line && !here(i)) continue;
      const winner = rows[m.from]?.sandbox.name || m.winner;
      drawn.push(
        <g key={`${r.sandbox.id} ${m.at}`} class="merge">
          {line && <path d={`M${x} ${y(m.from)}C${x + 14} ${y(m.from)} ${x + 14} ${y(i)} ${x + 1} ${y(i)}`} />}
          <circle cx={x} cy={y(i)} r="3.5">
            <title>{`${m.files ? "files of " : ""}${label(winner)} merged here, ${clock(m.at)}`}</title>
          </circle>
        </g>,
      );
    }
    for (const back of r.restores) {
      const x = scale.x(back.at);
      const to = scale.x(back.to);
      const line = back.from !== i && drawsLine(back.from, i, x);
      if (!line && !here(i)) continue;
      drawn.push(
        <g
          key={`${r.sandbox.id} ${back.at}`}
          class="restore"
          onClick={(e) => {
            e.stopPropagation();
            pick(r, back);
          }}
        >
          {back.from === i && <path d={wayBack(x, to, y(i))} />}
          {line && <path d={`M${x} ${y(i)}C${x - 14} ${y(i)} ${to + 14} ${y(back.from)} ${to} ${y(back.from)}`} />}
          <circle cx={x} cy={y(i)} r="3.5" />
          <title>{`restored at ${clock(back.at)} to the state of ${clock(back.to)}`}</title>
        </g>,
      );
    }
  }
  return <>{drawn}</>;
}

/** wayBack leads above a lane from one moment of it back to another, at which it has a tip. */
function wayBack(x: number, to: number, lane: number): string {
  const top = lane - 13;
  const bend = Math.max(0, Math.min(5, (x - to) / 2));
  const line = `M${x} ${lane - 4}V${top + bend}Q${x} ${top} ${x - bend} ${top}H${to + bend}Q${to} ${top} ${to} ${top + bend}V${lane - 6}`;
  return `${line}M${to - 3} ${lane - 9}L${to} ${lane - 6}L${to + 3} ${lane - 9}`;
}
