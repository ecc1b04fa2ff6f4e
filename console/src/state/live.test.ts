import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

const event = (id: string, value: object) => `id: ${id}\ndata: ${JSON.stringify(value)}\n\n`;

/** broken is an answer that says something and then breaks. */
function broken(text: string): Response {
  const chunks = [new TextEncoder().encode(text)];
  return new Response(
    new ReadableStream({
      pull(c) {
        const next = chunks.shift();
        if (next) c.enqueue(next);
        else c.error(new TypeError("network error"));
      },
    }),
  );
}

/** silent is an answer that says something and then stays open, until it is aborted. */
function silent(text: string, signal: AbortSignal): Response {
  return new Response(
    new ReadableStream({
      start(c) {
        c.enqueue(new TextEncoder().encode(text));
        signal.addEventListener("abort", () => c.error(signal.reason));
      },
    }),
  );
}

describe("following events", () => {
  beforeEach(() => {
    vi.useFakeTimers();
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });
  /** Longer than the pauses after failures that a test has, and shorter than the silence after which a stream is dead. */
  const settle = () => vi.advanceTimersByTimeAsync(10_000);

  it("resumes a stream that broke after its last event, and lists anew what was missed", async () => {
    const since: (string | null)[] = [];
    let lists = 0;
    let failing = false;
    const page = Object.assign(new EventTarget(), { hidden: false });
    vi.stubGlobal("document", page);
    vi.stubGlobal("location", { origin: "http://cove.test" });
    vi.stubGlobal("fetch", async (request: Request) => {
      const url = new URL(request.url);
      if (url.pathname === "/v1/sandboxes" && !url.searchParams.has("state")) {
        lists++;
        if (failing) {
          failing = false;
          return Response.json({ detail: "busy" }, { status: 503 });
        }
      }
      if (url.pathname !== "/v1/events") return Response.json({ items: [] });
      since.push(request.headers.get("Last-Event-ID"));
      const job = { kind: "job", job: { id: "j", sandbox_id: "a" } };
      if (since.length === 1) return broken(event("1", { kind: "begun" }) + event("2", job));
      if (since.length === 2) {
        failing = true;
        return broken(event("9", { kind: "begun", missed: true }));
      }
      return silent(event("9", { kind: "begun", missed: true }), request.signal);
    });
    const live = await import("./live");
    live.start();
    await settle();
    expect(live.listedAt.value).toBe(2);
    // The list after the second connection failed, so that the third still asks from the second event.
    expect(since).toEqual([null, "2", "2"]);
    expect(lists).toBe(4);
    expect(live.world.value.jobs.size).toBe(0);
    // A hidden page has no stream, and goes on where it was when it is seen again.
    expect(live.connection.value).toBe("events");
    page.hidden = true;
    page.dispatchEvent(new Event("visibilitychange"));
    await settle();
    expect(live.connection.value).toBe("connecting");
    expect(since).toHaveLength(3);
    page.hidden = false;
    page.dispatchEvent(new Event("visibilitychange"));
    await settle();
    expect(since).toEqual([null, "2", "2", "9"]);
    // A stream that says nothing for so long is dead.
    await vi.advanceTimersByTimeAsync(46_000);
    expect(since).toEqual([null, "2", "2", "9", "9"]);
    live.stopFollowing();
  });
});
