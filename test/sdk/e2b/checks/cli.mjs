// E2B's command line, which has an SDK of its own built in.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { run, sdk } from '../harness.mjs';

export default async function cli(check) {
  const home = mkdtempSync(path.join(tmpdir(), 'cove-e2b-cli-'));
  const dir = path.join(home, 'template');
  mkdirSync(dir);
  const program = path.resolve('node_modules/@e2b/cli/dist/index.js');
  const e2b = (args, { input = '' } = {}) => new Promise((done) => {
    const child = execFile(process.execPath, [program, ...args], { cwd: dir, env: { ...process.env, HOME: home }, timeout: 90_000 }, (err, stdout, stderr) => {
      done({ code: err ? (err.code ?? 1) : 0, stdout, stderr });
    });
    child.stdin.on('error', () => {});
    child.stdin.end(input);
  });
  const ok = async (...args) => {
    const res = await e2b(args);
    assert.equal(res.code, 0, `e2b ${args.join(' ')}: ${JSON.stringify(res)}`);
    return res.stdout;
  };
  let id;
  await check('a sandbox from its beginning to its end', [...['create', 'list', 'info', 'pause', 'resume', 'kill'].map((c) => `e2b sandbox ${c}`)], async () => {
    id = (await ok('sandbox', 'create', 'base', '--detach')).trim();
    assert.match(id, /^sbx[a-z0-9]+$/);
    assert.match(await ok('sandbox', 'list'), new RegExp(id));
    assert.match(await ok('sandbox', 'info', id), /Running|running/);
    await ok('sandbox', 'pause', id);
    assert.equal((await sdk.Sandbox.getInfo(id)).state, 'paused');
    await ok('sandbox', 'resume', id);
    const other = (await ok('sandbox', 'create', 'base', '--detach')).trim();
    await ok('sandbox', 'kill', other);
    assert.doesNotMatch(await ok('sandbox', 'list'), new RegExp(other));
  });
  await check('a command with both streams, input and its code', ['e2b sandbox exec'], async () => {
    const res = await e2b(['sandbox', 'exec', id, '--', 'sh', '-c', 'echo out; echo err >&2; exit 3']);
    assert.deepEqual([res.code, res.stdout], [3, 'out\n'], JSON.stringify(res));
    assert.match(res.stderr, /err/);
    assert.equal((await e2b(['sandbox', 'exec', id, 'cat'], { input: 'typed\n' })).stdout, 'typed\n');
  });
  await check('logs and what it uses', ['e2b sandbox logs', 'e2b sandbox metrics'], async () => {
    assert.match(await ok('sandbox', 'logs', id), /sandbox\.create/);
    assert.match(await ok('sandbox', 'metrics', id), /Metrics/);
  });
  await check('a snapshot', ['e2b sandbox snapshot create', 'e2b sandbox snapshot list'], async () => {
    const snapshot = /snap-[a-z0-9]+/.exec(await ok('sandbox', 'snapshot', 'create', id))?.[0];
    assert.ok(snapshot);
    assert.match(await ok('sandbox', 'snapshot', 'list'), new RegExp(snapshot));
    await ok('sandbox', 'kill', id);
  });
  await check('a template of a Dockerfile', [...['create', 'list', 'publish', 'unpublish', 'delete'].map((c) => `e2b template ${c}`)], async () => {
    const name = `cli-${run}`;
    writeFileSync(path.join(dir, 'e2b.Dockerfile'), 'FROM e2bdev/base\nRUN echo made > /home/user/made\nCOPY e2b.Dockerfile /home/user/copied\n');
    await ok('template', 'create', name, '-d', 'e2b.Dockerfile');
    assert.match(await ok('template', 'list'), new RegExp(name));
    const sbx = await sdk.Sandbox.create(name);
    assert.equal((await sbx.commands.run('cat /home/user/made; head -1 /home/user/copied')).stdout, 'made\nFROM e2bdev/base\n');
    await sbx.kill();
    await ok('template', 'publish', name, '-y');
    const hidden = await e2b(['template', 'unpublish', name, '-y']);
    assert.notEqual(hidden.code, 0);
    assert.match(hidden.stdout + hidden.stderr, /public: /);
    await ok('template', 'delete', name, '-y');
    assert.equal(await sdk.Template.exists(name), false);
  });
  rmSync(home, { recursive: true });
}
