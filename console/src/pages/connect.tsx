import { useSignal } from "@preact/signals";
import { useLocation } from "wouter-preact";
import { session } from "../api/session";
import { Field, Input } from "../ui/fields";
import { Button, Snippet, Tabs } from "../ui/kit";

interface Client {
  id: string;
  text: string;
  where: string;
  local: string;
  remote: (url: string, key: string) => string;
  lang: string;
}

const json = (v: unknown) => JSON.stringify(v, null, 2);
const servers = (server: unknown) => json({ mcpServers: { cove: server } });
const http = (url: string, key: string) => ({ url, headers: { Authorization: `Bearer ${key}` } });

/** As docs/clients.md says. */
const CLIENTS: Client[] = [
  {
    id: "claude-code",
    text: "Claude Code",
    where: "In a terminal",
    lang: "Command",
    local: "claude mcp add cove -- cove mcp",
    remote: (url, key) => `claude mcp add --transport http cove ${url} --header "Authorization: Bearer ${key}"`,
  },
  {
    id: "cursor",
    text: "Cursor",
    where: ".cursor/mcp.json or ~/.cursor/mcp.json",
    lang: "JSON",
    local: servers({ command: "cove", args: ["mcp"] }),
    remote: (url, key) => servers(http(url, key)),
  },
  {
    id: "vscode",
    text: "VS Code",
    where: ".vscode/mcp.json",
    lang: "JSON",
    local: json({ servers: { cove: { type: "stdio", command: "cove", args: ["mcp"] } } }),
    remote: (url) =>
      json({
        inputs: [{ type: "promptString", id: "cove-key", description: "API key of the Cove server", password: true }],
        servers: { cove: { type: "http", url, headers: { Authorization: "Bearer ${input:cove-key}" } } },
      }),
  },
  {
    id: "codex",
    text: "Codex",
    where: "~/.codex/config.toml",
    lang: "TOML",
    local: '[mcp_servers.cove]\ncommand = "cove"\nargs = ["mcp"]',
    remote: (url) => `[mcp_servers.cove]\nurl = "${url}"\nbearer_token_env_var = "COVE_API_KEY"`,
  },
  {
    id: "claude-desktop",
    text: "Claude Desktop",
    where: "claude_desktop_config.json; give the whole path of cove",
    lang: "JSON",
    local: servers({ command: "cove", args: ["mcp"] }),
    remote: (url, key) => servers(http(url, key)),
  },
  {
    id: "windsurf",
    text: "Windsurf",
    where: "~/.codeium/windsurf/mcp_config.json",
    lang: "JSON",
    local: servers({ command: "cove", args: ["mcp"] }),
    remote: (url, key) => servers({ serverUrl: url, headers: { Authorization: `Bearer ${key}` } }),
  },
];

export function ConnectPage() {
  const [, go] = useLocation();
  const tab = useSignal("claude-code");
  const key = useSignal("");
  const client = CLIENTS.find((c) => c.id === tab.value)!;
  const url = `${location.origin}/mcp`;
  return (
    <div class="page">
      <header class="bar">
        <h1>Connect an agent</h1>
      </header>
      <Tabs
        name="Clients"
        tabs={CLIENTS}
        current={tab.value}
        pick={(id) => {
          tab.value = id;
        }}
      />
      <div class="content" role="tabpanel" aria-label={client.text}>
        <div class="narrow-page">
          <p class="soft">
            Where it goes: <code>{client.where}</code>
          </p>
          <section class="stack">
            <h2>On this machine</h2>
            <p class="muted">No key is needed: it talks to the daemon of the same user.</p>
            <Snippet text={client.local} lang={`${client.text}, on this machine`} />
          </section>
          <section class="stack">
            <h2>From another machine</h2>
            <div class="row">
              <Field label="API key" hint="It stays in this page, and only fills in the lines below.">
                <Input class="mono" type="password" autocomplete="off" placeholder="cove_…" value={key} />
              </Field>
              <Button icon="key" scope="admin" onClick={() => go("/keys")}>
                Make a key
              </Button>
            </div>
            <Snippet text={client.remote(url, key.value.trim() || "cove_…")} lang={`${client.text}, from another machine`} />
            {session.value?.local && (
              <p class="muted">The server answers other machines when it is started with --listen and an address of theirs.</p>
            )}
          </section>
          <section class="stack">
            <h2>The command line and REST</h2>
            <Snippet
              text={`export COVE_URL=${location.origin} COVE_API_KEY=${key.value.trim() || "cove_…"}\ncove ls`}
              lang="Command"
            />
            <Snippet text={`curl -H "Authorization: Bearer $COVE_API_KEY" ${location.origin}/v1/sandboxes`} lang="Command" />
          </section>
        </div>
      </div>
    </div>
  );
}
