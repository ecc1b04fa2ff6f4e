// Numbers and times as people read them.

export function bytes(n: number | undefined | null): string {
  if (n == null) return "–";
  if (n < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let v = n;
  let u = -1;
  do {
    v /= 1024;
    u++;
  } while (v >= 1024 && u < units.length - 1);
  return `${v < 10 ? v.toFixed(1) : Math.round(v)} ${units[u]}`;
}

/** span is a length of time, in milliseconds, in one or two units. */
export function span(ms: number): string {
  const s = Math.max(0, ms) / 1000;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  const m = Math.floor(s / 60);
  if (m < 60) return m < 10 && Math.floor(s % 60) ? `${m} min ${Math.floor(s % 60)} s` : `${m} min`;
  const h = Math.floor(m / 60);
  if (h < 48) return m % 60 ? `${h} h ${m % 60} min` : `${h} h`;
  return `${Math.floor(h / 24)} d`;
}

/** short is span in one unit without a space, for tables. */
export function short(ms: number): string {
  const s = Math.max(0, ms) / 1000;
  if (s < 60) return `${Math.floor(s)}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  if (s < 172_800) return `${Math.floor(s / 3600)}h`;
  return `${Math.floor(s / 86_400)}d`;
}

/** byName orders names as people do, numbers in them by their value. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

export function at(time: string | undefined | null): number {
  return time ? Date.parse(time) : Number.NaN;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, {
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  hour12: false,
});

export function clock(time: string | number): string {
  return CLOCK.format(typeof time === "number" ? time : at(time));
}

export function day(time: string | number): string {
  return DAY.format(typeof time === "number" ? time : at(time));
}

export function plural(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}

/** shortID is the part of an id that tells it from others. */
export function shortID(id: string): string {
  const dash = id.indexOf("-");
  return id.length > 14 ? `${id.slice(0, dash + 7)}…` : id;
}
