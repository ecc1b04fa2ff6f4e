// Reading what the server tells Prometheus, in its text format.

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/** readMetrics returns the samples of a text. What it cannot read it leaves out. */
export function readMetrics(text: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split("\n")) {
    const m = LINE.exec(line);
    if (!m) continue;
    const labels: Record<string, string> = {};
    for (const [, name, value] of (m[2] ?? "").matchAll(LABEL)) labels[name!] = value!;
    const value = Number(m[3]);
    if (!Number.isNaN(value)) samples.push({ name: m[1]!, labels, value });
  }
  return samples;
}

/** sum adds up the samples of a name. */
export function sum(samples: Sample[], name: string, fits: (labels: Record<string, string>) => boolean = () => true): number {
  return samples.reduce((n, s) => (s.name === name && fits(s.labels) ? n + s.value : n), 0);
}

/** requestsByDoor counts the requests of each door, with the refused (4xx) and failed (5xx) ones, and their time. */
export function requestsByDoor(samples: Sample[]) {
  const of = "cove_http_request_seconds";
  const doors = [...new Set(samples.filter((s) => s.name === `${of}_count`).map((s) => s.labels.door ?? ""))].sort();
  return doors.map((door) => {
    const count = (status?: string) => sum(samples, `${of}_count`, (l) => l.door === door && (!status || l.status === status));
    return {
      door,
      requests: count(),
      refused: count("4xx"),
      failed: count("5xx"),
      seconds: sum(samples, `${of}_sum`, (l) => l.door === door),
    };
  });
}
