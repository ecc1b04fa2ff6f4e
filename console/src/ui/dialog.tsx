// Dialogs: to ask before something is done, and to show a call as it can be copied.
import { signal, useSignal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef } from "preact/hooks";
import { type Call, type CallForm, form } from "../lib/calls";
import { Button, type Children, Snippet } from "./kit";

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
  useLayoutEffect(() => {
    ref.current?.showModal();
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

export const confirming = signal<{
  title: string;
  text: ComponentChildren;
  action: string;
  call?: Call;
  run: () => Promise<unknown>;
} | null>(null);

/** confirmed asks before something that cannot be taken back. */
export function confirmed(
  title: string,
  text: ComponentChildren,
  action: string,
  run: () => Promise<unknown>,
  call?: Call,
): void {
  confirming.value = { title, text, action, run, call };
}

export function Confirm() {
  const c = confirming.value;
  const busy = useSignal(false);
  if (!c) return null;
  const go = async () => {
    busy.value = true;
    await c.run();
    busy.value = false;
    confirming.value = null;
  };
  const close = () => {
    confirming.value = null;
  };
  return (
    <Dialog
      title={c.title}
      close={close}
      submit={go}
      footer={
        <>
          {c.call && <CopyAs call={c.call} />}
          <span class="grow" />
          <Button onClick={close}>Cancel</Button>
          <Button kind="danger" type="submit" busy={busy.value} data-autofocus>
            {c.action}
          </Button>
        </>
      }
    >
      <p>{c.text}</p>
    </Dialog>
  );
}

const FORMS: [CallForm, string][] = [
  ["cli", "Command line"],
  ["curl", "curl"],
  ["mcp", "MCP call"],
  ["go", "Go client"],
];

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
        if (text === undefined) return null;
        return (
          <section key={as}>
            <h3>{name}</h3>
            <Snippet text={text} lang={name} />
          </section>
        );
      })}
    </div>
  );
}
