// Following what a job or a build writes, over as many connections as that takes.
import { again } from "../lib/again";
import { whileShown } from "../lib/shown";
import { ApiError, decodeBase64, type End, enc, stream } from "./client";

const PAUSES = { first: 300, longest: 8000 };

interface Troubled {
  /** trouble tells why nothing comes, or "" when something does, and whether it is over. */
  trouble: (why: string, over: boolean) => void;
}

export interface Follower<T> extends Troubled {
  /** begin returns the path of the next connection. */
  begin: () => string;
  /** line takes what comes. No more is read until it is done with that. */
  line: (line: T & End) => void | Promise<void>;
  /** more tells of a final line that only a piece ends with it: the next connection comes at once. */
  more?: () => boolean;
}

/** follow reads a stream to its end, or until it is told to stop. Who is not seen gives the connection back. */
export async function follow<T>(stop: AbortSignal, to: Follower<T>): Promise<void> {
  let ended = false;
  let piece = false;
  const connect = async (works: () => void) => {
    piece = false;
    const hidden = await whileShown(stop, (shown) =>
      stream<T>(
        "GET",
        to.begin(),
        undefined,
        (line) => {
          works();
          to.trouble("", false);
          if (line.final === true) {
            piece = to.more?.() === true;
            ended = !piece;
          }
          return to.line(line);
        },
        shown,
      ),
    );
    return hidden || piece;
  };
  await again(stop, PAUSES, connect, (_, err) => {
    if (ended) return true;
    if (!err) return false;
    // What is refused now is refused later too, but for what there is too much of.
    const over = err instanceof ApiError && err.status >= 400 && err.status < 500 && err.status !== 429;
    to.trouble((err as Error).message, over);
    return over;
  });
}

export interface Attached extends Troubled {
  /** output takes what the job wrote. Before it, so many bytes are missing: they were not kept. */
  output: (data: Uint8Array, missing: number, name: "stdout" | "stderr") => void | Promise<void>;
  ended?: () => void;
}

/** Pieces are how much output comes at a time, and how much of what is there already, in bytes. */
export interface Pieces {
  max: number;
  last: number;
}

/** attachPath is where a job's output is. */
export function attachPath(sandbox: string, job: string): string {
  return `/v1/sandboxes/${enc(sandbox)}/jobs/${enc(job)}/attach`;
}

/**
 * attach follows the output of a job from its beginning, or so many bytes after it, and goes on where a connection broke.
 * In pieces, the next is asked for when `to` is done with the last, and the job waits for that: what it has written and
 * nobody has seen is little, however much the connections between hold.
 */
export function attach(
  stop: AbortSignal,
  sandbox: string,
  job: string,
  to: Attached,
  from = { stdout: 0, stderr: 0 },
  by?: Pieces,
): Promise<void> {
  const next = { ...from };
  const pieces = by ? `&max_bytes=${by.max}&last_bytes=${by.last}` : "";
  let got = 0;
  const more = () => !!by && got >= by.max;
  return follow<{ stream?: string; data?: string; offset?: number }>(stop, {
    ...to,
    begin: () => {
      got = 0;
      return `${attachPath(sandbox, job)}?stdout_offset=${next.stdout}&stderr_offset=${next.stderr}${pieces}`;
    },
    more,
    line: async (line) => {
      if (line.data) {
        const name = line.stream === "stderr" ? "stderr" : "stdout";
        const data = decodeBase64(line.data);
        const at = line.offset ?? next[name];
        const missing = at - next[name];
        next[name] = at + data.length;
        got += data.length;
        await to.output(data, missing, name);
      }
      if (line.final && !more()) to.ended?.();
    },
  });
}
