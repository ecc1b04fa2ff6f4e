// Volumes, secrets, keys, and the record of who did what.
import { useComputed, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { Link } from "wouter-preact";
import { api, enc, pages, type Schemas, want } from "../api/client";
import { may, refusal, session } from "../api/session";
import { type Call, calls, quote } from "../lib/calls";
import { at, bytes, day } from "../lib/format";
import { label } from "../lib/text";
import { sandboxes } from "../state/live";
import { CallDialog, confirmed, Dialog } from "../ui/dialog";
import { attempt } from "../ui/do";
import { Field, Input, NumberInput } from "../ui/fields";
import type { IconName } from "../ui/icons";
import { Button, Empty, Failure, Loading, Snippet } from "../ui/kit";
import { useLoad } from "../ui/load";

interface Listed {
  error: { value: string };
  again: () => Promise<void>;
}

function Page<T>({
  title,
  action,
  load,
  items,
  icon,
  empty,
  about,
  head,
  row,
}: {
  title: string;
  action?: ComponentChildren;
  load: Listed;
  items: readonly T[] | undefined;
  icon: IconName;
  empty: string;
  about: string;
  head: (string | { text: string; num: true })[];
  row: (item: T) => ComponentChildren;
}) {
  return (
    <div class="page">
      <header class="bar">
        <h1>{title}</h1>
        {items && items.length > 0 && <span class="count">{items.length}</span>}
        <span class="grow" />
        {action}
      </header>
      {load.error.value ? (
        <Failure error={load.error.value} again={load.again} />
      ) : !items ? (
        <Loading />
      ) : items.length === 0 ? (
        <Empty icon={icon} title={empty} action={action}>
          {about}
        </Empty>
      ) : (
        <div class="scroll">
          <table class="data">
            <thead>
              <tr>
                {head.map((h) =>
                  typeof h === "string" ? (
                    <th key={h}>{h === "" ? <span class="vh">Actions</span> : h}</th>
                  ) : (
                    <th key={h.text} class="num">
                      {h.text}
                    </th>
                  ),
                )}
              </tr>
            </thead>
            <tbody>{items.map(row)}</tbody>
          </table>
        </div>
      )}
    </div>
  );
}

export function VolumesPage() {
  const list = useLoad(() => pages((cursor) => want(api.GET("/v1/volumes", { params: { query: { cursor } } }))), []);
  const adding = useSignal(false);
  const remove = (v: Schemas["Volume"]) => {
    const call = calls.deleteVolume(v.id);
    confirmed(
      `Delete the volume ${label(v.name)}?`,
      "Its files are gone then.",
      "Delete",
      () => attempt(call, "Deleted").then(list.again),
      call,
    );
  };
  const action = (
    <Button
      kind="primary"
      icon="plus"
      scope="sandboxes:write"
      onClick={() => {
        adding.value = true;
      }}
    >
      New volume
    </Button>
  );
  return (
    <>
      <Page
        title="Volumes"
        action={action}
        load={list}
        items={list.data.value}
        icon="disk"
        empty="There is no volume"
        about="A volume is a directory of your own that outlives sandboxes, and that several of them may have at once."
        head={["Name", { text: "Holds", num: true }, { text: "Limit", num: true }, "Sandboxes", "Created", ""]}
        row={(v) => (
          <tr key={v.id}>
            <td class="cut" title={v.id}>
              {label(v.name)}
            </td>
            <td class="num">{bytes(v.used_bytes)}</td>
            <td class="num muted">{bytes(v.size_mib * 1_048_576)}</td>
            <td class="cut">
              {(v.sandboxes ?? []).slice(0, 5).map((id) => (
                <Link key={id} href={`/s/${id}`} class="tag">
                  <span>{label(sandboxes.value.get(id)?.name || id, 40)}</span>
                </Link>
              ))}
            </td>
            <td class="muted">{day(v.created_at)}</td>
            <td class="actions">
              <Button
                small
                kind="ghost"
                icon="trash"
                aria-label={`Delete ${label(v.name)}`}
                scope="sandboxes:write"
                onClick={() => remove(v)}
              />
            </td>
          </tr>
        )}
      />
      {adding.value && (
        <NewVolume
          close={() => {
            adding.value = false;
          }}
          done={() => {
            adding.value = false;
            void list.again();
          }}
        />
      )}
    </>
  );
}

function NewVolume({ close, done }: { close: () => void; done: () => void }) {
  const name = useSignal("");
  const size = useSignal(1024);
  return (
    <CallDialog
      title="New volume"
      action="Create"
      said="The volume is there"
      call={calls.createVolume({ name: name.value.trim(), size_mib: size.value })}
      close={close}
      done={done}
    >
      <Field label="Name">
        <Input required maxLength={63} placeholder="data" value={name} />
      </Field>
      <Field label="Size, MiB">
        <NumberInput min="1" value={size} />
      </Field>
    </CallDialog>
  );
}

function secretCall(method: "POST" | "DELETE", path: string, title: string, body: unknown, cli: string): Call<Schemas["Secret"]> {
  return { title, scope: "secrets:write", method, path, body, cli, private: ["value"] };
}

export function SecretsPage() {
  const list = useLoad(() => pages((cursor) => want(api.GET("/v1/secrets", { params: { query: { cursor } } }))), []);
  const adding = useSignal(false);
  const rotating = useSignal<string | undefined>(undefined);
  const close = () => {
    adding.value = false;
    rotating.value = undefined;
  };
  const done = () => {
    close();
    void list.again();
  };
  const remove = (x: Schemas["Secret"]) => {
    const call = secretCall(
      "DELETE",
      `/v1/secrets/${enc(x.id)}`,
      "Delete a secret",
      undefined,
      `cove secret rm ${quote(x.name)}`,
    );
    confirmed(
      `Delete the secret ${label(x.name)}?`,
      "Its use ends everywhere at once.",
      "Delete",
      () => attempt(call, "Deleted").then(list.again),
      call,
    );
  };
  const action = (
    <Button
      kind="primary"
      icon="plus"
      scope="secrets:write"
      onClick={() => {
        adding.value = true;
      }}
    >
      New secret
    </Button>
  );
  return (
    <>
      <Page
        title="Secrets"
        action={action}
        load={list}
        items={list.data.value}
        icon="lock"
        empty="There is no secret"
        about="Sandboxes use a secret without seeing it: they have a placeholder, and the value is put in on the way to the secret's own hosts."
        head={["Name", "For", "Provider", { text: "Version", num: true }, "Last used", "Created", ""]}
        row={(x) => (
          <tr key={x.id}>
            <td class="cut" title={x.id}>
              {label(x.name)}
            </td>
            <td class="cut muted" title={(x.hosts ?? []).map((h) => label(h)).join(", ")}>
              {(x.hosts ?? []).map((h) => label(h)).join(", ")}
            </td>
            <td class="muted">{label(x.provider) || "–"}</td>
            <td class="num muted">{x.version}</td>
            <td class="muted">{x.last_used_at ? day(x.last_used_at) : "never"}</td>
            <td class="muted">{day(x.created_at)}</td>
            <td class="actions">
              <div class="row">
                <Button
                  small
                  icon="back"
                  scope="secrets:write"
                  onClick={() => {
                    rotating.value = x.name;
                  }}
                >
                  Rotate
                </Button>
                <Button
                  small
                  kind="ghost"
                  icon="trash"
                  aria-label={`Delete ${label(x.name)}`}
                  scope="secrets:write"
                  onClick={() => remove(x)}
                />
              </div>
            </td>
          </tr>
        )}
      />
      {adding.value && <NewSecret close={close} done={done} />}
      {rotating.value && <RotateSecret name={rotating.value} close={close} done={done} />}
    </>
  );
}

function NewSecret({ close, done }: { close: () => void; done: () => void }) {
  const providers = useLoad(() => want(api.GET("/v1/providers")), []);
  const name = useSignal("");
  const value = useSignal("");
  const provider = useSignal("");
  const hosts = useSignal("");
  const known = providers.data.value?.items ?? [];
  const chosen = known.find((p) => p.name === provider.value);
  return (
    <CallDialog
      secret
      title="New secret"
      action="Store"
      said="The secret is stored. Nobody can read it again."
      call={secretCall(
        "POST",
        "/v1/secrets",
        "Create a secret",
        {
          name: name.value.trim(),
          value: value.value,
          provider: provider.value || undefined,
          hosts: provider.value ? undefined : hosts.value.split(/[\s,]+/).filter(Boolean),
        },
        `cove secret create ${quote(name.value.trim())}`,
      )}
      close={close}
      done={done}
    >
      <Field label="Name">
        <Input required placeholder="anthropic" value={name} />
      </Field>
      <Field
        label="Provider"
        hint={chosen ? `For ${(chosen.hosts ?? []).join(", ")}` : "A preset knows the hosts, and how the value is sent."}
      >
        <select
          class="select"
          value={provider.value}
          onChange={(e) => {
            provider.value = e.currentTarget.value;
            if (!name.value) name.value = e.currentTarget.value;
          }}
        >
          <option value="">none: name the hosts</option>
          {known.map((p) => (
            <option key={p.name} value={p.name}>
              {label(p.title)}
            </option>
          ))}
        </select>
      </Field>
      {!provider.value && (
        <Field label="Hosts" hint="Where the value may go, with commas.">
          <Input class="mono" required placeholder="api.example.com" value={hosts} />
        </Field>
      )}
      <Field label="Value">
        <Input class="mono" type="password" autocomplete="off" required value={value} />
      </Field>
    </CallDialog>
  );
}

function RotateSecret({ name, close, done }: { name: string; close: () => void; done: () => void }) {
  const value = useSignal("");
  return (
    <CallDialog
      secret
      title={`Rotate ${label(name)}`}
      action="Replace the value"
      said="The new value holds, in running sandboxes too"
      call={secretCall(
        "POST",
        `/v1/secrets/${enc(name)}/rotate`,
        "Rotate a secret",
        { value: value.value },
        `cove secret rotate ${quote(name)}`,
      )}
      close={close}
      done={done}
    >
      <Field label="New value">
        <Input class="mono" type="password" autocomplete="off" required value={value} />
      </Field>
    </CallDialog>
  );
}

const SCOPES: [string, string][] = [
  ["sandboxes:read", "see sandboxes, files and output"],
  ["sandboxes:write", "make, use and end sandboxes"],
  ["files:write", "write files"],
  ["computers:write", "use pointer and keyboard of computers"],
  ["secrets:write", "store and delete secrets"],
  ["templates:write", "build and delete templates"],
  ["admin", "everything, keys too"],
];

interface BrowserSession {
  id: string;
  key_id?: string;
  created_at?: string;
  last_used_at?: string;
  expires_at?: string;
  client?: string;
}

function NotAllowed({ title, scope }: { title: string; scope: string }) {
  return (
    <div class="page">
      <header class="bar">
        <h1>{title}</h1>
      </header>
      <Empty icon="lock" title="Your key may not see this">
        {refusal(scope)}
      </Empty>
    </div>
  );
}

export function KeysPage() {
  return may("admin") ? <Keys /> : <NotAllowed title="Keys" scope="admin" />;
}

function Keys() {
  const list = useLoad(() => pages((cursor) => want(api.GET("/v1/keys", { params: { query: { cursor } } }))), []);
  const browsers = useLoad(async () => {
    const response = await fetch("/console/sessions", { headers: { "Cove-Console": "1" } });
    if (!response.ok) return [];
    const got = (await response.json()) as BrowserSession[] | { items?: BrowserSession[] };
    return Array.isArray(got) ? got : (got.items ?? []);
  }, []);
  const adding = useSignal(false);
  const made = useSignal<Schemas["NewKey"] | undefined>(undefined);
  const sorted = useComputed(() =>
    [...(list.data.value ?? [])].sort(
      (a, b) => Number(!!a.revoked_at) - Number(!!b.revoked_at) || at(b.created_at) - at(a.created_at),
    ),
  );
  const revoke = (k: Schemas["Key"]) => {
    const call: Call = {
      title: "Revoke a key",
      scope: "admin",
      method: "DELETE",
      path: `/v1/keys/${enc(k.id)}`,
      cli: `cove key revoke ${k.id}`,
    };
    confirmed(
      `Revoke the key ${label(k.name)}?`,
      k.id === session.value?.key_id
        ? "You are signed in with this key: you will be signed out."
        : "Whoever has it can do nothing with it any more.",
      "Revoke",
      () => attempt(call, "Revoked").then(list.again),
      call,
    );
  };
  const action = (
    <Button
      kind="primary"
      icon="plus"
      scope="admin"
      onClick={() => {
        adding.value = true;
      }}
    >
      New key
    </Button>
  );
  return (
    <>
      <Page
        title="Keys"
        action={action}
        load={list}
        items={list.data.value && sorted.value}
        icon="key"
        empty="There is no key"
        about="A key lets another machine or an agent use this server, as far as its scopes go."
        head={["Name", "Key", "Team", "Scopes", "Last used", "Ends", ""]}
        row={(k) => (
          <tr key={k.id} class={k.revoked_at ? "muted" : ""}>
            <td class="cut" title={k.id}>
              {label(k.name)}
            </td>
            <td class="mono muted">{label(k.hint)}…</td>
            <td>{label(k.team)}</td>
            <td class="wrap small">{(k.scopes ?? []).join(", ")}</td>
            <td class="muted">{k.last_used_at ? day(k.last_used_at) : "never"}</td>
            <td class="muted">
              {k.revoked_at ? <span class="badge red">revoked</span> : k.expires_at ? day(k.expires_at) : "never"}
            </td>
            <td class="actions">
              {!k.revoked_at && (
                <Button small scope="admin" onClick={() => revoke(k)}>
                  Revoke
                </Button>
              )}
            </td>
          </tr>
        )}
      />
      {!!browsers.data.value?.length && (
        <section class="browsers">
          <h2 class="section">Browsers that are signed in</h2>
          <table class="data">
            <tbody>
              {browsers.data.value.map((b) => (
                <tr key={b.id}>
                  <td>
                    {label(b.key_id)} {b.id === session.value?.id && <span class="badge green">this one</span>}
                  </td>
                  <td class="muted cut">{label(b.client)}</td>
                  <td class="muted">{b.created_at && `since ${day(b.created_at)}`}</td>
                  <td class="muted">{b.expires_at && `until ${day(b.expires_at)}`}</td>
                  <td class="actions">
                    {b.id !== session.value?.id && (
                      <Button
                        small
                        onClick={() =>
                          void attempt(
                            {
                              title: "End a browser's session",
                              scope: "",
                              method: "DELETE",
                              path: `/console/sessions/${enc(b.id)}`,
                            },
                            "Signed out",
                          ).then(browsers.again)
                        }
                      >
                        Sign out
                      </Button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </section>
      )}
      {adding.value && (
        <NewKey
          close={() => {
            adding.value = false;
          }}
          done={(k) => {
            adding.value = false;
            made.value = k;
            void list.again();
          }}
        />
      )}
      {made.value && (
        <Dialog
          title={`The key ${label(made.value.name)}`}
          close={() => {
            made.value = undefined;
          }}
          footer={
            <Button
              kind="primary"
              onClick={() => {
                made.value = undefined;
              }}
            >
              Done
            </Button>
          }
        >
          <p>It is shown this once.</p>
          <Snippet text={made.value.secret} />
        </Dialog>
      )}
    </>
  );
}

function NewKey({ close, done }: { close: () => void; done: (made: Schemas["NewKey"]) => void }) {
  const name = useSignal("");
  const scopes = useSignal<string[]>(SCOPES.map(([s]) => s).filter((s) => s !== "admin"));
  const days = useSignal("");
  const body = {
    name: name.value.trim(),
    scopes: scopes.value,
    expires_in_seconds: days.value ? Number(days.value) * 86_400 : undefined,
  };
  const call: Call<Schemas["NewKey"]> = {
    title: "Create a key",
    scope: "admin",
    method: "POST",
    path: "/v1/keys",
    body,
    cli: `cove key create ${quote(body.name)}${days.value ? ` --expires ${Number(days.value) * 24}h` : ""} --scope ${scopes.value.join(",")}`,
  };
  return (
    <CallDialog title="New key" action="Create" call={call} close={close} done={done}>
      <Field label="Name">
        <Input required placeholder="laptop" value={name} />
      </Field>
      <fieldset>
        <legend>What it may do</legend>
        {SCOPES.map(([s, what]) => (
          <label class="check" key={s}>
            <input
              type="checkbox"
              checked={scopes.value.includes(s)}
              onChange={(e) => {
                scopes.value = e.currentTarget.checked ? [...scopes.value, s] : scopes.value.filter((x) => x !== s);
              }}
            />
            <span>
              <code>{s}</code> <span class="muted">{what}</span>
            </span>
          </label>
        ))}
      </fieldset>
      <Field label="Valid for, days" hint="Empty is for ever.">
        <Input type="number" min="1" value={days} />
      </Field>
    </CallDialog>
  );
}

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
    const got = await want(api.GET("/v1/audit", { params: { query: { limit: 200, cursor: cursor.value } } }));
    more.value = [...more.value, ...(got.items ?? [])].slice(0, 5000);
    cursor.value = got.next_cursor;
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
    <Page
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
          <td class="muted" title={e.time}>
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
