// The dialogs that any page can open: a new sandbox, a fork, a snapshot.
import { signal, useComputed, useSignal } from "@preact/signals";
import { useLocation } from "wouter-preact";
import { api, pages, type Sandbox, type Schemas, want } from "../api/client";
import { calls } from "../lib/calls";
import { plural } from "../lib/format";
import { label } from "../lib/text";
import { kept, snapshots } from "../state/live";
import { stateName } from "../state/steps";
import { CallDialog, confirmed } from "../ui/dialog";
import { attempt, toast } from "../ui/do";
import { Field, Input, NumberInput, Select } from "../ui/fields";
import { useLoad } from "../ui/load";

export const creating = signal<{ template?: string; snapshot?: string } | null>(null);
export const forking = signal<Sandbox | null>(null);
export const snapshotting = signal<Sandbox | null>(null);

export function Dialogs() {
  return (
    <>
      {creating.value && <Create from={creating.value} key="create" />}
      {forking.value && <Fork of={forking.value} key={forking.value.id} />}
      {snapshotting.value && <TakeSnapshot of={snapshotting.value} key={snapshotting.value.id} />}
    </>
  );
}

/** templates loads the names of what a sandbox can begin with. */
export function useTemplates() {
  return useLoad(() => pages((cursor) => want(api.GET("/v1/templates", { params: { query: { cursor } } }))), []);
}

function Create({ from }: { from: { template?: string; snapshot?: string } }) {
  const [, go] = useLocation();
  const templates = useTemplates();
  const name = useSignal("");
  const origin = useSignal(from.snapshot ? `snapshot ${from.snapshot}` : from.template ? `template ${from.template}` : "");
  const preset = useSignal("");
  const memory = useSignal("");
  const vcpus = useSignal("");
  const lifetime = useSignal("");
  const history = useSignal("");
  const close = () => {
    creating.value = null;
  };
  const request = useComputed((): Schemas["CreateRequest"] => {
    const [kind, ...rest] = origin.value.split(" ");
    const what = rest.join(" ");
    const resources = { memory_mib: Number(memory.value) || 0, vcpus: Number(vcpus.value) || 0 };
    return {
      name: name.value.trim() || undefined,
      template: kind === "template" ? what : undefined,
      snapshot: kind === "snapshot" ? what : undefined,
      network: preset.value ? { preset: preset.value } : undefined,
      resources: kind !== "snapshot" && (resources.memory_mib || resources.vcpus) ? resources : undefined,
      lifetime_seconds: lifetime.value === "" ? undefined : Number(lifetime.value),
      history: history.value === "" ? undefined : Number(history.value),
    } as Schemas["CreateRequest"];
  });
  const choices = kept.value.slice(0, 200);
  // A step of a history is not among those that somebody asked for.
  const given = snapshots.value.get(from.snapshot ?? "");
  if (given && !choices.includes(given)) choices.unshift(given);
  return (
    <CallDialog
      title="New sandbox"
      action="Create"
      call={calls.create(request.value)}
      said="The sandbox runs"
      close={close}
      done={(made) => go(`/s/${made.id}`)}
    >
      <Field label="Name" hint="Lower-case letters, digits, “.”, “_” and “-”. It may stay empty.">
        <Input value={name} maxLength={63} placeholder="work" data-autofocus />
      </Field>
      <Field label="Begin with">
        <Select value={origin}>
          <option value="">The server's default template</option>
          <optgroup label="Templates">
            {(templates.data.value ?? []).map((t) => (
              <option key={t.name} value={`template ${t.name}`} disabled={t.state !== "ready"}>
                {label(t.name)}
                {t.state !== "ready" ? " (not built)" : ""}
              </option>
            ))}
            {from.template && !templates.data.value && (
              <option value={`template ${from.template}`}>{label(from.template)}</option>
            )}
          </optgroup>
          {choices.length > 0 && (
            <optgroup label="Snapshots">
              {choices.map((s) => (
                <option key={s.id} value={`snapshot ${s.id}`}>
                  {label(stateName(s), 60)}
                </option>
              ))}
            </optgroup>
          )}
        </Select>
      </Field>
      <Field label="Network">
        <Select value={preset}>
          <option value="">The server's default</option>
          <option value="open">open: the public Internet</option>
          <option value="packages">packages: package registries and code hosts</option>
          <option value="none">none: nothing at all</option>
        </Select>
      </Field>
      <details>
        <summary>Limits and history</summary>
        <div class="grid2">
          <Field label="Memory, MiB">
            <Input type="number" min="64" placeholder="default" value={memory} />
          </Field>
          <Field label="vCPUs">
            <Input type="number" min="1" placeholder="default" value={vcpus} />
          </Field>
          <Field label="Lifetime, seconds" hint="0 is no bound.">
            <Input type="number" min="0" placeholder="default" value={lifetime} />
          </Field>
          <Field label="History, steps" hint="One before each command.">
            <Input type="number" min="0" max="50" placeholder="0" value={history} />
          </Field>
        </div>
      </details>
    </CallDialog>
  );
}

