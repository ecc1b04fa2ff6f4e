import { useComputed, useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { api, enc, type FileInfo, pages, type Sandbox, send, want } from "../../api/client";
import { may } from "../../api/session";
import { type Call, calls } from "../../lib/calls";
import { bytes, day, plural } from "../../lib/format";
import { isBinary, label } from "../../lib/text";
import { sandboxes, snapshots } from "../../state/live";
import { Comparison, useDiff } from "../../ui/changes";
import { CallDialog, CopyAs, confirmed } from "../../ui/dialog";
import { attempt, perform, remember, toast } from "../../ui/do";
import type { EditorProps } from "../../ui/editor";
import { Field, Input } from "../../ui/fields";
import { Icon } from "../../ui/icons";
import { Button, Empty, Failure, Loading, Menu, Rows } from "../../ui/kit";

/** The largest file that is opened in the editor, and the largest picture that is shown, in bytes. */
const MAX_TEXT = 2 << 20;
const MAX_IMAGE = 20 << 20;
/** The most entries of a directory that are listed. */
const MAX_ENTRIES = 10_000;
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

interface Node {
  info: FileInfo;
  depth: number;
}

function parentOf(path: string): string {
  return path.slice(0, path.lastIndexOf("/")) || "/";
}

function isDir(f: FileInfo): boolean {
  return f.type === "directory" || (f.type === "symlink" && f.linked_file?.type === "directory");
}

export function FilesTab({ of: s }: { of: Sandbox }) {
  const root = useSignal(s.workdir || "/");
  const typed = useSignal(root.value);
  const open = useSignal<ReadonlyMap<string, FileInfo[] | "loading">>(new Map());
  const chosen = useSignal<FileInfo | undefined>(undefined);
  const error = useSignal("");
  const dragging = useSignal(false);
  const busy = useSignal("");
  const naming = useSignal<{ kind: "file" | "folder" | "rename"; path: string } | null>(null);
  const since = useSignal<string | undefined>(undefined);
  const picker = useRef<HTMLInputElement>(null);

  const list = async (path: string) => {
    if (!open.value.has(path)) open.value = new Map(open.value).set(path, "loading");
    try {
      const items = await pages(
        (cursor) =>
          want(
            api.GET("/v1/sandboxes/{sandbox}/files", {
              params: { path: { sandbox: s.id }, query: { path, limit: 1000, cursor } },
            }),
          ),
        MAX_ENTRIES,
      );
      items.sort((a, b) => Number(isDir(b)) - Number(isDir(a)) || a.name.localeCompare(b.name, "en", { numeric: true }));
      open.value = new Map(open.value).set(path, items);
      error.value = "";
    } catch (err) {
      const next = new Map(open.value);
      next.delete(path);
      open.value = next;
      error.value = (err as Error).message;
    }
  };
  const go = (path: string) => {
    root.value = path;
    typed.value = path;
    open.value = new Map();
    void list(path);
  };
  useEffect(() => go(s.workdir || "/"), [s.id]);

  const nodes = useComputed(() => {
    const all: Node[] = [];
    const add = (path: string, depth: number) => {
      const items = open.value.get(path);
      if (!items || items === "loading") return;
      for (const info of items) {
        all.push({ info, depth });
        if (isDir(info) && open.value.has(info.path)) add(info.path, depth + 1);
      }
    };
    add(root.value, 0);
    return all;
  });
  const toggle = (f: FileInfo) => {
    if (!open.value.has(f.path)) return void list(f.path);
    const next = new Map(open.value);
    next.delete(f.path);
    open.value = next;
  };
  /** Where something new goes: into what is chosen, if that is a directory, else beside it. */
  const target = () => (!chosen.value ? root.value : isDir(chosen.value) ? chosen.value.path : parentOf(chosen.value.path));
  const again = (dir: string) => list(open.value.has(dir) ? dir : root.value);

  const upload = async (files: { path: string; file: File }[], dir: string) => {
    let done = 0;
    for (const { path, file } of files) {
      busy.value = `Sending ${++done} of ${files.length}: ${label(path, 60)}`;
      if (!(await attempt(calls.writeFile(s.id, `${dir === "/" ? "" : dir}/${path}`, file)))) break;
    }
    busy.value = "";
    if (done) toast("ok", `${plural(done, "file")} sent to ${label(dir)}`);
    await again(dir);
  };
  const drop = async (e: DragEvent) => {
    e.preventDefault();
    dragging.value = false;
    const entries = [...(e.dataTransfer?.items ?? [])].map((i) => i.webkitGetAsEntry?.()).filter((x) => x != null);
    const files = entries.length
      ? await walk(entries)
      : [...(e.dataTransfer?.files ?? [])].map((file) => ({ path: file.name, file }));
    if (files.length) await upload(files, target());
  };
  const remove = (f: FileInfo) => {
    const dir = f.type === "directory";
    const call = calls.deleteFile(s.id, f.path, dir);
    confirmed(
      `Delete ${label(f.name)}?`,
      dir ? "The directory goes with all that is in it." : "The file is gone then.",
      "Delete",
      async () => {
        if (!(await attempt(call, "Deleted"))) return;
        if (chosen.value?.path === f.path) chosen.value = undefined;
        await again(parentOf(f.path));
      },
      call,
    );
  };
  const keys = (e: KeyboardEvent) => {
    const i = nodes.value.findIndex((n) => n.info.path === chosen.value?.path);
    const step = e.key === "ArrowDown" || e.key === "j" ? 1 : e.key === "ArrowUp" || e.key === "k" ? -1 : 0;
    const f = nodes.value[i]?.info;
    if (step) chosen.value = nodes.value[Math.max(0, Math.min(nodes.value.length - 1, i + step))]?.info;
    else if (
      f &&
      isDir(f) &&
      (e.key === "Enter" ||
        (e.key === "ArrowRight" && !open.value.has(f.path)) ||
        (e.key === "ArrowLeft" && open.value.has(f.path)))
    )
      toggle(f);
    else if (f && e.key === "Delete" && may("files:write")) remove(f);
    else return;
    e.preventDefault();
    e.stopPropagation();
  };
  if (since.value !== undefined)
    return (
      <Since
        of={s}
        against={since.value}
        pick={(x) => {
          since.value = x;
        }}
        close={() => {
          since.value = undefined;
        }}
      />
    );
  return (
    <div
      class={`files ${dragging.value ? "dragging" : ""}`}
      onDragOver={(e) => {
        if (!may("files:write")) return;
        e.preventDefault();
        dragging.value = true;
      }}
      onDragLeave={(e) => {
        if (e.currentTarget === e.target) dragging.value = false;
      }}
      onDrop={drop}
    >
      <div class="files-side">
        <div class="files-tools">
          <form
            class="grow"
            onSubmit={(e) => {
              e.preventDefault();
              go(typed.value.replace(/(.)\/+$/, "$1") || "/");
            }}
          >
            <Input class="mono" aria-label="Directory" spellcheck={false} value={typed} />
          </form>
          <Button kind="ghost" small icon="back" aria-label="List again" title="List again" onClick={() => go(root.value)} />
        </div>
        <div class="files-tools">
          <Button
            small
            icon="diff"
            onClick={() => {
              since.value = "";
            }}
          >
            Changed since…
          </Button>
          <span class="grow" />
          <Button
            kind="ghost"
            small
            icon="upload"
            scope="files:write"
            aria-label="Upload"
            title="Upload; files and folders can be dropped here too"
            onClick={() => picker.current?.click()}
          />
          <Menu
            small
            kind="ghost"
            label="More actions on files"
            icon="more"
            items={[
              {
                text: "New file…",
                icon: "file",
                scope: "files:write",
                run: () => {
                  naming.value = { kind: "file", path: `${target() === "/" ? "" : target()}/` };
                },
              },
              {
                text: "New folder…",
                icon: "folder",
                scope: "files:write",
                run: () => {
                  naming.value = { kind: "folder", path: `${target() === "/" ? "" : target()}/` };
                },
              },
              {
                text: `Download ${label(root.value, 30)}`,
                icon: "download",
                run: () =>
                  download(
                    `/v1/sandboxes/${enc(s.id)}/files/archive?path=${enc(root.value)}`,
                    `${root.value.split("/").pop() || "root"}.zip`,
                  ),
              },
              { text: "Up one directory", icon: "folder", disabled: root.value === "/", run: () => go(parentOf(root.value)) },
            ]}
          />
          <input
            ref={picker}
            type="file"
            multiple
            hidden
            aria-label="Files to upload"
            onChange={(e) => {
              const files = [...(e.currentTarget.files ?? [])].map((file) => ({ path: file.name, file }));
              e.currentTarget.value = "";
              void upload(files, target());
            }}
          />
        </div>
        {error.value && <Failure error={error.value} />}
        {busy.value && (
          <div class="note small">
            <span class="spinner" /> {busy.value}
          </div>
        )}
        <div class="files-list" onKeyDown={keys}>
          {open.value.get(root.value) === "loading" ? (
            <Loading />
          ) : nodes.value.length === 0 ? (
            <Empty icon="folder" title="Nothing is here">
              Drop files here to send them.
            </Empty>
          ) : (
            <Rows
              role="tree"
              aria-label="Files"
              items={nodes.value}
              height={26}
              at={nodes.value.findIndex((n) => n.info.path === chosen.value?.path)}
              render={({ info: f, depth }) => (
                <div
                  key={f.path}
                  role="treeitem"
                  tabIndex={-1}
                  aria-level={depth + 1}
                  aria-expanded={isDir(f) ? open.value.has(f.path) : undefined}
                  aria-selected={chosen.value?.path === f.path}
                  class="file"
                  style={{ paddingLeft: 10 + Math.min(depth, 12) * 14 }}
                  title={label(f.path)}
                  onClick={() => {
                    chosen.value = f;
                    if (isDir(f)) toggle(f);
                  }}
                >
                  <Icon name={isDir(f) ? (open.value.has(f.path) ? "down" : "right") : "file"} size={13} class="muted" />
                  <bdi class="cut">{label(f.name)}</bdi>
                  {f.type === "symlink" && <span class="muted cut">→ {label(f.symlink_target, 60)}</span>}
                </div>
              )}
            />
          )}
        </div>
      </div>
      <div class="files-main">
        {chosen.value ? (
          <View
            key={chosen.value.path}
            of={s}
            file={chosen.value}
            remove={remove}
            rename={(f) => {
              naming.value = { kind: "rename", path: f.path };
            }}
          />
        ) : (
          <Empty icon="file" title="No file is chosen">
            Files open with highlighting, and are saved with Ctrl S. Drop files or folders anywhere here to send them.
          </Empty>
        )}
      </div>
      {naming.value && (
        <Naming
          key={naming.value.kind}
          of={s}
          what={naming.value}
          close={() => {
            naming.value = null;
          }}
          done={(path) => void again(parentOf(path))}
        />
      )}
      {dragging.value && <div class="drop">Drop to send to {label(target())}</div>}
    </div>
  );
}

function Naming({
  of: s,
  what,
  close,
  done,
}: {
  of: Sandbox;
  what: { kind: "file" | "folder" | "rename"; path: string };
  close: () => void;
  done: (path: string) => void;
}) {
  const path = useSignal(what.path);
  const call: Call<unknown> =
    what.kind === "file"
      ? calls.writeFile(s.id, path.value, new Blob([]), "")
      : what.kind === "folder"
        ? calls.makeDir(s.id, path.value)
        : calls.moveFile(s.id, what.path, path.value);
  const title = { file: "New file", folder: "New folder", rename: "Rename" }[what.kind];
  return (
    <CallDialog
      title={title}
      action={title}
      call={call}
      close={close}
      done={() => {
        done(path.value);
        close();
      }}
    >
      <Field label="Path">
        <Input class="mono" value={path} spellcheck={false} />
      </Field>
    </CallDialog>
  );
}

function View({
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
  const Editor = useSignal<ComponentType<EditorProps> | undefined>(undefined);
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
        else {
          Editor.value = (await import("../../ui/editor")).default;
          content.value = { text: new TextDecoder().decode(data) };
        }
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
  const Shown = Editor.value;
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
      ) : c?.text !== undefined && Shown ? (
        <Shown
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

/** download has the browser keep what an address answers, never show it. */
async function download(path: string, name: string): Promise<void> {
  try {
    const response = await send("GET", path);
    remember({ title: "Download", scope: "sandboxes:read", method: "GET", path });
    const url = URL.createObjectURL(new Blob([await response.blob()], { type: "application/octet-stream" }));
    const a = document.createElement("a");
    a.href = url;
    a.download = label(name).replace(/[/\\]/g, "_");
    a.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } catch (err) {
    toast("error", (err as Error).message);
  }
}

/** walk finds the files of what was dropped, folders too. */
async function walk(entries: FileSystemEntry[]): Promise<{ path: string; file: File }[]> {
  const all: { path: string; file: File }[] = [];
  const visit = async (e: FileSystemEntry): Promise<void> => {
    if (all.length >= 2000) return;
    if (e.isFile) {
      const file = await new Promise<File>((ok, no) => (e as FileSystemFileEntry).file(ok, no));
      all.push({ path: e.fullPath.replace(/^\//, ""), file });
      return;
    }
    const reader = (e as FileSystemDirectoryEntry).createReader();
    for (;;) {
      const part = await new Promise<FileSystemEntry[]>((ok, no) => reader.readEntries(ok, no));
      if (!part.length) return;
      for (const x of part) await visit(x);
    }
  };
  for (const e of entries) await visit(e);
  return all;
}

/** Since shows what changed since the template, the parent, or a snapshot. */
function Since({ of: s, against, pick, close }: { of: Sandbox; against: string; pick: (x: string) => void; close: () => void }) {
  const { call, load } = useDiff(s.id, against);
  const kept = [...snapshots.value.values()].filter(
    (x) => !x.automatic && (x.sandbox_id === s.id || x.sandbox_id === s.forked_from),
  );
  const parent = s.forked_from ? sandboxes.value.get(s.forked_from) : undefined;
  return (
    <div class="since">
      <div class="files-tools">
        <Button kind="ghost" small icon="folder" onClick={close}>
          All files
        </Button>
        <label class="row nowrap">
          <span class="soft">Changed since</span>
          <select class="select narrow" value={against} onChange={(e) => pick(e.currentTarget.value)}>
            <option value="">its template, {label(s.template)}</option>
            {parent && !parent.ended_at && <option value={parent.id}>its parent, {label(parent.name || parent.id)}</option>}
            {kept.map((x) => (
              <option key={x.id} value={x.id}>
                snapshot {label(x.name || x.label || x.id, 50)}
              </option>
            ))}
          </select>
        </label>
        <Button kind="ghost" small icon="back" aria-label="Compare again" title="Compare again" onClick={load.again} />
        <span class="grow" />
        <CopyAs call={call} small />
      </div>
      <Comparison load={load} readable={s.id} />
    </div>
  );
}
