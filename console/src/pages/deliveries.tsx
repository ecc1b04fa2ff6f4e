// Deliveries of webhooks in lists.
import { useSignal } from "@preact/signals";
import { api, pages, type Schemas, want } from "../api/client";
import { at, clock, day, span } from "../lib/format";
import { pooled } from "../lib/pooled";
import { label } from "../lib/text";
import { type Children, StateBadge } from "../ui/kit";
import { useEvery, useLoad } from "../ui/load";

type Delivery = Schemas["Delivery"];

/** How often those are asked for again that are not over. */
const EVERY_MS = 3000;
/** How many sandboxes are asked at a time, and how many deliveries are shown at most. */
const AT_ONCE = 4;
const MOST = 1000;

export const HEAD = ["Address and job", "State", { text: "Tries", num: true as const }, "Last answer", "Next try", "Made"];

const isOpen = (d: Delivery) => !d.ended_at;

async function deliveriesOf(ids: readonly string[]): Promise<Delivery[]> {
  const all: Delivery[] = [];
  await pooled(ids, AT_ONCE, async (sandbox) => {
    const got = await pages(
      (cursor) =>
        want(api.GET("/v1/sandboxes/{sandbox}/deliveries", { params: { path: { sandbox }, query: { limit: 1000, cursor } } })),
      MOST,
    );
    all.push(...got);
  });
  return newestFirst(all);
}

function newestFirst(all: Delivery[]): Delivery[] {
  return all.sort((a, b) => at(b.created_at) - at(a.created_at)).slice(0, MOST);
}

/** useDeliveries lists the deliveries of some sandboxes, and asks again for those that are not over. */
export function useDeliveries(ids: () => readonly string[], keys: readonly unknown[]) {
  const load = useLoad(() => deliveriesOf(ids()), keys);
  const asking = useSignal(false);
  useEvery(EVERY_MS, () => {
    const before = load.data.value;
    const open = [...new Set((before ?? []).filter(isOpen).map((d) => d.sandbox_id))];
    if (!before || !open.length || asking.value) return;
    asking.value = true;
    deliveriesOf(open)
      .then(
        (news) => {
          // Who has listed all anew meanwhile knows more.
          if (load.data.value !== before) return;
          load.data.value = newestFirst([...before.filter((d) => !open.includes(d.sandbox_id)), ...news]);
        },
        () => {
          // What is shown stays, and the next time may do.
        },
      )
      .finally(() => {
        asking.value = false;
      });
  });
  return load;
}

/** DeliveryRow is one delivery in a table; its children are cells before its own. */
export function DeliveryRow({ of: d, children }: Children & { of: Delivery }) {
  const answer = [d.status ? String(d.status) : "", d.error ?? ""].filter(Boolean).join(" · ");
  return (
    <tr>
      {children}
      <td class="mono address">
        <div class="cut" title={label(d.url, 1000)}>
          <bdi>{label(d.url, 200)}</bdi>
        </div>
        <div class="cut small muted" title={d.job_id}>
          {label(d.job_id, 40)}
        </div>
      </td>
      <td>
        <StateBadge state={d.state} />
      </td>
      <td class="num">{d.attempts}</td>
      <td class="cut muted answer" title={label(answer, 1000)}>
        {label(answer, 200) || "–"}
      </td>
      <td class="muted nowrap" title={d.next_at ? day(d.next_at) : undefined}>
        {d.next_at && isOpen(d) ? `in ${span(at(d.next_at) - Date.now())}` : "–"}
      </td>
      <td class="muted" title={day(d.created_at)}>
        {clock(d.created_at)}
      </td>
    </tr>
  );
}
