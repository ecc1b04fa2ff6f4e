import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Call } from "../lib/call";

it("takes an answered question off the list, before an event tells of it", async () => {
  vi.stubGlobal("location", { origin: "http://cove.test" });
  const { queue, approvals } = await import("../state/live");
  const { attempt } = await import("./do");
  const open = { id: "apr-1", sandbox_id: "sbx-1", protocol: "tcp", port: 80, state: "open", asked_at: "", expires_at: "" };
  queue([{ kind: "approval.asked", approval: open }]);
  await vi.waitFor(() => expect(approvals.value.size).toBe(1));
  vi.stubGlobal("fetch", async () => Response.json({ ...open, state: "denied" }));
  await attempt({ title: "", scope: "", method: "POST", path: "/v1/approvals/apr-1", body: {} });
  await vi.waitFor(() => expect(approvals.value.size).toBe(0));
  vi.unstubAllGlobals();
});

const call: Call = {
  title: "Rotate a secret",
  scope: "",
  method: "POST",
  path: "/v1/secrets/n/rotate",
  body: { value: "hunter2" },
  cli: "cove secret rotate n",
  private: ["value"],
};

describe("private calls", () => {
  beforeEach(() => {
    vi.useFakeTimers();
    vi.stubGlobal("location", { origin: "http://cove.test" });
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });
  it.each([200, 400])("are sent whole and kept without their values, answered %d", async (status) => {
    const sent: string[] = [];
    vi.stubGlobal("fetch", async (request: Request) => {
      sent.push(await request.text());
      return Response.json({ detail: "no" }, { status });
    });
    const { attempt, recent, toasts } = await import("./do");
    await attempt(call, "Done");
    expect(sent).toEqual(['{"value":"hunter2"}']);
    expect(toasts.value.at(-1)!.call!.body).toEqual({ value: "…" });
    expect(recent.value[0]!.call.body).toEqual({ value: "…" });
    expect(JSON.stringify([recent.value, toasts.value])).not.toContain("hunter2");
  });
});
