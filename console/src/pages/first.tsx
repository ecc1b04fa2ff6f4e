// The first start: one click makes a sandbox, runs a command, forks it and
// shows what differs, all of it for real.
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { decodeBase64, stream } from "../api/client";
import type { Call } from "../lib/call";
import { calls } from "../lib/calls";
import { label, stripANSI } from "../lib/text";
import { CopyAs } from "../ui/dialog";
import { perform, remember } from "../ui/do";
import { Select } from "../ui/fields";
import { Icon } from "../ui/icons";
import { Button, Failure } from "../ui/kit";
import { creating, useTemplates } from "./dialogs";

interface Step {
  title: string;
  text: string;
  output?: string;
  call?: Call;
}

const RUN = "echo 'print(6 * 7)' > answer.py && (python3 answer.py || cat answer.py)";
const CHANGE = "echo 'print(\"forks try, the parent keeps\")' >> answer.py";

/** Whether the tour runs or has run: the page stays while it makes the first sandbox. */
let touring = false;

export function isTouring(): boolean {
  return touring;
}

export function FirstStart() {
  const [, go] = useLocation();
  const templates = useTemplates();
  const steps = useSignal<Step[]>([
    { title: "Make a sandbox", text: "A machine of its own, from a template, in about the time of a blink." },
    { title: "Run a command in it", text: "It writes a file and runs it." },
    { title: "Fork it", text: "The child has the parent's memory, processes and files at this instant." },
    { title: "See what differs", text: "The child changes the file; the parent never notices." },
  ]);
  const at = useSignal(-1);
  const error = useSignal("");
  const chosen = useSignal("");
  const made = useSignal<{ parent: string; child: string } | undefined>(undefined);
  const ready = (templates.data.value ?? []).filter((t) => t.state === "ready");
  useEffect(
    () => () => {
      touring = false;
    },
    [],
  );

  const done = (i: number, output: string | undefined, call: Call) => {
    steps.value = steps.value.map((s, k) => (k === i ? { ...s, output: output?.slice(0, 4000), call } : s));
    at.value = i + 1;
  };
  const run = async () => {
    touring = true;
    error.value = "";
    try {
      at.value = 0;
      const create = calls.create({
        name: `first-${Math.random().toString(36).slice(2, 6)}`,
        template: chosen.value || undefined,
      });
      const parent = await perform(create);
      done(0, `${parent.name}  ${parent.id}`, create);
      done(1, await output(parent.id, RUN), calls.exec(parent.id, { shell: RUN }));
      const fork = calls.fork(parent.id, { name: `${parent.name}-fork` });
      const child = (await perform(fork)).items![0]!;
      done(2, `${child.name}  ${child.id}`, fork);
      await output(child.id, CHANGE);
      const diff = calls.diff(child.id, { against: parent.id, patch: true });
      const found = await perform(diff);
      done(3, (found.changes ?? []).map((c) => c.patch || `${c.kind} ${c.path}`).join("\n"), diff);
      made.value = { parent: parent.id, child: child.id };
    } catch (err) {
      error.value = (err as Error).message;
      at.value = -1;
    }
  };
  const busy = at.value >= 0 && at.value < 4;
  return (
    <div class="first">
      <div class="first-in">
        <div>
          <h1>Sandboxes that fork</h1>
          <p class="lead">
            Cove runs code that nobody has read, each in a machine of its own. Fork one while it runs, try five ways at once, see
            what each changed, and keep the one that works.
          </p>
        </div>
        <div class="card">
          <header>
            <h2 class="grow">See it in four steps</h2>
            <Select class="narrow" aria-label="Template" value={chosen} disabled={busy}>
              <option value="">Default template</option>
              {ready.map((t) => (
                <option key={t.name} value={t.name}>
                  {label(t.name)}
                </option>
              ))}
            </Select>
            <Button kind="primary" icon="bolt" scope="sandboxes:write" busy={busy} onClick={run} data-test="first">
              {at.value === 4 ? "Once more" : "Show me"}
            </Button>
          </header>
          <div class="body">
            {error.value && <Failure error={error.value} />}
            <ol class="steps">
              {steps.value.map((s, i) => (
                <li key={s.title} class={at.value > i ? "done" : at.value === i ? "now" : ""}>
                  <span class="mark">
                    {at.value > i ? <Icon name="check" size={12} /> : at.value === i ? <span class="spinner" /> : i + 1}
                  </span>
                  <div>
                    <div class="row">
                      <h3 class="grow">{s.title}</h3>
                      {s.call && <CopyAs call={s.call} small />}
                    </div>
                    <p class="muted">{s.text}</p>
                    {s.output && <pre tabIndex={0}>{stripANSI(s.output)}</pre>}
                  </div>
                </li>
              ))}
            </ol>
            {made.value && (
              <div class="row">
                <Button kind="primary" icon="open" onClick={() => go(`/s/${made.value!.parent}`)}>
                  Open it
                </Button>
                <Button icon="diff" onClick={() => go(`/compare?a=${made.value!.parent}&b=${made.value!.child}`)}>
                  Compare and merge
                </Button>
                <Button
                  icon="tree"
                  onClick={() => {
                    touring = false;
                    go("/connect");
                    go("/");
                  }}
                >
                  See the tree
                </Button>
              </div>
            )}
          </div>
        </div>
        <div class="row">
          <Button
            icon="plus"
            scope="sandboxes:write"
            onClick={() => {
              creating.value = {};
            }}
          >
            New sandbox…
          </Button>
          <Link href="/connect" class="btn">
            <Icon name="link" />
            Connect Claude Code, Cursor, VS Code…
          </Link>
          <Link href="/templates" class="btn">
            <Icon name="layers" />
            Templates
          </Link>
        </div>
      </div>
    </div>
  );
}

/** output runs a line, and returns what it wrote. */
async function output(id: string, shell: string): Promise<string> {
  const call = calls.exec(id, { shell });
  remember(call);
  let text = "";
  await stream<{ data?: string }>("POST", call.path, call.body, (line) => {
    if (line.data && text.length < 10_000) text += new TextDecoder().decode(decodeBase64(line.data));
  });
  return text;
}
