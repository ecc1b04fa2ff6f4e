import { useComputed, useSignal } from "@preact/signals";
import { api, pages, type Sandbox, type Schemas, want } from "../../api/client";
import { may } from "../../api/session";
import { calls } from "../../lib/calls";
import { day } from "../../lib/format";
import { label } from "../../lib/text";
import { isEnded } from "../../state/world";
import { CopyAs } from "../../ui/dialog";
import { attempt } from "../../ui/do";
import { Field, Input, Select } from "../../ui/fields";
import { Button, ID } from "../../ui/kit";
import { useLoad } from "../../ui/load";
import { askKill } from "../dialogs";
import { Listing } from "../list";

type Update = Schemas["UpdateRequest"];

export function SettingsTab({ of: s }: { of: Sandbox }) {
  const off = isEnded(s) || !may("sandboxes:write");
  const edit = useSignal<Partial<Record<string, string>>>({});
  const pairs = useSignal<[string, string][] | undefined>(undefined);
  const busy = useSignal(false);
  const was: Record<string, string> = {
    name: s.name ?? "",
    memory_mib: String(s.resources.memory_mib ?? 0),
    vcpus: String(s.resources.vcpus ?? 0),
    max_pids: String(s.resources.max_pids ?? 0),
    lifetime_seconds: String(s.lifetime_seconds),
    idle_timeout_seconds: String(s.idle_timeout_seconds),
    on_timeout: s.on_timeout,
    history: String(s.history ?? 0),
  };
  const metadata = pairs.value ?? Object.entries(s.metadata ?? {});
  const request = useComputed((): Update => {
    const req: Record<string, unknown> = {};
    for (const [k, v] of Object.entries(edit.value))
      if (v !== undefined && v !== was[k]) req[k] = k === "name" || k === "on_timeout" ? v : Number(v);
    if (pairs.value) req.metadata = Object.fromEntries(pairs.value.filter(([k]) => k));
    return req as Update;
  });
  const dirty = Object.keys(request.value).length > 0;
  const value = (k: string) => edit.value[k] ?? was[k] ?? "";
  const set = (k: string) => (e: { currentTarget: { value: string } }) => {
    edit.value = { ...edit.value, [k]: e.currentTarget.value };
  };
  const save = async (e: Event) => {
    e.preventDefault();
    busy.value = true;
    const done = await attempt(calls.update(s.id, request.value), "The settings hold now");
    busy.value = false;
    if (!done) return;
    edit.value = {};
    pairs.value = undefined;
  };
  const number = (k: string, text: string, hint?: string) => (
    <Field label={text} hint={hint}>
      <input class="input" type="number" min="0" disabled={off} value={value(k)} onInput={set(k)} />
    </Field>
  );
  return (
    <div class="content">
      <div class="narrow-page">
        <form class="card" onSubmit={save}>
          <header>
            <h2 class="grow">Settings</h2>
            {dirty && <CopyAs call={calls.update(s.id, request.value)} small />}
            {dirty && (
              <Button
                small
                onClick={() => {
                  edit.value = {};
                  pairs.value = undefined;
                }}
              >
                Discard
              </Button>
            )}
            <Button small kind="primary" type="submit" scope="sandboxes:write" disabled={!dirty || off} busy={busy.value}>
              Save
            </Button>
          </header>
          <div class="body stack">
            <div class="grid2">
              <Field label="Name">
                <input class="input" maxLength={63} disabled={off} value={value("name")} onInput={set("name")} />
              </Field>
              <Field label="At the end of its time">
                <select class="select" disabled={off} value={value("on_timeout")} onChange={set("on_timeout")}>
                  <option value="kill">kill it</option>
                  <option value="pause">pause it</option>
                </select>
              </Field>
            </div>
            <div class="grid2">
              {number("lifetime_seconds", "Lifetime, seconds", "From now on, once it is changed. 0 is no bound.")}
              {number("idle_timeout_seconds", "Idle timeout, seconds", "0 is no bound.")}
              {number("history", "History, steps", "One before each command, 50 at most.")}
            </div>
            <div class="grid2">
              {number("memory_mib", "Memory, MiB", "Less than is in use ends the largest programs.")}
              {number("vcpus", "vCPUs")}
              {number("max_pids", "Processes and threads")}
            </div>
            <div class="stack tight-stack">
              <h3>Metadata</h3>
              {metadata.map(([k, v], i) => (
                <div class="row nowrap" key={i}>
                  <input
                    class="input mono"
                    aria-label={`Key ${i + 1}`}
                    disabled={off}
                    value={k}
                    onInput={(e) => {
                      pairs.value = metadata.map((p, n) => (n === i ? [e.currentTarget.value, p[1]] : p));
                    }}
                  />
                  <input
                    class="input mono"
                    aria-label={`Value ${i + 1}`}
                    disabled={off}
                    value={v}
                    onInput={(e) => {
                      pairs.value = metadata.map((p, n) => (n === i ? [p[0], e.currentTarget.value] : p));
                    }}
                  />
                  <Button
                    small
                    kind="ghost"
                    icon="close"
                    aria-label={`Remove ${label(k)}`}
                    disabled={off}
                    onClick={() => {
                      pairs.value = metadata.filter((_, n) => n !== i);
                    }}
                  />
                </div>
              ))}
              <div>
                <Button
                  small
                  icon="plus"
                  disabled={off || metadata.length >= 64}
                  onClick={() => {
                    pairs.value = [...metadata, ["", ""]];
                  }}
                >
                  Pair
                </Button>
              </div>
            </div>
          </div>
        </form>
        <Secrets of={s} off={off} />
        {!isEnded(s) && s.state !== "paused" && <Env of={s} />}
        <section class="card">
          <header>
            <h2>Facts</h2>
          </header>
          <div class="body">
            <dl class="facts">
              <dt>Id</dt>
              <dd>
                <ID id={s.id} />
              </dd>
              <dt>Namespace</dt>
              <dd>{label(s.namespace)}</dd>
              <dt>Created</dt>
              <dd>{day(s.created_at)}</dd>
              <dt>Template</dt>
              <dd>{label(s.template)}</dd>
              <dt>User</dt>
              <dd class="mono">{label(s.user)}</dd>
              <dt>Directory</dt>
              <dd class="mono">{label(s.workdir)}</dd>
              {(s.mounts ?? []).map((m) => (
                <>
                  <dt>Mount</dt>
                  <dd class="mono">
                    {label(m.volume || m.host || "tmpfs")} at {label(m.target)}
                    {m.read_only ? ", read-only" : ""}
                  </dd>
                </>
              ))}
              {(s.ports ?? []).map((p) => (
                <>
                  <dt>Published</dt>
                  <dd class="mono">
                    {label(p.address || "127.0.0.1")}:{p.host} → {p.guest}
                  </dd>
                </>
              ))}
              {!!s.unenforced?.length && (
                <>
                  <dt>Not enforced</dt>
                  <dd class="amber-text">{s.unenforced.map((u) => label(u)).join(", ")}</dd>
                </>
              )}
            </dl>
          </div>
        </section>
        {!isEnded(s) && (
          <section class="card">
            <header>
              <h2 class="grow">End it</h2>
              <Button kind="danger" scope="sandboxes:write" onClick={() => askKill(s)}>
                Kill…
              </Button>
            </header>
          </section>
        )}
      </div>
    </div>
  );
}

