import { describe, expect, it } from "vitest";
import type { Sandbox, Snapshot } from "../api/client";
import { layout, moments, stretches, timeScale } from "./tree";

const T0 = Date.parse("2026-01-01T00:00:00Z");

function box(id: string, at: number, more: Partial<Sandbox> = {}): Sandbox {
  return { id: `sbx-${id}`, name: id, state: "running", created_at: new Date(T0 + at * 1000).toISOString(), ...more } as Sandbox;
}
/** time is some seconds after the beginning, as the server writes it. */
const time = (seconds: number) => new Date(T0 + seconds * 1000).toISOString();
const names = (rows: ReturnType<typeof layout>) => rows.map((r) => `${"  ".repeat(r.depth)}${r.sandbox.name}`);

describe("layout", () => {
  it("puts the newest family first, and later children above earlier ones", () => {
    const rows = layout(
      [box("a", 0), box("a1", 10, { forked_from: "sbx-a" }), box("a2", 20, { forked_from: "sbx-a" }), box("b", 30)],
      [],
    );
    expect(names(rows)).toEqual(["b", "a", "  a2", "  a1"]);
    expect(rows[1]!.descendants).toBe(2);
    expect(rows[3]!.parent).toBe(1);
  });
  it("keeps the order of the children of one fork", () => {
    const child = (i: number) => box(`c-${i}`, 5 + i / 1e6, { forked_from: "sbx-a" });
    expect(names(layout([child(10), child(2), child(1), box("a", 0)], []))).toEqual(["a", "  c-1", "  c-2", "  c-10"]);
  });
  it("shows ancestors of what matches, and marks them", () => {
    const all = [box("a", 0), box("b", 1, { forked_from: "sbx-a" }), box("c", 2, { forked_from: "sbx-b" }), box("d", 3)];
    const rows = layout(all, [], (s) => s.name === "c");
    expect(names(rows)).toEqual(["a", "  b", "    c"]);
    expect(rows.map((r) => r.context)).toEqual([true, true, false]);
  });
  it("hides what is below a folded row, and says how much", () => {
    const rows = layout([box("a", 0), box("b", 1, { forked_from: "sbx-a" })], [], undefined, new Set(["sbx-a"]));
    expect(names(rows)).toEqual(["a"]);
    expect(rows[0]!.descendants).toBe(1);
  });
  it("leads what was made from a kept state out of the line whose state it was, at its instant", () => {
    const made = (id: string, at: number, of: string, state: number, more: Partial<Sandbox> = {}) =>
      box(id, at, { made_from: { sandbox_id: `sbx-${of}`, snapshot: "snap-gone", state_at: time(state) }, ...more });
    const rows = layout(
      [
        box("a", 0, { state: "killed", ended_at: time(40) }),
        box("fork", 10, { forked_from: "sbx-a" }),
        made("early", 50, "a", 5),
        made("late", 45, "a", 20),
        made("of-made", 60, "early", 55),
        made("lost", 44, "gone", 3),
        // What says both began as a fork.
        made("both", 30, "late", 2, { forked_from: "sbx-a" }),
      ],
      [],
    );
    expect(names(rows)).toEqual(["lost", "a", "  both", "  late", "  fork", "  early", "    of-made"]);
    const leaves = Object.fromEntries(rows.map((r) => [r.sandbox.name, (r.leaves - T0) / 1000]));
    expect(leaves).toEqual({ lost: 44, a: 0, both: 30, late: 20, fork: 10, early: 5, "of-made": 55 });
    expect(rows.map((r) => r.parent)).toEqual([-1, -1, 1, 1, 1, 1, 5]);
    expect(moments(rows).map((m) => (m - T0) / 1000)).toContain(5);
  });
  it("shows the ancestors of what was made from a kept state", () => {
    const all = [box("a", 0), box("b", 9, { made_from: { sandbox_id: "sbx-a", snapshot: "snap-1", state_at: time(3) } })];
    expect(names(layout(all, [], (s) => s.name === "b"))).toEqual(["a", "  b"]);
  });
  it("makes a root of a child whose parent is not known", () => {
    expect(names(layout([box("b", 1, { forked_from: "sbx-gone" })], []))).toEqual(["b"]);
  });
  it("tells snapshots from steps of a history", () => {
    const rows = layout(
      [box("a", 0)],
      [{ id: "s1", sandbox_id: "sbx-a" } as Snapshot, { id: "s2", sandbox_id: "sbx-a", automatic: true } as Snapshot],
    );
    expect(rows[0]!.snapshots.map((s) => s.id)).toEqual(["s1"]);
    expect(rows[0]!.steps.map((s) => s.id)).toEqual(["s2"]);
  });
  it("leads merges from the winner's row, which goes on unless it ended with the merge", () => {
    const merged = (seconds: number, id: string, more: object) =>
      ({ kind: "merged", at: time(seconds), sandbox_id: `sbx-${id}`, ...more }) as NonNullable<Sandbox["moments"]>[number];
    const rows = layout(
      [
        box("a", 0, {
          moments: [
            merged(5, "c", { merge: "files" }),
            merged(6, "gone", { merge: "files" }),
            merged(9, "b", { merge: "whole", kill_winner: true }),
          ],
        }),
        box("b", 1, { forked_from: "sbx-a", state: "killed", ended_at: time(9) }),
        box("c", 2, { forked_from: "sbx-a" }),
      ],
      [],
    );
    expect(names(rows)).toEqual(["a", "  c", "  b"]);
    expect(rows[0]!.merges).toEqual([
      { at: T0 + 5000, from: 1, winner: "sbx-c", files: true },
      { at: T0 + 6000, from: -1, winner: "sbx-gone", files: true },
      { at: T0 + 9000, from: 2, winner: "sbx-b", files: false },
    ]);
    expect(rows.map((r) => r.merged)).toEqual([false, false, true]);
  });
  it("leads restores back to the moment and the row whose state it was", () => {
    const restored = (id: string) =>
      ({ kind: "restored", at: time(9), sandbox_id: `sbx-${id}`, snapshot: "snap-1", state_at: time(3) }) as const;
    const rows = layout([box("a", 0, { moments: [restored("a"), restored("b"), restored("gone")] }), box("b", -1)], []);
    const back = { at: T0 + 9000, to: T0 + 3000, snapshot: "snap-1" };
    expect(rows[0]!.restores).toEqual([
      { ...back, from: 0 },
      { ...back, from: 1 },
      { ...back, from: -1 },
    ]);
  });
  it("ends for sandboxes that name each other as parents", () => {
    expect(layout([box("a", 0, { forked_from: "sbx-b" }), box("b", 1, { forked_from: "sbx-a" })], []).length).toBeLessThanOrEqual(
      2,
    );
  });
  it("lays out 5,000 sandboxes", () => {
    const all = Array.from({ length: 5000 }, (_, i) => box(`n${i}`, i, i % 50 ? { forked_from: `sbx-n${i - 1}` } : {}));
    const rows = layout(all, []);
    expect(rows).toHaveLength(5000);
    expect(moments(rows).length).toBeLessThanOrEqual(400);
  });
});

