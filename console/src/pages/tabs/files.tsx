import { useComputed, useSignal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { api, enc, type FileInfo, pages, type Sandbox, want } from "../../api/client";
import { may } from "../../api/session";
import type { Call } from "../../lib/call";
import { calls } from "../../lib/calls";
import { type Dropped, dropped, MOST } from "../../lib/dropped";
import { byName, plural } from "../../lib/format";
import { label } from "../../lib/text";
import { CallDialog, confirmed } from "../../ui/dialog";
import { attempt, toast } from "../../ui/do";
import { Field, Input } from "../../ui/fields";
import { Icon } from "../../ui/icons";
import { Button, Empty, Failure, Loading, Menu, Rows } from "../../ui/kit";
import { download, isDir, View } from "./file";
import { Since } from "./since";

/** The most entries of a directory that are listed. */
const MAX_ENTRIES = 10_000;

interface Node {
  info: FileInfo;
  depth: number;
}

function parentOf(path: string): string {
  return path.slice(0, path.lastIndexOf("/")) || "/";
}

function filesOf(list: FileList | null | undefined): Dropped {
  return { files: [...(list ?? [])].map((file) => ({ path: file.name, file })), empty: [] };
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
      items.sort((a, b) => Number(isDir(b)) - Number(isDir(a)) || byName(a.name, b.name));
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
  // Before paint: later, it would replace a directory that somebody has typed.
  useLayoutEffect(() => go(s.workdir || "/"), [s.id]);

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

  const upload = async ({ files, empty }: Dropped, dir: string) => {
    const to = (path: string) => `${dir === "/" ? "" : dir}/${path}`;
    let done = 0;
    for (const { path, file } of files) {
      busy.value = `Sending ${done + 1} of ${files.length}: ${label(path, 60)}`;
      if (!(await attempt(calls.writeFile(s.id, to(path), file)))) break;
      done++;
    }
    if (done === files.length) for (const path of empty) if (!(await attempt(calls.makeDir(s.id, to(path))))) break;
    busy.value = "";
    if (done) toast("ok", `${plural(done, "file")} sent to ${label(dir)}`);
    await again(dir);
  };
  const drop = async (e: DragEvent) => {
    e.preventDefault();
    dragging.value = false;
    const entries = [...(e.dataTransfer?.items ?? [])].map((i) => i.webkitGetAsEntry?.()).filter((x) => x != null);
    const dir = target();
    const loose = filesOf(e.dataTransfer?.files);
    try {
      const found = entries.length ? await dropped(entries) : loose;
      if (found) await upload(found, dir);
      else
        toast(
          "error",
          `Nothing is sent: more than ${MOST.toLocaleString("en")} files are too many here. Send them with: cove cp`,
        );
    } catch (err) {
      toast("error", `Nothing is sent: what was dropped cannot be read. ${(err as Error).message}`);
    }
  };
  const remove = (f: FileInfo) => {
    const dir = f.type === "directory";
    const call = calls.deleteFile(s.id, f.path, dir);
    confirmed(
      call,
      `Delete ${label(f.name)}?`,
      dir ? "The directory goes with all that is in it." : "The file is gone then.",
      "Delete",
      "Deleted",
      async (done) => {
        if (!done) return;
        if (chosen.value?.path === f.path) chosen.value = undefined;
        await again(parentOf(f.path));
      },
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
              const files = filesOf(e.currentTarget.files);
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
              active="chosen-file"
              render={({ info: f, depth }) => (
                <div
                  key={f.path}
                  id={chosen.value?.path === f.path ? "chosen-file" : undefined}
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
    <CallDialog title={title} action={title} call={call} close={close} done={() => done(path.value)}>
      <Field label="Path">
        <Input class="mono" value={path} spellcheck={false} />
      </Field>
    </CallDialog>
  );
}
