// Terminals are jobs of the sandbox: they outlive a lost connection and a
// closed page, and are found again by their tag. Only the one that is shown is
// followed, so that many of them take one connection.
import { signal, useSignal } from "@preact/signals";
import { FitAddon } from "@xterm/addon-fit";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { useEffect, useRef } from "preact/hooks";
import { api, enc, type Job, pages, type Sandbox, send, want } from "../../api/client";
import { type Attached, attach } from "../../api/follow";
import { may } from "../../api/session";
import { calls } from "../../lib/calls";
import { bytes } from "../../lib/format";
import { label } from "../../lib/text";
import { CopyAs } from "../../ui/dialog";
import { attempt, copy, perform, toast } from "../../ui/do";
import { Icon } from "../../ui/icons";
import { leaving } from "../../ui/keys";
import { Button, Empty, Failure, Loading } from "../../ui/kit";
import { color, isDark } from "../../ui/theme";

const TAG = "console-terminal";
/** Lines that can be scrolled back to. */
const SCROLLBACK = 5000;
/** How much output a terminal keeps for who comes back to it, in bytes. */
const KEEP = 1 << 20;
/** How much output is read at a time, and how much of it may be still to be drawn, in bytes: more is drawn faster, and answers come later. */
const PIECE = 128 << 10;
const AHEAD = 128 << 10;

/** Whether terminals are read out, which is slower: asked for once, it holds for all of them. */
const reader = signal(false);

/** opening is the call that opens a terminal. */
const opening = (s: Sandbox) =>
  calls.terminal(s.id, {
    shell: "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi",
    background: true,
    open_stdin: true,
    tag: TAG,
    keep_bytes: KEEP,
    terminal: { cols: 100, rows: 30 },
    env: { TERM: "xterm-256color", COLORTERM: "truecolor" },
  });

export function TerminalTab({ of: s }: { of: Sandbox }) {
  const jobs = useSignal<Job[] | undefined>(undefined);
  const current = useSignal<string | undefined>(undefined);
  const error = useSignal("");
  const busy = useSignal(false);

  const open = async () => {
    busy.value = true;
    try {
      const { job } = await perform(opening(s));
      jobs.value = [...(jobs.value ?? []), job];
      current.value = job.id;
      error.value = "";
    } catch (err) {
      error.value = (err as Error).message;
    }
    busy.value = false;
  };
  const close = async (job: Job) => {
    await attempt(calls.signalJob(s.id, job.id, "KILL"));
    forget(job.id);
  };
  const forget = (id: string) => {
    jobs.value = (jobs.value ?? []).filter((j) => j.id !== id);
    if (current.value === id) current.value = jobs.value.at(-1)?.id;
  };
  useEffect(() => {
    pages((cursor) =>
      want(api.GET("/v1/sandboxes/{sandbox}/jobs", { params: { path: { sandbox: s.id }, query: { limit: 1000, cursor } } })),
    ).then(
      (all) => {
        jobs.value = all.filter((j) => j.tag === TAG && j.state === "running");
        current.value = jobs.value.at(-1)?.id;
        if (!jobs.value.length && may("sandboxes:write")) void open();
      },
      (err: Error) => {
        error.value = err.message;
      },
    );
  }, [s.id]);

  if (!jobs.value) return error.value ? <Failure error={error.value} /> : <Loading />;
  const shown = jobs.value.find((j) => j.id === current.value);
  return (
    <div class="terminals">
      <div class="term-tabs" role="toolbar" aria-label="Terminals">
        {jobs.value.map((j, i) => (
          <span key={j.id} class={`term-tab ${j.id === current.value ? "on" : ""}`}>
            <button
              type="button"
              aria-pressed={j.id === current.value}
              onClick={() => {
                current.value = j.id;
              }}
            >
              <Icon name="terminal" size={13} /> {i + 1}
            </button>
            <button
              type="button"
              aria-label={`Close terminal ${i + 1}`}
              title="Close"
              onClick={() => void close(j)}
              disabled={!may("sandboxes:write")}
            >
              <Icon name="close" size={12} />
            </button>
          </span>
        ))}
        <Button
          small
          kind="ghost"
          icon="plus"
          scope="sandboxes:write"
          busy={busy.value}
          aria-label="New terminal"
          title="New terminal"
          onClick={open}
        />
        <span class="grow" />
        <CopyAs call={opening(s)} small />
      </div>
      {error.value && <Failure error={error.value} again={open} />}
      {shown ? (
        <Screen key={shown.id} of={s} job={shown} ended={() => forget(shown.id)} />
      ) : (
        !error.value && (
          <Empty
            icon="terminal"
            title="No terminal is open"
            action={
              <Button kind="primary" icon="plus" scope="sandboxes:write" busy={busy.value} onClick={open}>
                New terminal
              </Button>
            }
          >
            A terminal is a job: it goes on when this page is closed, and is here again when you come back.
          </Empty>
        )
      )}
    </div>
  );
}

