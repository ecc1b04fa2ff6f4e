import { useComputed, useSignal, useSignalEffect } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Link, Route, Router, Switch, useLocation } from "wouter-preact";
import { late } from "./api/client";
import { session } from "./api/session";
import { clock } from "./lib/format";
import { label } from "./lib/text";
import { NAV } from "./nav";
import { Dialogs } from "./pages/dialogs";
import { HomePage } from "./pages/home";
import { SignIn } from "./pages/signin";
import { approvals, connection, living, loadError, start } from "./state/live";
import { CallForms, Confirm, CopyAs, Dialog } from "./ui/dialog";
import { dismiss, leave, recent, toasts } from "./ui/do";
import { Icon, Logo } from "./ui/icons";
import { listen, useKeys } from "./ui/keys";
import { Button, Empty } from "./ui/kit";
import { lazy } from "./ui/lazy";
import { Help, Palette, paletteOpen } from "./ui/palette";
import { isDark, theme } from "./ui/theme";

const SandboxPage = lazy(() => import("./pages/sandbox").then((m) => m.SandboxPage), "Sandbox");
const ApprovalsPage = lazy(() => import("./pages/approvals").then((m) => m.ApprovalsPage), "Approvals");
const ComparePage = lazy(() => import("./pages/compare").then((m) => m.ComparePage), "Compare");
const ComputersPage = lazy(() => import("./pages/computers").then((m) => m.ComputersPage), "Computers");
const TemplatesPage = lazy(() => import("./pages/templates").then((m) => m.TemplatesPage), "Templates");
const VolumesPage = lazy(() => import("./pages/volumes").then((m) => m.VolumesPage), "Volumes");
const WebhooksPage = lazy(() => import("./pages/webhooks").then((m) => m.WebhooksPage), "Webhooks");
const SecretsPage = lazy(() => import("./pages/secrets").then((m) => m.SecretsPage), "Secrets");
const KeysPage = lazy(() => import("./pages/keys").then((m) => m.KeysPage), "Keys");
const AuditPage = lazy(() => import("./pages/audit").then((m) => m.AuditPage), "Audit");
const ServerPage = lazy(() => import("./pages/server").then((m) => m.ServerPage), "Server");
const ConnectPage = lazy(() => import("./pages/connect").then((m) => m.ConnectPage), "Connect");

export function App() {
  useEffect(listen, []);
  const who = session.value;
  if (who === undefined) return <div class="boot" role="status" aria-label="Loading" />;
  if (who === null) return <SignIn />;
  return (
    <Router base="/console">
      <Shell />
    </Router>
  );
}

function Shell() {
  const menu = useSignal(false);
  const [path, go] = useLocation();
  useEffect(() => start(), []);
  useEffect(() => {
    menu.value = false;
  }, [path]);
  useSignalEffect(() => {
    const n = living.value.length;
    const asked = approvals.value.size ? `(${approvals.value.size}) ` : "";
    document.title = asked + (n ? `Cove · ${n}` : "Cove");
  });
  const help = useSignal(false);
  useKeys({
    "mod+k": () => {
      paletteOpen.value = true;
    },
    "?": () => {
      help.value = true;
    },
  });
  return (
    <div class={`shell ${menu.value ? "menu-open" : ""}`}>
      <a class="skip" href="#main">
        Skip to content
      </a>
      <Sidebar path={path} />
      <div
        class="scrim"
        onClick={() => {
          menu.value = false;
        }}
      />
      <header class="phone-bar">
        <Button
          kind="ghost"
          icon="menu"
          aria-label="Menu"
          aria-expanded={menu.value}
          onClick={() => {
            menu.value = !menu.value;
          }}
        />
        <Logo size={20} />
        <strong>Cove</strong>
        <span class="grow" />
        <Button
          kind="ghost"
          icon="search"
          aria-label="Search"
          onClick={() => {
            paletteOpen.value = true;
          }}
        />
      </header>
      <main id="main" tabIndex={-1}>
        <Trouble />
        <Switch>
          <Route path="/" component={HomePage} />
          <Route path="/s/:id/:tab?">{(p) => <SandboxPage id={decodeURIComponent(p.id)} tab={p.tab} />}</Route>
          <Route path="/approvals">{() => <ApprovalsPage />}</Route>
          <Route path="/compare">{() => <ComparePage />}</Route>
          <Route path="/computers">{() => <ComputersPage />}</Route>
          <Route path="/templates">{() => <TemplatesPage />}</Route>
          <Route path="/volumes">{() => <VolumesPage />}</Route>
          <Route path="/webhooks">{() => <WebhooksPage />}</Route>
          <Route path="/secrets">{() => <SecretsPage />}</Route>
          <Route path="/keys">{() => <KeysPage />}</Route>
          <Route path="/audit">{() => <AuditPage />}</Route>
          <Route path="/server">{() => <ServerPage />}</Route>
          <Route path="/connect">{() => <ConnectPage />}</Route>
          <Route>
            <Empty
              icon="search"
              title="There is no such page"
              action={<Button onClick={() => go("/")}>To the sandboxes</Button>}
            />
          </Route>
        </Switch>
      </main>
      <Toasts />
      <Dialogs />
      <Confirm />
      {paletteOpen.value && <Palette />}
      {help.value && (
        <Help
          close={() => {
            help.value = false;
          }}
        />
      )}
    </div>
  );
}

