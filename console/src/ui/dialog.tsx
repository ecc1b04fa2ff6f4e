// Dialogs: to ask before something is done, and to show a call as it can be copied.
import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren, RefObject } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";
import { type Call, type CallForm, form } from "../lib/call";
import { attempt } from "./do";
import type { IconName } from "./icons";
import { Button, type Children, Snippet } from "./kit";

/** useModal opens a dialog for as long as it is shown. The keyboard is then where it was before. */
export function useModal(ref: RefObject<HTMLDialogElement>): void {
  useLayoutEffect(() => {
    const dialog = ref.current!;
    dialog.showModal();
    // An element that is only removed takes the focus with it.
    return () => dialog.close();
  }, []);
}

export function Dialog({
  title,
  children,
  close,
  wide,
  footer,
  submit,
}: Children & { title: string; close: () => void; wide?: boolean; footer?: ComponentChildren; submit?: () => void }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  useModal(ref);
  useLayoutEffect(() => {
    ref.current
      ?.querySelector<HTMLElement>("[data-autofocus], .dialog-body input, .dialog-body select, .dialog-body textarea")
      ?.focus();
  }, []);
  return (
    <dialog
      ref={ref}
      class={wide ? "wide" : ""}
      aria-labelledby={id}
      onCancel={(e) => {
        e.preventDefault();
        close();
      }}
      onClick={(e) => e.target === ref.current && close()}
      onKeyDown={(e) => e.stopPropagation()}
    >
      <form
        method="dialog"
        onSubmit={(e) => {
          e.preventDefault();
          submit?.();
        }}
      >
        <header>
          <h1 id={id}>{title}</h1>
          <Button kind="ghost" icon="close" aria-label="Close" onClick={close} />
        </header>
        <div class="dialog-body">{children}</div>
        {footer && <footer>{footer}</footer>}
      </form>
    </dialog>
  );
}

/** ActionDialog is a dialog that does something: below it are the call to copy, a way out, and the button that does it. */
export function ActionDialog({
  title,
  action,
  icon,
  kind = "primary",
  scope,
  wide,
  call,
  blocked,
  close,
  run,
  children,
}: Children & {
  title: string;
  /** The text of the button. */
  action: string;
  icon?: IconName;
  kind?: "primary" | "danger";
  scope?: string;
  wide?: boolean;
  /** What can be copied, if anything. */
  call?: Call;
  /** Why it cannot be done yet, if it cannot. */
  blocked?: string;
  close: () => void;
  /** Does it. It says by itself when it fails. */
  run: () => Promise<unknown>;
}) {
  const busy = useSignal(false);
  const go = async () => {
    busy.value = true;
    try {
      await run();
    } finally {
      busy.value = false;
    }
  };
  return (
    <Dialog
      title={title}
      wide={wide}
      close={close}
      submit={go}
      footer={
        <>
          {call && <CopyAs call={call} />}
          <span class="grow" />
          <Button onClick={close}>Cancel</Button>
          <Button
            kind={kind}
            type="submit"
            icon={icon}
            scope={scope}
            busy={busy.value}
            disabled={!!blocked}
            title={blocked}
            data-autofocus={kind === "danger" || undefined}
          >
            {action}
          </Button>
        </>
      }
    >
      {children}
    </Dialog>
  );
}

/** CallDialog is a form that makes a call. It stays open until the call succeeds. */
export function CallDialog<T>({
  call,
  said,
  secret,
  done,
  ...rest
}: Children & {
  title: string;
  action: string;
  icon?: IconName;
  wide?: boolean;
  blocked?: string;
  call: Call<T>;
  /** What is said when the call has succeeded. */
  said?: string;
  /** What the call sends is not to be copied. */
  secret?: boolean;
  close: () => void;
  /** Gets the answer. Unless it returns false, the dialog closes. */
  done?: (made: T) => unknown;
}) {
  const run = async () => {
    const made = await attempt(call, said);
    if (made !== undefined && done?.(made) !== false) rest.close();
  };
  return <ActionDialog {...rest} scope={call.scope} call={secret ? undefined : call} run={run} />;
}

