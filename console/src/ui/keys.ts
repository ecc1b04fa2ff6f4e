// Keys that work anywhere on a page. A page takes some for as long as it is shown.
import { useEffect, useRef } from "preact/hooks";

type Handlers = Record<string, (e: KeyboardEvent) => void>;
const stack: { current: Handlers }[] = [];

/** Whether keys are typed into something. */
function typing(target: EventTarget | null): boolean {
  const el = target as HTMLElement | null;
  if (!el?.closest) return false;
  return !!el.closest("input, textarea, select, [contenteditable=true], .xterm, .cm-editor, canvas.vnc, dialog, [role=menu]");
}

export function listen(): () => void {
  const on = (e: KeyboardEvent) => {
    const mod = e.metaKey || e.ctrlKey;
    const name = `${mod ? "mod+" : ""}${e.key.length === 1 ? e.key.toLowerCase() : e.key}`;
    if (!mod && typing(e.target)) return;
    if (e.altKey || (mod && name !== "mod+k")) return;
    // Enter and the space bar belong to what has the focus.
    if ((e.key === "Enter" || e.key === " ") && (e.target as HTMLElement)?.closest?.("button, a, summary, [role=tab]")) return;
    for (let i = stack.length - 1; i >= 0; i--) {
      const f = stack[i]!.current[name];
      if (!f) continue;
      e.preventDefault();
      f(e);
      return;
    }
  };
  document.addEventListener("keydown", on);
  return () => document.removeEventListener("keydown", on);
}

/** useKeys takes keys while the component is shown: "/", "j", "Enter", "mod+k". */
export function useKeys(handlers: Handlers): void {
  const ref = useRef(handlers);
  ref.current = handlers;
  useEffect(() => {
    stack.push(ref);
    return () => {
      stack.splice(stack.indexOf(ref), 1);
    };
  }, []);
}

/** leaving tells which keys a terminal, which takes all others, leaves to the page: without them the keyboard would be caught in it. */
export function leaving(
  e: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "shiftKey" | "altKey">,
): "out" | "palette" | undefined {
  if (e.altKey) return undefined;
  if (e.key === "Escape" && e.ctrlKey && e.shiftKey) return "out";
  if (e.key.toLowerCase() === "k" && (e.ctrlKey || e.metaKey) && !e.shiftKey) return "palette";
  return undefined;
}
