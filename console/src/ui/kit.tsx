// The console's own small set of controls.
import { useSignal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Sandbox } from "../api/client";
import { refusal } from "../api/session";
import { label } from "../lib/text";
import { copy } from "./do";
import { Icon, type IconName } from "./icons";

export type Children = { children?: ComponentChildren };

export function Button(
  props: Children & {
    icon?: IconName;
    kind?: "plain" | "primary" | "danger" | "ghost";
    /** The scope that the action needs: without it the button is disabled, and says why. */
    scope?: string;
    busy?: boolean;
    hint?: string;
    small?: boolean;
  } & Omit<JSX.ButtonHTMLAttributes<HTMLButtonElement>, "icon">,
) {
  const { icon, kind = "plain", scope, busy, hint, small, children, disabled, title, class: cls, ...rest } = props;
  const why = refusal(scope);
  return (
    <button
      type="button"
      {...rest}
      class={`btn ${kind} ${small ? "small" : ""} ${children ? "" : "square"} ${cls ?? ""}`}
      disabled={!!disabled || !!why || busy}
      aria-busy={busy}
      title={why || title}
    >
      {busy ? <span class="spinner" /> : icon && <Icon name={icon} size={small ? 14 : 15} />}
      {children && <span>{children}</span>}
      {hint && <kbd>{hint}</kbd>}
    </button>
  );
}

const STATE: Record<string, string> = {
  running: "green",
  creating: "blue",
  paused: "amber",
  stopping: "amber",
  killed: "grey",
  failed: "red",
  ready: "green",
  available: "grey",
  building: "blue",
  waiting: "grey",
  pending: "amber",
  delivered: "green",
  canceled: "grey",
  cancelled: "grey",
  exited: "grey",
  lost: "red",
};

export function StateBadge({ state }: { state: string }) {
  return (
    <span class={`badge ${STATE[state] ?? "grey"}`}>
      <i class={`dot ${state === "creating" || state === "building" ? "pulse" : ""}`} />
      {state}
    </span>
  );
}

export function StateDot({ state }: { state: string }) {
  return (
    <i
      class={`dot ${STATE[state] ?? "grey"} ${state === "creating" ? "pulse" : ""}`}
      role="img"
      aria-label={state}
      title={state}
    />
  );
}

/** Name shows a sandbox's name, or its id if it has none, on one line. */
export function Name({ of, class: cls }: { of: Pick<Sandbox, "id" | "name">; class?: string }) {
  const text = label(of.name || of.id);
  return (
    <bdi class={`name ${of.name ? "" : "mono"} ${cls ?? ""}`} title={of.name ? `${text}\n${of.id}` : text}>
      {text}
    </bdi>
  );
}

export function Empty({
  icon,
  title,
  children,
  action,
}: Children & { icon: IconName; title: string; action?: ComponentChildren }) {
  return (
    <div class="empty">
      <div class="empty-icon">
        <Icon name={icon} size={20} />
      </div>
      <h2>{title}</h2>
      {children && <div class="empty-text">{children}</div>}
      {action && <div class="row">{action}</div>}
    </div>
  );
}

/** Failure shows what the server said. */
export function Failure({ error, again }: { error: string; again?: () => void }) {
  return (
    <div class="failure" role="alert">
      <Icon name="warn" />
      <span>{label(error, 2000)}</span>
      {again && (
        <Button small onClick={again}>
          Try again
        </Button>
      )}
    </div>
  );
}

export function Loading({ rows = 6 }: { rows?: number }) {
  return (
    <div class="loading" role="status" aria-label="Loading">
      {Array.from({ length: rows }, (_, i) => (
        <div key={i} class="skeleton" style={{ width: `${[62, 84, 48, 73, 91, 55][i % 6]}%` }} />
      ))}
    </div>
  );
}

export interface MenuItem {
  text: string;
  icon?: IconName;
  hint?: string;
  danger?: boolean;
  scope?: string;
  disabled?: boolean;
  run: () => void;
}

