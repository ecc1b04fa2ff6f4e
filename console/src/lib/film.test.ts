import { describe, expect, it } from "vitest";
import { type Action, FILM, Film, type Frame } from "./film";

const action = (id: number, at = id * 10_000): Action => ({ id: `e-${id}`, at: new Date(at).toISOString(), action: "input" });

/** studio is a film whose pictures are taken when the test says so. */
function studio(size = 10) {
  const asked: ((blob: Blob) => void)[] = [];
  const refused: ((err: Error) => void)[] = [];
  const held = new Set<string>();
  let shown: readonly Frame[] = [];
  let made = 0;
  const film = new Film(
    {
      take: () =>
        new Promise<Blob>((done, fail) => {
          asked.push(done);
          refused.push(fail);
        }),
      keep: () => {
        const address = `blob:${++made}`;
        held.add(address);
        return address;
      },
      drop: (address) => void held.delete(address),
    },
    (frames) => {
      shown = frames;
    },
  );
  const settle = () => new Promise((done) => setTimeout(done));
  const develop = async (bytes = size) => {
    asked.shift()?.({ size: bytes } as Blob);
    await settle();
  };
  const fail = async () => {
    asked.shift();
    refused.at(-1)!(new Error("busy"));
    await settle();
  };
  return { film, held, asked, develop, fail, frames: () => shown };
}

describe("Film", () => {
  it("has a picture of each action, and one of those that come at once", async () => {
    const s = studio();
    s.film.add(action(1));
    s.film.add(action(2));
    s.film.add(action(3));
    expect(s.asked).toHaveLength(1);
    await s.develop();
    expect(s.frames().map((f) => [f.actions.map((a) => a.id).join("+"), f.picture])).toEqual([
      ["e-1", "blob:1"],
      ["e-2+e-3", undefined],
    ]);
    await s.develop();
    expect(s.frames()[1]!.picture).toBe("blob:2");
    s.film.add(action(4));
    expect(s.asked).toHaveLength(1);
  });
  it("is bounded in frames, actions and bytes, and lets go of what it drops", async () => {
    const s = studio(FILM.picture);
    for (let i = 0; i < 3 * FILM.frames; i++) {
      s.film.add(action(i));
      await s.develop();
    }
    expect(s.frames()).toHaveLength(FILM.frames);
    expect(s.held.size).toBe(FILM.pictures / FILM.picture);
    expect(s.frames().filter((f) => f.picture)).toHaveLength(s.held.size);
    expect(s.frames().at(-1)!.picture).toBeDefined();
    s.film.add(action(1000));
    for (let i = 1; i < 200; i++) s.film.add(action(1000 + i));
    expect(s.frames().at(-1)!.actions).toHaveLength(FILM.actions);
    s.film.end();
    expect([s.held.size, s.frames().length]).toEqual([0, 0]);
    await s.develop();
    expect(s.held.size).toBe(0);
  });
  it("goes on without a picture that fails or is too large", async () => {
    const s = studio();
    s.film.add(action(1));
    await s.fail();
    s.film.add(action(2));
    await s.develop(FILM.picture + 1);
    s.film.add(action(3));
    await s.develop();
    expect(s.frames().map((f) => f.picture)).toEqual([undefined, undefined, "blob:1"]);
  });
  it("puts what was done before in its place, once, and close ones together", async () => {
    const s = studio();
    s.film.add(action(9));
    await s.develop();
    s.film.past([action(1), action(2, 10_400), action(3), action(9)]);
    s.film.past([action(3), action(9)]);
    s.film.add(action(9));
    expect(s.frames().map((f) => f.actions.map((a) => a.id).join("+"))).toEqual(["e-1+e-2", "e-3", "e-9"]);
    expect(s.asked).toHaveLength(0);
  });
});
