// The family tree over time: which row each sandbox has, and where a moment is.
// Pure, and tested.
import type { Sandbox, Snapshot } from "../api/client";
import { at, byName } from "./format";

export interface Row {
  sandbox: Sandbox;
  depth: number;
  /** The parent's row, or -1. */
  parent: number;
  /** How many rows below belong to it. */
  descendants: number;
  begin: number;
  /** When its line leaves the parent's: at the instant of a fork, or of the kept state that it began with. */
  leaves: number;
  /** NaN while it lives. */
  end: number;
  /** The pauses, in their order; the end of one that lasts is NaN. */
  pauses: { begin: number; end: number }[];
  restores: Restore[];
  /** The merges into it. */
  merges: Merge[];
  /** It ended as the winner of a merge: its line goes on in another. */
  merged: boolean;
  snapshots: Snapshot[];
  /** The steps of its history that are known. */
  steps: Snapshot[];
  /** It is here only because a descendant matches. */
  context: boolean;
}

export interface Restore {
  at: number;
  /** The moment whose state it went back to. */
  to: number;
  /** The row whose state that was, or -1. */
  from: number;
  snapshot: string;
}

export interface Merge {
  at: number;
  /** The winner's row, or -1. */
  from: number;
  winner: string;
  files: boolean;
}

/** parentOf is the sandbox whose state another began with: of a fork its parent, and of what was made
 * from a snapshot or a step the sandbox of that. */
export function parentOf(s: Sandbox): string | undefined {
  return s.forked_from || s.made_from?.sandbox_id || undefined;
}

/** leaves is when the line of a sandbox leaves its parent's. */
function leaves(s: Sandbox): number {
  return s.forked_from ? at(s.created_at) : at(s.made_from?.state_at ?? s.created_at);
}

/** layout puts sandboxes into rows: a family stays together, the newest family is first, and each
 * child stands below its parent, those whose lines leave it later first, so that no branch crosses a bar. With a filter
 * there are the sandboxes that match and their ancestors; folded ones hide their descendants. */
export function layout(
  sandboxes: Iterable<Sandbox>,
  snapshots: Iterable<Snapshot>,
  matches: (s: Sandbox) => boolean = () => true,
  folded: ReadonlySet<string> = new Set(),
): Row[] {
  const all = new Map<string, Sandbox>();
  for (const s of sandboxes) all.set(s.id, s);
  const shown = new Map<string, boolean>();
  for (const s of all.values()) {
    if (!matches(s)) continue;
    shown.set(s.id, true);
    let up = all.get(parentOf(s) ?? "");
    while (up && !shown.has(up.id)) {
      shown.set(up.id, false);
      up = all.get(parentOf(up) ?? "");
    }
  }
  // An ancestor may match by itself.
  for (const [id, direct] of shown) if (!direct && matches(all.get(id)!)) shown.set(id, true);

  const children = new Map<string, Sandbox[]>();
  const roots: Sandbox[] = [];
  for (const id of shown.keys()) {
    const s = all.get(id)!;
    const parent = parentOf(s);
    if (!parent || parent === id || !shown.has(parent)) roots.push(s);
    else if (children.has(parent)) children.get(parent)!.push(s);
    else children.set(parent, [s]);
  }
  const later = (when: (s: Sandbox) => number) => (a: Sandbox, b: Sandbox) => {
    const d = when(b) - when(a);
    // Those of one fork are made within the same instant: they keep their order.
    if (Math.abs(d) > 5) return d;
    return byName(a.name ?? a.id, b.name ?? b.id);
  };
  roots.sort(later((s) => at(s.created_at)));
  for (const list of children.values()) list.sort(later(leaves));

  const kept = new Map<string, Snapshot[]>();
  const steps = new Map<string, Snapshot[]>();
  for (const snap of snapshots) {
    const by = snap.automatic ? steps : kept;
    const list = by.get(snap.sandbox_id);
    if (list) list.push(snap);
    else by.set(snap.sandbox_id, [snap]);
  }

  const rows: Row[] = [];
  const place = new Map<string, number>();
  const visit = (s: Sandbox, depth: number, parent: number) => {
    const index = rows.length;
    place.set(s.id, index);
    const row: Row = {
      sandbox: s,
      depth,
      parent,
      descendants: 0,
      begin: at(s.created_at),
      leaves: parent < 0 ? at(s.created_at) : leaves(s),
      end: at(s.ended_at),
      pauses: [],
      restores: [],
      merges: [],
      merged: false,
      snapshots: kept.get(s.id) ?? [],
      steps: steps.get(s.id) ?? [],
      context: !shown.get(s.id),
    };
    rows.push(row);
    const below = children.get(s.id) ?? [];
    if (folded.has(s.id)) row.descendants = below.length;
    else {
      for (const child of below) visit(child, depth + 1, index);
      row.descendants = rows.length - index - 1;
    }
  };
  for (const root of roots) visit(root, 0, -1);
  for (const row of rows) {
    for (const m of row.sandbox.moments ?? []) {
      const when = at(m.at);
      const other = m.sandbox_id ?? "";
      const from = place.get(other) ?? -1;
      if (m.kind === "paused") row.pauses.push({ begin: when, end: at(m.until) });
      else if (m.kind === "restored") row.restores.push({ at: when, to: at(m.state_at), from, snapshot: m.snapshot ?? "" });
      else if (m.kind === "merged") {
        row.merges.push({ at: when, from, winner: other, files: m.merge === "files" });
        if (m.kill_winner && from >= 0) rows[from]!.merged = true;
      }
    }
  }
  return rows;
}

