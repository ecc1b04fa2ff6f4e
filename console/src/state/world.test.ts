import { describe, expect, it } from "vitest";
import type { Approval, Job, Sandbox, Snapshot } from "../api/client";
import { SSEParser } from "./sse";
import { apply, EMPTY, KEEP, listed, together, unheard } from "./world";

const box = (id: string, state = "running") => ({ id, state }) as Sandbox;

const click = (id: string, sandbox_id: string) => ({
  id,
  kind: "computer",
  sandbox_id,
  computer: { action: "input" as const, detail: "click" },
});

describe("apply", () => {
  it("adds and changes, and leaves the world before as it was", () => {
    const one = apply(EMPTY, [{ kind: "sandbox", sandbox: box("a") }]);
    const two = apply(one, [
      { kind: "sandbox", sandbox: box("a", "paused") },
      { kind: "snapshot", snapshot: { id: "s" } as Snapshot },
    ]);
    expect(EMPTY.sandboxes.size).toBe(0);
    expect(one.sandboxes.get("a")!.state).toBe("running");
    expect(two.sandboxes.get("a")!.state).toBe("paused");
    expect(apply(two, [{ kind: "sandbox_deleted", sandbox_id: "a" }]).sandboxes.has("a")).toBe(false);
    expect(apply(two, [{ kind: "snapshot_deleted", snapshot_id: "s" }]).snapshots.size).toBe(0);
  });
  it("has the questions that are open, and lets go of those that are answered or over", () => {
    const asked = (id: string, state = "open") => ({ kind: "approval.asked", approval: { id, state } as Approval });
    const two = apply(EMPTY, [asked("a"), asked("b")]);
    expect([...two.approvals.keys()]).toEqual(["a", "b"]);
    const over = apply(two, [
      { kind: "approval.answered", approval: { id: "a", state: "allowed" } as Approval },
      { kind: "approval.expired", approval: { id: "b", state: "expired" } as Approval },
    ]);
    expect(over.approvals.size).toBe(0);
    expect(listed(two, { approvals: [{ id: "c", state: "open" } as Approval] }).approvals.has("a")).toBe(false);
  });
  it("keeps the maps that no event touches", () => {
    const one = apply(EMPTY, [{ kind: "sandbox", sandbox: box("a") }]);
    expect(apply(one, [{ kind: "build", build: { id: "b" } }]).sandboxes).toBe(one.sandboxes);
  });
  it("bounds what a flood brings", () => {
    const jobs = Array.from({ length: KEEP.jobs + 5 }, (_, i) => ({ kind: "job", job: { id: `j${i}`, sandbox_id: "a" } as Job }));
    expect(apply(EMPTY, jobs).jobs.get("a")!.size).toBe(KEEP.jobs);
    const clicks = Array.from({ length: KEEP.actions + 5 }, (_, i) => click(`e${i}`, "a"));
    const kept = apply(EMPTY, clicks).actions.get("a")!;
    expect([kept.length, kept.at(-1)!.id]).toEqual([KEEP.actions, `e${KEEP.actions + 4}`]);
  });
  it.each([
    { kind: "sandbox", sandbox: box("a", "killed") },
    { kind: "sandbox_deleted", sandbox_id: "a" },
  ])("drops what was in a sandbox that ended: $kind", (end) => {
    const of = (id: string) => [
      { kind: "sandbox", sandbox: box(id) },
      { kind: "job", job: { id: "j", sandbox_id: id } as Job },
      click("e", id),
    ];
    const before = apply(EMPTY, [...of("a"), ...of("b")]);
    const after = apply(before, [end]);
    expect([[...after.jobs.keys()], [...after.actions.keys()]]).toEqual([["b"], ["b"]]);
    expect(before.jobs.size).toBe(2);
  });
  it("does not take up again what comes late of a sandbox that ended", () => {
    const world = apply(EMPTY, [
      { kind: "sandbox", sandbox: box("a", "failed") },
      { kind: "job", job: { id: "j", sandbox_id: "a" } as Job },
      click("e", "a"),
    ]);
    expect([world.jobs.size, world.actions.size]).toEqual([0, 0]);
  });
  it("keeps the sandboxes that ended last, and all that live", () => {
    const end = (i: number) => ({ ...box(`s${i}`, "killed"), ended_at: new Date(1e12 + i * 1000).toISOString() });
    // The newest comes first, so that the order of the events does not decide.
    const killed = Array.from({ length: KEEP.ended + 3 }, (_, i) => end(KEEP.ended + 2 - i));
    const world = apply(
      EMPTY,
      [box("lives"), ...killed].map((sandbox) => ({ kind: "sandbox", sandbox })),
    );
    expect(world.sandboxes.size).toBe(KEEP.ended + 1);
    expect(["lives", "s2", "s3"].map((id) => world.sandboxes.has(id))).toEqual([true, false, true]);
  });
  it("passes over what it does not know", () => {
    expect(apply(EMPTY, [{ kind: "of a later version" }, { kind: "sandbox" }, { kind: "job" }])).toEqual(EMPTY);
  });
});

