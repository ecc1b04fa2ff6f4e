// What a sandbox has cost, from what is known of it: what it uses now, and the samples of the
// last hour. Pure, and tested.
import type { Schemas } from "../api/client";
import { at } from "./format";

type Stats = Schemas["Stats"];
type Point = Schemas["StatsPoint"];

export interface Cost {
  /** Seconds of a processor. */
  cpu: number;
  /** The processor time is what the samples come to, of which the first moments have none. */
  roughly: boolean;
  /** Bytes in use; undefined if it does not run. */
  memory?: number;
  /** The most memory that was seen in use. */
  peak: number;
  /** Bytes written above its template. */
  disk: number;
  received: number;
  sent: number;
}

/** costOf returns what a sandbox has cost, or undefined where nothing was measured. The points are
 * the oldest first; now is what it uses, if it runs. */
export function costOf(now: Stats | undefined, points: readonly Point[]): Cost | undefined {
  const last = now ?? points.at(-1);
  if (!last) return undefined;
  const sampled = points.reduce((sum, p, i) => {
    const before = points[i - 1];
    return before ? sum + (p.cpu_percent / 100) * Math.max(0, (at(p.time) - at(before.time)) / 1000) : 0;
  }, 0);
  // Processor time is counted from the last start of the machine: what came before is in the samples.
  const cpu = Math.max(sampled, now?.cpu_seconds ?? 0);
  const all = [...points, ...(now ? [now] : [])];
  return {
    cpu,
    roughly: !now || sampled > now.cpu_seconds,
    memory: now?.memory_bytes,
    peak: Math.max(...all.map((p) => p.memory_bytes)),
    disk: last.disk_bytes,
    received: counted(all.map((p) => p.network_in_bytes)),
    sent: counted(all.map((p) => p.network_out_bytes)),
  };
}

/** counted is what a counter has come to that begins anew with each start of the machine. */
function counted(values: readonly number[]): number {
  return values.reduce((sum, v, i) => sum + (v >= (values[i - 1] ?? 0) ? v - (values[i - 1] ?? 0) : v), 0);
}
