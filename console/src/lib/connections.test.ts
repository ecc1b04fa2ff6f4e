import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { pooled } from "./pooled";
import { whileShown } from "./shown";

describe("pooled", () => {
  it("works on each item, on a few at a time", async () => {
    let now = 0;
    let most = 0;
    const done: number[] = [];
    await pooled([1, 2, 3, 4, 5, 6, 7], 3, async (n) => {
      most = Math.max(most, ++now);
      await Promise.resolve();
      now--;
      done.push(n);
    });
    expect(most).toBe(3);
    expect(done.sort()).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });
});

describe("whileShown", () => {
  let page: EventTarget & { hidden: boolean };
  const turn = (hidden: boolean) => {
    page.hidden = hidden;
    page.dispatchEvent(new Event("visibilitychange"));
  };
  const until = (signal: AbortSignal) =>
    new Promise<void>((_, fail) => signal.addEventListener("abort", () => fail(signal.reason)));
  beforeEach(() => {
    page = Object.assign(new EventTarget(), { hidden: false });
    vi.stubGlobal("document", page);
  });
  afterEach(() => vi.unstubAllGlobals());

  it("ends what runs when the page is hidden, and waits until it is seen", async () => {
    const stop = new AbortController();
    const first = whileShown(stop.signal, until);
    await Promise.resolve();
    turn(true);
    expect(await first).toBe(true);
    let begun = false;
    const second = whileShown(stop.signal, async () => {
      begun = true;
    });
    await Promise.resolve();
    expect(begun).toBe(false);
    turn(false);
    expect(await second).toBe(false);
    expect(begun).toBe(true);
  });
  it("throws what fails by itself, and ends with its signal", async () => {
    const stop = new AbortController();
    await expect(whileShown(stop.signal, () => Promise.reject(new Error("broke")))).rejects.toThrow("broke");
    page.hidden = true;
    const waits = whileShown(stop.signal, () => Promise.reject(new Error("is not called")));
    stop.abort();
    expect(await waits).toBe(false);
  });
});
