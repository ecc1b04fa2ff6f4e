import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

describe("signOut", () => {
  const replace = vi.fn();
  const answer = (status: number) => vi.stubGlobal("fetch", async () => new Response(null, { status }));
  beforeEach(() => {
    replace.mockClear();
    vi.stubGlobal("location", { origin: "http://cove.test", replace });
  });
  afterEach(() => vi.unstubAllGlobals());

  it.each([204, 401])("loads the page anew after %d", async (status) => {
    answer(status);
    const { signOut } = await import("./session");
    await signOut();
    expect(replace).toHaveBeenCalledWith("/console/");
  });
  it("stays signed in when the server refuses or does not answer", async () => {
    const { session, signOut } = await import("./session");
    session.value = { key_name: "me" } as never;
    answer(500);
    await expect(signOut()).rejects.toThrow("500");
    vi.stubGlobal("fetch", async () => Promise.reject(new Error("refused")));
    await expect(signOut()).rejects.toThrow("does not answer");
    expect(replace).not.toHaveBeenCalled();
    expect(session.value).toEqual({ key_name: "me" });
  });
});
