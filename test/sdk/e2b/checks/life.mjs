import assert from 'node:assert/strict';
import { create, fails, keep, run, sdk, until } from '../harness.mjs';

const { Sandbox } = sdk;

async function all(paginator) {
  const items = [];
  while (paginator.hasNext) items.push(...(await paginator.nextItems()));
  return items;
}

export default async function life(check) {
  let sbx;
  await check('create with metadata, environment and a lifetime', ['smoke', 'Sandbox.create'], async () => {
    sbx = await create({ metadata: { run, 'odd key': 'a=b&c/d é' }, envs: { FROM: 'create' }, timeoutMs: 240_000 });
    assert.match(sbx.sandboxId, /^[a-z0-9]+$/);
  });
  await check('what a sandbox says of itself', ['smoke', 'Sandbox.getInfo'], async () => {
    const info = await sbx.getInfo();
    assert.equal(info.sandboxId, sbx.sandboxId);
    assert.equal(info.state, 'running');
    assert.deepEqual(info.metadata, { run, 'odd key': 'a=b&c/d é' });
    assert.ok(info.cpuCount >= 1 && info.memoryMB >= 128 && info.templateId && info.envdVersion);
    const left = info.endAt - Date.now();
    assert.ok(left > 200_000 && left <= 241_000, `it has ${left} ms left`);
    assert.ok(Math.abs(info.startedAt - Date.now()) < 120_000);
    assert.deepEqual(await Sandbox.getInfo(sbx.sandboxId), info);
  });
  await check('all that is known of a sandbox', ['Sandbox.getFullInfo'], async () => {
    assert.equal((await Sandbox.getFullInfo(sbx.sandboxId)).sandboxId, sbx.sandboxId);
  });
  await check('the variables of create reach commands', ['Sandbox.create', 'Commands.run'], async () => {
    const { stdout } = await sbx.commands.run('echo "$FROM $E2B_SANDBOX $E2B_SANDBOX_ID"');
    assert.equal(stdout, `create true ${sbx.sandboxId}\n`);
  });
  await check('it runs', ['smoke', 'Sandbox.isRunning'], async () => assert.equal(await sbx.isRunning(), true));
  await check('a list by metadata with odd characters', ['Sandbox.list', 'SandboxPaginator.nextItems'], async () => {
    const found = await all(Sandbox.list({ query: { metadata: { run, 'odd key': 'a=b&c/d é' }, state: ['running', 'paused'] } }));
    assert.deepEqual(found.map((s) => s.sandboxId), [sbx.sandboxId]);
    assert.deepEqual(await all(Sandbox.list({ query: { metadata: { run, 'odd key': 'other' } } })), []);
    assert.deepEqual(await all(Sandbox.list({ query: { metadata: { run }, state: ['paused'] } })), []);
  });
  await check('a list page by page', ['Sandbox.list', 'SandboxPaginator.nextItems'], async () => {
    const more = [await create({ metadata: { page: run } }), await create({ metadata: { page: run } })];
    const pages = Sandbox.list({ query: { metadata: { page: run } }, limit: 1 });
    const first = await pages.nextItems();
    assert.equal(first.length, 1);
    assert.equal(pages.hasNext, true);
    const rest = await all(pages);
    assert.deepEqual([...first, ...rest].map((s) => s.sandboxId).sort(), more.map((s) => s.sandboxId).sort());
    assert.equal(first[0].sandboxId, more[1].sandboxId, 'the newest is not the first');
    await Promise.all(more.map((s) => s.kill()));
  });
  await check('a longer and a shorter lifetime', ['Sandbox.setTimeout'], async () => {
    await sbx.setTimeout(600_000);
    let left = (await sbx.getInfo()).endAt - Date.now();
    assert.ok(left > 500_000 && left < 601_000, `${left} ms`);
    await Sandbox.setTimeout(sbx.sandboxId, 300_000);
    left = (await sbx.getInfo()).endAt - Date.now();
    assert.ok(left > 200_000 && left < 301_000, `${left} ms`);
  });
  await check('connect by id, which never shortens', ['smoke', 'Sandbox.connect'], async () => {
    const other = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 1000 });
    assert.equal((await other.commands.run('echo there')).stdout, 'there\n');
    assert.ok((await other.getInfo()).endAt - Date.now() > 100_000);
    await sbx.connect();
    assert.equal((await sbx.commands.run('echo here')).stdout, 'here\n');
  });
  await check('what a sandbox uses', ['Sandbox.getMetrics'], async () => {
    const list = await until('a sample', async () => {
      const m = await sbx.getMetrics();
      return m.length && m;
    });
    const m = list.at(-1);
    assert.ok(m.cpuCount >= 1 && m.memTotal > 100e6 && m.memUsed > 0 && m.memUsed <= m.memTotal && m.cpuUsedPct >= 0 && m.diskTotal > 0, JSON.stringify(m));
    assert.ok(m.timestamp instanceof Date && !Number.isNaN(m.timestamp.getTime()));
  });
  await check('host names of ports', ['Sandbox.getHost'], async () => {
    assert.ok(sbx.getHost(3000).startsWith(`3000-${sbx.sandboxId}.`), sbx.getHost(3000));
  });
  await check('killed, and killed again', ['smoke', 'Sandbox.kill', 'Sandbox.isRunning'], async () => {
    const two = keep(await Sandbox.create());
    assert.equal(await two.kill(), true);
    assert.equal(await two.isRunning(), false);
    assert.equal(await Sandbox.kill(two.sandboxId), false);
    await fails(Sandbox.getInfo(two.sandboxId), 'SandboxNotFoundError');
    await fails(Sandbox.connect(two.sandboxId), 'SandboxNotFoundError');
    await fails(two.setTimeout(1000), 'SandboxNotFoundError');
    const err = await two.commands.run('true').catch((e) => e);
    assert.ok(err instanceof sdk.SandboxError, String(err));
    await fails(two.files.read('/etc/hostname'), 'TimeoutError');
  });
  await check('a lifetime ends a sandbox', ['Sandbox.create', 'Sandbox.isRunning'], async () => {
    const short = await create({ timeoutMs: 2000 });
    await until('its end', async () => !(await short.isRunning()));
    await fails(short.getInfo(), 'SandboxNotFoundError');
  });
}