/** Menu is a button that opens a list of actions. */
export function Menu({
  items,
  children,
  icon,
  label: name,
  small,
  kind,
}: Children & { items: MenuItem[]; icon?: IconName; label: string; small?: boolean; kind?: "plain" | "ghost" }) {
  const open = useSignal(false);
  const root = useRef<HTMLDivElement>(null);
  const list = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open.value) return;
    list.current?.querySelector<HTMLElement>("button:not(:disabled)")?.focus();
    const away = (e: Event) => {
      if (!root.current?.contains(e.target as Node)) open.value = false;
    };
    document.addEventListener("pointerdown", away);
    return () => document.removeEventListener("pointerdown", away);
  }, [open.value]);
  /** close leaves the keyboard at the button: the list takes what has the focus with it. */
  const close = () => {
    open.value = false;
    root.current?.querySelector("button")?.focus();
  };
  const keys = (e: KeyboardEvent) => {
    if (!open.value) return;
    e.stopPropagation();
    // Tab goes on from the button.
    if (e.key === "Escape" || e.key === "Tab") close();
    const move = { ArrowDown: 1, ArrowUp: -1, Home: 0, End: 0 }[e.key];
    if (move === undefined) return;
    e.preventDefault();
    const all = [...(list.current?.querySelectorAll<HTMLElement>("button:not(:disabled)") ?? [])];
    const at = e.key === "Home" ? 0 : e.key === "End" ? -1 : all.indexOf(document.activeElement as HTMLElement) + move;
    all.at(at % all.length)?.focus();
  };
  return (
    <div class="menu" ref={root} onKeyDown={keys}>
      <Button
        small={small}
        kind={kind}
        icon={icon}
        aria-haspopup="menu"
        aria-expanded={open.value}
        aria-label={children ? undefined : name}
        title={name}
        onClick={() => {
          open.value = !open.value;
        }}
      >
        {children}
      </Button>
      {open.value && (
        <div class="menu-list" role="menu" aria-label={name} ref={list}>
          {items.map((item) => {
            const why = refusal(item.scope);
            return (
              <button
                type="button"
                role="menuitem"
                key={item.text}
                class={item.danger ? "danger" : ""}
                disabled={item.disabled || !!why}
                title={why}
                onClick={() => {
                  close();
                  item.run();
                }}
              >
                {item.icon && <Icon name={item.icon} size={14} />}
                <span>{item.text}</span>
                {item.hint && <kbd>{item.hint}</kbd>}
              </button>
            );
          })}
        </div>
      )}
    </div>
  );
}

export function CopyButton({ text, name = "Copy", small = true }: { text: string; name?: string; small?: boolean }) {
  const done = useSignal(false);
  return (
    <Button
      small={small}
      kind="ghost"
      icon={done.value ? "check" : "copy"}
      aria-label={name}
      title={done.value ? "Copied" : name}
      onClick={async () => {
        done.value = await copy(text);
        setTimeout(() => {
          done.value = false;
        }, 1400);
      }}
    />
  );
}

/** Snippet is a text to copy. */
export function Snippet({ text, lang }: { text: string; lang?: string }) {
  return (
    <div class="snippet">
      <pre tabIndex={0} aria-label={lang ?? "Text to copy"}>
        {text}
      </pre>
      <CopyButton text={text} />
    </div>
  );
}

