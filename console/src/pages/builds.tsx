// Building a template: what it is built from, and the log.
import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { type Build, enc, type Schemas } from "../api/client";
import { follow } from "../api/follow";
import { calls } from "../lib/calls";
import { parseTemplateFile, readTemplateFile } from "../lib/templatefile";
import { label, stripANSI, Tail } from "../lib/text";
import { ActionDialog, CopyAs, Dialog } from "../ui/dialog";
import { attempt, toast } from "../ui/do";
import { Field, Input, TextArea } from "../ui/fields";
import { Button, Failure, StateBadge } from "../ui/kit";

const EXAMPLE = `description: Python with what our agent needs
from: {debian: bookworm}
apt: [python3, python3-pip, git]
pip: [requests]
run:
  - python3 --version
`;

export function Write({ close, build }: { close: () => void; build: (req: Schemas["BuildTemplateRequest"]) => Promise<void> }) {
  const name = useSignal("");
  const text = useSignal(EXAMPLE);
  const run = async () => {
    let spec: Schemas["TemplateSpec"];
    try {
      spec = await parseTemplateFile(text.value);
    } catch (err) {
      toast("error", `The definition cannot be read: ${(err as Error).message}`);
      return;
    }
    await build({ name: name.value.trim(), spec });
  };
  return (
    <ActionDialog title="Build a template" action="Build" icon="bolt" scope="templates:write" wide close={close} run={run}>
      <Field label="Name">
        <Input required maxLength={63} placeholder="app" value={name} />
      </Field>
      <Field
        label="Definition, in YAML or JSON"
        hint="from: debian, image, template, snapshot or archive. Then apt, pip, npm, files, run, env, start, ports."
      >
        <TextArea rows={14} spellcheck={false} value={text} />
      </Field>
      <label class="row">
        <span class="muted small">or from a file:</span>
        <input
          type="file"
          accept=".yaml,.yml,.json,application/yaml,application/json"
          onChange={(e) => {
            const file = e.currentTarget.files?.[0];
            if (!file) return;
            readTemplateFile(file).then(
              (t) => {
                text.value = t;
              },
              (err: Error) => toast("error", err.message),
            );
          }}
        />
      </label>
    </ActionDialog>
  );
}

/** Follow shows what a build writes, from its beginning. */
export function Follow({ id, build, close }: { id: string; build?: Build; close: () => void }) {
  const text = useSignal("");
  const now = useSignal<{ step?: string; fraction?: number; state?: string; reason?: string }>({});
  const error = useSignal("");
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const stop = new AbortController();
    let tail: Tail;
    let waiting = 0;
    let last: string;
    const show = () => {
      waiting = 0;
      text.value = stripANSI(tail.text);
      requestAnimationFrame(() => box.current?.scrollTo(0, box.current.scrollHeight));
    };
    void follow<{ step?: string; fraction?: number; log?: string; build?: Build }>(stop.signal, {
      // Each connection tells all from the beginning. What is shown stays until it does.
      begin: () => {
        tail = new Tail();
        last = "";
        return `/v1/builds/${enc(id)}/events`;
      },
      line: (line) => {
        if (line.step && line.step !== last) {
          last = line.step;
          tail.add(`\n› ${line.step}\n`);
        }
        if (line.log) tail.add(line.log.endsWith("\n") ? line.log : `${line.log}\n`);
        now.value = {
          step: line.step ?? now.value.step,
          fraction: line.fraction ?? now.value.fraction,
          state: line.build?.state ?? now.value.state,
          reason: line.build?.reason,
        };
        waiting ||= window.setTimeout(show, 100);
      },
      trouble: (why) => {
        error.value = why;
      },
    });
    return () => {
      stop.abort();
      clearTimeout(waiting);
    };
  }, [id]);
  const ended = now.value.state ?? (build?.ended_at ? build.state : undefined);
  return (
    <Dialog
      title={`Build of ${label(build?.template ?? id)}`}
      wide
      close={close}
      footer={
        <>
          <CopyAs
            call={{
              title: "Follow a build",
              scope: "sandboxes:read",
              method: "GET",
              path: `/v1/builds/${enc(id)}/events`,
              cli: `cove template logs ${id}`,
              mcp: { tool: "template_build_status", arguments: { build_id: id } },
              go: `build, err := c.FollowBuild(ctx, "${id}", sink)`,
            }}
          />
          <span class="grow" />
          {!ended && (
            <Button kind="danger" scope="templates:write" onClick={() => void attempt(calls.cancelBuild(id), "Cancelled")}>
              Cancel the build
            </Button>
          )}
          <Button onClick={close}>Close</Button>
        </>
      }
    >
      <div class="row">
        <StateBadge state={ended ?? "building"} />
        <span class="muted small cut grow">{label(now.value.reason || now.value.step, 500)}</span>
      </div>
      <progress aria-label="How far it is" max={1} value={ended ? 1 : (now.value.fraction ?? 0)} />
      {error.value && <Failure error={error.value} />}
      <pre class="build-log" ref={box} tabIndex={0} aria-label="Log">
        {text.value.trimStart() || "…"}
      </pre>
    </Dialog>
  );
}
