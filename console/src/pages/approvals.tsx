// What network policies ask, live. Names and addresses come from code in a
// sandbox: they are shown as text, whole, and a name with letters of other
// scripts as what is looked up (xn--).
import { useComputed, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Link } from "wouter-preact";
import type { Approval } from "../api/client";
import { calls } from "../lib/calls";
import { label } from "../lib/text";
import { approvals, loadError, loaded, sandboxes } from "../state/live";
import { attempt } from "../ui/do";
import { Button } from "../ui/kit";
import { ListPage } from "./list";

/** The longest name that there is. */
const NAME = 253;

export function wanted(a: Approval): string {
  const host = a.host || a.address || "";
  return `${a.protocol} ${host.includes(":") ? `[${host}]` : host}:${a.port}`;
}

export function ApprovalsPage() {
  const items = useComputed(() =>
    loaded.value
      ? [...approvals.value.values()].sort((a, b) => b.asked_at.localeCompare(a.asked_at) || a.id.localeCompare(b.id))
      : undefined,
  );
  return (
    <ListPage
      title="Approvals"
      load={{ error: loadError, again: async () => {} }}
      items={items.value}
      icon="help"
      empty="Nothing is asked"
      about="Where a network policy says ask, connections wait here until you allow or refuse them."
      head={["Sandbox", "Wants to reach", { text: "Waiting", num: true }, { text: "Left", num: true }, ""]}
      row={(a) => <Question key={a.id} a={a} />}
    />
  );
}

function Question({ a }: { a: Approval }) {
  const busy = useSignal(false);
  const answer = async (allow: boolean, scope: "once" | "sandbox" | "duration", said: string) => {
    busy.value = true;
    await attempt(calls.answerApproval(a.id, { allow, scope, seconds: scope === "duration" ? 3600 : undefined }), said);
    busy.value = false;
  };
  const what = label(wanted(a), NAME + 20);
  const name = label(sandboxes.value.get(a.sandbox_id)?.name || a.sandbox_name || a.sandbox_id, 40);
  return (
    <tr>
      <td class="cut">
        <Link href={`/s/${a.sandbox_id}/network`}>{name}</Link>
      </td>
      <td class="mono asked">
        <bdi dir="ltr">{what}</bdi>
        {(a.host ?? "").includes("xn--") && <div class="note amber small">Its letters may look like those of another name.</div>}
      </td>
      <td class="num">{a.waiting ?? 0}</td>
      <td class="num muted">
        <Left until={a.expires_at} />
      </td>
      <td class="actions">
        <Button
          small
          kind="primary"
          scope="sandboxes:write"
          disabled={busy.value}
          aria-label={`Allow ${what} once`}
          onClick={() => void answer(true, "once", "Allowed once")}
        >
          Once
        </Button>
        <Button
          small
          scope="sandboxes:write"
          disabled={busy.value}
          aria-label={`Allow ${what} for this sandbox`}
          onClick={() => void answer(true, "sandbox", "Allowed for this sandbox")}
        >
          This sandbox
        </Button>
        <Button
          small
          scope="sandboxes:write"
          disabled={busy.value}
          aria-label={`Allow ${what} for an hour`}
          onClick={() => void answer(true, "duration", "Allowed for an hour")}
        >
          An hour
        </Button>
        <Button
          small
          kind="danger"
          scope="sandboxes:write"
          disabled={busy.value}
          aria-label={`Refuse ${what}`}
          onClick={() => void answer(false, "once", "Refused")}
        >
          Refuse
        </Button>
      </td>
    </tr>
  );
}

/** Left counts the seconds down until a time. */
function Left({ until }: { until: string }) {
  const now = useSignal(Date.now());
  useEffect(() => {
    const timer = setInterval(() => {
      now.value = Date.now();
    }, 1000);
    return () => clearInterval(timer);
  }, []);
  return <>{Math.max(0, Math.round((Date.parse(until) - now.value) / 1000))} s</>;
}
