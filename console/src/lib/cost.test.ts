import { describe, expect, it } from "vitest";
import type { Schemas } from "../api/client";
import { costOf } from "./cost";

const point = (seconds: number, cpu: number, memory: number, disk: number, received: number, sent: number) =>
  ({
    time: new Date(seconds * 1000).toISOString(),
    cpu_percent: cpu,
    memory_bytes: memory,
    disk_bytes: disk,
    processes: 1,
    network_in_bytes: received,
    network_out_bytes: sent,
  }) as Schemas["StatsPoint"];
const stats = (cpu: number, memory: number, disk: number, received: number, sent: number) =>
  ({ ...point(0, 0, memory, disk, received, sent), cpu_seconds: cpu }) as unknown as Schemas["Stats"];

describe("costOf", () => {
  it("knows nothing where nothing was measured", () => {
    expect(costOf(undefined, [])).toBeUndefined();
  });
  it("takes what a sandbox uses now as it is", () => {
    expect(costOf(stats(1.5, 30, 7, 4, 5), [])).toEqual({
      cpu: 1.5,
      roughly: false,
      memory: 30,
      peak: 30,
      disk: 7,
      received: 4,
      sent: 5,
    });
  });
  it("has the peak of the samples, and the processor time since the start", () => {
    const cost = costOf(stats(12, 30, 7, 40, 5), [point(0, 0, 20, 1, 10, 1), point(10, 100, 90, 9, 30, 2)])!;
    expect(cost).toEqual({ cpu: 12, roughly: false, memory: 30, peak: 90, disk: 7, received: 40, sent: 5 });
  });
  it("sums up the samples of one that does not run", () => {
    const cost = costOf(undefined, [point(0, 80, 20, 1, 10, 1), point(10, 100, 90, 9, 30, 2), point(20, 50, 40, 8, 30, 2)])!;
    expect(cost).toEqual({ cpu: 15, roughly: true, memory: undefined, peak: 90, disk: 8, received: 30, sent: 2 });
  });
  it("counts on where a resumed one begins anew", () => {
    const cost = costOf(stats(1, 10, 5, 3, 0), [
      point(0, 0, 20, 1, 100, 9),
      point(10, 100, 20, 1, 120, 9),
      point(99, 0, 20, 1, 2, 0),
    ])!;
    expect(cost).toMatchObject({ cpu: 10, roughly: true, received: 123, sent: 9 });
  });
});
