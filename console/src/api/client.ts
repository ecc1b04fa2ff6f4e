// How the console speaks with its server: REST as in api/openapi.yaml, with the
// cookie of the session. No other origin is ever asked.
import { signal } from "@preact/signals";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];
export type Sandbox = Schemas["Sandbox"];
export type Snapshot = Schemas["Snapshot"];
export type Job = Schemas["Job"];
export type Build = Schemas["Build"];
export type Approval = Schemas["Approval"];
export type NetworkEvent = Schemas["NetworkEvent"];
export type NetworkPolicy = Schemas["NetworkPolicy"];
export type FileInfo = Schemas["FileInfo"];
export type Template = Schemas["Template"];
export type Diff = Schemas["Diff"];
export type Change = Schemas["Change"];
export type MergeResult = Schemas["MergeResult"];

/** A refusal of the server, in its own words. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** Sent with each request: pages of other origins cannot send it. */
export const HEADERS = { "Cove-Console": "1" };

/** Called when the server no longer knows the session. */
let signedOut = () => {};
export function onSignedOut(f: () => void): void {
  signedOut = f;
}

async function checked(request: Request): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(request);
  } catch (err) {
    if ((err as Error).name === "AbortError") throw err;
    throw new ApiError(0, "unavailable", "The server does not answer. The console goes on by itself when it is back.");
  }
  if (response.status === 401) signedOut();
  return response;
}

export const api = createClient<paths>({ baseUrl: location.origin, headers: HEADERS, fetch: checked });

function problem(status: number, error: unknown): ApiError {
  const p = error as Partial<Schemas["Problem"]> | undefined;
  return new ApiError(status, p?.code ?? "internal", p?.detail || `The server answered ${status}.`);
}

/** How many answers are late, that is, not there after LATE_MS. */
export const late = signal(0);
const LATE_MS = 3000;

/** timed notes that an answer is late for as long as it is. */
export async function timed<T>(answer: Promise<T>): Promise<T> {
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
    late.value++;
  }, LATE_MS);
  try {
    return await answer;
  } finally {
    clearTimeout(timer);
    if (isLate) late.value--;
  }
}

/** want returns what a request of `api` was answered, or throws the server's refusal. */
export async function want<T>(answer: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await timed(answer);
  if (!response.ok) throw problem(response.status, error);
  return data as T;
}

/** send makes a request that is written out, and throws the server's refusal. */
export async function send(method: string, path: string, body?: unknown, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers({ ...HEADERS, ...(init.headers as Record<string, string>) });
  if (body !== undefined && !(body instanceof Blob)) headers.set("Content-Type", "application/json");
  if (body instanceof Blob) headers.set("Content-Type", "application/octet-stream");
  const payload = body === undefined ? undefined : body instanceof Blob ? body : JSON.stringify(body);
  const response = await checked(new Request(new URL(path, location.origin), { ...init, method, headers, body: payload }));
  if (response.ok) return response;
  throw problem(response.status, await response.json().catch(() => undefined));
}

/** pages reads a list to its end, or to a number of items. */
export async function pages<T>(
  part: (cursor?: string) => Promise<{ items?: T[] | null; next_cursor?: string }>,
  most = 5000,
): Promise<T[]> {
  const all: T[] = [];
  let cursor: string | undefined;
  do {
    const list = await part(cursor);
    all.push(...(list.items ?? []));
    cursor = list.next_cursor || undefined;
  } while (cursor && all.length < most);
  return all;
}

/** The end of a line of a stream. */
export interface End {
  final?: boolean;
  error?: Schemas["LineError"];
}

/** stream reads the JSON lines of an answer, none before the sink is done with the last, and throws the error that ends them. */
export async function stream<T>(
  method: string,
  path: string,
  body: unknown,
  sink: (line: T & End) => void | Promise<void>,
  signal?: AbortSignal,
): Promise<void> {
  const response = await send(method, path, body, { headers: { Accept: "application/x-ndjson" }, signal });
  let ended = false;
  for await (const line of lines(response)) {
    if (!line) continue;
    const value = JSON.parse(line) as T & End;
    if (value.error) throw new ApiError(200, value.error.code ?? "internal", value.error.message ?? "The stream broke off.");
    ended ||= value.final === true;
    await sink(value);
    if (signal?.aborted) return;
  }
  if (!ended && !signal?.aborted) throw lost();
}

/** The code of an answer that had begun when the connection was lost. Without an answer it is "unavailable". */
export const LOST = "lost";

function lost(): ApiError {
  return new ApiError(0, LOST, "The connection was lost before the end.");
}

/** The longest line that is read: more than the server sends of one value. */
const MAX_LINE = 64 << 20;

/** lines yields the lines of a response as they come. */
export async function* lines(response: Response): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(() => {
        throw lost();
      });
      if (done) break;
      rest += value;
      let at = rest.indexOf("\n");
      while (at >= 0) {
        yield rest.slice(0, at);
        rest = rest.slice(at + 1);
        at = rest.indexOf("\n");
      }
      if (rest.length > MAX_LINE) throw new ApiError(0, "too_large", "The server sent a line that is too long.");
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** decodeBase64 returns the bytes of a JSON value. */
export function decodeBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

/** socketURL is the address of a WebSocket of this server. */
export function socketURL(path: string): string {
  const url = new URL(path, location.href);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

export const enc = encodeURIComponent;
