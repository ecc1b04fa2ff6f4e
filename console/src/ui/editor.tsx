// The editor, loaded when it is first needed.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { css } from "@codemirror/lang-css";
import { go } from "@codemirror/lang-go";
import { html } from "@codemirror/lang-html";
import { javascript } from "@codemirror/lang-javascript";
import { json } from "@codemirror/lang-json";
import { markdown } from "@codemirror/lang-markdown";
import { python } from "@codemirror/lang-python";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, HighlightStyle, indentOnInput, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import { c, cpp, java } from "@codemirror/legacy-modes/mode/clike";
import { dockerFile } from "@codemirror/legacy-modes/mode/dockerfile";
import { rust } from "@codemirror/legacy-modes/mode/rust";
import { shell } from "@codemirror/legacy-modes/mode/shell";
import { standardSQL } from "@codemirror/legacy-modes/mode/sql";
import { toml } from "@codemirror/legacy-modes/mode/toml";
import { MergeView, unifiedMergeView } from "@codemirror/merge";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { EditorState, type Extension } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { tags as t } from "@lezer/highlight";
import { useEffect, useRef } from "preact/hooks";

const highlight = HighlightStyle.define([
  { tag: [t.keyword, t.operatorKeyword, t.controlKeyword, t.moduleKeyword], color: "var(--violet)" },
  { tag: [t.string, t.special(t.string), t.regexp], color: "var(--green)" },
  { tag: [t.number, t.bool, t.null, t.atom], color: "var(--amber)" },
  { tag: [t.comment, t.meta], color: "var(--text-3)", fontStyle: "italic" },
  {
    tag: [t.function(t.variableName), t.function(t.propertyName), t.definition(t.function(t.variableName))],
    color: "var(--blue)",
  },
  { tag: [t.typeName, t.className, t.namespace, t.tagName], color: "var(--accent-text)" },
  { tag: [t.propertyName, t.attributeName], color: "var(--blue)" },
  { tag: t.heading, fontWeight: "600", color: "var(--text)" },
  { tag: [t.link, t.url], color: "var(--accent-text)", textDecoration: "underline" },
  { tag: t.invalid, color: "var(--red)" },
]);

const look = EditorView.theme({
  "&": { height: "100%", backgroundColor: "transparent", color: "var(--text)", fontSize: "12.5px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--text-3)", border: "none", paddingLeft: "6px" },
  ".cm-activeLine": { backgroundColor: "color-mix(in oklab, var(--bg-hover) 55%, transparent)" },
  ".cm-activeLineGutter": { backgroundColor: "transparent", color: "var(--text)" },
  ".cm-content": { caretColor: "var(--accent)" },
  ".cm-cursor": { borderLeftColor: "var(--accent)" },
  "&.cm-focused": { outline: "none" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "color-mix(in oklab, var(--accent) 26%, transparent) !important",
  },
  ".cm-panels": { backgroundColor: "var(--bg-raised)", color: "var(--text)", borderColor: "var(--line)" },
  ".cm-changedLine": { backgroundColor: "var(--green-bg) !important" },
  "&.cm-merge-a .cm-changedLine, .cm-deletedChunk": { backgroundColor: "var(--red-bg) !important" },
  "&.cm-merge-b .cm-changedText": { background: "color-mix(in oklab, var(--green) 7%, transparent) !important" },
  "&.cm-merge-a .cm-changedText, .cm-deletedText": { background: "color-mix(in oklab, var(--red) 7%, transparent) !important" },
});

/** languageOf guesses a language by a file's name, or by the name of a language. */
function languageOf(name: string): Extension {
  const ext = name.slice(name.lastIndexOf(".") + 1).toLowerCase();
  const base = name.slice(name.lastIndexOf("/") + 1);
  if (/^(Dockerfile|Containerfile)/.test(base)) return StreamLanguage.define(dockerFile);
  switch (ext) {
    case "py":
    case "python":
      return python();
    case "js":
    case "mjs":
    case "cjs":
    case "jsx":
    case "javascript":
      return javascript({ jsx: true });
    case "ts":
    case "tsx":
    case "typescript":
      return javascript({ typescript: true, jsx: ext === "tsx" });
    case "json":
    case "ipynb":
      return json();
    case "html":
    case "htm":
    case "vue":
    case "svg":
    case "xml":
      return html();
    case "css":
    case "scss":
      return css();
    case "md":
    case "markdown":
      return markdown();
    case "yml":
    case "yaml":
      return yaml();
    case "go":
      return go();
    case "sh":
    case "bash":
    case "zsh":
    case "profile":
    case "bashrc":
      return StreamLanguage.define(shell);
    case "rs":
      return StreamLanguage.define(rust);
    case "toml":
      return StreamLanguage.define(toml);
    case "sql":
      return StreamLanguage.define(standardSQL);
    case "c":
    case "h":
      return StreamLanguage.define(c);
    case "cc":
    case "cpp":
    case "hpp":
      return StreamLanguage.define(cpp);
    case "java":
      return StreamLanguage.define(java);
    default:
      return [];
  }
}