function Fork({ of }: { of: Sandbox }) {
  const count = useSignal(1);
  const name = useSignal("");
  const close = () => {
    forking.value = null;
  };
  const call = useComputed(() => calls.fork(of.id, { count: count.value, name: name.value.trim() || undefined }));
  return (
    <CallDialog
      title={`Fork ${label(of.name || of.id)}`}
      action="Fork"
      icon="fork"
      call={call.value}
      close={close}
      done={(made) => toast("ok", `${plural(made.items?.length ?? 0, "fork")} of ${label(of.name || of.id)}`, call.value)}
    >
      <p class="soft">Children go on from this instant, with memory, processes and files. The parent runs on.</p>
      <div class="grid2">
        <Field label="How many" hint="1 to 32.">
          <NumberInput
            min="1"
            max="32"
            value={count}
            read={(text) => Math.min(32, Math.max(1, Number(text) || 1))}
            data-autofocus
          />
        </Field>
        <Field
          label="Name"
          hint={
            count.value > 1
              ? `${label(name.value || "idea")}-0 to ${label(name.value || "idea")}-${count.value - 1}`
              : "It may stay empty."
          }
        >
          <Input value={name} maxLength={60} placeholder="idea" />
        </Field>
      </div>
    </CallDialog>
  );
}

function TakeSnapshot({ of }: { of: Sandbox }) {
  const name = useSignal("");
  const text = useSignal("");
  const kind = useSignal("memory");
  const close = () => {
    snapshotting.value = null;
  };
  const call = useComputed(() =>
    calls.snapshot(of.id, {
      name: name.value.trim() || undefined,
      label: text.value || undefined,
      kind: kind.value === "memory" ? undefined : kind.value,
    }),
  );
  return (
    <CallDialog
      title={`Snapshot of ${label(of.name || of.id)}`}
      action="Keep"
      icon="camera"
      call={call.value}
      said="The snapshot is kept"
      close={close}
    >
      <Field label="Name" hint="Unique among your snapshots. It may stay empty.">
        <Input value={name} maxLength={63} placeholder="ready" data-autofocus />
      </Field>
      <Field label="Label">
        <Input value={text} maxLength={200} placeholder="any text to tell it by" />
      </Field>
      <Field label="What is kept">
        <Select value={kind}>
          <option value="memory">Memory, processes and files</option>
          <option value="files">Changed files only</option>
        </Select>
      </Field>
    </CallDialog>
  );
}

/** askKill asks before a sandbox is ended. */
export function askKill(s: Sandbox): void {
  const call = calls.kill(s.id);
  confirmed(
    call,
    `Kill ${label(s.name || s.id)}?`,
    "Its processes end, and its files are removed. Snapshots of it stay.",
    "Kill",
    "Killed",
  );
}

/** askRestore asks before a sandbox goes back. */
export function askRestore(s: Sandbox, snapshot: string, named: string): void {
  const call = calls.restore(s.id, { snapshot });
  confirmed(
    call,
    `Restore ${label(s.name || s.id)}?`,
    `It goes back to ${label(named)}. What it did since then is lost.`,
    "Restore",
    "Restored",
  );
}

export function togglePause(s: Sandbox): void {
  void (s.state === "paused" ? attempt(calls.resume(s.id), "Resumed") : attempt(calls.pause(s.id), "Paused"));
}
