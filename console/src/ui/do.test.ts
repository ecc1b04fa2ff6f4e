import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Call } from "../lib/call";

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
