import { useComputed, useSignal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect } from "preact/hooks";
import { Link, useLocation } from "wouter-preact";
import { api, type Sandbox, want } from "../api/client";
import { at, span } from "../lib/format";
import { label } from "../lib/text";
import { parentOf } from "../lib/tree";
import { loaded, note, sandboxes } from "../state/live";
import { isEnded } from "../state/world";
import type { IconName } from "../ui/icons";
import { Icon } from "../ui/icons";
import { useKeys } from "../ui/keys";
import { Button, Empty, Failure, ID, Loading, Menu, Name, StateBadge, Tabs } from "../ui/kit";
import { lazy } from "../ui/lazy";
import { useEvery } from "../ui/load";
import { askKill, forking, snapshotting, togglePause } from "./dialogs";
import { Missing } from "./panel";
import "../styles/sandbox.css";

interface TabInfo {
  id: string;
  text: string;
  icon: IconName;
  /** Whether it has something to show of a sandbox that has ended. */
  ended?: boolean;
  Part: ComponentType<{ of: Sandbox }>;
}

const TABS: TabInfo[] = [
  { id: "terminal", text: "Terminal", icon: "terminal", Part: lazy(() => import("./tabs/terminal").then((m) => m.TerminalTab)) },
  { id: "files", text: "Files", icon: "folder", Part: lazy(() => import("./tabs/files").then((m) => m.FilesTab)) },
  { id: "code", text: "Code", icon: "code", Part: lazy(() => import("./tabs/code").then((m) => m.CodeTab)) },
  { id: "jobs", text: "Jobs", icon: "jobs", Part: lazy(() => import("./tabs/jobs").then((m) => m.JobsTab)) },
  {
    id: "network",
    text: "Network",
    icon: "globe",
    ended: true,
    Part: lazy(() => import("./tabs/network").then((m) => m.NetworkTab)),
  },
  { id: "previews", text: "Previews", icon: "link", Part: lazy(() => import("./tabs/previews").then((m) => m.PreviewsTab)) },
  { id: "metrics", text: "Metrics", icon: "chart", Part: lazy(() => import("./tabs/metrics").then((m) => m.MetricsTab)) },
  {
    id: "history",
    text: "History",
    icon: "clock",
    ended: true,
    Part: lazy(() => import("./tabs/history").then((m) => m.HistoryTab)),
  },
  {
    id: "settings",
    text: "Settings",
    icon: "settings",
    ended: true,
    Part: lazy(() => import("./tabs/settings").then((m) => m.SettingsTab)),
  },
];
const SCREEN: TabInfo = {
  id: "screen",
  text: "Screen",
  icon: "screen",
  Part: lazy(() => import("./tabs/screen").then((m) => m.ScreenTab)),
};

