// What attempts have cost, beside what they came to.
import { api, want } from "../api/client";
import { type Cost, costOf } from "../lib/cost";
import { bytes, span } from "../lib/format";
import { pooled } from "../lib/pooled";
import { useEvery, useLoad } from "./load";

/** How many sandboxes are asked about at a time. */
const AT_ONCE = 3;

/** useCosts measures sandboxes, again when one of them changes and every half minute. What cannot
 * be measured is undefined, of each. No sandbox is resumed for it. */
export function useCosts(of: readonly { id: string; state: string }[]) {
  const load = useLoad(
    async (signal) => {
      const found = new Map<string, Cost | undefined>();
      await pooled(of, AT_ONCE, async ({ id }) => {
        if (signal.aborted) return;
        found.set(id, await measured(id, signal).catch(() => undefined));
      });
      return found;
    },
    [of.map((s) => `${s.id} ${s.state}`).join()],
  );
  useEvery(30_000, () => void load.again());
  return { costs: load.data, again: load.again };
}

async function measured(id: string, signal: AbortSignal): Promise<Cost | undefined> {
  const past = await want(api.GET("/v1/sandboxes/{sandbox}/stats/series", { params: { path: { sandbox: id } }, signal }));
  const now = await want(api.GET("/v1/stats", { params: { query: { sandbox: id } }, signal }));
  return costOf(now.items?.[0]?.stats, past.items ?? []);
}

/** CostLine says what one has cost. Before it is measured there is nothing. */
export function CostLine({ of: cost, known }: { of?: Cost; known: boolean }) {
  if (!known) return null;
  if (!cost)
    return (
      <p class="cost muted small" title="It has not run for long enough, or not within the last hour.">
        Cost: not measured
      </p>
    );
  return (
    <dl class="cost small">
      <dt>CPU</dt>
      <dd title={cost.roughly ? "From samples every 10 seconds of the last hour" : "Since its last start"}>
        {cost.roughly && "about "}
        {span(cost.cpu * 1000)}
      </dd>
      <dt>Memory</dt>
      <dd title="The peak is that of samples every 10 seconds">
        {cost.memory !== undefined && `${bytes(cost.memory)}, `}peak {bytes(cost.peak)}
      </dd>
      <dt>Disk</dt>
      <dd title="What it holds above its template">{bytes(cost.disk)}</dd>
      <dt>Network</dt>
      <dd title="Received and sent">
        ↓ {bytes(cost.received)} ↑ {bytes(cost.sent)}
      </dd>
    </dl>
  );
}
