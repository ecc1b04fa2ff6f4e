// A browser opens few connections to one host over plain HTTP, six as a rule, for
// all tabs together. Who is not seen gives theirs back.

/** whileShown calls f when the page is seen, aborts it when the page is hidden, and reports whether it did. */
export async function whileShown(signal: AbortSignal, f: (shown: AbortSignal) => Promise<void>): Promise<boolean> {
  await untilShown(signal);
  if (signal.aborted) return false;
  const hidden = new AbortController();
  const look = () => {
    if (document.hidden) hidden.abort();
  };
  document.addEventListener("visibilitychange", look);
  try {
    await f(AbortSignal.any([signal, hidden.signal]));
  } catch (err) {
    if (!hidden.signal.aborted) throw err;
  } finally {
    document.removeEventListener("visibilitychange", look);
  }
  return hidden.signal.aborted;
}

function untilShown(signal: AbortSignal): Promise<void> {
  return new Promise((done) => {
    const look = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener("visibilitychange", look);
      signal.removeEventListener("abort", look);
      done();
    };
    document.addEventListener("visibilitychange", look);
    signal.addEventListener("abort", look);
    look();
  });
}
