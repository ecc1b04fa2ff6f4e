// Keeps the world up to date by the server's event stream.
import { computed, signal } from "@preact/signals";
import { ApiError, api, lines, pages, type Sandbox, send, want } from "../api/client";
import { SSEParser } from "./sse";
import { apply, type CoveEvent, EMPTY, isEnded, listed, type World } from "./world";

export const world = signal<World>(EMPTY);
/** Whether the first lists are there. */
export const loaded = signal(false);
/** Whether events come. */
export const connection = signal<"connecting" | "events" | "lost">("connecting");
export const loadError = signal("");

export const sandboxes = computed(() => world.value.sandboxes);
export const snapshots = computed(() => world.value.snapshots);
export const living = computed(() => [...world.value.sandboxes.values()].filter((s) => !isEnded(s)));

const LONGEST_PAUSE_MS = 15_000;
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

let waiting: CoveEvent[] = [];
/** queue applies events, all that come within one frame at once. */
export function queue(events: CoveEvent[]): void {
  if (!waiting.length) setTimeout(flush, 16);
  waiting.push(...events);
}

function flush(): void {
  const events = waiting;
  waiting = [];
  world.value = apply(world.value, events);
}

async function listLiving(): Promise<Sandbox[]> {
  return pages((cursor) => want(api.GET("/v1/sandboxes", { params: { query: { limit: 1000, cursor } } })));
}

async function listAll(signal: AbortSignal): Promise<void> {
  const [alive, kept] = await Promise.all([
    listLiving(),
    pages((cursor) => want(api.GET("/v1/snapshots", { params: { query: { limit: 1000, cursor } } }))),
  ]);
  if (signal.aborted) return;
  world.value = listed(world.value, { living: alive, snapshots: kept });
  loaded.value = true;
  loadError.value = "";
  const ended = await want(api.GET("/v1/sandboxes", { params: { query: { limit: 1000, state: ["killed", "failed"] } } }));
  if (!signal.aborted) world.value = listed(world.value, { ended: ended.items ?? [] });
}

async function follow(signal: AbortSignal): Promise<void> {
  let pause = 500;
  let last: string | undefined;
  while (!signal.aborted) {
    try {
      if (!loaded.value) await listAll(signal);
      last = await events(signal, last, () => {
        pause = 500;
      });
    } catch (err) {
      if (signal.aborted) return;
      loadError.value = (err as Error).message;
      if (err instanceof ApiError && err.status === 401) return;
    }
    if (signal.aborted) return;
    connection.value = "lost";
    await sleep(pause, signal);
    pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
  }
}

/** events follows one connection of the stream, and returns the id of the last event. */
async function events(signal: AbortSignal, last: string | undefined, opened: () => void): Promise<string | undefined> {
  const silent = new AbortController();
  let timer = setTimeout(() => silent.abort(), SILENCE_MS);
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = last;
  let id = last;
  try {
    const response = await send("GET", "/v1/events", undefined, { headers, signal: AbortSignal.any([signal, silent.signal]) });
    const parser = new SSEParser();
    for await (const line of lines(response)) {
      clearTimeout(timer);
      timer = setTimeout(() => silent.abort(), SILENCE_MS);
      const message = parser.line(line);
      if (!message) continue;
      const event = JSON.parse(message.data) as CoveEvent;
      id = message.id ?? event.id ?? id;
      if (event.kind !== "begun") {
        queue([event]);
        continue;
      }
      opened();
      connection.value = "events";
      loadError.value = "";
      // What was listed before the stream had begun may have changed since.
      if (event.missed || !last) await listAll(signal);
    }
  } catch (err) {
    if (!silent.signal.aborted) throw err;
  } finally {
    clearTimeout(timer);
  }
  return id;
}

function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      done();
    });
  });
}
