// What a unified diff says of the two texts that it compares.

export interface Hunk {
  /** Where it begins in the old and the new text, from 1; 0 when that side is empty. */
  from: number;
  to: number;
  lines: string[];
}

/** hunks reads the hunks of a patch of one file. */
export function hunks(patch: string): Hunk[] {
  const all: Hunk[] = [];
  let hunk: Hunk | undefined;
  let from = 0;
  let to = 0;
  for (const line of patch.split("\n")) {
    const head = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(line);
    if (head && from <= 0 && to <= 0) {
      hunk = { from: Number(head[1]), to: Number(head[3]), lines: [] };
      from = head[2] === undefined ? 1 : Number(head[2]);
      to = head[4] === undefined ? 1 : Number(head[4]);
      all.push(hunk);
    } else if (hunk && (from > 0 || to > 0)) {
      hunk.lines.push(line);
      if (line.startsWith("-")) from--;
      else if (line.startsWith("+")) to--;
      else if (!line.startsWith("\\")) {
        from--;
        to--;
      }
    }
  }
  return all;
}

/** sides returns the two texts as far as a patch has them: what it leaves out is left out. */
export function sides(patch: string): { before: string; after: string } {
  const before: string[] = [];
  const after: string[] = [];
  for (const [i, h] of hunks(patch).entries()) {
    if (i > 0) {
      before.push("⋯");
      after.push("⋯");
    }
    for (const line of h.lines) {
      if (line.startsWith("\\")) continue;
      if (!line.startsWith("+")) before.push(line.slice(1));
      if (!line.startsWith("-")) after.push(line.slice(1));
    }
  }
  return { before: before.join("\n"), after: after.join("\n") };
}

/** reverse returns what a text was before a patch, or undefined when the patch is not of this text. */
export function reverse(after: string, patch: string): string | undefined {
  const lines = after.split("\n");
  const out: string[] = [];
  let at = 0;
  for (const h of hunks(patch)) {
    const start = Math.max(0, h.to - 1) + (h.lines.some((l) => !l.startsWith("-")) ? 0 : 1);
    if (start < at) return undefined;
    out.push(...lines.slice(at, start));
    at = start;
    for (const line of h.lines) {
      if (line.startsWith("\\")) continue;
      const text = line.slice(1);
      if (line.startsWith("-")) out.push(text);
      else {
        if (lines[at] !== text) return undefined;
        at++;
        if (!line.startsWith("+")) out.push(text);
      }
    }
  }
  out.push(...lines.slice(at));
  return out.join("\n");
}