/** Opener is a button that opens a dialog, and the dialog while it is open. */
export function Opener({
  children,
  dialog,
  ...rest
}: Omit<Parameters<typeof Button>[0], "onClick"> & { dialog: (close: () => void) => ComponentChildren }) {
  const open = useSignal(false);
  const set = (to: boolean) => () => {
    open.value = to;
  };
  return (
    <>
      <Button {...rest} onClick={set(true)}>
        {children}
      </Button>
      {open.value && dialog(set(false))}
    </>
  );
}

/** Shown is a dialog that says something, until it is read. */
export function Shown({ close, ...rest }: Children & { title: string; close: () => void }) {
  const done = (
    <Button kind="primary" onClick={close}>
      Done
    </Button>
  );
  return <Dialog {...rest} close={close} footer={done} />;
}

export const confirming = signal<{
  title: string;
  text: ComponentChildren;
  action: string;
  call: Call;
  run: () => Promise<unknown>;
} | null>(null);

/** confirmed asks before a call that cannot be taken back. After it comes `then`, with what attempt returned. */
export function confirmed<T>(
  call: Call<T>,
  title: string,
  text: ComponentChildren,
  action: string,
  said: string,
  then?: (made: T | undefined) => unknown,
): void {
  confirming.value = { title, text, action, call, run: () => attempt(call, said).then(then) };
}

/** Trash is the button of a row that ends what the row is about, once that is confirmed. */
export function Trash<T>({
  what,
  call,
  text,
  verb = ["Delete", "Deleted"],
  done,
}: {
  what: string;
  call: Call<T>;
  text: string;
  /** What is done, and that it is done. */
  verb?: [string, string];
  done: () => unknown;
}) {
  const title = `${verb[0]} ${what}`;
  const ask = () => confirmed(call, `${title}?`, text, ...verb, done);
  return <Button small kind="ghost" icon="trash" aria-label={title} scope={call.scope} onClick={ask} />;
}

export function Confirm() {
  const c = confirming.value;
  if (!c) return null;
  const close = () => {
    confirming.value = null;
  };
  return (
    <ActionDialog title={c.title} action={c.action} kind="danger" call={c.call} close={close} run={() => c.run().then(close)}>
      <p>{c.text}</p>
    </ActionDialog>
  );
}

const FORMS: [CallForm, string][] = [
  ["cli", "Command line"],
  ["curl", "curl"],
  ["mcp", "MCP call"],
  ["go", "Go client"],
];

/** What is said where a form cannot say a call. */
const NONE: Record<CallForm, string> = {
  cli: "No command does this.",
  curl: "No request does this.",
  mcp: "No tool does this.",
  go: "The Go client does not do this.",
};

/** CopyAs shows a call in each form that can say it. */
export function CopyAs({ call, small }: { call: Call; small?: boolean }) {
  const shown = useSignal(false);
  return (
    <>
      <Button
        kind="ghost"
        small={small}
        icon="code"
        onClick={() => {
          shown.value = true;
        }}
      >
        Copy as…
      </Button>
      {shown.value && (
        <Dialog
          title={call.title}
          wide
          close={() => {
            shown.value = false;
          }}
        >
          <CallForms call={call} />
        </Dialog>
      )}
    </>
  );
}

export function CallForms({ call }: { call: Call }) {
  return (
    <div class="forms">
      {FORMS.map(([as, name]) => {
        const text = form(call, as, location.origin);
        if (text === undefined)
          return (
            <section key={as}>
              <h3>{name}</h3>
              <p class="muted small">{NONE[as]}</p>
            </section>
          );
        return (
          <section key={as}>
            <h3 aria-level={2}>{name}</h3>
            <Snippet text={text} lang={name} />
          </section>
        );
      })}
    </div>
  );
}
