// What the console knows, and how an event of the server changes it: pure, so
// that it is tested without a browser.
import type { Approval, Build, Job, Sandbox, Schemas, Snapshot } from "../api/client";

/** The kinds of events that are followed: all but samples, of which those of one sandbox are asked for where they are shown. */
export const KINDS = [
  "sandbox",
  "sandbox_deleted",
  "snapshot",
  "snapshot_deleted",
  "job",
  "build",
  "computer",
  "approval.asked",
  "approval.answered",
  "approval.expired",
];

/** An event of GET /v1/events. */
export interface CoveEvent {
  id?: string;
  at?: string;
  kind: string;
  sandbox_id?: string;
  missed?: boolean;
  sandbox?: Sandbox;
  snapshot?: Snapshot;
  snapshot_id?: string;
  job?: Job;
  build?: Build;
  approval?: Approval;
  computer?: Schemas["ComputerAction"];
}

export interface World {
  sandboxes: ReadonlyMap<string, Sandbox>;
  snapshots: ReadonlyMap<string, Snapshot>;
  /** The newest jobs of each sandbox that said something. */
  jobs: ReadonlyMap<string, ReadonlyMap<string, Job>>;
  builds: ReadonlyMap<string, Build>;
  /** What was done last with each computer, as events, the oldest first. */
  actions: ReadonlyMap<string, readonly CoveEvent[]>;
  /** The open questions of network policies. */
  approvals: ReadonlyMap<string, Approval>;
}

export const EMPTY: World = {
  sandboxes: new Map(),
  snapshots: new Map(),
  jobs: new Map(),
  builds: new Map(),
  actions: new Map(),
  approvals: new Map(),
};

/** Bounds of what is kept, of each sandbox, and of ended sandboxes at all. */
export const KEEP = { jobs: 300, actions: 50, ended: 2000 };

export function isEnded(s: Pick<Sandbox, "state">): boolean {
  return s.state === "killed" || s.state === "failed";
}

/** apply returns the world after some events, in their order. The one before stays as it is. */
export function apply(world: World, events: readonly CoveEvent[]): World {
  const next = { ...world };
  // Each map is copied at most once for all events.
  const fresh = new Set<keyof World>();
  const own = <V>(name: keyof World): Map<string, V> => {
    if (!fresh.has(name)) {
      fresh.add(name);
      (next as Record<string, unknown>)[name] = new Map(next[name] as ReadonlyMap<string, unknown>);
    }
    return next[name] as unknown as Map<string, V>;
  };
  // What ran in a sandbox that has ended is not shown any more.
  const forget = (id: string) => {
    if (next.jobs.has(id)) own("jobs").delete(id);
    if (next.actions.has(id)) own("actions").delete(id);
  };
  const over = (id: string) => {
    const s = next.sandboxes.get(id);
    return !!s && isEnded(s);
  };
  for (const ev of events) {
    const id = ev.sandbox_id ?? ev.sandbox?.id ?? ev.job?.sandbox_id;
    if (ev.kind === "sandbox" && ev.sandbox) {
      own<Sandbox>("sandboxes").set(ev.sandbox.id, ev.sandbox);
      if (isEnded(ev.sandbox)) forget(ev.sandbox.id);
    } else if (ev.kind === "sandbox_deleted" && id) {
      own<Sandbox>("sandboxes").delete(id);
      forget(id);
    } else if (ev.kind === "snapshot" && ev.snapshot) own<Snapshot>("snapshots").set(ev.snapshot.id, ev.snapshot);
    else if (ev.kind === "snapshot_deleted" && ev.snapshot_id) own<Snapshot>("snapshots").delete(ev.snapshot_id);
    else if (ev.kind === "build" && ev.build?.id) own<Build>("builds").set(ev.build.id, ev.build);
    else if (ev.approval) {
      const asked = own<Approval>("approvals");
      if (ev.approval.state === "open") asked.set(ev.approval.id, ev.approval);
      else asked.delete(ev.approval.id);
    } else if (ev.kind === "job" && ev.job && id && !over(id)) {
      const jobs = own<ReadonlyMap<string, Job>>("jobs");
      jobs.set(id, bounded(new Map(jobs.get(id)).set(ev.job.id, ev.job), KEEP.jobs));
    } else if (ev.computer && id && !over(id)) {
      const actions = own<readonly CoveEvent[]>("actions");
      actions.set(id, [...(actions.get(id) ?? []), ev].slice(-KEEP.actions));
    }
  }
  if (fresh.has("sandboxes")) dropOldest(own<Sandbox>("sandboxes"));
  return next;
}

/** dropOldest leaves the sandboxes that ended last, as many as are kept. */
function dropOldest(sandboxes: Map<string, Sandbox>): void {
  const ended = [...sandboxes.values()].filter(isEnded);
  if (ended.length <= KEEP.ended) return;
  const when = (s: Sandbox) => Date.parse(s.ended_at ?? "") || 0;
  ended.sort((a, b) => when(a) - when(b));
  for (const s of ended.slice(0, ended.length - KEEP.ended)) sandboxes.delete(s.id);
}

/** unheard forgets what only events tell, after some were missed: a job that ended unheard would run for ever. */
export function unheard(world: World): World {
  return { ...world, jobs: EMPTY.jobs, builds: EMPTY.builds };
}

/** together puts what a page has listed and what events told together, by id: what has ended does not run again. */
export function together<T extends { id?: string; ended_at?: string | null }>(
  listed: readonly T[],
  heard: Iterable<T>,
): Map<string, T> {
  const map = new Map(listed.map((x) => [x.id!, x]));
  for (const x of heard) if (x.ended_at || !map.get(x.id!)?.ended_at) map.set(x.id!, x);
  return map;
}

/** listed replaces what lists say: sandboxes that they no longer have are forgotten. */
export function listed(
  world: World,
  lists: { living?: Sandbox[]; ended?: Sandbox[]; snapshots?: Snapshot[]; approvals?: Approval[] },
): World {
  const next = { ...world };
  if (lists.living || lists.ended) {
    const sandboxes = new Map<string, Sandbox>();
    const ended = lists.ended ?? [...world.sandboxes.values()].filter(isEnded);
    const living = lists.living ?? [...world.sandboxes.values()].filter((s) => !isEnded(s));
    for (const s of ended.slice(0, KEEP.ended)) sandboxes.set(s.id, s);
    for (const s of living) sandboxes.set(s.id, s);
    next.sandboxes = sandboxes;
  }
  if (lists.approvals) next.approvals = new Map(lists.approvals.map((a) => [a.id, a]));
  if (lists.snapshots) {
    // The lists have no steps of histories; those end with their sandbox.
    const lives = (id: string) => next.sandboxes.has(id) && !isEnded(next.sandboxes.get(id)!);
    const steps = [...world.snapshots.values()].filter((s) => s.automatic && lives(s.sandbox_id));
    next.snapshots = new Map([...steps, ...lists.snapshots].map((s) => [s.id, s]));
  }
  return next;
}

function bounded<V>(map: Map<string, V>, most: number): Map<string, V> {
  for (const key of map.keys()) {
    if (map.size <= most) break;
    map.delete(key);
  }
  return map;
}