/** stretches are the parts of a sandbox's line, in their order: it runs, or it is paused. */
export function stretches(r: Row, now: number): { begin: number; end: number; paused: boolean }[] {
  const last = Number.isFinite(r.end) ? r.end : now;
  const all = [];
  let from = r.begin;
  for (const p of r.pauses) {
    const end = Number.isFinite(p.end) ? p.end : last;
    all.push({ begin: from, end: p.begin, paused: false }, { begin: p.begin, end, paused: true });
    from = end;
  }
  if (from < last || !all.length) all.push({ begin: from, end: last, paused: false });
  return all;
}

export interface Scale {
  /** x is where a moment is, 0 to width. */
  x(time: number): number;
  /** time is the moment at a place. */
  time(x: number): number;
  /** Some moments to name, with their places. */
  ticks: { x: number; time: number }[];
}

/** timeScale maps moments to 0…width. "even" shows time as it passes; "compact" gives long
 * stretches in which nothing happens less room, so that an hour of waiting does not hide the
 * seconds in which a family was made. */
export function timeScale(
  moments: readonly number[],
  now: number,
  width: number,
  mode: "compact" | "even",
  from?: number,
): Scale {
  let points = [...new Set([...moments.filter((m) => Number.isFinite(m) && m <= now), now])].sort((a, b) => a - b);
  if (from !== undefined) points = [from, ...points.filter((p) => p > from)];
  if (points.length < 2) points = [points[0]! - 60_000, points[0]!];
  const first = points[0]!;
  const last = points[points.length - 1]!;
  if (mode === "even") points = [first, last];
  const sums = [0];
  for (let i = 1; i < points.length; i++) {
    const gap = points[i]! - points[i - 1]!;
    sums.push(sums[i - 1]! + (mode === "even" ? gap : weight(gap)));
  }
  const total = sums[sums.length - 1]! || 1;
  const along = (list: readonly number[], v: number): number => {
    let lo = 0;
    let hi = list.length - 1;
    while (hi - lo > 1) {
      const mid = (lo + hi) >> 1;
      if (list[mid]! <= v) lo = mid;
      else hi = mid;
    }
    return lo;
  };
  const x = (t: number): number => {
    const clamped = Math.min(Math.max(t, first), last);
    const i = along(points, clamped);
    const part = (clamped - points[i]!) / (points[i + 1]! - points[i]! || 1);
    return ((sums[i]! + part * (sums[i + 1]! - sums[i]!)) / total) * width;
  };
  const time = (px: number): number => {
    const v = (Math.min(Math.max(px, 0), width) / width) * total;
    const i = along(sums, v);
    const part = (v - sums[i]!) / (sums[i + 1]! - sums[i]! || 1);
    return points[i]! + part * (points[i + 1]! - points[i]!);
  };
  const ticks: Scale["ticks"] = [];
  const many = Math.max(1, Math.floor(width / 120));
  for (let i = 0; i <= many; i++) ticks.push({ x: (i / many) * width, time: time((i / many) * width) });
  return { x, time, ticks };
}

/** weight is the room of a stretch of time, in milliseconds. */
function weight(gap: number): number {
  return Math.log2(1 + gap / 250) ** 1.25 + 0.05;
}

/** moments are those that a compact scale gives room to, at most some hundreds, the latest last. */
export function moments(rows: readonly Row[], most = 400): number[] {
  const all: number[] = [];
  for (const r of rows) {
    all.push(r.begin, r.end);
    if (r.leaves < r.begin) all.push(r.leaves);
    for (const p of r.pauses) all.push(p.begin, p.end);
    for (const x of r.restores) all.push(x.at);
    for (const m of r.merges) all.push(m.at);
    for (const s of r.snapshots) all.push(at(s.created_at));
  }
  const known = all.filter(Number.isFinite).sort((a, b) => a - b);
  if (known.length <= most) return known;
  const step = (known.length - 1) / (most - 1);
  return Array.from({ length: most }, (_, i) => known[Math.round(i * step)]!);
}
