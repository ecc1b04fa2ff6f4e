import { signal, useComputed, useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { may } from "../api/session";
import { calls } from "../lib/calls";
import { label } from "../lib/text";
import { NAV } from "../nav";
import { creating, forking, snapshotting } from "../pages/dialogs";
import { living } from "../state/live";
import { Dialog, useModal } from "./dialog";
import { attempt, leave } from "./do";
import { Icon, type IconName } from "./icons";
import { StateDot } from "./kit";
import { isDark, theme } from "./theme";

export const paletteOpen = signal(false);

interface Command {
  text: string;
  more?: string;
  icon?: IconName;
  state?: string;
  run: () => void;
}

const MOST = 40;

export function Palette() {
  const [path, go] = useLocation();
  const query = useSignal("");
  const at = useSignal(0);
  const list = useRef<HTMLUListElement>(null);
  const ref = useRef<HTMLDialogElement>(null);
  const close = () => {
    paletteOpen.value = false;
  };
  useModal(ref);

  const found = useComputed(() => {
    const write = may("sandboxes:write");
    const commands: Command[] = [];
    const here = /^\/s\/([^/]+)/.exec(path)?.[1];
    const current = here ? living.value.find((s) => s.id === decodeURIComponent(here)) : undefined;
    if (current && write) {
      const name = label(current.name || current.id);
      commands.push(
        {
          text: `Fork ${name}`,
          icon: "fork",
          run: () => {
            forking.value = current;
          },
        },
        {
          text: `Snapshot ${name}`,
          icon: "camera",
          run: () => {
            snapshotting.value = current;
          },
        },
        current.state === "paused"
          ? { text: `Resume ${name}`, icon: "play", run: () => void attempt(calls.resume(current.id), "Resumed") }
          : { text: `Pause ${name}`, icon: "pause", run: () => void attempt(calls.pause(current.id), "Paused") },
      );
      for (const tab of ["terminal", "files", "code", "jobs", "network", "previews", "metrics", "history", "settings"]) {
        commands.push({ text: `${name}: ${tab}`, icon: "right", run: () => go(`/s/${current.id}/${tab}`) });
      }
    }
    if (write)
      commands.push({
        text: "New sandbox",
        icon: "plus",
        run: () => {
          creating.value = {};
        },
      });
    for (const n of NAV) commands.push({ text: `Go to ${n.text}`, icon: n.icon, run: () => go(n.to) });
    commands.push(
      {
        text: isDark() ? "Use light colours" : "Use dark colours",
        icon: isDark() ? "sun" : "moon",
        run: () => {
          theme.value = isDark() ? "light" : "dark";
        },
      },
      {
        text: "Use the system's colours",
        icon: "settings",
        run: () => {
          theme.value = "system";
        },
      },
      { text: "Sign out", icon: "exit", run: () => void leave() },
    );
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (text: string) => words.every((w) => text.toLowerCase().includes(w));
    const boxes: Command[] = [];
    for (const s of living.value) {
      if (boxes.length >= MOST) break;
      if (!fits(`${s.name ?? ""} ${s.id} ${s.template}`)) continue;
      boxes.push({
        text: label(s.name || s.id),
        more: label(s.name ? s.id : s.template),
        state: s.state,
        run: () => go(`/s/${s.id}`),
      });
    }
    const rest = commands.filter((c) => fits(c.text));
    return words.length ? [...boxes, ...rest].slice(0, MOST) : [...rest, ...boxes].slice(0, MOST);
  });
  const keys = (e: KeyboardEvent) => {
    e.stopPropagation();
    const n = found.value.length;
    if (e.key === "ArrowDown" || e.key === "ArrowUp") {
      e.preventDefault();
      at.value = (at.value + (e.key === "ArrowDown" ? 1 : -1) + n) % (n || 1);
      requestAnimationFrame(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }));
    } else if (e.key === "Enter") {
      e.preventDefault();
      const c = found.value[at.value];
      if (c) {
        close();
        c.run();
      }
    }
  };
  return (
    <dialog
      ref={ref}
      class="palette"
      aria-label="Command palette"
      onCancel={(e) => {
        e.preventDefault();
        close();
      }}
      onClick={(e) => e.target === ref.current && close()}
      onKeyDown={keys}
    >
      <div class="palette-in">
        <div class="palette-line">
          <Icon name="search" />
          <input
            role="combobox"
            aria-expanded="true"
            aria-controls="palette-list"
            aria-activedescendant={`palette-${at.value}`}
            aria-label="Search sandboxes and commands"
            placeholder="Search sandboxes and commands"
            value={query.value}
            onInput={(e) => {
              query.value = e.currentTarget.value;
              at.value = 0;
            }}
          />
          <kbd>Esc</kbd>
        </div>
        <ul id="palette-list" role="listbox" aria-label="Found" ref={list}>
          {found.value.map((c, i) => (
            <li
              key={`${c.text}${c.more ?? ""}`}
              id={`palette-${i}`}
              role="option"
              aria-selected={i === at.value}
              onPointerMove={() => {
                at.value = i;
              }}
              onClick={() => {
                close();
                c.run();
              }}
            >
              {c.state ? <StateDot state={c.state} /> : <Icon name={c.icon ?? "right"} />}
              <bdi class="cut">{c.text}</bdi>
              {c.more && <span class="muted mono cut">{c.more}</span>}
            </li>
          ))}
          {!found.value.length && (
            <li class="muted" role="option" aria-selected="false" aria-disabled="true">
              Nothing is found
            </li>
          )}
        </ul>
      </div>
    </dialog>
  );
}

const KEYS: [string, string][] = [
  ["/", "Search"],
  ["j k", "Down and up in a list"],
  ["Enter", "Open"],
  ["c", "New sandbox"],
  ["f", "Fork"],
  ["s", "Snapshot"],
  ["p", "Pause or resume"],
  ["x", "Kill, after a question"],
  ["t", "Tree or table"],
  ["1 … 9", "Tabs of a sandbox"],
  ["Esc", "Close"],
  ["Ctrl K", "Command palette, from a terminal too"],
  ["Ctrl Shift Esc", "Leave a terminal"],
  ["?", "This list"],
];

export function Help({ close }: { close: () => void }) {
  return (
    <Dialog title="Keys" close={close}>
      <dl class="facts">
        {KEYS.map(([k, what]) => (
          <>
            <dt>
              {k.split(" ").map((x) => (
                <kbd key={x}>{x}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </>
        ))}
      </dl>
      <h2>Search</h2>
      <p class="soft">
        Words find names, ids, templates and metadata. <code>state:running</code>, <code>template:node</code>,{" "}
        <code>from:sbx-…</code>, <code>age:&lt;1h</code>, <code>age:&gt;2d</code>, and <code>key:value</code> for metadata.
      </p>
    </Dialog>
  );
}