describe("listed", () => {
  it("forgets what lists no longer have, and keeps the ended", () => {
    const world = apply(
      EMPTY,
      [box("a"), box("b"), box("c", "killed")].map((sandbox) => ({ kind: "sandbox", sandbox })),
    );
    const next = listed(world, { living: [box("a"), box("d")] });
    expect([...next.sandboxes.keys()].sort()).toEqual(["a", "c", "d"]);
  });
  it("takes who lives for living, whatever an older list said", () => {
    expect(listed(EMPTY, { living: [box("a")], ended: [box("a", "killed")] }).sandboxes.get("a")!.state).toBe("running");
  });
  it("keeps steps of histories, which lists do not have, as long as their sandbox lives", () => {
    const snap = (id: string, of: string, automatic: boolean) => ({ id, sandbox_id: of, automatic }) as Snapshot;
    const before = {
      ...EMPTY,
      snapshots: new Map([snap("s1", "a", true), snap("s2", "gone", true), snap("s3", "a", false)].map((s) => [s.id, s])),
    };
    const next = listed(before, { living: [box("a")], ended: [], snapshots: [snap("s4", "a", false)] });
    expect([...next.snapshots.keys()]).toEqual(["s1", "s4"]);
  });
});

describe("unheard and together", () => {
  it("forgets jobs and builds, and keeps the rest", () => {
    const world = apply(EMPTY, [
      { kind: "sandbox", sandbox: box("a") },
      { kind: "job", job: { id: "j", sandbox_id: "a" } as Job },
      { kind: "build", build: { id: "b" } },
    ]);
    const next = unheard(world);
    expect([next.jobs.size, next.builds.size, next.sandboxes.size]).toEqual([0, 0, 1]);
  });
  it("takes what has ended for ended, whoever says so", () => {
    const runs = { id: "x", state: "running" };
    const ended = { id: "x", state: "exited", ended_at: "2026-01-01T00:00:00Z" };
    expect(together([ended], [runs]).get("x")).toBe(ended);
    expect(together([runs], [ended]).get("x")).toBe(ended);
    expect(together([{ ...runs }], [runs]).get("x")).toBe(runs);
    expect([...together([runs], [{ ...runs, id: "y" }]).keys()]).toEqual(["x", "y"]);
  });
});

describe("SSEParser", () => {
  const read = (text: string) => {
    const parser = new SSEParser();
    return text
      .split("\n")
      .map((l) => parser.line(l))
      .filter(Boolean);
  };
  it("reads events, with ids that last", () => {
    expect(read('id: 7\r\nevent: x\ndata: {"a":\ndata: 1}\n\n: comment\ndata:y\n\n\n')).toEqual([
      { id: "7", event: "x", data: '{"a":\n1}' },
      { id: "7", event: undefined, data: "y" },
    ]);
  });
  it("keeps what is not whole to itself", () => {
    expect(read("data: half")).toEqual([]);
  });
});
