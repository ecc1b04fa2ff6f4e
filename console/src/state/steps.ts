// The steps of sandboxes' histories. The lists that the page begins with have none of them,
// since there are many: those of a sandbox are loaded where they are shown.
import { api, pages, type Sandbox, type Snapshot, want } from "../api/client";
import { at } from "../lib/format";
import { useLoad } from "../ui/load";
import { during, listedAt, queue, snapshots } from "./live";
import { isEnded } from "./world";

/** useSteps loads the steps of a sandbox into what the console knows; events tell of later ones. */
export function useSteps(of: Sandbox | undefined) {
  const id = of?.history && !isEnded(of) ? of.id : "";
  return useLoad(async () => {
    if (!id) return;
    const before = stepsOf(id);
    const query = { sandbox: id, automatic: true, limit: 1000 };
    const found = await during(() =>
      pages((cursor) => want(api.GET("/v1/snapshots", { params: { query: { ...query, cursor } } }))),
    );
    const there = new Set(found.map((x) => x.id));
    const gone = before.filter((x) => !there.has(x.id));
    queue([
      ...gone.map((x) => ({ kind: "snapshot_deleted", snapshot_id: x.id })),
      ...found.map((snapshot) => ({ kind: "snapshot", snapshot })),
    ]);
  }, [id, listedAt.value]);
}

/** statesOf are the snapshots and the known steps of a sandbox, the newest first. */
export function statesOf(id: string): Snapshot[] {
  return [...snapshots.value.values()].filter((x) => x.sandbox_id === id).sort((a, b) => at(b.created_at) - at(a.created_at));
}

/** stepsOf are the known steps of a sandbox, the newest first. */
export function stepsOf(id: string): Snapshot[] {
  return statesOf(id).filter((x) => x.automatic);
}

/** stateName is what a state is called: a step by its number, as the command line has it. */
export function stateName(x: Snapshot, steps = x.automatic ? stepsOf(x.sandbox_id) : []): string {
  return x.automatic ? `step -${steps.findIndex((s) => s.id === x.id) + 1}` : x.name || x.label || x.id;
}
