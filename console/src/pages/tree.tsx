// The family tree over time: names to the left, lanes to the right. Only the
// rows that are seen are drawn.
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import type { Snapshot } from "../api/client";
import { at, clock, day, short, span } from "../lib/format";
import { label } from "../lib/text";
import { moments, type Row, type Scale, stretches, timeScale } from "../lib/tree";
import { Icon } from "../ui/icons";
import { Button, Name, StateDot } from "../ui/kit";
import { Turns } from "./turns";

const ROW = 34;
const NAMES = 268;
const RIGHT = 28;
/** Room for the mark of a sandbox that was made at the very beginning. */
const LEFT = 10;

interface Props {
  rows: Row[];
  selected?: string;
  at: number;
  select: (id: string) => void;
  open: (id: string) => void;
  folded: ReadonlySet<string>;
  fold: (id: string) => void;
}

const WINDOWS: [string, number | undefined][] = [
  ["All", undefined],
  ["15 min", 15 * 60_000],
  ["1 h", 3_600_000],
  ["24 h", 86_400_000],
];

export function Tree({ rows, selected, at: current, select, open, folded, fold }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const size = useSignal({ width: 1000, height: 600, top: 0 });
  const now = useSignal(Date.now());
  const back = useSignal<number | undefined>(undefined);
  const even = useSignal(false);
  const cursor = useSignal<number | undefined>(undefined);

  useLayoutEffect(() => {
    const el = box.current!;
    const seen = () => {
      size.value = { width: el.clientWidth, height: el.clientHeight, top: el.scrollTop };
    };
    seen();
    const watch = new ResizeObserver(seen);
    watch.observe(el);
    el.addEventListener("scroll", seen, { passive: true });
    const timer = setInterval(() => {
      if (!document.hidden) now.value = Date.now();
    }, 2000);
    return () => {
      watch.disconnect();
      el.removeEventListener("scroll", seen);
      clearInterval(timer);
    };
  }, []);
  useEffect(() => {
    const el = box.current;
    if (!el || current < 0) return;
    const head = 30;
    if (current * ROW < el.scrollTop) el.scrollTop = current * ROW;
    else if ((current + 1) * ROW + head > el.scrollTop + el.clientHeight)
      el.scrollTop = (current + 1) * ROW + head - el.clientHeight;
  }, [current]);

  const narrow = size.value.width < 640;
  const names = narrow ? Math.min(190, size.value.width * 0.5) : NAMES;
  const width = Math.max(120, size.value.width - names - LEFT - RIGHT);
  const points = useMemo(() => moments(rows), [rows]);
  const latest = Math.max(now.value, ...points.slice(-1));
  const scale = useMemo(
    () =>
      timeScale(
        points,
        latest,
        width,
        even.value ? "even" : "compact",
        back.value === undefined ? undefined : latest - back.value,
      ),
    [points, latest, width, even.value, back.value],
  );
  const first = Math.max(0, Math.floor(size.value.top / ROW) - 6);
  const last = Math.min(rows.length, Math.ceil((size.value.top + size.value.height) / ROW) + 6);
  const height = rows.length * ROW;

  return (
    <div class="tree">
      <div class="tree-tools">
        <div class="seg">
          {WINDOWS.map(([text, ms]) => (
            <Button
              key={text}
              small
              aria-pressed={back.value === ms}
              onClick={() => {
                back.value = ms;
              }}
            >
              {text}
            </Button>
          ))}
        </div>
        <Button
          small
          kind="ghost"
          aria-pressed={even.value}
          title="Give each second the same room"
          onClick={() => {
            even.value = !even.value;
          }}
        >
          Even time
        </Button>
        <span class="grow" />
        <span class="legend small muted">
          <span>
            <i class="l-bar" />
            running
          </span>
          <span>
            <i class="l-bar paused" />
            paused
          </span>
          <span>
            <i class="l-snap" />
            snapshot
          </span>
          <span>
            <i class="l-merge" />
            merge
          </span>
          <span>
            <Icon name="back" size={11} class="l-restore" />
            restore
          </span>
        </span>
      </div>
      <div class="tree-box" ref={box} tabIndex={0} role="region" aria-label="Family tree over time">
        <div class="tree-head" style={{ paddingLeft: names + LEFT }} aria-hidden="true">
          <svg width={width + RIGHT} height="29">
            {scale.ticks.map((t, i) => {
              const room = i === 0 ? "start" : i === scale.ticks.length - 1 ? "end" : "middle";
              return (
                <text key={t.x} x={t.x} y="18" text-anchor={room} class="tick">
                  {i === scale.ticks.length - 1 ? "now" : latest - t.time > 86_400_000 ? day(t.time) : clock(t.time)}
                </text>
              );
            })}
          </svg>
        </div>
        <div class="tree-body" style={{ height }}>
          <svg
            class="lanes"
            style={{ left: names, top: first * ROW }}
            viewBox={`${-LEFT} 0 ${LEFT + width + RIGHT} ${(last - first) * ROW}`}
            width={LEFT + width + RIGHT}
            height={(last - first) * ROW}
            aria-hidden="true"
            onPointerMove={(e) => {
              const x = e.offsetX - LEFT;
              cursor.value = x >= 0 && x <= width && e.pointerType === "mouse" ? x : undefined;
            }}
            onPointerLeave={() => {
              cursor.value = undefined;
            }}
          >
            <Lanes
              rows={rows}
              first={first}
              last={last}
              scale={scale}
              width={width}
              current={current}
              selected={selected}
              select={select}
              open={open}
              now={latest}
            />
            {cursor.value !== undefined && (
              <g class="cursor">
                <line x1={cursor.value} x2={cursor.value} y1="0" y2={(last - first) * ROW} />
                <text
                  x={cursor.value + (cursor.value > width - 90 ? -6 : 6)}
                  y={Math.max(0, size.value.top - first * ROW) + 12}
                  text-anchor={cursor.value > width - 90 ? "end" : "start"}
                >
                  {clock(scale.time(cursor.value))}
                </text>
              </g>
            )}
          </svg>
          <div role="tree" aria-label="Sandboxes">
            {rows.slice(first, last).map((r, i) => (
              <div
                key={r.sandbox.id}
                role="treeitem"
                tabIndex={-1}
                aria-level={r.depth + 1}
                aria-selected={r.sandbox.id === selected}
                aria-expanded={r.descendants ? !folded.has(r.sandbox.id) : undefined}
                class={`tree-row ${r.sandbox.id === selected ? "on" : ""} ${r.context ? "context" : ""} ${Number.isFinite(r.end) ? "ended" : ""}`}
                style={{ top: (first + i) * ROW, height: ROW }}
                onClick={() => select(r.sandbox.id)}
                onDblClick={() => open(r.sandbox.id)}
              >
                <div class="tree-name" style={{ width: names, paddingLeft: 10 + Math.min(r.depth, narrow ? 4 : 8) * 14 }}>
                  {r.descendants > 0 ? (
                    <button
                      type="button"
                      class="twisty"
                      tabIndex={-1}
                      aria-label={folded.has(r.sandbox.id) ? "Unfold" : "Fold"}
                      onClick={(e) => {
                        e.stopPropagation();
                        fold(r.sandbox.id);
                      }}
                    >
                      <Icon name={folded.has(r.sandbox.id) ? "right" : "down"} size={11} />
                    </button>
                  ) : (
                    <span class="twisty" />
                  )}
                  <StateDot state={r.sandbox.state} />
                  <Name of={r.sandbox} class="grow" />
                  {folded.has(r.sandbox.id) && <span class="count">{r.descendants}</span>}
                  {!narrow && <span class="muted small">{short((Number.isFinite(r.end) ? r.end : latest) - r.begin)}</span>}
                </div>
              </div>
            ))}
          </div>
        </div>
      </div>
    </div>
  );
}

