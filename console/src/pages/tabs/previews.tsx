import { useSignal } from "@preact/signals";
import { api, pages, type Sandbox, type Schemas, want } from "../../api/client";
import { calls } from "../../lib/calls";
import { day } from "../../lib/format";
import { label } from "../../lib/text";
import { isEnded } from "../../state/world";
import { CallDialog, Opener, Shown, Trash } from "../../ui/dialog";
import { attempt, copy, toast } from "../../ui/do";
import { Check, Field, NumberInput } from "../../ui/fields";
import { Button, Empty, Snippet } from "../../ui/kit";
import { useLoad } from "../../ui/load";
import { Listing } from "../list";

export function PreviewsTab({ of: s }: { of: Sandbox }) {
  const list = useLoad(
    () =>
      pages((cursor) =>
        want(api.GET("/v1/sandboxes/{sandbox}/previews", { params: { path: { sandbox: s.id }, query: { cursor } } })),
      ),
    [s.id],
  );
  const made = useSignal<Schemas["NewPreview"] | undefined>(undefined);
  const visit = async (p: Schemas["Preview"]) => {
    // The tab is opened at once, within the click, and led on when the link is signed.
    const tab = window.open("about:blank", "_blank");
    const url = p.access === "public" ? p.url : (await attempt(calls.linkPreview(s.id, p.port)))?.url;
    if (!url || !/^https?:\/\//.test(url)) return tab?.close();
    if (!tab) return toast("error", "The browser did not open a tab for it.");
    tab.opener = null;
    tab.location.href = url;
  };
  const share = async (p: Schemas["Preview"]) => {
    const url = p.access === "public" ? p.url : (await attempt(calls.linkPreview(s.id, p.port)))?.url;
    if (url && (await copy(url))) toast("ok", "The link is copied", calls.linkPreview(s.id, p.port));
  };
  const added = (p: Schemas["NewPreview"]) => {
    made.value = p;
    void list.again();
  };
  return (
    <div class="content flush">
      <div class="files-tools">
        <span class="muted small grow">A preview makes a port of the sandbox a URL outside.</span>
        <Opener
          icon="plus"
          kind="primary"
          small
          scope="sandboxes:write"
          disabled={isEnded(s)}
          dialog={(close) => <New of={s} close={close} done={added} />}
        >
          New preview
        </Opener>
      </div>
      <Listing
        class="scroll-x"
        name="Previews"
        load={list}
        items={list.data.value}
        head={[{ text: "Port", num: true }, "URL", "Access", "Ends", ""]}
        none={
          <Empty icon="link" title="No port is shown outside">
            Start a server in the sandbox, on any address, and make its port a preview.
          </Empty>
        }
        row={(p) => (
          <tr key={p.port}>
            <td class="num">{p.port}</td>
            <td class="mono cut" title={label(p.url)}>
              {label(p.url)}
            </td>
            <td>
              <span class={`badge ${p.access === "public" ? "amber" : "green"}`}>{label(p.access)}</span>
              {p.wake && <span class="muted small"> wakes</span>}
            </td>
            <td class="muted nowrap">{p.expires_at ? day(p.expires_at) : "with the sandbox"}</td>
            <td class="actions">
              <div class="row">
                <Button
                  small
                  icon="open"
                  scope={p.access === "public" ? undefined : "sandboxes:write"}
                  onClick={() => void visit(p)}
                >
                  Open
                </Button>
                <Button
                  small
                  icon="copy"
                  scope={p.access === "public" ? undefined : "sandboxes:write"}
                  onClick={() => void share(p)}
                >
                  Link
                </Button>
                <Trash
                  what={`the preview of port ${p.port}`}
                  call={calls.deletePreview(s.id, p.port)}
                  text="Its key and its links end at once."
                  verb={["End", "Ended"]}
                  done={list.again}
                />
              </div>
            </td>
          </tr>
        )}
      />
      {made.value?.key && (
        <Shown
          title="The preview is made"
          close={() => {
            made.value = undefined;
          }}
        >
          <p>
            Programs open it with this key, in the header <code>Cove-Preview-Key</code>. It is not shown again.
          </p>
          <Snippet text={made.value.key} />
          <Snippet text={made.value.url} />
        </Shown>
      )}
    </div>
  );
}

function New({ of: s, close, done }: { of: Sandbox; close: () => void; done: (p: Schemas["NewPreview"]) => void }) {
  const port = useSignal(3000);
  const open = useSignal(false);
  const wake = useSignal(false);
  const call = calls.createPreview(s.id, {
    port: port.value,
    access: open.value ? "public" : "private",
    wake: wake.value || undefined,
  });
  return (
    <CallDialog title="New preview" action="Create" call={call} close={close} done={done}>
      <Field label="Port">
        <NumberInput min="1" max="65535" required value={port} />
      </Field>
      <Check value={open}>Open to everybody who can reach the server</Check>
      <Check value={wake}>Resume the sandbox when somebody opens it</Check>
    </CallDialog>
  );
}
