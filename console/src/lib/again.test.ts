import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { again } from "./again";

describe("connecting again", () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it("pauses for longer after each failure, begins anew after what worked, and not at all after a hidden page", async () => {
    const stop = new AbortController();
    const at: number[] = [];
    const begun = Date.now();
    const over = again(stop.signal, { first: 100, longest: 300 }, async (works) => {
      at.push(Date.now() - begun);
      if (at.length === 5) works();
      if (at.length === 7) return true;
      if (at.length === 9) stop.abort();
      throw new Error("broken");
    });
    await vi.advanceTimersByTimeAsync(5000);
    await over;
    expect(at).toEqual([0, 100, 300, 600, 900, 1000, 1200, 1200, 1500]);
  });

  it("does not wait when the machine has a network again", async () => {
    const machine = new EventTarget();
    vi.stubGlobal("addEventListener", machine.addEventListener.bind(machine));
    vi.stubGlobal("removeEventListener", machine.removeEventListener.bind(machine));
    const stop = new AbortController();
    let tries = 0;
    const over = again(stop.signal, { first: 1e9, longest: 1e9 }, async () => {
      if (++tries === 2) stop.abort();
      return false;
    });
    await vi.advanceTimersByTimeAsync(1000);
    expect(tries).toBe(1);
    machine.dispatchEvent(new Event("online"));
    await over;
    expect(tries).toBe(2);
    vi.unstubAllGlobals();
  });

  it("is over when it is said to be, and when it is stopped in a pause", async () => {
    const failures: unknown[] = [];
    await again(
      new AbortController().signal,
      { first: 1, longest: 1 },
      () => Promise.reject(new Error("gone")),
      (hidden, err) => {
        failures.push(hidden, (err as Error).message);
        return true;
      },
    );
    expect(failures).toEqual([false, "gone"]);
    const stop = new AbortController();
    const over = again(stop.signal, { first: 1e9, longest: 1e9 }, async () => false);
    await vi.advanceTimersByTimeAsync(1);
    stop.abort();
    await over;
  });
});
