// The fields of forms. Each shows a signal, and sets it to what is typed or chosen.
import type { Signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import type { Children } from "./kit";

/** Field is a control with its label, and with a hint below. */
export function Field({ label: text, hint, children }: Children & { label: string; hint?: ComponentChildren }) {
  return (
    // biome-ignore lint/a11y/noLabelWithoutControl: the control is among the children
    <label class="field">
      <span>{text}</span>
      {children}
      {hint && <small>{hint}</small>}
    </label>
  );
}

type InputProps = Omit<JSX.InputHTMLAttributes<HTMLInputElement>, "value" | "onInput">;

/** Input is a line of text. With the type "number" its text is that of a number, or empty. */
export function Input({ value, class: cls, ...rest }: InputProps & { value: Signal<string> }) {
  return (
    <input
      {...rest}
      class={`input ${cls ?? ""}`}
      value={value.value}
      onInput={(e) => {
        value.value = e.currentTarget.value;
      }}
    />
  );
}

/** NumberInput is a number, which `read` makes of the text that is typed. */
export function NumberInput({
  value,
  read = Number,
  ...rest
}: Omit<InputProps, "type" | "class"> & { value: Signal<number>; read?: (text: string) => number }) {
  return (
    <input
      {...rest}
      class="input"
      type="number"
      value={value.value}
      onInput={(e) => {
        value.value = read(e.currentTarget.value);
      }}
    />
  );
}

/** TextArea is several lines of text. */
export function TextArea({
  value,
  ...rest
}: Omit<JSX.TextareaHTMLAttributes<HTMLTextAreaElement>, "value" | "onInput" | "class"> & { value: Signal<string> }) {
  return (
    <textarea
      {...rest}
      class="input"
      value={value.value}
      onInput={(e) => {
        value.value = e.currentTarget.value;
      }}
    />
  );
}

/** Select is a choice among its options. */
export function Select({
  value,
  class: cls,
  children,
  ...rest
}: Omit<JSX.SelectHTMLAttributes<HTMLSelectElement>, "value" | "onChange"> & { value: Signal<string> }) {
  return (
    <select
      {...rest}
      class={`select ${cls ?? ""}`}
      value={value.value}
      onChange={(e) => {
        value.value = e.currentTarget.value;
      }}
    >
      {children}
    </select>
  );
}

/** Check is a box to tick, with what it means beside it. */
export function Check({ value, children }: Children & { value: Signal<boolean> }) {
  return (
    <label class="check">
      <input
        type="checkbox"
        checked={value.value}
        onChange={(e) => {
          value.value = e.currentTarget.checked;
        }}
      />
      {children}
    </label>
  );
}
