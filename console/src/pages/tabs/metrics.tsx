import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { api, type Sandbox, want } from "../../api/client";
import { at, bytes } from "../../lib/format";
import { rates } from "../../lib/series";
import { CopyAs } from "../../ui/dialog";
import { Button, Empty, Failure, Loading } from "../../ui/kit";
import { useEvery, useLoad } from "../../ui/load";
import { color, isDark } from "../../ui/theme";

const WINDOWS: [string, number][] = [
  ["5 min", 300],
  ["15 min", 900],
  ["1 h", 3600],
];

interface Graph {
  title: string;
  series: { name: string; color: string; values: (number | null)[] }[];
  format: (v: number) => string;
  limit?: number;
  now: string;
}

export function MetricsTab({ of: s }: { of: Sandbox }) {
  const window = useSignal(900);
  const past = useLoad(
    () =>
      want(
        api.GET("/v1/sandboxes/{sandbox}/stats/series", {
          params: { path: { sandbox: s.id }, query: { since: new Date(Date.now() - window.value * 1000).toISOString() } },
        }),
      ),
    [s.id, window.value],
  );
  useEvery(5000, () => void past.again());
  const points = useComputed(() => {
    const from = Date.now() - window.value * 1000;
    return (past.data.value?.items ?? []).filter((p) => at(p.time) >= from).sort((a, b) => at(a.time) - at(b.time));
  });
  const graphs = useComputed((): { times: number[]; graphs: Graph[] } => {
    const p = points.value;
    const last = p.at(-1);
    const times = p.map((x) => at(x.time) / 1000);
    const down = rates(
      times,
      p.map((x) => x.network_in_bytes),
    );
    const up = rates(
      times,
      p.map((x) => x.network_out_bytes),
    );
    const memory = (s.resources.memory_mib ?? 0) * 1_048_576;
    const disk = (s.resources.disk_mib ?? 0) * 1_048_576;
    return {
      times,
      graphs: [
        {
          title: "CPU",
          format: (v) => `${v.toFixed(v < 10 ? 1 : 0)} %`,
          now: last ? `${last.cpu_percent.toFixed(1)} % of ${(s.resources.vcpus ?? 1) * 100} %` : "",
          series: [{ name: "of one processor", color: "accent", values: p.map((x) => x.cpu_percent) }],
        },
        {
          title: "Memory",
          format: bytes,
          limit: memory,
          now: last ? `${bytes(last.memory_bytes)} of ${bytes(memory)}` : "",
          series: [{ name: "in use", color: "blue", values: p.map((x) => x.memory_bytes) }],
        },
        {
          title: "Disk",
          format: bytes,
          limit: disk,
          now: last ? `${bytes(last.disk_bytes)} of ${bytes(disk)}` : "",
          series: [{ name: "written", color: "violet", values: p.map((x) => x.disk_bytes) }],
        },
        {
          title: "Network",
          format: (v) => `${bytes(Math.round(v))}/s`,
          now: last ? `↓ ${bytes(last.network_in_bytes)} ↑ ${bytes(last.network_out_bytes)} in all` : "",
          series: [
            { name: "in", color: "green", values: down },
            { name: "out", color: "amber", values: up },
          ],
        },
        {
          title: "Processes",
          format: (v) => String(Math.round(v)),
          now: last ? String(last.processes) : "",
          series: [{ name: "processes", color: "text-3", values: p.map((x) => x.processes) }],
        },
      ],
    };
  });
  return (
    <div class="content metrics">
      <div class="row">
        <div class="seg">
          {WINDOWS.map(([text, sec]) => (
            <Button
              small
              key={sec}
              aria-pressed={window.value === sec}
              onClick={() => {
                window.value = sec;
              }}
            >
              {text}
            </Button>
          ))}
        </div>
        <span class="grow" />
        <CopyAs
          small
          call={{
            title: "What it used",
            scope: "sandboxes:read",
            method: "GET",
            path: `/v1/sandboxes/${s.id}/stats/series`,
            cli: `cove stats ${s.id}`,
            mcp: { tool: "sandbox_stats", arguments: { sandbox: s.id, minutes: window.value / 60 } },
            go: `series, err := c.StatsSeries(ctx, "${s.id}", sandbox.StatsSeriesRequest{})`,
          }}
        />
      </div>
      {past.error.value && !points.value.length ? (
        <Failure error={past.error.value} again={past.again} />
      ) : points.value.length > 1 ? (
        <div class="graphs">
          {graphs.value.graphs.map((g) => (
            <section class="card" key={g.title}>
              <header>
                <h2 class="grow">{g.title}</h2>
                <span class="muted small">{g.now}</span>
              </header>
              <Plot times={graphs.value.times} graph={g} />
            </section>
          ))}
        </div>
      ) : past.data.value ? (
        <Empty icon="chart" title="There are no samples yet">
          The server takes one every few seconds while the sandbox runs.
        </Empty>
      ) : (
        <Loading />
      )}
    </div>
  );
}

function Plot({ times, graph }: { times: number[]; graph: Graph }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>();
  const dark = isDark();
  const data = [times, ...graph.series.map((x) => x.values)] as uPlot.AlignedData;
  useEffect(() => {
    const el = box.current!;
    const line = color("line");
    const axis = {
      stroke: color("text-3"),
      grid: { stroke: line, width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const u = new uPlot(
      {
        width: el.clientWidth,
        height: 150,
        cursor: { y: false, points: { size: 6 } },
        legend: { show: true, live: true },
        scales: { x: { time: true }, y: { range: (_u, _min, max) => [0, Math.max(max * 1.15, 1)] } },
        axes: [
          {
            ...axis,
            space: 70,
            size: 28,
            values: (_u, v) =>
              v.map((t) =>
                new Date(t * 1000).toLocaleTimeString(undefined, {
                  hour: "2-digit",
                  minute: "2-digit",
                  second: (v.at(-1) ?? 0) - (v[0] ?? 0) < 240 ? "2-digit" : undefined,
                  hour12: false,
                }),
              ),
          },
          { ...axis, size: 64, space: 36, values: (_u, v) => v.map(graph.format) },
        ],
        series: [
          { value: (_u, v) => (v == null ? "" : new Date(v * 1000).toLocaleTimeString(undefined, { hour12: false })) },
          ...graph.series.map((x) => ({
            label: x.name,
            stroke: color(x.color),
            width: 1.5,
            fill: color(x.color).replace("rgb(", "rgba(").replace(")", ", 0.10)"),
            points: { show: false },
            value: (_u: uPlot, v: number | null) => (v == null ? "–" : graph.format(v)),
          })),
        ],
      },
      data,
      el,
    );
    plot.current = u;
    const watch = new ResizeObserver(() => u.setSize({ width: el.clientWidth, height: 150 }));
    watch.observe(el);
    return () => {
      watch.disconnect();
      u.destroy();
    };
  }, [dark]);
  useEffect(() => {
    plot.current?.setData(data);
  }, [times, graph]);
  return <div class="plot" ref={box} role="img" aria-label={`${graph.title}: ${graph.now}`} />;
}
