// What became of the webhooks of jobs: told, still to be told, or given up.
import { useComputed } from "@preact/signals";
import { Link, useSearchParams } from "wouter-preact";
import { at } from "../lib/format";
import { label } from "../lib/text";
import { sandboxes } from "../state/live";
import { isEnded } from "../state/world";
import { CopyAs } from "../ui/dialog";
import { Button, Snippet } from "../ui/kit";
import { DeliveryRow, HEAD, useDeliveries } from "./deliveries";
import { ListPage } from "./list";

/** How many sandboxes are asked at most, those that were used last. */
const MOST = 30;

export function WebhooksPage() {
  const [params, setParams] = useSearchParams();
  const one = params.get("sandbox") ?? "";
  const lately = useComputed(() =>
    [...sandboxes.value.values()].sort((a, b) => at(b.last_active_at) - at(a.last_active_at)).slice(0, MOST),
  );
  const choices = useComputed(() => [...sandboxes.value.values()].filter((s) => !isEnded(s)).slice(0, 1000));
  // What is asked for changes with the choice and with the button, not with each use of a sandbox.
  const ids = () => (one ? [one] : lately.peek().map((s) => s.id));
  const load = useDeliveries(ids, [one, lately.value.length > 0]);
  const name = (id: string) => label(sandboxes.value.get(id)?.name || id, 40);
  const known = choices.value.some((s) => s.id === one);
  return (
    <ListPage
      title="Webhooks"
      icon="bolt"
      load={load}
      items={load.data.value}
      empty={one ? `No job of ${name(one)} has a webhook` : "No job has a webhook"}
      about={
        <>
          A job in the background may have a webhook, which is told when it has ended. Here is what became of that, for a day.
          <Snippet text="cove exec -d --webhook https://example.com/hook work -- make test" lang="How a job gets a webhook" />
        </>
      }
      action={
        <>
          <select
            class="select narrow"
            aria-label="Whose jobs"
            value={one}
            onChange={(e) => setParams(e.currentTarget.value ? { sandbox: e.currentTarget.value } : {}, { replace: true })}
          >
            <option value="">{sandboxes.value.size > MOST ? `The ${MOST} sandboxes used last` : "All sandboxes"}</option>
            {one && !known && <option value={one}>{name(one)}</option>}
            {choices.value.map((s) => (
              <option key={s.id} value={s.id}>
                {label(s.name || s.id, 60)}
              </option>
            ))}
          </select>
          {one && (
            <CopyAs
              call={{
                title: "List the webhooks of a sandbox's jobs",
                scope: "sandboxes:read",
                method: "GET",
                path: `/v1/sandboxes/${encodeURIComponent(one)}/deliveries`,
                cli: `cove job webhooks ${one}`,
                go: `deliveries, err := c.ListDeliveries(ctx, ${JSON.stringify(one)}, sandbox.Page{})`,
              }}
            />
          )}
          <Button icon="back" aria-label="List again" title="List again" onClick={() => void load.again()} />
        </>
      }
      head={["Sandbox", ...HEAD]}
      row={(d) => (
        <DeliveryRow key={d.id} of={d}>
          <td class="cut owner">
            <Link href={`/s/${d.sandbox_id}/jobs`}>{name(d.sandbox_id)}</Link>
          </td>
        </DeliveryRow>
      )}
    />
  );
}
