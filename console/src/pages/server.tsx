import { useComputed, useSignal } from "@preact/signals";
import { api, pages, send, want } from "../api/client";
import { may, session } from "../api/session";
import { calls } from "../lib/calls";
import { bytes, day, span } from "../lib/format";
import { readMetrics, requestsByDoor, sum } from "../lib/prometheus";
import { label } from "../lib/text";
import { connection, living, sandboxes, snapshots } from "../state/live";
import { isEnded } from "../state/world";
import { attempt } from "../ui/do";
import { Button, Failure, Loading, Snippet } from "../ui/kit";
import { useEvery, useLoad } from "../ui/load";

export function ServerPage() {
  const health = useSignal<{ ok: boolean; ms: number } | undefined>(undefined);
  const version = useLoad(() => want(api.GET("/v1/version")), []);
  const stats = useLoad(() => pages((cursor) => want(api.GET("/v1/stats", { params: { query: { limit: 1000, cursor } } }))), []);
  const check = async () => {
    const begun = performance.now();
    const ok = await fetch("/healthz").then(
      (r) => r.ok,
      () => false,
    );
    health.value = { ok, ms: performance.now() - begun };
  };
  useEvery(5000, () => {
    void check();
    void stats.again();
  });
  if (!health.value) {
    health.value = { ok: true, ms: 0 };
    void check();
  }
  const sums = useComputed(() => {
    const t = { cpu: 0, memory: 0, disk: 0, processes: 0, limit: 0 };
    for (const s of living.value) t.limit += (s.resources.memory_mib ?? 0) * 1_048_576;
    for (const x of stats.data.value ?? []) {
      t.cpu += x.cpu_percent;
      t.memory += x.stats?.memory_bytes ?? 0;
      t.disk += x.stats?.disk_bytes ?? 0;
      t.processes += x.stats?.processes ?? 0;
    }
    return t;
  });
  const kept = useComputed(() => [...snapshots.value.values()].reduce((n, s) => n + s.size_bytes, 0));
  const ended = useComputed(() => [...sandboxes.value.values()].filter(isEnded).length);
  return (
    <div class="page">
      <header class="bar">
        <h1>Server</h1>
        <span class={`badge ${health.value?.ok ? "green" : "red"}`}>{health.value?.ok ? "answers" : "does not answer"}</span>
      </header>
      <div class="content">
        <div class="narrow-page">
          <div class="tiles">
            <Tile
              name="Version"
              value={label(version.data.value?.version ?? session.value?.version ?? "…", 24)}
              more={`API ${label(version.data.value?.api ?? "")}`}
            />
            <Tile name="Sandboxes" value={String(living.value.length)} more={`${ended.value} ended`} />
            <Tile name="CPU" value={`${sums.value.cpu.toFixed(0)} %`} more="of one processor, all sandboxes" />
            <Tile name="Memory" value={bytes(sums.value.memory)} more={`of ${bytes(sums.value.limit)} that they may use`} />
            <Tile name="Disk" value={bytes(sums.value.disk)} more="written by sandboxes" />
            <Tile name="Snapshots" value={String(snapshots.value.size)} more={bytes(kept.value)} />
          </div>
          {stats.error.value && <Failure error={stats.error.value} again={stats.again} />}
          <section class="card">
            <header>
              <h2>This browser</h2>
            </header>
            <div class="body">
              <dl class="facts">
                <dt>Key</dt>
                <dd>{label(session.value?.key_name || session.value?.key_id)}</dd>
                <dt>Team</dt>
                <dd>{label(session.value?.team)}</dd>
                <dt>May</dt>
                <dd>{(session.value?.scopes ?? []).join(", ")}</dd>
                {session.value?.expires_at && (
                  <>
                    <dt>Until</dt>
                    <dd>{day(session.value.expires_at)}</dd>
                  </>
                )}
                <dt>Kept up to date</dt>
                <dd>{connection.value === "events" ? "by the event stream" : "not now"}</dd>
              </dl>
            </div>
          </section>
          {may("admin") && <Daemon />}
          {may("admin") && <Orphans />}
          {may("admin") ? <Machine /> : <AskDoctor />}
          <p>
            <a href="/v1/openapi.yaml" target="_blank" rel="noreferrer">
              The REST interface, as OpenAPI
            </a>
          </p>
        </div>
      </div>
    </div>
  );
}

function Tile({ name, value, more }: { name: string; value: string; more: string }) {
  return (
    <div class="tile">
      <span class="muted small">{name}</span>
      <b class="cut" title={value}>
        {value}
      </b>
      <span class="muted small">{more}</span>
    </div>
  );
}

/** AskDoctor is for those who may not see what the machine lets Cove do. */
function AskDoctor() {
  return (
    <section class="card">
      <header>
        <h2>What this machine lets Cove do</h2>
      </header>
      <div class="body stack">
        <Snippet text="cove doctor" lang="Command" />
        <p class="muted small">Run it on the server. It tells what is missing, and how to get it.</p>
      </div>
    </section>
  );
}

const STATUS = { ok: ["green", "fine"], warn: ["amber", "less than it could be"], fail: ["red", "missing"] } as const;