interface LaneProps {
  rows: Row[];
  first: number;
  last: number;
  scale: Scale;
  width: number;
  now: number;
  /** The row whose steps are drawn. */
  current: number;
  selected?: string;
  select: (id: string) => void;
  open: (id: string) => void;
}

/** Lanes draws what is to the right of the names, from row first to row last. */
function Lanes({ rows, first, last, scale, width, now, current, selected, select, open }: LaneProps) {
  const y = (i: number) => (i - first) * ROW + ROW / 2;
  const branches = [];
  // Of the branches that pass to rows below, those at the same place are one line.
  const passing = new Map<number, { x: number; from: number; on: boolean }>();
  for (let i = first; i < rows.length; i++) {
    const r = rows[i]!;
    if (r.parent < 0 || r.parent >= last) continue;
    const x = scale.x(r.leaves);
    const from = Math.max(y(r.parent), -ROW);
    const on = r.sandbox.id === selected;
    if (i >= last) {
      const at = Math.round(x);
      const same = passing.get(at);
      passing.set(at, { x: at, from: Math.min(from, same?.from ?? from), on: on || !!same?.on });
      continue;
    }
    const to = y(i);
    const bend = Math.min(7, width - x);
    const begin = Math.max(x + bend, scale.x(r.begin));
    branches.push(
      <path
        key={r.sandbox.id}
        class={`branch ${r.leaves < r.begin ? "kept" : ""} ${on ? "on" : ""}`}
        d={`M${x} ${from}V${to - bend}Q${x} ${to} ${x + bend} ${to}H${begin}`}
      />,
    );
  }
  for (const { x, from, on } of passing.values())
    branches.push(<path key={x} class={`branch ${on ? "on" : ""}`} d={`M${x} ${from}V${(last - first + 1) * ROW}`} />);
  return (
    <>
      {scale.ticks.map((t) => (
        <line key={t.x} class="grid" x1={t.x} x2={t.x} y1="0" y2={(last - first) * ROW} />
      ))}
      {branches}
      {rows.slice(first, last).map((r, k) => {
        const cy = y(first + k);
        const x1 = scale.x(r.begin);
        const ended = Number.isFinite(r.end);
        const x2 = Math.max(x1 + 3, scale.x(ended ? r.end : now));
        const parts = stretches(r, now);
        const paused = !ended && parts.at(-1)!.paused;
        const name = label(r.sandbox.name || r.sandbox.id);
        return (
          <g
            key={r.sandbox.id}
            class={`lane ${r.sandbox.state} ${r.sandbox.id === selected ? "on" : ""} ${r.context ? "context" : ""}`}
            onClick={() => select(r.sandbox.id)}
            onDblClick={() => open(r.sandbox.id)}
          >
            <rect class="hit" x={-LEFT} y={cy - ROW / 2} width={LEFT + width + RIGHT} height={ROW} />
            {parts.map((p, i) => (
              <line
                key={p.begin}
                class={`bar ${p.paused ? "held" : ""}`}
                x1={scale.x(p.begin)}
                x2={i === parts.length - 1 ? x2 : scale.x(p.end)}
                y1={cy}
                y2={cy}
              >
                <title>
                  {p.paused
                    ? `${name}: paused at ${clock(p.begin)}, for ${span(p.end - p.begin)}`
                    : `${name}: ${r.sandbox.state}, ${span((ended ? r.end : now) - r.begin)}`}
                </title>
              </line>
            ))}
            <circle class="birth" cx={x1} cy={cy} r="4" />
            {ended && !r.merged && (
              <path class="death" d={`M${x2 - 3} ${cy - 4}L${x2 + 4} ${cy + 4}M${x2 + 4} ${cy - 4}L${x2 - 3} ${cy + 4}`} />
            )}
            {!ended && !paused && <circle class="alive" cx={x2} cy={cy} r="4" />}
            {first + k === current && <Steps of={r.steps} scale={scale} y={cy} selected={selected} select={select} />}
            {r.snapshots.map((s) => {
              const x = scale.x(at(s.created_at));
              return (
                <path
                  key={s.id}
                  class={`snap ${s.id === selected ? "on" : ""}`}
                  d={`M${x} ${cy - 6}L${x + 6} ${cy}L${x} ${cy + 6}L${x - 6} ${cy}Z`}
                  onClick={(e) => {
                    e.stopPropagation();
                    select(s.id);
                  }}
                >
                  <title>{`snapshot ${label(s.name || s.label || s.id)}, ${clock(s.created_at)}`}</title>
                </path>
              );
            })}
          </g>
        );
      })}
      <Turns rows={rows} first={first} last={last} scale={scale} y={y} select={select} />
    </>
  );
}

interface StepsProps {
  of: Snapshot[];
  scale: Scale;
  y: number;
  selected?: string;
  select: (id: string) => void;
}

/** Steps draws the steps of a history. */
function Steps({ of, scale, y, selected, select }: StepsProps) {
  return (
    <>
      {of.map((s) => (
        <path
          key={s.id}
          class={`step ${s.id === selected ? "on" : ""}`}
          d={`M${scale.x(at(s.created_at))} ${y - 7}v14`}
          onClick={(e) => {
            e.stopPropagation();
            select(s.id);
          }}
        >
          <title>{`step ${label(s.label)}, ${clock(s.created_at)}`}</title>
        </path>
      ))}
    </>
  );
}