export function SandboxPage({ id, tab }: { id: string; tab?: string }) {
  const [, go] = useLocation();
  const error = useSignal("");
  const found = useComputed(
    () => sandboxes.value.get(id) ?? [...sandboxes.value.values()].find((s) => s.name === id && !isEnded(s)),
  );
  const now = useSignal(Date.now());
  useEvery(5000, () => {
    now.value = Date.now();
  });
  const s = found.value;
  useEffect(() => {
    error.value = "";
    if (s || !loaded.value) return;
    want(api.GET("/v1/sandboxes/{sandbox}", { params: { path: { sandbox: id } } })).then(
      (box) => note(box),
      (err: Error & { status?: number }) => {
        error.value = err.status === 404 ? "404" : err.message;
      },
    );
  }, [id, loaded.value, !s]);
  const tabs = s?.desktop ? [SCREEN, ...TABS] : TABS;
  const ended = !!s && isEnded(s);
  const current = tabs.find((t) => t.id === tab) ?? (ended ? TABS.find((t) => t.id === "history")! : tabs[0]!);
  const pick = (t: string) => go(`/s/${encodeURIComponent(id)}/${t}`, { replace: true });
  const alive = s && !ended ? s : undefined;
  useKeys({
    ...Object.fromEntries(tabs.slice(0, 9).map((t, i) => [String(i + 1), () => pick(t.id)])),
    Escape: () => go("/"),
    f: () => {
      forking.value = alive ?? null;
    },
    s: () => {
      snapshotting.value = alive ?? null;
    },
    p: () => alive && togglePause(alive),
    x: () => alive && askKill(alive),
  });
  if (!s) return error.value === "404" ? <Missing id={id} /> : error.value ? <Failure error={error.value} /> : <Loading />;
  const from = parentOf(s);
  const parent = s.forked_from ? sandboxes.value.get(s.forked_from) : undefined;
  return (
    <div class="page sandbox">
      <header class="bar">
        <Link href="/" class="crumb" aria-label="All sandboxes" title="All sandboxes (Esc)">
          <Icon name="tree" />
        </Link>
        <span class="muted">/</span>
        {from && (
          <>
            <Link href={`/s/${from}`} class="crumb cut">
              {label(sandboxes.value.get(from)?.name || from, 30)}
            </Link>
            <Icon name={s.forked_from ? "fork" : "camera"} size={13} class="muted" />
          </>
        )}
        <h1>
          <Name of={s} />
        </h1>
        <StateBadge state={s.state} />
        <span class="muted small facts-line">
          {label(s.template)} · {span((ended ? at(s.ended_at) : now.value) - at(s.created_at))}
          {s.expires_at && !ended ? ` · ends in ${span(at(s.expires_at) - now.value)}` : ""}
        </span>
        <span class="wide-only">
          <ID id={s.id} />
        </span>
        <span class="grow" />
        {!ended && (
          <>
            <Button
              icon="fork"
              scope="sandboxes:write"
              onClick={() => {
                forking.value = s;
              }}
            >
              Fork
            </Button>
            <Button
              icon="camera"
              scope="sandboxes:write"
              aria-label="Snapshot"
              title="Snapshot (s)"
              onClick={() => {
                snapshotting.value = s;
              }}
            />
            <Button
              icon={s.state === "paused" ? "play" : "pause"}
              scope="sandboxes:write"
              aria-label={s.state === "paused" ? "Resume" : "Pause"}
              title={s.state === "paused" ? "Resume (p)" : "Pause (p)"}
              onClick={() => togglePause(s)}
            />
          </>
        )}
        <Menu
          label="More actions"
          icon="more"
          items={[
            { text: "Compare with…", icon: "diff", run: () => go(`/compare?a=${s.id}`) },
            ...(parent && !ended
              ? [{ text: "Merge into its parent…", icon: "merge" as const, run: () => go(`/compare?a=${parent.id}&b=${s.id}`) }]
              : []),
            ...(ended
              ? []
              : [
                  {
                    text: "Kill…",
                    icon: "kill" as const,
                    hint: "x",
                    danger: true,
                    scope: "sandboxes:write",
                    run: () => askKill(s),
                  },
                ]),
          ]}
        />
      </header>
      <Tabs name="Parts of the sandbox" tabs={tabs} current={current.id} pick={pick} />
      <div class="tab-body" role="tabpanel" aria-label={current.text} key={`${s.id}/${current.id}`}>
        {ended && !current.ended ? (
          <Empty icon="kill" title="The sandbox has ended" action={<Button onClick={() => pick("history")}>History</Button>}>
            {label(s.reason) || "Its files and processes are gone."}
          </Empty>
        ) : s.state === "paused" && !["network", "history", "settings", "previews"].includes(current.id) ? (
          <Empty
            icon="pause"
            title="The sandbox is paused"
            action={
              <Button kind="primary" icon="play" scope="sandboxes:write" onClick={() => togglePause(s)}>
                Resume
              </Button>
            }
          >
            Its memory is on disk. It goes on where it was.
          </Empty>
        ) : (
          <current.Part of={s} />
        )}
      </div>
    </div>
  );
}
