// The record of who did what.
import { useComputed, useSignal } from "@preact/signals";
import { Link } from "wouter-preact";
import { api, type Schemas, want } from "../api/client";
import { may } from "../api/session";
import { day } from "../lib/format";
import { label } from "../lib/text";
import { sandboxes } from "../state/live";
import { toast } from "../ui/do";
import { Input } from "../ui/fields";
import { Button } from "../ui/kit";
import { useLoad } from "../ui/load";
import { ListPage, NotAllowed } from "./list";

export function AuditPage() {
  return may("admin") ? <Audit /> : <NotAllowed title="Audit" scope="admin" />;
}

function Audit() {
  const search = useSignal("");
  const more = useSignal<Schemas["AuditEvent"][]>([]);
  const cursor = useSignal<string | undefined>(undefined);
  const list = useLoad(async () => {
    const got = await want(api.GET("/v1/audit", { params: { query: { limit: 200 } } }));
    cursor.value = got.next_cursor;
    more.value = [];
    return got.items ?? [];
  }, []);
  const next = async () => {
    const after = cursor.value;
    try {
      const got = await want(api.GET("/v1/audit", { params: { query: { limit: 200, cursor: after } } }));
      // A second click, or listing again, has been there first.
      if (cursor.value !== after) return;
      more.value = [...more.value, ...(got.items ?? [])].slice(0, 5000);
      cursor.value = got.next_cursor;
    } catch (err) {
      toast("error", (err as Error).message);
    }
  };
  const items = useComputed(() => {
    const q = search.value.toLowerCase();
    return (
      list.data.value &&
      [...list.data.value, ...more.value].filter(
        (e) => !q || `${e.action} ${e.detail ?? ""} ${e.sandbox_id ?? ""} ${e.key_id} ${e.code ?? ""}`.toLowerCase().includes(q),
      )
    );
  });
  return (
    <ListPage
      title="Audit"
      action={
        <>
          <Input class="audit-search" type="search" aria-label="Search what is listed" placeholder="Search" value={search} />
          {cursor.value && <Button onClick={() => void next()}>Older</Button>}
          <Button icon="back" aria-label="List again" title="List again" onClick={() => void list.again()} />
        </>
      }
      load={list}
      items={items.value}
      icon="list"
      empty={search.value ? "Nothing matches" : "Nothing was done yet"}
      about="Each change is recorded here, with the key that made it."
      head={["Time", "Action", "Sandbox", "Detail", "Key", "Result"]}
      row={(e) => (
        <tr key={e.id}>
          <td class="muted nowrap" title={e.time}>
            {day(e.time)}
          </td>
          <td>{label(e.action)}</td>
          <td class="cut">
            {e.sandbox_id ? (
              <Link href={`/s/${e.sandbox_id}`}>{label(sandboxes.value.get(e.sandbox_id)?.name || e.sandbox_id, 40)}</Link>
            ) : (
              "–"
            )}
          </td>
          <td class="cut muted" title={label(e.detail, 600)}>
            {label(e.detail)}
          </td>
          <td class="muted mono cut">{label(e.key_id)}</td>
          <td>{e.code ? <span class="badge red">{label(e.code)}</span> : <span class="muted">ok</span>}</td>
        </tr>
      )}
    />
  );
}