export function Tabs({
  tabs,
  current,
  pick,
  name,
}: {
  tabs: { id: string; text: string; icon?: IconName; count?: number }[];
  current: string;
  pick: (id: string) => void;
  name: string;
}) {
  const ref = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const selected = ref.current?.querySelector<HTMLElement>("[aria-selected=true]");
    if (selected && ref.current && ref.current.scrollWidth > ref.current.clientWidth)
      selected.scrollIntoView({ inline: "center", block: "nearest" });
  }, [current]);
  const move = (e: KeyboardEvent) => {
    const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const i = tabs.findIndex((t) => t.id === current);
    const next = tabs[(i + step + tabs.length) % tabs.length]!;
    pick(next.id);
    requestAnimationFrame(() => ref.current?.querySelector<HTMLElement>(`[data-tab="${next.id}"]`)?.focus());
  };
  return (
    <div class="tabs" role="tablist" aria-label={name} ref={ref} onKeyDown={move}>
      {tabs.map((t) => (
        <button
          type="button"
          role="tab"
          key={t.id}
          data-tab={t.id}
          aria-selected={t.id === current}
          tabIndex={t.id === current ? 0 : -1}
          onClick={() => pick(t.id)}
        >
          {t.icon && <Icon name={t.icon} size={14} />}
          {t.text}
          {t.count !== undefined && <span class="count">{t.count}</span>}
        </button>
      ))}
    </div>
  );
}

/** Scrolled is a box that keys can scroll too, where its content is larger than it. */
export function Scrolled({ name, class: cls, children }: Children & { name: string; class?: string }) {
  const ref = useRef<HTMLDivElement>(null);
  const over = useSignal(false);
  const look = () => {
    const el = ref.current!;
    over.value = el.scrollWidth > el.clientWidth || el.scrollHeight > el.clientHeight;
  };
  useLayoutEffect(look);
  useEffect(() => {
    const watch = new ResizeObserver(look);
    watch.observe(ref.current!);
    return () => watch.disconnect();
  }, []);
  const keys = over.value ? ({ tabIndex: 0, role: "region", "aria-label": name } as const) : {};
  return (
    <div ref={ref} class={cls} {...keys}>
      {children}
    </div>
  );
}

/** Rows shows a long list of rows of one height: only those that are seen are made. */
export function Rows<T>({
  items,
  height,
  render,
  class: cls,
  at,
  active,
  overscan = 8,
  ...rest
}: {
  items: readonly T[];
  height: number;
  render: (item: T, index: number) => ComponentChildren;
  class?: string;
  /** The row to keep in view. */
  at?: number;
  /** The id of the row that keys act on, while it is made. */
  active?: string;
  overscan?: number;
  role?: "rowgroup" | "list" | "listbox" | "tree";
  "aria-label"?: string;
}) {
  const ref = useRef<HTMLDivElement>(null);
  const view = useSignal({ top: 0, height: 800 });
  useLayoutEffect(() => {
    const el = ref.current!;
    const seen = () => {
      view.value = { top: el.scrollTop, height: el.clientHeight };
    };
    seen();
    const watch = new ResizeObserver(seen);
    watch.observe(el);
    el.addEventListener("scroll", seen, { passive: true });
    return () => {
      watch.disconnect();
      el.removeEventListener("scroll", seen);
    };
  }, []);
  useEffect(() => {
    const el = ref.current;
    if (at === undefined || at < 0 || !el) return;
    if (at * height < el.scrollTop) el.scrollTop = at * height;
    else if ((at + 1) * height > el.scrollTop + el.clientHeight) el.scrollTop = (at + 1) * height - el.clientHeight;
  }, [at]);
  const first = Math.max(0, Math.floor(view.value.top / height) - overscan);
  const last = Math.min(items.length, Math.ceil((view.value.top + view.value.height) / height) + overscan);
  return (
    <div
      ref={ref}
      class={`rows ${cls ?? ""}`}
      tabIndex={0}
      aria-activedescendant={at !== undefined && at >= first && at < last ? active : undefined}
      {...rest}
    >
      <div style={{ height: items.length * height, position: "relative" }} role="presentation">
        <div style={{ transform: `translateY(${first * height}px)` }} role="presentation">
          {items.slice(first, last).map((item, i) => render(item, first + i))}
        </div>
      </div>
    </div>
  );
}

/** Copyable is an id that a click copies. */
export function ID({ id }: { id: string }) {
  return (
    <span class="id mono">
      <span class="cut" title={id}>
        {id}
      </span>
      <CopyButton text={id} name={`Copy ${id}`} />
    </span>
  );
}
