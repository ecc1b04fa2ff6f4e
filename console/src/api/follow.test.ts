import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

/** answer is a stream of lines; one that does not end in a final line has broken. */
const answer = (...lines: object[]) => new Response(lines.map((l) => `${JSON.stringify(l)}\n`).join(""));
const wrote = (stream: string, offset: number, text: string) => ({ stream, offset, data: btoa(text) });

describe("following a stream", () => {
  const asked: string[] = [];
  /** answers are those to the requests, in their order. */
  const serve = (...answers: (() => Response)[]) =>
    vi.stubGlobal("fetch", async (request: Request) => {
      asked.push(request.url.slice("http://cove.test".length));
      return answers.shift()!();
    });
  beforeEach(() => {
    vi.useFakeTimers();
    vi.stubGlobal("location", { origin: "http://cove.test" });
    vi.stubGlobal("document", Object.assign(new EventTarget(), { hidden: false }));
    asked.length = 0;
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
  });

  it("goes on with a job's output where the connection broke, in each of its streams", async () => {
    serve(
      () => answer(wrote("stdout", 0, "one"), wrote("stderr", 0, "oh")),
      () => Promise.reject(new TypeError("refused")) as never,
      () => answer({ error: { code: "unavailable", message: "shutting down" } }),
      () => answer(wrote("stdout", 5, "two"), { final: true }),
    );
    const heard: unknown[] = [];
    const { attach } = await import("./follow");
    const over = attach(new AbortController().signal, "sbx", "job", {
      output: (data, missing, name) => {
        heard.push([name, new TextDecoder().decode(data), missing]);
      },
      ended: () => heard.push("ended"),
      trouble: (why, over) => heard.push(over ? "over" : why !== "" && "lost"),
    });
    await vi.advanceTimersByTimeAsync(60_000);
    await over;
    expect(heard.filter((x) => x !== false)).toEqual([
      ["stdout", "one", 0],
      ["stderr", "oh", 0],
      "lost",
      "lost",
      "lost",
      ["stdout", "two", 2],
      "ended",
    ]);
    expect(asked.map((url) => url.split("?")[1])).toEqual([
      "stdout_offset=0&stderr_offset=0",
      "stdout_offset=3&stderr_offset=2",
      "stdout_offset=3&stderr_offset=2",
      "stdout_offset=3&stderr_offset=2",
    ]);
  });

  it("takes pieces one after another at once, each when it is done with the last, and ends with the job", async () => {
    const running = { job: { state: "running" }, final: true };
    serve(
      () => answer(wrote("stdout", 100, "four"), running),
      () => answer(wrote("stdout", 104, "last"), { job: { state: "exited" }, final: true }),
      () => answer({ job: { state: "exited" }, final: true }),
    );
    const heard: unknown[] = [];
    let done = () => {};
    const { attach } = await import("./follow");
    const to = {
      output: (data: Uint8Array, missing: number) => {
        heard.push([new TextDecoder().decode(data), missing]);
        return new Promise<void>((ok) => {
          done = ok;
        });
      },
      ended: () => heard.push("ended"),
      trouble: (why: string) => why && heard.push(why),
    };
    const over = attach(new AbortController().signal, "sbx", "job", to, undefined, { max: 4, last: 10 });
    await vi.advanceTimersByTimeAsync(1000);
    expect(heard).toEqual([["four", 100]]);
    expect(asked).toHaveLength(1);
    for (let i = 0; i < 2; i++) {
      done();
      await vi.advanceTimersByTimeAsync(0);
    }
    await over;
    expect(heard).toEqual([["four", 100], ["last", 0], "ended"]);
    expect(asked.map((url) => url.split("?")[1])).toEqual(
      [0, 104, 108].map((n) => `stdout_offset=${n}&stderr_offset=0&max_bytes=4&last_bytes=10`),
    );
  });

  it("is over when it is refused, and goes on when there is only too much", async () => {
    serve(
      () => Response.json({ detail: "slower" }, { status: 429 }),
      () => Response.json({ detail: "it is gone" }, { status: 404 }),
    );
    const said: unknown[] = [];
    const { follow } = await import("./follow");
    const over = follow(new AbortController().signal, {
      begin: () => "/v1/builds/b/events",
      line: () => {},
      trouble: (...what) => said.push(what),
    });
    await vi.advanceTimersByTimeAsync(60_000);
    await over;
    expect(said).toEqual([
      ["slower", false],
      ["it is gone", true],
    ]);
  });

  it("reads no more while a line is worked on, and none after it was stopped", async () => {
    serve(() => answer({ n: 1 }, { n: 2 }, { n: 3, final: true }));
    const stop = new AbortController();
    const heard: number[] = [];
    let done = () => {};
    const { follow } = await import("./follow");
    const over = follow<{ n: number }>(stop.signal, {
      begin: () => "/",
      line: ({ n }) => {
        heard.push(n);
        return new Promise((ok) => {
          done = ok;
        });
      },
      trouble: () => {},
    });
    await vi.advanceTimersByTimeAsync(1000);
    expect(heard).toEqual([1]);
    done();
    await vi.advanceTimersByTimeAsync(1000);
    expect(heard).toEqual([1, 2]);
    stop.abort();
    done();
    await over;
    expect(heard).toEqual([1, 2]);
  });
});
