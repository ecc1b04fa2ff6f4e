// Secrets, whose values nobody reads again.
import { useSignal } from "@preact/signals";
import { api, pages, want } from "../api/client";
import { calls } from "../lib/calls";
import { day } from "../lib/format";
import { label } from "../lib/text";
import { CallDialog, Opener, Trash } from "../ui/dialog";
import { Field, Input } from "../ui/fields";
import { useLoad } from "../ui/load";
import { ListPage } from "./list";

export function SecretsPage() {
  const list = useLoad(() => pages((cursor) => want(api.GET("/v1/secrets", { params: { query: { cursor } } }))), []);
  const action = (
    <Opener kind="primary" icon="plus" scope="secrets:write" dialog={(close) => <NewSecret close={close} done={list.again} />}>
      New secret
    </Opener>
  );
  return (
    <ListPage
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
          <td class="muted nowrap">{x.last_used_at ? day(x.last_used_at) : "never"}</td>
          <td class="muted nowrap">{day(x.created_at)}</td>
          <td class="actions">
            <div class="row">
              <Opener
                small
                icon="back"
                scope="secrets:write"
                dialog={(close) => <RotateSecret name={x.name} close={close} done={list.again} />}
              >
                Rotate
              </Opener>
              <Trash
                what={`the secret ${label(x.name)}`}
                call={calls.deleteSecret(x.id)}
                text="Its use ends everywhere at once."
                done={list.again}
              />
            </div>
          </td>
        </tr>
      )}
    />
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
      call={calls.createSecret({
        name: name.value.trim(),
        value: value.value,
        provider: provider.value || undefined,
        hosts: provider.value ? undefined : hosts.value.split(/[\s,]+/).filter(Boolean),
      })}
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
      call={calls.rotateSecret(name, value.value)}
      close={close}
      done={done}
    >
      <Field label="New value">
        <Input class="mono" type="password" autocomplete="off" required value={value} />
      </Field>
    </CallDialog>
  );
}
