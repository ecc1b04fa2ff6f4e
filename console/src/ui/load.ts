// Loading what no event tells of.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { connection, listedAt } from "../state/live";

/** useLoad loads something, again when a key changes, and on demand. */
export function useLoad<T>(load: (signal: AbortSignal) => Promise<T>, keys: readonly unknown[]) {
  const data = useSignal<T | undefined>(undefined);
  const error = useSignal("");
  const busy = useSignal(true);
  const running = useRef<AbortController>();
  const again = async () => {
    running.current?.abort();
    const mine = new AbortController();
    running.current = mine;
    busy.value = true;
    try {
      const value = await load(mine.signal);
      if (mine.signal.aborted) return;
      data.value = value;
      error.value = "";
    } catch (err) {
      if (!mine.signal.aborted) error.value = (err as Error).message;
    }
    if (!mine.signal.aborted) busy.value = false;
  };
  useEffect(() => {
    data.value = undefined;
    error.value = "";
    void again();
    return () => running.current?.abort();
  }, keys);
  // What failed for want of a connection is there when the connection is.
  const connected = connection.value === "events";
  useEffect(() => {
    if (connected && error.peek()) void again();
  }, [connected]);
  return { data, error, busy, again };
}

/** useEvery calls something again and again while it is shown and the page is seen. */
export function useEvery(ms: number, f: () => void): void {
  const latest = useRef(f);
  latest.current = f;
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && latest.current(), ms);
    return () => clearInterval(timer);
  }, [ms]);
}

/** useMissed calls something when events were missed, after all else was listed anew. */
export function useMissed(again: () => void): void {
  const seen = useRef(listedAt.value);
  useEffect(() => {
    if (seen.current === listedAt.value) return;
    seen.current = listedAt.value;
    again();
  }, [listedAt.value]);
}
