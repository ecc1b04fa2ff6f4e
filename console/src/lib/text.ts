// Text of sandboxes is hostile: it is shown as text, without what changes how
// other text is shown, and never more of it than a page bears.

const ANSI =
  /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*(?:\u001b\\)?|[ -/]*[0-~])|\u009b[0-?]*[ -/]*[@-~]/g;
const CONTROL = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/g;
/** Marks that change the direction of text, and characters that are not seen. */
const BIDI = /[\u200e\u200f\u202a-\u202e\u2066-\u2069\u061c]/g;
const UNSEEN = /[\u200b-\u200d\u2060\ufeff]/g;

/** stripANSI returns output of a program as plain text: escapes go, a carriage return begins its line anew. */
export function stripANSI(text: string): string {
  const plain = text.replace(ANSI, "").replace(/\r+\n/g, "\n");
  if (!plain.includes("\r") && !plain.includes("\b")) return plain.replace(CONTROL, "");
  return plain
    .split("\n")
    .map((line) => line.slice(line.lastIndexOf("\r") + 1))
    .join("\n")
    .replace(CONTROL, "");
}

/** label returns a name as one line that is what it looks like: marks of direction are shown as their numbers. */
export function label(text: string | undefined | null, most = 300): string {
  if (!text) return "";
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  const number = (c: string) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return cut
    .replace(ANSI, "")
    .replace(BIDI, number)
    .replace(UNSEEN, number)
    .replace(/[\t\n\r]/g, " ")
    .replace(CONTROL, "\ufffd");
}

/** The most text of one output that is shown, in UTF-16 units. */
export const MAX_SHOWN = 200_000;

/** Tail keeps the end of a long output, and how much it has let go. */
export class Tail {
  text = "";
  cut = 0;
  constructor(private readonly most = MAX_SHOWN) {}
  add(more: string): void {
    this.text += more;
    if (this.text.length > this.most) {
      const drop = this.text.length - Math.floor(this.most * 0.8);
      const line = this.text.indexOf("\n", drop);
      const at = line >= 0 && line - drop < 4096 ? line + 1 : drop;
      this.cut += at;
      this.text = this.text.slice(at);
    }
  }
}

/** clip cuts a text, and says how much is missing. */
export function clip(text: string, most = MAX_SHOWN): { text: string; cut: number } {
  return text.length <= most ? { text, cut: 0 } : { text: text.slice(0, most), cut: text.length - most };
}

/** isBinary guesses whether bytes are no text. */
export function isBinary(bytes: Uint8Array): boolean {
  const head = bytes.subarray(0, 8192);
  if (head.includes(0)) return true;
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(head, { stream: true });
    return false;
  } catch {
    return true;
  }
}

/** commandLine is a command as one types it: a shell's line without the shell. */
export function commandLine(command: readonly string[] | null | undefined): string {
  const [program = "", flag, line] = command ?? [];
  return command?.length === 3 && flag === "-c" && /(^|\/)(ba)?sh$/.test(program) ? line! : (command ?? []).join(" ");
}
