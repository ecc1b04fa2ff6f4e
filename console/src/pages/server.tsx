import { useComputed, useSignal } from "@preact/signals";
import { api, pages, want } from "../api/client";
import { may, session } from "../api/session";
import { bytes, day } from "../lib/format";
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
          {may("admin") && <Orphans />}
          <section class="card">
            <header>
              <h2>What this machine lets Cove do</h2>
            </header>
            <div class="body stack">
              <Snippet text="cove doctor" lang="Command" />
              <p class="muted small">Run it on the server. It tells what is missing, and how to get it.</p>
              <p>
                <a href="/v1/openapi.yaml" target="_blank" rel="noreferrer">
                  The REST interface, as OpenAPI
                </a>
              </p>
            </div>
          </section>
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
                <td class="muted">until {day(o.ends_at)}</td>
                <td class="actions">
                  <Button
                    small
                    scope="admin"
                    onClick={() =>
                      void attempt(
                        {
                          title: "Recover",
                          scope: "admin",
                          method: "POST",
                          path: `/v1/orphans/${encodeURIComponent(o.id)}/recover`,
                          cli: `cove recover ${o.id}`,
                        },
                        "It is back",
                      ).then(list.again)
                    }
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
