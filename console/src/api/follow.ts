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
}

/** follow reads a stream to its end, or until it is told to stop. Who is not seen gives the connection back. */
export async function follow<T>(stop: AbortSignal, to: Follower<T>): Promise<void> {
  let ended = false;
  const connect = (works: () => void) =>
    whileShown(stop, (shown) =>
      stream<T>(
        "GET",
        to.begin(),
        undefined,
        (line) => {
          works();
          to.trouble("", false);
          ended = line.final === true;
          return to.line(line);
        },
        shown,
      ),
    );
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

/** attachPath is where a job's output is. */
export function attachPath(sandbox: string, job: string): string {
  return `/v1/sandboxes/${enc(sandbox)}/jobs/${enc(job)}/attach`;
}

/** attach follows the output of a job from its beginning, or so many bytes after it, and goes on where a connection broke. */
export function attach(
  stop: AbortSignal,
  sandbox: string,
  job: string,
  to: Attached,
  from = { stdout: 0, stderr: 0 },
): Promise<void> {
  const next = { ...from };
  return follow<{ stream?: string; data?: string; offset?: number }>(stop, {
    ...to,
    begin: () => `${attachPath(sandbox, job)}?stdout_offset=${next.stdout}&stderr_offset=${next.stderr}`,
    line: async (line) => {
      if (line.data) {
        const name = line.stream === "stderr" ? "stderr" : "stdout";
        const data = decodeBase64(line.data);
        const at = line.offset ?? next[name];
        const missing = at - next[name];
        next[name] = at + data.length;
        await to.output(data, missing, name);
      }
      if (line.final) to.ended?.();
    },
  });
}
