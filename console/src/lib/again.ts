// One connection after another, with pauses between those that fail.

/** Pauses are how long the first pause is and the longest, in milliseconds. */
export interface Pauses {
  first: number;
  longest: number;
}

/**
 * again connects until signal aborts or ended says that it is over. Connect tells whether the next connection comes at
 * once, as after the page was hidden, and calls works when there is an answer. Else the next comes after a pause, which
 * doubles until a connection works.
 */
export async function again(
  signal: AbortSignal,
  pauses: Pauses,
  connect: (works: () => void) => Promise<boolean>,
  ended: (atOnce: boolean, err?: unknown) => boolean = () => false,
): Promise<void> {
  let pause = pauses.first;
  const works = () => {
    pause = pauses.first;
  };
  while (!signal.aborted) {
    let atOnce = false;
    let failure: unknown;
    try {
      atOnce = await connect(works);
    } catch (err) {
      failure = err;
    }
    if (signal.aborted || ended(atOnce, failure)) return;
    if (atOnce) continue;
    await sleep(pause, signal);
    pause = Math.min(pause * 2, pauses.longest);
  }
}

/** sleep ends early when the machine has a network again. */
function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      globalThis.removeEventListener?.("online", end);
      done();
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
    globalThis.addEventListener?.("online", end);
  });
}
