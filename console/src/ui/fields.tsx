// The fields of forms.
import type { ComponentChildren } from "preact";
import type { Children } from "./kit";

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