function base(name: string, readOnly: boolean, aria: string): Extension[] {
  return [
    highlightSpecialChars(),
    history(),
    drawSelection(),
    indentOnInput(),
    bracketMatching(),
    highlightSelectionMatches(),
    syntaxHighlighting(highlight),
    look,
    languageOf(name),
    EditorState.readOnly.of(readOnly),
    EditorView.editable.of(!readOnly),
    EditorView.contentAttributes.of({ "aria-label": aria, ...(readOnly ? { tabindex: "0" } : {}) }),
  ];
}

export interface EditorProps {
  name: string;
  text: string;
  readOnly?: boolean;
  /** A cell of a notebook: no numbers of lines, as high as its text. */
  cell?: boolean;
  aria: string;
  autofocus?: boolean;
  change?: (text: string) => void;
  save?: () => void;
  run?: () => void;
}

export default function Editor({ name, text, readOnly = false, cell, aria, autofocus, change, save, run }: EditorProps) {
  const box = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView>();
  const on = useRef({ change, save, run });
  on.current = { change, save, run };
  useEffect(() => {
    const v = new EditorView({
      parent: box.current!,
      state: EditorState.create({
        doc: text,
        extensions: [
          keymap.of([
            {
              key: "Mod-s",
              run: () => {
                on.current.save?.();
                return !!on.current.save;
              },
              preventDefault: true,
            },
            {
              key: "Shift-Enter",
              run: () => {
                on.current.run?.();
                return !!on.current.run;
              },
            },
            {
              key: "Mod-Enter",
              run: () => {
                on.current.run?.();
                return !!on.current.run;
              },
            },
          ]),
          ...(cell ? [EditorView.lineWrapping] : [lineNumbers(), highlightActiveLine(), highlightActiveLineGutter()]),
          ...base(name, readOnly, aria),
          keymap.of([...defaultKeymap, ...historyKeymap, ...searchKeymap, indentWithTab]),
          EditorView.updateListener.of((u) => u.docChanged && on.current.change?.(u.state.doc.toString())),
        ],
      }),
    });
    view.current = v;
    if (autofocus) v.focus();
    return () => v.destroy();
  }, [name, readOnly]);
  useEffect(() => {
    const v = view.current;
    if (v && v.state.doc.toString() !== text) v.dispatch({ changes: { from: 0, to: v.state.doc.length, insert: text } });
  }, [text]);
  return <div class={cell ? "editor cell-editor" : "editor"} ref={box} />;
}

/** SideBySide shows two texts beside each other, or below each other where there is no room. */
export function SideBySide({ name, before, after }: { name: string; before: string; after: string }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const collapse = { margin: 3, minSize: 6 };
    if (box.current!.clientWidth < 640) {
      const v = new EditorView({
        parent: box.current!,
        state: EditorState.create({
          doc: after,
          extensions: [
            lineNumbers(),
            ...base(name, true, `${name}, changes`),
            unifiedMergeView({ original: before, mergeControls: false, collapseUnchanged: collapse }),
          ],
        }),
      });
      return () => v.destroy();
    }
    const v = new MergeView({
      parent: box.current!,
      a: { doc: before, extensions: [lineNumbers(), ...base(name, true, `${name}, before`)] },
      b: { doc: after, extensions: [lineNumbers(), ...base(name, true, `${name}, after`)] },
      collapseUnchanged: collapse,
      gutter: true,
    });
    return () => v.destroy();
  }, [name, before, after]);
  return <div class="side-by-side" ref={box} />;
}
