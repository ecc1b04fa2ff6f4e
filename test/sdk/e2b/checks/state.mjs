import assert from 'node:assert/strict';
import { create, fails, keep, run, sdk, until } from '../harness.mjs';

const { Sandbox } = sdk;

export default async function state(check) {
  const sbx = await create({ metadata: { state: run }, envs: { KEPT: 'env' } });
  await check('paused, and connected to again', ['smoke', 'Sandbox.pause', 'Sandbox.connect', 'Sandbox.isRunning'], async () => {
    const h = await sbx.commands.run('x=remembered; until [ -e /tmp/ask ]; do sleep 0.05; done; echo $x > /tmp/answer', { background: true, timeoutMs: 0 });
    await sbx.files.write('/tmp/file', 'kept');
    assert.equal(await sbx.pause(), true);
    assert.equal(await sbx.isRunning(), false);
    assert.equal((await Sandbox.getInfo(sbx.sandboxId)).state, 'paused');
    assert.equal(await sbx.pause(), false, 'paused twice');
    const listed = await Sandbox.list({ query: { metadata: { state: run }, state: ['paused'] } }).nextItems();
    assert.deepEqual(listed.map((s) => s.sandboxId), [sbx.sandboxId]);
    await fails(sbx.files.read('/tmp/file'), 'TimeoutError');
    await sbx.connect();
    assert.equal(await sbx.isRunning(), true);
    assert.equal(await sbx.files.read('/tmp/file'), 'kept');
    await sbx.files.write('/tmp/ask', '');
    await until('the process of before', async () => (await sbx.files.exists('/tmp/answer')) && (await sbx.files.read('/tmp/answer')) === 'remembered\n');
    assert.ok(h.pid);
  });
  await check('paused and resumed by id', ['Sandbox.pause', 'Sandbox.betaPause', 'Sandbox.connect'], async () => {
    assert.equal(await Sandbox.pause(sbx.sandboxId), true);
    const again = await Sandbox.connect(sbx.sandboxId, { timeoutMs: 400_000 });
    assert.equal((await again.commands.run('echo $KEPT')).stdout, 'env\n');
    assert.ok((await again.getInfo()).endAt - Date.now() > 300_000);
    assert.equal(await Sandbox.betaPause(sbx.sandboxId), true);
    await sbx.connect();
    await fails(Sandbox.pause('sbx00000000000000000000000000'), 'SandboxNotFoundError');
  });
  await check('forks go on from the parent’s instant', ['smoke', 'Sandbox.fork'], async () => {
    await sbx.files.write('/tmp/forked', 'before');
    const forks = (await sbx.fork({ count: 2, timeoutMs: 300_000 })).map(keep);
    assert.equal(forks.length, 2);
    await sbx.files.write('/tmp/forked', 'parent');
    await forks[0].files.write('/tmp/forked', 'first');
    assert.equal(await forks[1].files.read('/tmp/forked'), 'before');
    assert.equal((await forks[1].commands.run('echo "$KEPT $E2B_SANDBOX_ID"')).stdout, `env ${forks[1].sandboxId}\n`);
    assert.equal((await forks[0].getInfo()).metadata.state, run);
    assert.equal(new Set([sbx, ...forks].map((s) => s.sandboxId)).size, 3);
    const [more] = (await Sandbox.fork(sbx.sandboxId)).map(keep);
    assert.equal(await more.files.read('/tmp/forked'), 'parent');
    await Promise.all([...forks, more].map((f) => f.kill()));
  }, { since: '2.46.0' });
  await check('a snapshot, and sandboxes from it', ['smoke', 'Sandbox.createSnapshot', 'Sandbox.create'], async () => {
    await sbx.files.write('/tmp/snapped', 'then');
    const snap = await sbx.createSnapshot();
    await sbx.files.write('/tmp/snapped', 'later');
    assert.ok(snap.snapshotId);
    const copy = await create(snap.snapshotId);
    assert.equal(await copy.files.read('/tmp/snapped'), 'then');
    assert.notEqual(copy.sandboxId, sbx.sandboxId);
    await copy.kill();
  });
  await check('a snapshot that is deleted', ['Sandbox.deleteSnapshot'], async () => {
    const snap = await sbx.createSnapshot();
    assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), true);
    assert.equal(await Sandbox.deleteSnapshot(snap.snapshotId), false);
    await fails(Sandbox.create(snap.snapshotId), 'SandboxError', /not found/);
  });
  await check('snapshots with names, listed and deleted', ['Sandbox.createSnapshot', 'Sandbox.listSnapshots', 'SnapshotPaginator.nextItems'], async () => {
    const snap = await Sandbox.createSnapshot(sbx.sandboxId, { name: `kept-${run}` });
    assert.ok(snap.names.some((n) => n.includes(`kept-${run}`)), JSON.stringify(snap));
    const own = await sbx.listSnapshots().nextItems();
    assert.ok(own.some((s) => s.snapshotId === snap.snapshotId), JSON.stringify(own));
    const all = await Sandbox.listSnapshots({ sandboxId: sbx.sandboxId }).nextItems();
    assert.ok(all.some((s) => s.snapshotId === snap.snapshotId));
    const copy = await create(`kept-${run}`);
    await copy.kill();
  });
  await check('paused at its end, and resumed by traffic', ['Sandbox.create', 'Sandbox.connect'], async () => {
    const two = await create({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause', autoResume: true } });
    assert.deepEqual((await two.getInfo()).lifecycle, { onTimeout: 'pause', autoResume: true });
    await two.files.write('/tmp/x', 'still');
    await until('its pause', async () => (await Sandbox.getInfo(two.sandboxId)).state === 'paused');
    const asked = Date.now();
    assert.equal(await two.files.read('/tmp/x'), 'still');
    assert.ok((await two.getInfo()).endAt >= asked + 29_000, 'it may be paused again before it has answered');
    await two.kill();
  });
  await check('paused at its end, and left so', ['Sandbox.create'], async () => {
    const two = await create({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause' } });
    await until('its pause', async () => (await Sandbox.getInfo(two.sandboxId)).state === 'paused');
    await fails(two.files.read('/tmp/x'), 'TimeoutError');
    assert.equal(await two.kill(), true);
  });
}