function Secrets({ of: s, off }: { of: Sandbox; off: boolean }) {
  const list = useLoad(() => pages((cursor) => want(api.GET("/v1/secrets", { params: { query: { cursor } } }))), []);
  const secret = useSignal("");
  const env = useSignal("");
  const attached = Object.entries(s.secrets ?? {});
  return (
    <section class="card">
      <header>
        <h2 class="grow">Secrets</h2>
      </header>
      <div class="body stack">
        <p class="muted small">Programs see a placeholder. The value is put in on the way out, to the secret's own hosts only.</p>
        {attached.map(([name, what]) => (
          <div class="rule" key={name}>
            <code class="cut">{label(name)}</code>
            <span class="muted cut grow">{label(what)}</span>
            <Button
              small
              kind="ghost"
              icon="close"
              aria-label={`Detach ${label(name)}`}
              disabled={off}
              scope="sandboxes:write"
              onClick={() => void attempt(calls.detachSecret(s.id, name), "Detached")}
            />
          </div>
        ))}
        <form
          class="row nowrap"
          onSubmit={(e) => {
            e.preventDefault();
            if (secret.value && env.value)
              void attempt(calls.attachSecret(s.id, secret.value, env.value.trim()), "Attached").then((ok) => {
                if (ok) env.value = "";
              });
          }}
        >
          <Select aria-label="Secret" disabled={off} value={secret}>
            <option value="">{list.data.value?.length === 0 ? "No secret is stored" : "Choose a secret"}</option>
            {(list.data.value ?? []).map((x) => (
              <option key={x.id} value={x.name}>
                {label(x.name)}
              </option>
            ))}
          </Select>
          <Input class="mono" aria-label="Environment variable" placeholder="API_KEY" disabled={off} value={env} />
          <Button type="submit" scope="sandboxes:write" disabled={off || !secret.value || !env.value}>
            Attach
          </Button>
        </form>
      </div>
    </section>
  );
}

function Env({ of: s }: { of: Sandbox }) {
  const list = useLoad(() => want(api.GET("/v1/sandboxes/{sandbox}/env", { params: { path: { sandbox: s.id } } })), [s.id]);
  return (
    <section class="card">
      <header>
        <h2 class="grow">Environment</h2>
      </header>
      <Listing
        class="scroll-x"
        name="Environment"
        load={list}
        items={list.data.value && (list.data.value.items ?? [])}
        head={["Variable", "Value", "From"]}
        none={<div class="body muted">No variable is set.</div>}
        row={(v) => (
          <tr key={v.name}>
            <td class="mono">{label(v.name)}</td>
            <td class="mono cut" title={label(v.value)}>
              {label(v.value)}
            </td>
            <td class="muted">{label(v.source)}</td>
          </tr>
        )}
      />
    </section>
  );
}
