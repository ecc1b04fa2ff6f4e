// One file: to read, to edit, to download.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { enc, type FileInfo, type Sandbox, send } from "../../api/client";
import { may } from "../../api/session";
import { calls } from "../../lib/calls";
import { bytes, day } from "../../lib/format";
import { isBinary, label } from "../../lib/text";
import { perform, remember, toast } from "../../ui/do";
import { Button, Empty, Failure, Loading, Menu } from "../../ui/kit";
import { Editor } from "../../ui/lazy";

/** The largest file that is opened in the editor, and the largest picture that is shown, in bytes. */
const MAX_TEXT = 2 << 20;
const MAX_IMAGE = 20 << 20;

/** Pictures that a browser draws without running anything. SVG is none of them. */
const IMAGES: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
  bmp: "image/bmp",
  ico: "image/x-icon",
  avif: "image/avif",
};

export function isDir(f: FileInfo): boolean {
  return f.type === "directory" || (f.type === "symlink" && f.linked_file?.type === "directory");
}

export function View({
  of: s,
  file: f,
  remove,
  rename,
}: {
  of: Sandbox;
  file: FileInfo;
  remove: (f: FileInfo) => void;
  rename: (f: FileInfo) => void;
}) {
  const content = useSignal<{ text?: string; image?: string; binary?: boolean; large?: boolean } | undefined>(undefined);
  const edited = useSignal<string | undefined>(undefined);
  const saving = useSignal(false);
  const error = useSignal("");
  const path = `/v1/sandboxes/${enc(s.id)}/files/content?path=${enc(f.path)}`;
  const dir = isDir(f);
  useEffect(() => {
    let left = false;
    let url: string | undefined;
    void (async () => {
      if (dir || (f.type !== "file" && f.linked_file?.type !== "file")) return;
      const image = IMAGES[f.name.slice(f.name.lastIndexOf(".") + 1).toLowerCase()];
      if (f.size > (image ? MAX_IMAGE : MAX_TEXT)) {
        content.value = { large: true };
        return;
      }
      try {
        const data = new Uint8Array(await (await send("GET", path)).arrayBuffer());
        if (left) return;
        if (image) {
          url = URL.createObjectURL(new Blob([data], { type: image }));
          content.value = { image: url };
        } else if (isBinary(data)) content.value = { binary: true };
        else content.value = { text: new TextDecoder().decode(data) };
      } catch (err) {
        error.value = (err as Error).message;
      }
    })();
    return () => {
      left = true;
      if (url) URL.revokeObjectURL(url);
    };
  }, [f.path]);
  const dirty = edited.value !== undefined && edited.value !== content.value?.text;
  const save = async () => {
    if (!dirty || saving.value) return;
    saving.value = true;
    const text = edited.value!;
    try {
      const call = calls.writeFile(s.id, f.path, new Blob([text]), text);
      await perform(call);
      content.value = { text };
      toast("ok", `${label(f.name)} is saved`, call);
    } catch (err) {
      toast("error", (err as Error).message);
    }
    saving.value = false;
  };
  const c = content.value;
  return (
    <>
      <div class="file-head">
        <bdi class="mono cut" title={label(f.path)}>
          {label(f.path)}
        </bdi>
        {dirty && <span class="badge amber">changed</span>}
        <span class="muted small cut">
          {!dir && `${bytes(f.size)} · `}
          {f.mode} · {label(f.owner ?? String(f.uid))} · {day(f.modified_at)}
        </span>
        <span class="grow" />
        {c?.text !== undefined && (
          <Button
            small
            kind={dirty ? "primary" : "plain"}
            icon="save"
            scope="files:write"
            disabled={!dirty}
            busy={saving.value}
            onClick={save}
            title="Save (Ctrl S)"
          >
            Save
          </Button>
        )}
        <Button
          small
          kind="ghost"
          icon="download"
          aria-label="Download"
          title={dir ? "Download as ZIP" : "Download"}
          onClick={() =>
            dir
              ? download(`/v1/sandboxes/${enc(s.id)}/files/archive?path=${enc(f.path)}`, `${f.name}.zip`)
              : download(path, f.name)
          }
        />
        <Menu
          small
          kind="ghost"
          icon="more"
          label="More actions on this file"
          items={[
            { text: "Rename…", icon: "file", scope: "files:write", run: () => rename(f) },
            { text: "Delete…", icon: "trash", danger: true, scope: "files:write", run: () => remove(f) },
          ]}
        />
      </div>
      {error.value ? (
        <Failure error={error.value} />
      ) : dir ? (
        <Empty icon="folder" title={label(f.name)}>
          A directory. It can be downloaded as a ZIP file.
        </Empty>
      ) : c?.text !== undefined ? (
        <Editor
          name={f.name}
          text={c.text}
          readOnly={!may("files:write")}
          aria={`Content of ${label(f.name)}`}
          change={(t) => {
            edited.value = t;
          }}
          save={save}
        />
      ) : c?.image ? (
        <div class="picture">
          <img src={c.image} alt={label(f.name)} />
        </div>
      ) : c?.binary || c?.large ? (
        <Empty
          icon="file"
          title={c.large ? "It is too large to be shown" : "It is no text"}
          action={
            <Button icon="download" onClick={() => download(path, f.name)}>
              Download
            </Button>
          }
        >
          {bytes(f.size)}
        </Empty>
      ) : f.type !== "file" && f.linked_file?.type !== "file" ? (
        <Empty icon="file" title={`A ${label(f.type)}`} />
      ) : (
        <Loading />
      )}
    </>
  );
}

/** download has the browser keep what an address answers, never show it. It comes to the disk as it is sent, and not into the page. */
export async function download(path: string, name: string): Promise<void> {
  const look = new AbortController();
  try {
    // What is refused is said here.
    const response = await send("GET", path, undefined, { signal: look.signal });
    remember({ title: "Download", scope: "sandboxes:read", method: "GET", path });
    if (isSecureContext) {
      look.abort();
      keep(path);
      return;
    }
    // Without TLS, to another machine, browsers do not tell the server which page has asked: only scripts can.
    const url = URL.createObjectURL(new Blob([await response.blob()], { type: "application/octet-stream" }));
    keep(url, label(name).replace(/[/\\]/g, "_"));
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch (err) {
    toast("error", (err as Error).message);
  }
}

/** keep follows a link to what is saved, under a name that the server gives unless there is one here. */
function keep(href: string, name = ""): void {
  const a = document.createElement("a");
  a.href = href;
  a.download = name;
  a.click();
}
