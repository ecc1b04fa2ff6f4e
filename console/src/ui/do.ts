// Doing what a call says, telling of it, and keeping it for "Copy as".
import { signal } from "@preact/signals";
import { ApiError, type Approval, type Sandbox, send } from "../api/client";
import { refusal, signOut } from "../api/session";
import { type Call, concealed } from "../lib/call";
import { note, queue } from "../state/live";

export interface Toast {
  id: number;
  kind: "ok" | "error";
  text: string;
  call?: Call;
}

export const toasts = signal<Toast[]>([]);
/** The last calls, newest first. */
export const recent = signal<{ call: Call; at: number; failed: boolean }[]>([]);

let ids = 0;
export function toast(kind: Toast["kind"], text: string, call?: Call): void {
  const id = ++ids;
  toasts.value = [...toasts.value.slice(-3), { id, kind, text, call: call && concealed(call) }];
  setTimeout(() => dismiss(id), kind === "error" ? 12_000 : 4500);
}

export function dismiss(id: number): void {
  toasts.value = toasts.value.filter((t) => t.id !== id);
}

/** remember keeps a call that something else has made. */
export function remember(call: Call, failed = false): void {
  recent.value = [{ call: concealed(call), at: Date.now(), failed }, ...recent.value].slice(0, 30);
}

/** perform makes a call and returns its answer. What the answer says of sandboxes and approvals is known at once. */
export async function perform<T>(call: Call<T>, signal?: AbortSignal): Promise<T> {
  const why = refusal(call.scope);
  if (why) throw new ApiError(403, "forbidden", why);
  try {
    const headers: Record<string, string> = KEYED.test(`${call.method} ${call.path}`)
      ? { "Idempotency-Key": crypto.randomUUID() }
      : {};
    const response = await send(call.method, call.path, call.body, { headers, signal });
    const type = response.headers.get("Content-Type") ?? "";
    const value = type.includes("json") ? await response.json() : undefined;
    remember(call);
    learn(call, value);
    return value as T;
  } catch (err) {
    remember(call, true);
    throw err;
  }
}

/** What takes an Idempotency-Key. crypto.randomUUID needs a secure context, which loopback is. */
const KEYED =
  "randomUUID" in crypto ? /^POST \/v1\/(sandboxes|volumes|builds|sandboxes\/[^/]+\/(fork|snapshots|merge))$/ : /^(?!)/;

function learn(call: Call, value: unknown): void {
  if (!value || typeof value !== "object") return;
  const one = value as Partial<Sandbox> & { items?: Sandbox[]; sandbox?: Sandbox };
  if (call.path.startsWith("/v1/approvals/")) queue([{ kind: "approval.answered", approval: value as Approval }]);
  if (one.id?.startsWith("sbx-") && one.state) note(one as Sandbox);
  else if (call.path.endsWith("/fork")) note(...(one.items ?? []));
  else if (call.path.endsWith("/merge")) note(one.sandbox);
}

/** attempt performs a call, says how it went, and returns undefined when it failed. */
export async function attempt<T>(call: Call<T>, said?: string): Promise<T | undefined> {
  try {
    const value = await perform(call);
    if (said) toast("ok", said, call);
    return value ?? (true as T);
  } catch (err) {
    toast("error", (err as Error).message, call);
    return undefined;
  }
}

/** leave signs out, or says why that failed. */
export async function leave(): Promise<void> {
  await signOut().catch((err: Error) => toast("error", `You are still signed in: ${err.message}`));
}

/** forgetAll drops what was done, which is not for whom signs in next. */
export function forgetAll(): void {
  recent.value = [];
  toasts.value = [];
}

/** copy puts text on the clipboard. */
export async function copy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without a secure context there is no clipboard but the old way.
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
