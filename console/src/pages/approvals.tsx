// What network policies ask, live. Names and addresses come from code in a
// sandbox: they are shown as text, whole, and a name with letters of other
// scripts as what is looked up (xn--).
import { type Signal, useComputed, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Link } from "wouter-preact";
import type { Approval, Schemas } from "../api/client";
import { calls } from "../lib/calls";
import { label } from "../lib/text";
import { approvals, connection, loadError, loaded, sandboxes, start } from "../state/live";
import { attempt, toast } from "../ui/do";
import { Button } from "../ui/kit";
import { useEvery } from "../ui/load";
import { ListPage } from "./list";

/** The longest name that there is. */
const NAME = 253;
/** So long after a question has come or moved no click counts for it: it was meant for what was there before. */
const SETTLED_MS = 500;

interface Answer {
  text: string;
  kind?: "primary" | "danger";
  name: (what: string) => string;
  said: string;
  req: Schemas["AnswerApprovalRequest"];
}

const ANSWERS: Answer[] = [
  {
    text: "Allow once",
    kind: "primary",
    name: (what) => `Allow once: ${what}`,
    said: "Allowed once",
    req: { allow: true, scope: "once" },
  },
  {
    text: "For this sandbox",
    name: (what) => `Allow ${what} for this sandbox`,
    said: "Allowed for this sandbox",
    req: { allow: true, scope: "sandbox" },
  },
  {
    text: "For an hour",
    name: (what) => `Allow ${what} for an hour`,
    said: "Allowed for an hour",
    req: { allow: true, scope: "duration", seconds: 3600 },
  },
  { text: "Refuse", kind: "danger", name: (what) => `Refuse ${what}`, said: "Refused", req: { allow: false, scope: "once" } },
];

function wanted(a: Approval): string {
  const host = a.host || a.address || "";
  const to = `${a.protocol} ${host.includes(":") ? `[${host}]` : host}:${a.port}`;
  return a.secret ? `secret ${a.secret} for ${to}` : to;
}

export function ApprovalsPage() {
  const now = useSignal(Date.now());
  useEvery(1000, () => {
    now.value = Date.now();
  });
  // The oldest is first: what code in a sandbox asks next does not push away what is about to be clicked.
  const items = useComputed(() =>
    loaded.value
      ? [...approvals.value.values()].sort((a, b) => a.asked_at.localeCompare(b.asked_at) || a.id.localeCompare(b.id))
      : undefined,
  );
  const error = useComputed(() =>
    connection.value === "lost"
      ? `The server does not tell what is asked now: questions may be missing here, or over. The console tries again by itself. ${loadError.value}`
      : loadError.value,
  );
  return (
    <ListPage
      title="Approvals"
      load={{ error, again: start }}
      items={items.value}
      icon="help"
      empty="Nothing is asked"
      about="Where a network policy says ask, connections wait here until you allow or refuse them."
      head={["Sandbox", "Wants to reach", { text: "Waiting", num: true }, { text: "Left", num: true }, ""]}
      row={(a, i) => <Question key={a.id} a={a} at={i} now={now} />}
    />
  );
}

function Question({ a, at, now }: { a: Approval; at: number; now: Signal<number> }) {
  const busy = useSignal(false);
  const place = useRef({ at: -1, since: 0 });
  useLayoutEffect(() => {
    place.current = { at, since: performance.now() };
  }, [at]);
  const answer = async ({ req, said }: Answer) => {
    if (performance.now() - place.current.since < SETTLED_MS)
      return toast("error", "Nothing was answered: the list had just changed. Read what is asked, and answer then.");
    busy.value = true;
    await attempt(calls.answerApproval(a.id, req), said);
    busy.value = false;
  };
  const what = label(wanted(a), NAME + 20);
  const name = label(sandboxes.value.get(a.sandbox_id)?.name || a.sandbox_name || a.sandbox_id, 40);
  return (
    <tr>
      <td class="cut">
        <Link href={`/s/${a.sandbox_id}/network`}>{name}</Link>
      </td>
      <td class="asked">
        <bdi dir="ltr" class="mono">
          {what}
        </bdi>
        {(a.host ?? "").includes("xn--") && <div class="amber-text small">Its letters may look like those of another name.</div>}
      </td>
      <td class="num">{a.waiting ?? 0}</td>
      <td class="num muted">
        <Left until={a.expires_at} now={now} />
      </td>
      <td class="actions">
        <div class="row">
          {ANSWERS.map((x) => (
            <Button
              key={x.text}
              small
              kind={x.kind}
              scope="sandboxes:write"
              disabled={busy.value}
              aria-label={x.name(what)}
              onClick={() => void answer(x)}
            >
              {x.text}
            </Button>
          ))}
        </div>
      </td>
    </tr>
  );
}

/** Left counts the seconds down until a time. */
function Left({ until, now }: { until: string; now: Signal<number> }) {
  return <>{Math.max(0, Math.round((Date.parse(until) - now.value) / 1000))} s</>;
}
