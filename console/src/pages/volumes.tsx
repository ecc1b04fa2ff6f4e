// Volumes, which outlive sandboxes.
import { useSignal } from "@preact/signals";
import { Link } from "wouter-preact";
import { api, pages, want } from "../api/client";
import { calls } from "../lib/calls";
import { bytes, day } from "../lib/format";
import { label } from "../lib/text";
import { sandboxes } from "../state/live";
import { CallDialog, Opener, Trash } from "../ui/dialog";
import { Field, Input, NumberInput } from "../ui/fields";
import { useLoad } from "../ui/load";
import { ListPage } from "./list";

export function VolumesPage() {
  const list = useLoad(() => pages((cursor) => want(api.GET("/v1/volumes", { params: { query: { cursor } } }))), []);
  const action = (
    <Opener kind="primary" icon="plus" scope="sandboxes:write" dialog={(close) => <NewVolume close={close} done={list.again} />}>
      New volume
    </Opener>
  );
  return (
    <ListPage
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
          <td class="muted nowrap">{day(v.created_at)}</td>
          <td class="actions">
            <Trash
              what={`the volume ${label(v.name)}`}
              call={calls.deleteVolume(v.id)}
              text="Its files are gone then."
              done={list.again}
            />
          </td>
        </tr>
      )}
    />
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
