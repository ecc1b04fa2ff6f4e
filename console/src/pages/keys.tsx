// Keys, and the browsers that are signed in.
import { useComputed, useSignal } from "@preact/signals";
import { api, enc, pages, type Schemas, send, want } from "../api/client";
import { may, session } from "../api/session";
import { calls } from "../lib/calls";
import { at, byName, day } from "../lib/format";
import { label } from "../lib/text";
import { CallDialog, confirmed, Opener, Shown } from "../ui/dialog";
import { attempt } from "../ui/do";
import { Field, Input, Select } from "../ui/fields";
import { Button, Failure, Scrolled, Snippet } from "../ui/kit";
import { useLoad } from "../ui/load";
import { ListPage, NotAllowed } from "./list";

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

export function KeysPage() {
  return may("admin") ? <Keys /> : <NotAllowed title="Keys" scope="admin" />;
}

function Keys() {
  const list = useLoad(() => pages((cursor) => want(api.GET("/v1/keys", { params: { query: { cursor } } }))), []);
  const browsers = useLoad(
    () =>
      pages<BrowserSession>(async (cursor) => {
        const response = await send("GET", `/console/sessions${cursor ? `?cursor=${enc(cursor)}` : ""}`);
        return response.json();
      }),
    [],
  );
  const made = useSignal<Schemas["NewKey"] | undefined>(undefined);
  const team = useSignal("");
  const teams = useComputed(() => [...new Set((list.data.value ?? []).map((k) => k.team))].sort(byName));
  const sorted = useComputed(() =>
    (list.data.value ?? [])
      .filter((k) => !team.value || k.team === team.value)
      .sort((a, b) => Number(!!a.revoked_at) - Number(!!b.revoked_at) || at(b.created_at) - at(a.created_at)),
  );
  const revoke = (k: Schemas["Key"]) => {
    confirmed(
      calls.revokeKey(k.id),
      `Revoke the key ${label(k.name)}?`,
      k.id === session.value?.key_id
        ? "You are signed in with this key: you will be signed out."
        : "Whoever has it can do nothing with it any more.",
      "Revoke",
      "Revoked",
      list.again,
    );
  };
  const added = (k: Schemas["NewKey"]) => {
    made.value = k;
    if (team.value) team.value = k.team;
    void list.again();
  };
  const action = (
    <>
      {teams.value.length > 1 && (
        <Select class="narrow" aria-label="Whose keys" value={team}>
          <option value="">All teams</option>
          {teams.value.map((t) => (
            <option key={t} value={t}>
              {label(t)}
            </option>
          ))}
        </Select>
      )}
      <Opener
        kind="primary"
        icon="plus"
        scope="admin"
        dialog={(close) => <NewKey teams={teams.value} close={close} done={added} />}
      >
        New key
      </Opener>
    </>
  );
  return (
    <>
      <ListPage
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
            <td class="muted nowrap">{k.last_used_at ? day(k.last_used_at) : "never"}</td>
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
      {browsers.error.value && <Failure error={browsers.error.value} again={browsers.again} />}
      {!!browsers.data.value?.length && (
        <section class="browsers">
          <h2 class="section">Browsers that are signed in</h2>
          <Scrolled name="Browsers" class="scroll-x">
            <table class="data">
              <tbody>
                {browsers.data.value.map((b) => (
                  <tr key={b.id}>
                    <td>
                      {label(b.key_id)} {b.id === session.value?.id && <span class="badge green">this one</span>}
                    </td>
                    <td class="muted cut">{label(b.client)}</td>
                    <td class="muted nowrap">{b.created_at && `since ${day(b.created_at)}`}</td>
                    <td class="muted nowrap">{b.expires_at && `until ${day(b.expires_at)}`}</td>
                    <td class="actions">
                      {b.id !== session.value?.id && (
                        <Button small onClick={() => void attempt(calls.endSession(b.id), "Signed out").then(browsers.again)}>
                          Sign out
                        </Button>
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scrolled>
        </section>
      )}
      {made.value && (
        <Shown
          title={`The key ${label(made.value.name)}`}
          close={() => {
            made.value = undefined;
          }}
        >
          <p>It is shown this once.</p>
          <Snippet text={made.value.secret} />
        </Shown>
      )}
    </>
  );
}

function NewKey({
  teams,
  close,
  done,
}: {
  /** The teams that have keys. */
  teams: string[];
  close: () => void;
  done: (made: Schemas["NewKey"]) => void;
}) {
  const name = useSignal("");
  const team = useSignal("");
  const scopes = useSignal<string[]>(SCOPES.map(([s]) => s).filter((s) => s !== "admin"));
  const days = useSignal("");
  const body = {
    name: name.value.trim(),
    team: team.value.trim() || undefined,
    scopes: scopes.value,
    expires_in_seconds: days.value ? Number(days.value) * 86_400 : undefined,
  };
  const call = calls.createKey(body);
  return (
    <CallDialog title="New key" action="Create" call={call} close={close} done={done}>
      <Field label="Name">
        <Input required placeholder="laptop" value={name} />
      </Field>
      {/* Nobody else makes keys of other teams. */}
      {session.value?.local && (
        <Field
          label="Team"
          hint="Keys of a team see each other's sandboxes, volumes and secrets, and those of no other team. A name that is new begins a team."
        >
          <Input maxLength={63} list="teams" placeholder={session.value.team} value={team} />
          <datalist id="teams">
            {teams.map((t) => (
              <option key={t} value={t} />
            ))}
          </datalist>
        </Field>
      )}
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
