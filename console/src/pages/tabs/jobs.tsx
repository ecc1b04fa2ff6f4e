import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { api, type Job, pages, type Sandbox, want } from "../../api/client";
import { type Attached, attach, attachPath } from "../../api/follow";
import { calls } from "../../lib/calls";
import { at, bytes, clock, span } from "../../lib/format";
import { commandLine, label, stripANSI, Tail } from "../../lib/text";
import { connection, world } from "../../state/live";
import { together } from "../../state/world";
import { CopyAs, confirmed } from "../../ui/dialog";
import { attempt } from "../../ui/do";
import { Input } from "../../ui/fields";
import { Button, Empty, Failure, Loading, Menu, Scrolled, StateBadge } from "../../ui/kit";
import { useEvery, useLoad, useMissed } from "../../ui/load";
import { DeliveryRow, HEAD, useDeliveries } from "../deliveries";
import { Listing } from "../list";

const SIGNALS = ["TERM", "INT", "HUP", "KILL", "STOP", "CONT"];

export function JobsTab({ of: s }: { of: Sandbox }) {
  const jobs = useLoad(
    () =>
      pages((cursor) =>
        want(api.GET("/v1/sandboxes/{sandbox}/jobs", { params: { path: { sandbox: s.id }, query: { limit: 1000, cursor } } })),
      ),
    [s.id],
  );
  const processes = useLoad(
    () =>
      pages((cursor) =>
        want(
          api.GET("/v1/sandboxes/{sandbox}/processes", { params: { path: { sandbox: s.id }, query: { limit: 1000, cursor } } }),
        ),
      ),
    [s.id],
  );
  const webhooks = useDeliveries(() => [s.id], [s.id]);
  const chosen = useSignal<string | undefined>(undefined);
  const line = useSignal("");
  const busy = useSignal(false);
  useMissed(jobs.again);
  useEvery(2500, () => {
    void processes.again();
    if (connection.value !== "events") void jobs.again();
  });
  const all = useComputed(() => {
    const map = together(jobs.data.value ?? [], world.value.jobs.get(s.id)?.values() ?? []);
    return [...map.values()].sort((a, b) => at(b.started_at) - at(a.started_at)).slice(0, 500);
  });
  const run = async (e: Event) => {
    e.preventDefault();
    if (!line.value.trim()) return;
    busy.value = true;
    const made = (await attempt(calls.exec(s.id, { shell: line.value, background: true }))) as { job?: Job } | undefined;
    busy.value = false;
    if (!made) return;
    line.value = "";
    chosen.value = made.job?.id;
    await jobs.again();
  };
  const job = all.value.find((j) => j.id === chosen.value);
  return (
    <div class="content flush jobs">
      <form class="run-line" onSubmit={run}>
        <span class="mono accent">$</span>
        <Input class="mono" aria-label="Command" placeholder="Run a command in the background" spellcheck={false} value={line} />
        <Button kind="primary" type="submit" scope="sandboxes:write" busy={busy.value}>
          Run
        </Button>
      </form>
      <section>
        <h2 class="section">Jobs</h2>
        <Listing
          class="scroll-x"
          name="Jobs"
          load={jobs}
          items={jobs.data.value && all.value}
          head={["Command", "State", "Began", { text: "Took", num: true }, { text: "Output", num: true }, ""]}
          none={
            <Empty icon="jobs" title="No command has run yet">
              Commands and code in the background are jobs. They outlive who started them.
            </Empty>
          }
          row={(j) => (
            <tr key={j.id}>
              <td>
                <button
                  type="button"
                  class="as-link mono"
                  title={label((j.command ?? []).join(" "), 1000)}
                  aria-expanded={chosen.value === j.id}
                  onClick={() => {
                    chosen.value = chosen.value === j.id ? undefined : j.id;
                  }}
                >
                  {label(commandLine(j.command), 160) || j.id}
                </button>
              </td>
              <td>
                <span class="row nowrap tight">
                  <StateBadge state={j.state} />
                  {j.state !== "running" && j.exit_code !== 0 && <span class="red-text small">exit {j.exit_code}</span>}
                </span>
              </td>
              <td class="muted">{clock(j.started_at)}</td>
              <td class="num muted">{span((j.ended_at ? at(j.ended_at) : Date.now()) - at(j.started_at))}</td>
              <td class="num muted">{bytes(j.stdout_bytes + j.stderr_bytes)}</td>
              <td class="actions">
                {j.state === "running" && (
                  <Menu
                    small
                    kind="ghost"
                    icon="more"
                    label="Signals"
                    items={SIGNALS.map((g) => ({
                      text: `Send ${g}`,
                      scope: "sandboxes:write",
                      danger: g === "KILL",
                      run: () => void attempt(calls.signalJob(s.id, j.id, g), `${g} is sent`).then(jobs.again),
                    }))}
                  />
                )}
              </td>
            </tr>
          )}
        />
      </section>
      {job && (
        <Output
          key={job.id}
          of={s}
          job={job}
          close={() => {
            chosen.value = undefined;
          }}
        />
      )}
      {!!webhooks.data.value?.length && (
        <section>
          <h2 class="section">Webhooks</h2>
          <Listing
            class="scroll-x"
            name="Webhooks"
            load={webhooks}
            items={webhooks.data.value}
            head={HEAD}
            none={null}
            row={(d) => <DeliveryRow key={d.id} of={d} />}
          />
        </section>
      )}
      <section>
        <h2 class="section">Processes</h2>
        {processes.error.value ? (
          <Failure error={processes.error.value} again={processes.again} />
        ) : !processes.data.value ? (
          <Loading rows={3} />
        ) : (
          <Scrolled name="Processes" class="scroll-x">
            <table class="data">
              <thead>
                <tr>
                  <th class="num">PID</th>
                  <th>Command</th>
                  <th>User</th>
                  <th>State</th>
                  <th class="num">CPU</th>
                  <th class="num">Memory</th>
                  <th>
                    <span class="vh">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {processes.data.value.slice(0, 500).map((p) => (
                  <tr key={p.pid}>
                    <td class="num muted">{p.pid}</td>
                    <td class="mono cut" title={label((p.command ?? []).join(" "), 1000)}>
                      {label((p.command ?? []).join(" ") || p.name, 160)}
                    </td>
                    <td class="muted">{label(p.user)}</td>
                    <td class="muted">{label(p.state)}</td>
                    <td class="num">{p.cpu_percent.toFixed(1)} %</td>
                    <td class="num">{bytes(p.memory_bytes)}</td>
                    <td class="actions">
                      {p.pid > 1 && (
                        <Menu
                          small
                          kind="ghost"
                          icon="more"
                          label={`Signals for process ${p.pid}`}
                          items={SIGNALS.map((g) => ({
                            text: `Send ${g}`,
                            danger: g === "KILL",
                            scope: "sandboxes:write",
                            run: () => {
                              const call = calls.signalProcess(s.id, p.pid, g);
                              if (g === "KILL")
                                confirmed(
                                  call,
                                  `Kill process ${p.pid}?`,
                                  label((p.command ?? []).join(" ") || p.name, 200),
                                  "Kill",
                                  "Killed",
                                  processes.again,
                                );
                              else void attempt(call, `${g} is sent`).then(processes.again);
                            },
                          }))}
                        />
                      )}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scrolled>
        )}
      </section>
    </div>
  );
}

/** How much of each stream of a job is read that was there before, in bytes: of long output only the end is shown. */
const BEFORE = 1 << 20;

/** Output follows what a job writes; only the end of a long one is kept here. */
function Output({ of: s, job, close }: { of: Sandbox; job: Job; close: () => void }) {
  const text = useSignal("");
  const cut = useSignal(0);
  const error = useSignal("");
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    const stop = new AbortController();
    const tail = new Tail();
    const from = { stdout: Math.max(0, job.stdout_bytes - BEFORE), stderr: Math.max(0, job.stderr_bytes - BEFORE) };
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    let waiting = 0;
    const show = () => {
      waiting = 0;
      text.value = stripANSI(tail.text);
      cut.value = from.stdout + from.stderr + tail.cut;
      const el = box.current;
      if (el && el.scrollHeight - el.scrollTop - el.clientHeight < 60)
        requestAnimationFrame(() => {
          el.scrollTop = el.scrollHeight;
        });
    };
    const to: Attached = {
      output: (data, missing, name) => {
        if (missing) tail.add(`\n… ${bytes(missing)} were not kept\n`);
        tail.add(decoders[name].decode(data, { stream: true }));
        waiting ||= window.setTimeout(show, 100);
      },
      trouble: (why) => {
        error.value = why;
      },
    };
    void attach(stop.signal, s.id, job.id, to, from);
    return () => {
      stop.abort();
      clearTimeout(waiting);
    };
  }, [s.id, job.id]);
  return (
    <section class="job-output" aria-label="Output">
      <div class="changes-head small">
        <span class="mono cut grow">{label(commandLine(job.command), 200)}</span>
        <CopyAs
          call={{
            title: "Follow a job",
            scope: "sandboxes:read",
            method: "GET",
            path: attachPath(s.id, job.id),
            cli: `cove logs ${s.id} ${job.id} -f`,
            mcp: { tool: "job_get", arguments: { sandbox: s.id, job_id: job.id } },
            go: `job, err := c.Attach(ctx, ${JSON.stringify(s.id)}, ${JSON.stringify(job.id)}, sandbox.AttachRequest{}, sink)`,
          }}
          small
        />
        <Button small kind="ghost" icon="close" aria-label="Close the output" onClick={close} />
      </div>
      {error.value && <Failure error={error.value} />}
      <pre class="out" ref={box} tabIndex={0}>
        {cut.value > 0 && <em>{`… at least ${cut.value.toLocaleString("en")} bytes before this are not shown\n`}</em>}
        {text.value || (job.state === "running" ? "It has written nothing yet." : "It wrote nothing.")}
      </pre>
    </section>
  );
}