/** Trouble says that what is shown may be old, or is still to come. */
function Trouble() {
  const lost = connection.value === "lost";
  return (
    <div role="status" class={lost || late.value ? "trouble" : "vh"}>
      {lost
        ? "Reconnecting. The server does not answer: what you see may be old."
        : late.value
          ? "The connection is slow. What is missing is still on its way."
          : ""}
    </div>
  );
}

const SAID = {
  connecting: ["grey", "Connecting"],
  events: ["green", "Live"],
  lost: ["amber", "Reconnecting"],
} as const;

function Sidebar({ path }: { path: string }) {
  const history = useSignal(false);
  const who = session.value!;
  const count = useComputed(() => living.value.length);
  const open = useComputed(() => approvals.value.size);
  const [dot, said] = SAID[connection.value];
  const at = (to: string) => (to === "/" ? path === "/" || path.startsWith("/s/") : path.startsWith(to));
  return (
    <nav class="side" aria-label="Main">
      <div class="brand">
        <Logo />
        <strong>Cove</strong>
        <span class="grow" />
        <Button
          kind="ghost"
          small
          icon="search"
          aria-label="Command palette"
          title="Command palette (Ctrl K)"
          onClick={() => {
            paletteOpen.value = true;
          }}
        />
      </div>
      <ul>
        {NAV.map((n) => (
          <li key={n.to} class={n.begins ? "gap" : ""}>
            <Link href={n.to} class={at(n.to) ? "on" : ""} aria-current={at(n.to) ? "page" : undefined}>
              <Icon name={n.icon} />
              <span class="grow">{n.text}</span>
              {n.to === "/" && count.value > 0 && <span class="count">{count.value}</span>}
              {n.to === "/approvals" && open.value > 0 && <span class="badge amber">{open.value}</span>}
            </Link>
          </li>
        ))}
      </ul>
      <div class="grow" />
      {recent.value.length > 0 && (
        <button
          type="button"
          class="side-button"
          onClick={() => {
            history.value = true;
          }}
        >
          <Icon name="code" />
          <span class="grow">Recent calls</span>
          <span class="count">{recent.value.length}</span>
        </button>
      )}
      <div class="who">
        <div class="grow">
          <div class="cut" title={label(who.key_name)}>
            {label(who.key_name || who.key_id)}
          </div>
          <div class="status small" title={loadError.value || said} role="status">
            <i class={`dot ${dot}`} />
            <span class="cut">{said}</span>
          </div>
        </div>
        <Button
          kind="ghost"
          small
          icon={isDark() ? "sun" : "moon"}
          aria-label={isDark() ? "Use light colours" : "Use dark colours"}
          onClick={() => {
            theme.value = isDark() ? "light" : "dark";
          }}
        />
        <Button kind="ghost" small icon="exit" aria-label="Sign out" title="Sign out" onClick={() => void leave()} />
      </div>
      {history.value && (
        <Dialog
          title="Recent calls"
          wide
          close={() => {
            history.value = false;
          }}
        >
          <p class="muted">Each thing that you just did, as the command line, curl, MCP and Go say it.</p>
          {recent.value.map((r, i) => (
            <details key={r.at + r.call.path} open={i === 0} class="recent">
              <summary>
                <span>{r.call.title}</span>
                <code class="muted cut grow">{label(`${r.call.method} ${r.call.path}`)}</code>
                {r.failed && <span class="badge red">refused</span>}
                <span class="muted small">{clock(r.at)}</span>
              </summary>
              <CallForms call={r.call} />
            </details>
          ))}
        </Dialog>
      )}
    </nav>
  );
}

function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((t) => (
        <div key={t.id} class={`toast ${t.kind}`}>
          <Icon name={t.kind === "ok" ? "check" : "warn"} />
          <div>{label(t.text, 1000)}</div>
          {t.call && <CopyAs call={t.call} small />}
          <Button kind="ghost" small icon="close" aria-label="Dismiss" onClick={() => dismiss(t.id)} />
        </div>
      ))}
    </div>
  );
}