/** Machine shows what cove doctor says on the server. */
function Machine() {
  const report = useLoad(() => want(api.GET("/v1/machine")), []);
  const all = useSignal(false);
  if (report.error.value) return <Failure error={report.error.value} again={report.again} />;
  const r = report.data.value;
  const checks = r?.checks ?? [];
  const shown = all.value ? checks : checks.filter((c) => c.status !== "ok");
  const weak = (r?.limits ?? []).filter((l) => !l.enforced);
  return (
    <section class="card">
      <header>
        <h2>What this machine lets Cove do</h2>
        {r && <span class={`badge ${r.ok ? "green" : "red"}`}>{r.ok ? "sandboxes can run" : "sandboxes cannot run"}</span>}
        <span class="grow" />
        {r && (
          <Button small kind="ghost" onClick={() => (all.value = !all.value)} aria-expanded={all.value}>
            {all.value ? "Only what is missing" : `All ${checks.length} checks`}
          </Button>
        )}
      </header>
      {!r ? (
        <Loading rows={3} />
      ) : (
        <div class="body stack machine">
          {shown.length === 0 && <p class="muted">Nothing is missing.</p>}
          {shown.map((c) => (
            <div class="stack tight-stack" key={c.name}>
              <div class="row">
                <span class={`badge ${STATUS[c.status as keyof typeof STATUS]?.[0] ?? ""}`}>
                  {STATUS[c.status as keyof typeof STATUS]?.[1] ?? label(c.status)}
                </span>
                <b>{label(c.name)}</b>
              </div>
              <span>{label(c.detail, 1000)}</span>
              {c.fix && <span class="muted small">{label(c.fix, 1000)}</span>}
            </div>
          ))}
          {(all.value ? (r.limits ?? []) : weak).map((l) => (
            <div class="stack tight-stack" key={l.name}>
              <div class="row">
                <span class={`badge ${l.enforced ? "green" : "amber"}`}>{l.enforced ? "held" : "weak"}</span>
                <b>the limit of {label(l.name)}</b>
              </div>
              <span>{label(l.how, 1000)}</span>
            </div>
          ))}
        </div>
      )}
    </section>
  );
}

/** Daemon shows what the server tells Prometheus of itself. */
function Daemon() {
  const metrics = useLoad(async (signal) => readMetrics(await (await send("GET", "/metrics", undefined, { signal })).text()), []);
  useEvery(10_000, metrics.again);
  if (metrics.error.value) return <Failure error={metrics.error.value} again={metrics.again} />;
  const m = metrics.data.value;
  if (!m) return <Loading rows={3} />;
  const doors = requestsByDoor(m);
  return (
    <section class="card">
      <header>
        <h2>The daemon</h2>
        <span class="grow" />
        <a class="small" href="/metrics" target="_blank" rel="noreferrer">
          All of it, for Prometheus
        </a>
      </header>
      <div class="body stack">
        <dl class="facts">
          <dt>Memory</dt>
          <dd>{bytes(sum(m, "process_resident_memory_bytes"))}</dd>
          <dt>Open files</dt>
          <dd>
            {sum(m, "process_open_fds")} of {sum(m, "process_max_fds")}
          </dd>
          <dt>CPU time</dt>
          <dd>{span(sum(m, "process_cpu_seconds_total") * 1000)}</dd>
          <dt>Goroutines</dt>
          <dd>{sum(m, "go_goroutines")}</dd>
          <dt>Requests under way</dt>
          <dd>{sum(m, "cove_http_requests_in_flight")}</dd>
        </dl>
        <table class="data">
          <thead>
            <tr>
              <th>Door</th>
              <th class="num">Requests</th>
              <th class="num">Refused</th>
              <th class="num">Failed</th>
              <th class="num">On average</th>
            </tr>
          </thead>
          <tbody>
            {doors.map((d) => (
              <tr key={d.door}>
                <td>{label(d.door)}</td>
                <td class="num">{d.requests}</td>
                <td class="num">{d.refused}</td>
                <td class="num">{d.failed}</td>
                <td class="num">{d.requests ? `${((d.seconds / d.requests) * 1000).toFixed(1)} ms` : ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function Orphans() {
  const list = useLoad(() => pages((cursor) => want(api.GET("/v1/orphans", { params: { query: { cursor } } }))), []);
  return (
    <section class="card">
      <header>
        <h2>Set aside</h2>
      </header>
      {list.error.value ? (
        <Failure error={list.error.value} again={list.again} />
      ) : !list.data.value ? (
        <Loading rows={2} />
      ) : list.data.value.length === 0 ? (
        <div class="body muted">Nothing was found on disk without a record of it.</div>
      ) : (
        <table class="data">
          <tbody>
            {list.data.value.map((o) => (
              <tr key={o.id}>
                <td class="mono cut" title={o.id}>
                  {label(o.name || o.id)}
                </td>
                <td class="muted">{label(o.kind)}</td>
                <td class="muted cut" title={label(o.reason)}>
                  {label(o.reason)}
                </td>
                <td class="num">{bytes(o.size_bytes)}</td>
                <td class="muted nowrap">until {day(o.ends_at)}</td>
                <td class="actions">
                  <Button
                    small
                    scope="admin"
                    onClick={() => void attempt(calls.recoverOrphan(o.id), "It is back").then(list.again)}
                  >
                    Bring back
                  </Button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