type State = "opening" | "open" | "lost" | "ended";

const SAYS: Record<State, string> = {
  opening: "Opening…",
  open: "Connected",
  lost: "Reconnecting to the same shell…",
  ended: "Ended",
};

function Screen({ of: s, job, ended }: { of: Sandbox; job: Job; ended: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const state = useSignal<State>("opening");
  const title = useSignal("");
  const dark = isDark();
  const term = useRef<Terminal>();

  useEffect(() => {
    const t = new Terminal({
      scrollback: SCROLLBACK,
      fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
      fontSize: 13,
      lineHeight: 1.2,
      cursorBlink: true,
      // Programs choose colours without knowing the ground.
      minimumContrastRatio: 4.5,
      screenReaderMode: reader.value,
      allowProposedApi: false,
      disableStdin: !may("sandboxes:write"),
      theme: colors(),
      // A sandbox may not open what it likes: links are opened by a click with Ctrl, after a look at where they lead.
      linkHandler: { activate: (e, uri) => follow(e, uri) },
    });
    term.current = t;
    const fit = new FitAddon();
    t.loadAddon(fit);
    t.loadAddon(new WebLinksAddon((e, uri) => follow(e, uri)));
    t.open(box.current!);
    t.textarea?.setAttribute("aria-label", "Terminal input");
    t.onTitleChange((text) => {
      title.value = label(text, 120);
    });
    t.attachCustomKeyEventHandler((e) => {
      const way = leaving(e);
      if (way === "out" && e.type === "keydown") {
        e.preventDefault();
        t.blur();
        document.querySelector<HTMLElement>("main [role=tablist] [aria-selected=true]")?.focus();
      }
      if (way) return false;
      if (e.type === "keydown" && e.ctrlKey && e.shiftKey && e.code === "KeyC" && t.hasSelection()) {
        void copy(t.getSelection()).then(() => t.focus());
        e.preventDefault();
        return false;
      }
      return true;
    });
    const stop = new AbortController();
    const typed = writer(s.id, job.id, () => state.value === "open");
    t.onData((d) => typed(new TextEncoder().encode(d)));
    t.onBinary((d) => typed(Uint8Array.from(d, (c) => c.charCodeAt(0))));

    let told = ""; // the size that the shell knows
    const tell = async () => {
      const size = { cols: t.cols, rows: t.rows };
      if (told === JSON.stringify(size) || !may("sandboxes:write")) return;
      told = JSON.stringify(size);
      await send("POST", `/v1/sandboxes/${enc(s.id)}/jobs/${enc(job.id)}/resize`, size).catch(() => {
        told = "";
      });
    };
    let resizing = 0;
    const watch = new ResizeObserver(() => {
      fit.fit();
      clearTimeout(resizing);
      resizing = window.setTimeout(() => void tell(), 80);
    });
    fit.fit();
    watch.observe(box.current!);
    t.focus();

    // The next piece is asked for when little of the last is still to be drawn, and the program waits for that: who writes a
    // flood waits, and not the page, and Ctrl-C is answered after what is on the way, which is little.
    let ahead = 0;
    let drawn = () => {};
    const draw = (data: Uint8Array): Promise<void> | undefined => {
      ahead += data.length;
      const all = new Promise<void>((done) => {
        drawn = done;
        t.write(data, () => {
          ahead -= data.length;
          done();
        });
      });
      return ahead > AHEAD ? all : undefined;
    };
    const end = (said: string) => {
      state.value = "ended";
      t.options.disableStdin = true;
      t.write(`\r\n${said}\r\n`);
    };
    const to: Attached = {
      output: (data, missing) => {
        // What is missing may have broken off within an escape sequence, or in colour: CAN ends the one, SGR 0 the other.
        if (missing) t.write(`\x18\x1b[0m\r\n\x1b[7m ${bytes(missing)} are left out here \x1b[0m\r\n`);
        return draw(data);
      },
      ended: () => end("\x1b[2mThe shell has ended.\x1b[0m"),
      trouble: (why, over) => {
        if (over) end(label(why));
        else state.value = why ? "lost" : "open";
      },
    };
    // The size comes first: a shell that is typed to while its window changes writes its line again.
    void tell().then(() => {
      if (stop.signal.aborted) return;
      state.value = "open"; // what is typed arrives from now on
      void attach(stop.signal, s.id, job.id, to, undefined, { max: PIECE, last: KEEP });
    });
    return () => {
      stop.abort();
      drawn();
      clearTimeout(resizing);
      watch.disconnect();
      t.dispose();
    };
  }, []);
  useEffect(() => {
    if (term.current) term.current.options.theme = colors();
  }, [dark]);
  useEffect(() => {
    if (term.current) term.current.options.screenReaderMode = reader.value;
  }, [reader.value]);
  return (
    <>
      <div class="term" ref={box} data-test="terminal" />
      <div class="term-foot small">
        <i class={`dot ${state.value === "open" ? "green" : state.value === "lost" ? "amber" : ""}`} />
        <span>{SAYS[state.value]}</span>
        <span class="muted cut grow">{title.value}</span>
        <span class="muted">Ctrl Shift Esc leaves the terminal · Ctrl-click opens links · Ctrl-Shift-C copies</span>
        <Button
          small
          kind="ghost"
          aria-pressed={reader.value}
          title="Say to a screen reader what the terminal shows. It is slower then."
          onClick={() => {
            reader.value = !reader.value;
          }}
        >
          Screen reader
        </Button>
        {state.value === "ended" && (
          <Button small onClick={ended}>
            Close
          </Button>
        )}
      </div>
    </>
  );
}

/** follow opens a link of a terminal in a tab that knows nothing of this one. */
function follow(e: MouseEvent, uri: string): void {
  if (!e.ctrlKey && !e.metaKey) return;
  if (!/^https?:\/\//i.test(uri)) {
    toast("error", "Only http and https links are opened.");
    return;
  }
  window.open(uri, "_blank", "noopener,noreferrer");
}

/** writer sends what is typed in its order: what comes while a request is on its way goes with the next. */
function writer(sandbox: string, job: string, open: () => boolean): (data: Uint8Array) => void {
  let waiting: Uint8Array[] = [];
  let sending = false;
  const flush = async () => {
    if (sending) return;
    sending = true;
    while (waiting.length) {
      const batch = new Blob(waiting as BlobPart[]);
      waiting = [];
      try {
        await send("POST", `/v1/sandboxes/${enc(sandbox)}/jobs/${enc(job)}/stdin`, batch);
      } catch {
        if (!open()) break;
      }
    }
    sending = false;
  };
  return (data) => {
    if (waiting.length < 4096) waiting.push(data);
    void flush();
  };
}

function colors() {
  const dark = isDark();
  return {
    background: color("bg"),
    foreground: color("text"),
    cursor: color("accent"),
    cursorAccent: color("bg"),
    selectionBackground: dark ? "#1d514b" : "#bfe6e0",
    ...(dark
      ? {
          black: "#1d2329",
          red: "#f98080",
          green: "#5ad38a",
          yellow: "#f0c35c",
          blue: "#7cb0ff",
          magenta: "#c3a2ff",
          cyan: "#56d4c2",
          white: "#d5dade",
          brightBlack: "#6b7782",
        }
      : {
          black: "#15191d",
          red: "#bb2323",
          green: "#15803d",
          yellow: "#955408",
          blue: "#1d5fc4",
          magenta: "#6d3fc0",
          cyan: "#0b7268",
          white: "#5f6871",
          brightBlack: "#4a535c",
          brightWhite: "#2c343b",
          brightYellow: "#955408",
          brightGreen: "#15803d",
          brightCyan: "#0b7268",
        }),
  };
}
