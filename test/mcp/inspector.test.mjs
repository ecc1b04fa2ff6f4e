// MCP Inspector's command line lists and calls the tools without a warning.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { command, key, tools, url } from './server.mjs';

const inspector = fileURLToPath(new URL('node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js', import.meta.url));
let home;
before(async () => (home = await mkdtemp(join(tmpdir(), 'cove-inspector-'))));
after(() => rm(home, { recursive: true, force: true }));

function run(...args) {
  return new Promise((resolve) => {
    execFile(process.execPath, [inspector, '--cli', ...args], { env: { ...process.env, HOME: home, MCP_CATALOG_PATH: join(home, 'mcp.json') }, maxBuffer: 64 << 20 }, (error, stdout, stderr) =>
      resolve({ code: error ? error.code : 0, stdout, stderr }),
    );
  });
}

const doors = [];
if (url) {
  const target = [url, '--transport', 'http', ...(key ? ['--header', `Authorization: Bearer ${key}`] : [])];
  doors.push(['HTTP, sessions', [...target, '--protocol-era', 'legacy']], ['HTTP, stateless', [...target, '--protocol-era', 'modern']]);
}
if (command) doors.push(['stdio', command]);

for (const [name, target] of doors) {
  describe(name, () => {
    test('lists the tools', async () => {
      const { code, stdout, stderr } = await run(...target, '--method', 'tools/list', '--strict');
      assert.deepEqual([code, stderr], [0, ''], stdout);
      const names = JSON.parse(stdout).tools.map((tool) => tool.name);
      assert.ok(names.length >= 13);
      for (const tool of tools) assert.ok(names.includes(tool), `${tool} is not among ${names}`);
    });

    test('calls a tool', async () => {
      const { code, stdout, stderr } = await run(...target, '--method', 'tools/call', '--tool-name', 'sandbox_list', '--tool-args-json', '{"limit":1}');
      assert.deepEqual([code, stderr], [0, ''], stdout);
      assert.ok(Array.isArray(JSON.parse(stdout).structuredContent.sandboxes));
    });

    test('lists the resource templates', async () => {
      const { code, stdout, stderr } = await run(...target, '--method', 'resources/templates/list');
      assert.deepEqual([code, stderr], [0, ''], stdout);
      assert.match(stdout, /cove:\/\/sandbox\//);
    });
  });
}