describe("stretches", () => {
  const paused = (begin: number, end?: number) => ({
    kind: "paused" as const,
    at: time(begin),
    until: end === undefined ? undefined : time(end),
  });
  const parts = (more: Partial<Sandbox>) =>
    stretches(layout([box("a", 0, more)], [])[0]!, T0 + 20_000).map(
      (x) => `${(x.begin - T0) / 1000}–${(x.end - T0) / 1000}${x.paused ? " paused" : ""}`,
    );
  it("is one line without pauses", () => {
    expect(parts({})).toEqual(["0–20"]);
    expect(parts({ ended_at: time(7), state: "killed" })).toEqual(["0–7"]);
  });
  it("has a gap for each pause", () => {
    expect(parts({ moments: [paused(2, 5), paused(8, 9)] })).toEqual(["0–2", "2–5 paused", "5–8", "8–9 paused", "9–20"]);
  });
  it("ends in a pause that lasts, or in which the sandbox ended", () => {
    expect(parts({ state: "paused", moments: [paused(2, 5), paused(8)] })).toEqual(["0–2", "2–5 paused", "5–8", "8–20 paused"]);
    expect(parts({ state: "killed", ended_at: time(11), moments: [paused(8)] })).toEqual(["0–8", "8–11 paused"]);
  });
  it("gives its turns room in a compact scale", () => {
    const rows = layout([box("a", 0, { moments: [paused(2, 5), paused(8)] })], []);
    expect(moments(rows).map((m) => (m - T0) / 1000)).toEqual([0, 2, 5, 8]);
  });
  it("has the latest moment last, whichever row it is of", () => {
    const rows = layout([box("a", 5, { moments: [paused(9)] }), box("b", 1)], []);
    expect(moments(rows).map((m) => (m - T0) / 1000)).toEqual([1, 5, 9]);
  });
});

describe("timeScale", () => {
  const points = [T0, T0 + 1000, T0 + 2000, T0 + 86_400_000];
  for (const mode of ["compact", "even"] as const) {
    it(`${mode}: begins at 0, ends at the width, and grows`, () => {
      const scale = timeScale(points, T0 + 90_000_000, 1000, mode);
      expect(scale.x(T0)).toBe(0);
      expect(scale.x(T0 + 90_000_000)).toBeCloseTo(1000);
      const xs = [0, 500, 1500, 5000, 1e7, 8e7].map((d) => scale.x(T0 + d));
      expect([...xs].sort((a, b) => a - b)).toEqual(xs);
    });
    it(`${mode}: time undoes x`, () => {
      const scale = timeScale(points, T0 + 90_000_000, 1000, mode);
      for (const d of [0, 700, 1999, 40_000_000]) expect(scale.time(scale.x(T0 + d))).toBeCloseTo(T0 + d, -1);
    });
  }
  it("compact gives seconds in a burst more room than a day of waiting would leave them", () => {
    const burst = (mode: "compact" | "even") => timeScale(points, T0 + 90_000_000, 1000, mode).x(T0 + 2000);
    expect(burst("compact")).toBeGreaterThan(50);
    expect(burst("even")).toBeLessThan(1);
  });
  it("shows only what is within a window", () => {
    const scale = timeScale(points, T0 + 90_000_000, 1000, "even", T0 + 89_000_000);
    expect(scale.x(T0)).toBe(0);
    expect(scale.x(T0 + 89_500_000)).toBeCloseTo(500);
  });
  it("bears a single moment", () => {
    expect(timeScale([T0], T0, 100, "compact").x(T0)).toBe(100);
  });
});
