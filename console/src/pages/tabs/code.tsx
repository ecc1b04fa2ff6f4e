import { type Signal, signal, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, decodeBase64, type Sandbox, type Schemas, stream, want } from "../../api/client";
import { may } from "../../api/session";
import { calls } from "../../lib/calls";
import { plural, span } from "../../lib/format";
import { label, stripANSI, Tail } from "../../lib/text";
import { whyUnheard } from "../../lib/unheard";
import { CopyAs } from "../../ui/dialog";
import { attempt, perform, remember, toast } from "../../ui/do";
import { Button, Failure, Menu } from "../../ui/kit";
import { Editor } from "../../ui/lazy";
import { Rich } from "../../ui/rich";

type Output = Schemas["CodeOutput"];
type Result = Schemas["CodeResult"];

interface Cell {
  id: number;
  code: string;
  language: string;
  context: string;
  stdout: string;
  stderr: string;
  outputs: Output[];
  result?: Result;
  error?: string;
  running?: boolean;
}

interface Line {
  stream?: string;
  data?: string;
  output?: Output;
  result?: Result;
}

const LANGUAGES = ["python", "javascript", "typescript", "bash", "go"];
/** The most that is kept of what one cell writes. */
const MAX_CELL = 100_000;
const MAX_OUTPUTS = 50;

let ids = 0;
/** Notebooks last as long as the page: another tab of a sandbox loses nothing, and what a cell that still runs writes is there when one comes back. */
const notebooks = new Map<string, Signal<Cell[]>>();
/** What ends the stream of a cell that runs, by the cell's id. */
const running = new Map<number, AbortController>();

function fresh(language: string, context: string, code = ""): Cell {
  return { id: ++ids, code, language, context, stdout: "", stderr: "", outputs: [] };
}

/** notebook returns the cells of a sandbox's notebook. */
function notebook(sandbox: string): Signal<Cell[]> {
  const known = notebooks.get(sandbox);
  if (known) return known;
  const begun = signal([fresh("python", "default")]);
  notebooks.set(sandbox, begun);
  if (notebooks.size > 20) notebooks.delete(notebooks.keys().next().value!);
  return begun;
}

