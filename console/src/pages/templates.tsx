import { useComputed, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { useLocation } from "wouter-preact";
import { api, pages, type Schemas, type Template, want } from "../api/client";
import { calls } from "../lib/calls";
import { at, bytes, day, span } from "../lib/format";
import { label } from "../lib/text";
import { world } from "../state/live";
import { together } from "../state/world";
import { CopyAs, confirmed, Dialog } from "../ui/dialog";
import { attempt } from "../ui/do";
import { Button, Empty, Menu, StateBadge } from "../ui/kit";
import { useEvery, useLoad, useMissed } from "../ui/load";
import { Follow, Write } from "./builds";
import { creating } from "./dialogs";
import { Listing } from "./list";
import "../styles/compare.css";

export function TemplatesPage() {
  const [, go] = useLocation();
  const list = useLoad(
    () => pages((cursor) => want(api.GET("/v1/templates", { params: { query: { limit: 1000, cursor } } }))),
    [],
  );
  const builds = useLoad(() => want(api.GET("/v1/builds", { params: { query: { limit: 50 } } })), []);
  const writing = useSignal(false);
  const following = useSignal<string | undefined>(undefined);
  const chosen = useSignal<string | undefined>(undefined);
  const all = useComputed(() => {
    const map = together(builds.data.value?.items ?? [], world.value.builds.values());
    return [...map.values()].sort((a, b) => at(b.created_at) - at(a.created_at));
  });
  useMissed(() => {
    void list.again();
    void builds.again();
  });
  useEvery(3000, () => {
    if (all.value.some((b) => !b.ended_at)) void builds.again();
  });
  const running = all.value.filter((b) => !b.ended_at).length;
  useEffect(() => void list.again(), [running]);
  const build = async (req: Schemas["BuildTemplateRequest"]) => {
    const b = await attempt(calls.startBuild(req));
    if (!b) return;
    writing.value = false;
    following.value = b.id;
    await builds.again();
  };
  const remove = (t: Template) =>
    confirmed(
      calls.deleteTemplate(t.name),
      `Delete the template ${label(t.name)}?`,
      "All its versions go. Its sandboxes and snapshots live on.",
      "Delete",
      "Deleted",
      list.again,
    );
  const shown = list.data.value?.find((t) => t.name === chosen.value);
  return (
    <div class="page">
      <header class="bar">
        <h1>Templates</h1>
        <span class="grow" />
        <Button
          kind="primary"
          icon="plus"
          scope="templates:write"
          onClick={() => {
            writing.value = true;
          }}
        >
          Build a template
        </Button>
      </header>
      <div class="scroll">
        <Listing
          name="Templates"
          load={list}
          items={list.data.value}
          head={[
            "Name",
            "State",
            { text: "Version", num: true },
            { text: "Size", num: true },
            { text: "Warm memory", num: true },
            "Built",
            "",
          ]}
          none={<Empty icon="layers" title="There is no template" />}
          row={(t) => (
            <tr key={t.name}>
              <td>
                <button
                  type="button"
                  class="as-link"
                  onClick={() => {
                    chosen.value = t.name;
                  }}
                >
                  {label(t.name)}
                </button>
                <div class="muted small cut" title={label(t.description)}>
                  {label(t.description)}
                </div>
              </td>
              <td>
                <StateBadge state={t.state} />
              </td>
              <td class="num soft">{t.version || "–"}</td>
              <td class="num soft">{t.size_bytes ? bytes(t.size_bytes) : "–"}</td>
              <td class="num soft">{t.warm_bytes ? bytes(t.warm_bytes) : "–"}</td>
              <td class="muted nowrap">{t.built_at ? day(t.built_at) : "–"}</td>
              <td class="actions">
                <div class="row">
                  {t.state === "ready" ? (
                    <Button
                      small
                      icon="plus"
                      scope="sandboxes:write"
                      onClick={() => {
                        creating.value = { template: t.name };
                      }}
                    >
                      Sandbox
                    </Button>
                  ) : (
                    <Button small icon="bolt" scope="templates:write" onClick={() => void build({ name: t.name })}>
                      Build
                    </Button>
                  )}
                  <Menu
                    small
                    kind="ghost"
                    icon="more"
                    label={`More actions on ${label(t.name)}`}
                    items={[
                      {
                        text: "Build anew",
                        icon: "bolt",
                        scope: "templates:write",
                        run: () => void build({ name: t.name, force: true }),
                      },
                      {
                        text: "Delete…",
                        icon: "trash",
                        danger: true,
                        scope: "templates:write",
                        disabled: !t.version,
                        run: () => remove(t),
                      },
                    ]}
                  />
                </div>
              </td>
            </tr>
          )}
        />
        <h2 class="section">Builds</h2>
        <Listing
          name="Builds"
          load={builds}
          items={builds.data.value && all.value}
          head={["Template", "State", "Step", "Began", { text: "Took", num: true }, ""]}
          none={<Empty icon="layers" title="Nothing has been built lately" />}
          row={(b) => (
            <tr key={b.id}>
              <td>
                {label(b.template)}
                {b.version ? <span class="muted">@{b.version}</span> : ""}
              </td>
              <td>
                <StateBadge state={b.state ?? ""} />
              </td>
              <td class="cut muted" title={label(b.reason || b.step, 1000)}>
                {label(b.reason || b.step)}
              </td>
              <td class="muted nowrap">{b.created_at ? day(b.created_at) : ""}</td>
              <td class="num muted">{b.created_at ? span((b.ended_at ? at(b.ended_at) : Date.now()) - at(b.created_at)) : ""}</td>
              <td class="actions">
                <Button
                  small
                  icon="jobs"
                  onClick={() => {
                    following.value = b.id;
                  }}
                >
                  Log
                </Button>
              </td>
            </tr>
          )}
        />
      </div>
      {writing.value && (
        <Write
          close={() => {
            writing.value = false;
          }}
          build={build}
        />
      )}
      {following.value && (
        <Follow
          key={following.value}
          id={following.value}
          build={all.value.find((b) => b.id === following.value)}
          close={() => {
            following.value = undefined;
            void builds.again();
            void list.again();
          }}
        />
      )}
      {shown && (
        <Details
          of={shown}
          close={() => {
            chosen.value = undefined;
          }}
          use={() => {
            chosen.value = undefined;
            creating.value = { template: shown.name };
            go("/");
          }}
        />
      )}
    </div>
  );
}

function Details({ of: t, close, use }: { of: Template; close: () => void; use: () => void }) {
  return (
    <Dialog
      title={label(t.name)}
      wide
      close={close}
      footer={
        <>
          <CopyAs call={calls.create({ template: t.name })} />
          <span class="grow" />
          <Button onClick={close}>Close</Button>
          <Button kind="primary" icon="plus" scope="sandboxes:write" disabled={t.state !== "ready"} onClick={use}>
            New sandbox
          </Button>
        </>
      }
    >
      <p class="soft">{label(t.description, 1000)}</p>
      <dl class="facts">
        <dt>State</dt>
        <dd>
          <StateBadge state={t.state} /> {t.reason && <span class="red-text">{label(t.reason, 500)}</span>}
        </dd>
        <dt>Begins with</dt>
        <dd>{label(t.source)}</dd>
        {!!t.versions?.length && (
          <>
            <dt>Versions</dt>
            <dd>
              {t.versions.map((v) => (
                <code key={v} class="tag">
                  {label(t.name)}@{v}
                </code>
              ))}
            </dd>
          </>
        )}
        {!!t.aliases?.length && (
          <>
            <dt>Also called</dt>
            <dd>{t.aliases.map((a) => label(a)).join(", ")}</dd>
          </>
        )}
        {!!t.packages?.length && (
          <>
            <dt>Packages</dt>
            <dd class="small">{t.packages.map((p) => label(p)).join(", ")}</dd>
          </>
        )}
        {t.warm && (
          <>
            <dt>Runs from the start</dt>
            <dd>
              {Object.keys(t.warm)
                .map((w) => label(w))
                .join(", ")}
            </dd>
          </>
        )}
        {!!t.ports?.length && (
          <>
            <dt>Ports</dt>
            <dd>{t.ports.join(", ")}</dd>
          </>
        )}
        <dt>User</dt>
        <dd class="mono">
          {label(t.user)} in {label(t.workdir)}
        </dd>
        {t.digest && (
          <>
            <dt>Digest</dt>
            <dd class="mono small">{label(t.digest)}</dd>
          </>
        )}
      </dl>
    </Dialog>
  );
}
