// Who is signed in, and what they may do.
import { signal } from "@preact/signals";
import { ApiError, HEADERS, send } from "./client";

export interface Session {
  /** Empty where everybody is let in. */
  id: string;
  key_id: string;
  key_name: string;
  team: string;
  scopes: string[];
  expires_at?: string | null;
  version: string;
  local?: boolean;
}

/** undefined until the server was asked, null when nobody is signed in. */
export const session = signal<Session | null | undefined>(undefined);
/** Why nobody is, if it is known. */
export const signInError = signal("");

/** takeLink returns the token of a link that opened the page, and erases it from the address. */
export function takeLink(): string | undefined {
  const match = /^#link=(.+)$/.exec(location.hash);
  if (!match) return undefined;
  history.replaceState(null, "", location.pathname + location.search);
  return decodeURIComponent(match[1]!);
}

/** begin signs in by the page's link if it has one, or finds the session that there is. */
export async function begin(): Promise<void> {
  const link = takeLink();
  if (link !== undefined) {
    await signIn({ link }).catch((err: Error) => {
      signInError.value = err.message;
    });
    if (session.value) return;
  }
  await refresh();
}

async function refresh(): Promise<void> {
  const response = await fetch("/console/session", { headers: HEADERS }).catch(() => undefined);
  if (!response) {
    signInError.value = "The server does not answer.";
    session.value = null;
    return;
  }
  session.value = response.ok ? ((await response.json()) as Session) : null;
}

/** signIn begins a session with a key or the token of a link. */
export async function signIn(by: { key: string } | { link: string }): Promise<void> {
  await accepted(
    await fetch("/console/session", {
      method: "POST",
      headers: { ...HEADERS, "Content-Type": "application/json" },
      body: JSON.stringify(by),
    }),
  );
  signInError.value = "";
  await refresh();
}

async function accepted(response: Response): Promise<Response> {
  if (response.ok) return response;
  const p = (await response.json().catch(() => ({}))) as { detail?: string; code?: string };
  throw new ApiError(response.status, p.code ?? "unauthenticated", p.detail || "The server did not accept that.");
}

/** signOnName returns what the identity provider is called by which people sign in, or "" if there is none. */
export async function signOnName(): Promise<string> {
  const response = await fetch("/console/sso", { headers: HEADERS }).catch(() => undefined);
  return response?.ok ? ((await response.json()) as { name: string }).name : "";
}

/** signOn leaves for the identity provider, which sends people back signed in. */
export async function signOn(): Promise<void> {
  const response = await accepted(await fetch("/console/sso", { method: "POST", headers: HEADERS }));
  location.assign(((await response.json()) as { url: string }).url);
}

/** signOut ends the session, or throws why it goes on. The page is loaded anew, so that nothing of what was seen is left in it. */
export async function signOut(): Promise<void> {
  try {
    await send("DELETE", "/console/session");
  } catch (err) {
    // Who is not signed in any more has what they asked for.
    if (!(err instanceof ApiError && err.status === 401)) throw err;
  }
  location.replace("/console/");
}

/** may reports whether the session's key has a scope. */
export function may(scope: string): boolean {
  const scopes = session.value?.scopes ?? [];
  if (scope === "sandboxes:read" && scopes.includes("sandboxes:write")) return true;
  return scopes.includes(scope) || scopes.includes("admin");
}

/** refusal says why an action is not offered, or is empty when it is. */
export function refusal(scope: string | undefined): string {
  return !scope || may(scope) ? "" : `Your key lacks the scope ${scope}.`;
}