export function CodeTab({ of: s }: { of: Sandbox }) {
  const cells = notebook(s.id);
  const contexts = useSignal<Schemas["CodeContext"][]>([]);
  const last = useSignal<number>(cells.value[0]!.id);

  const list = () => {
    want(api.GET("/v1/sandboxes/{sandbox}/contexts", { params: { path: { sandbox: s.id } } })).then(
      (l) => {
        contexts.value = l.items ?? [];
      },
      () => {},
    );
  };
  useEffect(list, [s.id]);

  const change = (id: number, by: Partial<Cell>) => {
    cells.value = cells.value.map((c) => (c.id === id ? { ...c, ...by } : c));
  };
  /** run runs a cell, and reports whether the code came to an end. */
  const run = async (id: number): Promise<boolean> => {
    const cell = cells.value.find((c) => c.id === id);
    if (!cell || cell.running || !cell.code.trim() || !may("sandboxes:write")) return false;
    if (cells.value.at(-1)!.id === id) {
      const next = fresh(cell.language, cell.context);
      cells.value = [...cells.value, next];
      last.value = next.id;
    }
    change(id, { running: true, stdout: "", stderr: "", outputs: [], result: undefined, error: undefined });
    const call = calls.code(s.id, {
      code: cell.code,
      language: cell.language,
      context: cell.context === "default" ? undefined : cell.context,
    });
    const out = new Tail(MAX_CELL);
    const err = new Tail(MAX_CELL);
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    let outputs: Output[] = [];
    let waiting = 0;
    const show = () => {
      waiting = 0;
      change(id, { stdout: cutNote(out), stderr: cutNote(err), outputs });
    };
    const stop = new AbortController();
    let ended = false;
    running.set(id, stop);
    try {
      await stream<Line>(
        "POST",
        call.path,
        call.body,
        (line) => {
          if (line.data)
            (line.stream === "stderr" ? err : out).add(
              decoders[line.stream === "stderr" ? "stderr" : "stdout"].decode(decodeBase64(line.data), { stream: true }),
            );
          if (line.output && outputs.length < MAX_OUTPUTS) outputs = [...outputs, line.output];
          if (line.result) change(id, { result: line.result });
          // A flood is drawn ten times a second, not once a line.
          waiting ||= window.setTimeout(show, 100);
        },
        stop.signal,
      );
      ended = true;
      remember(call);
    } catch (e) {
      if (!stop.signal.aborted) change(id, { error: whyUnheard(e as Error) });
      remember(call, true);
    }
    clearTimeout(waiting);
    show();
    change(id, { running: false });
    running.delete(id);
    list();
    return ended;
  };
  const interrupt = (cell: Cell) =>
    perform(calls.interruptContext(s.id, cell.language, cell.context)).catch((e: Error) => {
      toast("error", e.message);
      running.get(cell.id)?.abort();
    });
  const restart = (c: Schemas["CodeContext"]) =>
    attempt(calls.restartContext(s.id, c.language, c.name), "The interpreter is a new one").then(list);

  return (
    <div class="notebook">
      <div class="notebook-bar">
        <span class="muted small grow">Shift Enter runs a cell. Variables stay, through pause, snapshot and fork.</span>
        {contexts.value.length > 0 && (
          <Menu
            small
            label="Interpreters"
            items={contexts.value.map((c) => ({
              text: `Restart ${label(c.language)}/${label(c.name)} (${c.runs} runs)`,
              icon: "back" as const,
              scope: "sandboxes:write",
              run: () => void restart(c),
            }))}
          >
            {plural(contexts.value.length, "interpreter")}
          </Menu>
        )}
        <Button
          small
          icon="play"
          scope="sandboxes:write"
          onClick={async () => {
            for (const c of [...cells.value]) if (c.code.trim() && !(await run(c.id))) break;
          }}
        >
          Run all
        </Button>
        <Button
          small
          icon="plus"
          onClick={() => {
            const c = cells.value.at(-1)!;
            cells.value = [...cells.value, fresh(c.language, c.context)];
          }}
        >
          Cell
        </Button>
      </div>
      <div class="cells">
        {cells.value.map((c, i) => (
          <section key={c.id} class={`cell ${c.running ? "running" : ""}`} aria-label={`Cell ${i + 1}`} data-test="cell">
            <div class="cell-head">
              <span class="mono muted small" title="Number of the run in its interpreter">
                [{c.running ? "*" : (c.result?.count ?? " ")}]
              </span>
              <select
                class="select narrow"
                aria-label="Language"
                value={c.language}
                onChange={(e) => change(c.id, { language: e.currentTarget.value })}
              >
                {LANGUAGES.map((l) => (
                  <option key={l}>{l}</option>
                ))}
              </select>
              <input
                class="input narrow"
                aria-label="Context"
                title="Interpreters of the same name share their variables"
                list="contexts"
                value={c.context}
                onChange={(e) => change(c.id, { context: e.currentTarget.value.trim() || "default" })}
              />
              <span class="grow" />
              {c.result && (
                <span class={`small ${c.result.exit_code ? "red-text" : "muted"}`}>
                  {c.result.exit_code ? `exit ${c.result.exit_code} · ` : ""}
                  {span(c.result.duration_ms)}
                </span>
              )}
              {c.code.trim() && <CopyAs call={calls.code(s.id, { code: c.code, language: c.language })} small />}
              {c.running ? (
                <Button small icon="pause" onClick={() => void interrupt(c)}>
                  Interrupt
                </Button>
              ) : (
                <Button
                  small
                  icon="play"
                  kind="primary"
                  scope="sandboxes:write"
                  aria-label="Run"
                  title="Run (Shift Enter)"
                  onClick={() => void run(c.id)}
                />
              )}
              <Button
                small
                kind="ghost"
                icon="close"
                aria-label="Remove the cell"
                disabled={c.running}
                onClick={() => {
                  const rest = cells.value.filter((x) => x.id !== c.id);
                  cells.value = rest.length ? rest : [fresh("python", "default")];
                }}
              />
            </div>
            <Editor
              cell
              name={c.language}
              text={c.code}
              aria={`Code of cell ${i + 1}`}
              autofocus={c.id === last.value}
              change={(code) => {
                const cell = cells.value.find((x) => x.id === c.id);
                if (cell && cell.code !== code) change(c.id, { code });
              }}
              run={() => void run(c.id)}
            />
            {(c.stdout || c.stderr || c.outputs.length > 0 || c.result?.error || c.error) && (
              <div class="cell-out">
                {c.stdout && <pre class="out">{stripANSI(c.stdout)}</pre>}
                {c.stderr && <pre class="out err">{stripANSI(c.stderr)}</pre>}
                {c.outputs.map((o, k) => (
                  <Rich key={k} of={o} />
                ))}
                {c.result?.error && (
                  <pre class="out err">
                    {stripANSI(c.result.error.traceback || `${c.result.error.name}: ${c.result.error.message}`).slice(
                      0,
                      MAX_CELL,
                    )}
                  </pre>
                )}
                {c.result?.restarted && <p class="note amber">The interpreter is a new one: {label(c.result.reason, 400)}</p>}
                {c.result?.timed_out && <p class="note amber">It took too long, and was interrupted.</p>}
                {c.error && <Failure error={c.error} />}
              </div>
            )}
          </section>
        ))}
        <datalist id="contexts">
          {contexts.value.map((c) => (
            <option key={`${c.language}/${c.name}`} value={c.name} />
          ))}
        </datalist>
      </div>
    </div>
  );
}

function cutNote(t: Tail): string {
  return t.cut ? `… ${t.cut.toLocaleString("en")} characters before this are not shown\n${t.text}` : t.text;
}
