// Keeps the world up to date by the server's event stream.
import { computed, signal } from "@preact/signals";
import { ApiError, api, lines, pages, type Sandbox, send, want } from "../api/client";
import { again } from "../lib/again";
import { whileShown } from "../lib/shown";
import { SSEParser } from "./sse";
import { apply, type CoveEvent, EMPTY, isEnded, KINDS, listed, unheard, type World } from "./world";

export const world = signal<World>(EMPTY);
/** Whether the first lists are there. */
export const loaded = signal(false);
/** Whether events come. */
export const connection = signal<"connecting" | "events" | "lost">("connecting");
export const loadError = signal("");
/** How often all was listed anew, because events may have been missed: what a page has listed by itself is old then too. */
export const listedAt = signal(0);

export const sandboxes = computed(() => world.value.sandboxes);
export const snapshots = computed(() => world.value.snapshots);
/** Snapshots that somebody asked for: those of a history are not among them. */
export const kept = computed(() => [...world.value.snapshots.values()].filter((s) => !s.automatic));
export const approvals = computed(() => world.value.approvals);
export const living = computed(() => [...world.value.sandboxes.values()].filter((s) => !isEnded(s)));

const PAUSES = { first: 500, longest: 15_000 };
/** A stream that is silent for so long is taken for dead: the server says something every 15 s. */
const SILENCE_MS = 45_000;

let stop: AbortController | undefined;

/** start begins to follow the server; stopFollowing ends it. */
export function start(): void {
  stop?.abort();
  stop = new AbortController();
  void follow(stop.signal);
}

export function stopFollowing(): void {
  stop?.abort();
  waiting = [];
  world.value = EMPTY;
  loaded.value = false;
  connection.value = "connecting";
}

/** note puts what an action was answered into the world, before any event tells of it. */
export function note(...changed: (Sandbox | undefined | null)[]): void {
  queue(changed.filter((s) => s != null).map((sandbox) => ({ kind: "sandbox", sandbox })));
}

const loads = new Set<Set<string>>();

/** during loads a list of snapshots, without those of which events tell meanwhile that they were deleted: the list may be older. */
export async function during<T extends { id: string }>(load: () => Promise<T[]>): Promise<T[]> {
  const deleted = new Set<string>();
  loads.add(deleted);
  try {
    return (await load()).filter((x) => !deleted.has(x.id));
  } finally {
    loads.delete(deleted);
  }
}

let waiting: CoveEvent[] = [];
/** queue applies events, all that come within one frame at once. */
export function queue(events: CoveEvent[]): void {
  for (const e of events) if (e.kind === "snapshot_deleted") for (const deleted of loads) deleted.add(e.snapshot_id ?? "");
  if (!waiting.length) setTimeout(flush, 16);
  waiting.push(...events);
}

function flush(): void {
  if (!waiting.length) return;
  const events = waiting;
  waiting = [];
  world.value = apply(world.value, events);
}

async function listLiving(): Promise<Sandbox[]> {
  return pages((cursor) => want(api.GET("/v1/sandboxes", { params: { query: { limit: 1000, cursor } } })));
}

async function listAll(signal: AbortSignal): Promise<void> {
  const [alive, kept, asked] = await Promise.all([
    listLiving(),
    pages((cursor) => want(api.GET("/v1/snapshots", { params: { query: { limit: 1000, cursor } } }))),
    pages((cursor) => want(api.GET("/v1/approvals", { params: { query: { limit: 1000, cursor } } }))),
  ]);
  if (signal.aborted) return;
  // What was heard before is older than the lists.
  flush();
  world.value = listed(unheard(world.value), { living: alive, snapshots: kept, approvals: asked });
  if (loaded.value) listedAt.value++;
  loaded.value = true;
  loadError.value = "";
  const ended = await want(api.GET("/v1/sandboxes", { params: { query: { limit: 1000, state: ["killed", "failed"] } } }));
  if (!signal.aborted) world.value = listed(world.value, { ended: ended.items ?? [] });
}

async function follow(signal: AbortSignal): Promise<void> {
  // A connection that breaks is resumed after the last event that came by it.
  const heard: Heard = {};
  const connect = async (works: () => void) => {
    // A page that is opened behind others has something to show when it is seen.
    if (!loaded.value) await listAll(signal);
    return whileShown(signal, (shown) => events(shown, heard, works));
  };
  await again(signal, PAUSES, connect, (hidden, err) => {
    if (err) loadError.value = (err as Error).message;
    if (err instanceof ApiError && err.status === 401) return true;
    connection.value = hidden ? "connecting" : "lost";
    return false;
  });
}

interface Heard {
  /** The id of the last event. */
  last?: string;
}

/** events follows one connection of the stream, and notes the last event whatever ends it. */
async function events(signal: AbortSignal, heard: Heard, opened: () => void): Promise<void> {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENCE_MS);
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (heard.last) headers["Last-Event-ID"] = heard.last;
  try {
    const response = await send("GET", `/v1/events?${KINDS.map((k) => `kind=${k}`).join("&")}`, undefined, {
      headers,
      signal: AbortSignal.any([signal, silent.signal]),
    });
    const parser = new SSEParser();
    for await (const line of lines(response)) {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE_MS);
      const message = parser.line(line);
      if (!message) continue;
      const event = JSON.parse(message.data) as CoveEvent;
      if (event.kind === "begun") {
        opened();
        connection.value = "events";
        loadError.value = "";
        // What was listed before the stream had begun may have changed since. Until
        // it is listed, the next connection has to begin where this one did.
        if (event.missed || !heard.last) await listAll(signal);
        if (signal.aborted) return;
      } else queue([event]);
      heard.last = message.id ?? event.id ?? heard.last;
    }
  } catch (err) {
    if (!silent.signal.aborted) throw err;
  } finally {
    clearTimeout(timer);
  }
}
