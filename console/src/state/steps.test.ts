import { afterEach, describe, expect, it, vi } from "vitest";

afterEach(() => vi.unstubAllGlobals());

describe("during", () => {
  it("leaves out what is deleted while a list is on its way, and nothing else", async () => {
    vi.stubGlobal("location", { origin: "http://cove.test" });
    const { during, queue } = await import("./live");
    queue([{ kind: "snapshot_deleted", snapshot_id: "before" }]);
    const found = await during(async () => {
      queue([{ kind: "snapshot_deleted", snapshot_id: "meanwhile" }]);
      return [{ id: "before" }, { id: "meanwhile" }, { id: "stays" }];
    });
    expect(found.map((x) => x.id)).toEqual(["before", "stays"]);
  });
});
