import { afterEach, describe, expect, it, vi } from "vitest";

afterEach(() => vi.unstubAllGlobals());

describe("whyUnheard", () => {
  /** said is what is said when requests are answered so. */
  async function said(answer: () => Promise<Response>): Promise<string> {
    vi.stubGlobal("location", { origin: "http://cove.test" });
    vi.stubGlobal("fetch", answer);
    const { stream } = await import("../api/client");
    const { whyUnheard } = await import("./unheard");
    return stream("POST", "/v1/x", {}, () => {}).then(
      () => "nothing",
      (err) => whyUnheard(err),
    );
  }
  it("does not say that code was interrupted which never began", async () => {
    expect(await said(() => Promise.reject(new TypeError("Failed to fetch")))).toMatch(/most likely not begun/);
  });
  it("says that code was interrupted whose answer broke off", async () => {
    expect(await said(async () => new Response('{"data":"eA=="}\n'))).toMatch(/interrupts the code/);
  });
  it("says what the server says", async () => {
    expect(await said(async () => Response.json({ detail: "the sandbox is gone" }, { status: 409 }))).toBe("the sandbox is gone");
  });
});
