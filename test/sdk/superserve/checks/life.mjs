import assert from 'node:assert/strict';
import { create, fails, run, sdk, until } from '../harness.mjs';

const { Sandbox } = sdk;

export default async function life(check) {
  const box = await create({ metadata: { job: run, what: 'a b+c' }, envVars: { GREETING: 'hello' }, timeoutSeconds: 3600, autoDeleteSeconds: 7200 });
  await check('made, found and described', ['smoke', 'Sandbox.create', 'Sandbox.getInfo', 'Sandbox.list'], async () => {
    assert.equal(box.status, 'active');
    const info = await box.getInfo();
    assert.equal(info.id, box.id);
    assert.ok(info.name.startsWith('box-'), info.name);
    assert.equal(info.timeoutSeconds, 3600);
    assert.equal(info.autoDeleteSeconds, 7200);
    assert.ok(info.vcpuCount >= 1 && info.memoryMib >= 256);
    assert.ok(Math.abs(Date.now() - info.createdAt) < 600_000, String(info.createdAt));
    assert.deepEqual(info.metadata, { job: run, what: 'a b+c' });
    assert.deepEqual((await Sandbox.list({ metadata: { job: run, what: 'a b+c' } })).map((s) => s.id), [box.id]);
    assert.deepEqual(await Sandbox.list({ metadata: { job: run, what: 'other' } }), []);
    assert.ok((await Sandbox.list()).some((s) => s.id === box.id));
    assert.equal((await box.commands.run('echo $GREETING')).stdout, 'hello\n');
  });
  await check('two may have a name, and any text is one', ['Sandbox.create'], async () => {
    const [a, b] = [await create({ name: 'Ünder one name' }), await create({ name: 'Ünder one name', fromTemplate: 'superserve/base' })];
    assert.deepEqual([a.name, b.name], ['Ünder one name', 'Ünder one name']);
    assert.notEqual(a.id, b.id);
    assert.deepEqual((await b.getInfo()).metadata, {});
    await Promise.all([a.kill(), b.kill()]);
  });
  await check('found again by another program', ['smoke', 'Sandbox.connect'], async () => {
    const other = await Sandbox.connect(box.id);
    assert.equal(other.name, box.name);
    assert.equal((await other.commands.run('echo there')).stdout, 'there\n');
  });
  await check('changed', ['Sandbox.update', 'Sandbox.updateById'], async () => {
    await box.update({ metadata: { job: run }, timeoutSeconds: null, autoDeleteSeconds: null });
    let info = await box.getInfo();
    assert.deepEqual(info.metadata, { job: run });
    assert.equal(info.timeoutSeconds, undefined);
    assert.equal(info.autoDeleteSeconds, undefined);
    await Sandbox.updateById(box.id, { timeoutSeconds: 60 });
    info = await box.getInfo();
    assert.equal(info.timeoutSeconds, 60);
    assert.deepEqual(info.metadata, { job: run });
    await Sandbox.updateById(box.id, { timeoutSeconds: null });
    await fails(box.update({}), 'ValidationError', /at least one/);
  });
  await check('paused, with its programs, and resumed', ['smoke', 'Sandbox.pause', 'Sandbox.resume'], async () => {
    await box.commands.run('echo kept > /tmp/kept; nohup sleep 1234 >/dev/null 2>&1 & echo $! > /tmp/pid');
    await box.pause();
    assert.equal((await box.getInfo()).status, 'paused');
    await fails(box.pause(), 'ConflictError', /paused/);
    await box.resume();
    assert.equal((await box.getInfo()).status, 'active');
    await fails(box.resume(), 'ConflictError', /active/);
    assert.deepEqual(await box.commands.run('cat /tmp/kept; kill -0 $(cat /tmp/pid)'), { stdout: 'kept\n', stderr: '', exitCode: 0 });
  });
  await check('a call wakes what is paused', ['smoke', 'Sandbox.pause', 'Commands.run', 'Files.readText', 'Commands.spawn'], async () => {
    await box.pause();
    assert.equal((await box.commands.run('cat /tmp/kept')).stdout, 'kept\n');
    await box.pause();
    assert.equal(await box.files.readText('/tmp/kept'), 'kept\n');
    await box.pause();
    const session = await box.commands.spawn('cat /tmp/kept');
    assert.equal((await session.wait()).stdout, 'kept\n');
  });
  await check('deleted a while after its pause', ['Sandbox.create'], async () => {
    const short = await create({ autoDeleteSeconds: 0 });
    assert.equal((await short.getInfo()).autoDeleteSeconds, 0);
    await short.pause();
    await until('its end', async () => !(await Sandbox.list()).some((s) => s.id === short.id));
    await fails(short.getInfo(), 'NotFoundError');
  });
  await check('killed, and killed again', ['smoke', 'Sandbox.kill', 'Sandbox.killById'], async () => {
    const two = await create();
    await two.kill();
    await two.kill();
    await Sandbox.killById(two.id);
    await fails(two.getInfo(), 'NotFoundError', /not found/);
    await fails(Sandbox.connect(two.id), 'NotFoundError');
    await fails(two.commands.run('true'), 'NotFoundError');
    await fails(two.files.read('/etc/hostname'), 'NotFoundError');
    assert.ok(!(await Sandbox.list()).some((s) => s.id === two.id));
  });
}
