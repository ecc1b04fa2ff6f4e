import assert from 'node:assert/strict';
import { create, daytona, fails, keep, run } from '../harness.mjs';

async function all(query) {
  const found = [];
  for await (const sbx of daytona.list(query)) found.push(sbx.id);
  return found;
}

export default async function life(check) {
  let sbx;
  await check('create with labels, variables and times', ['smoke', 'Daytona.create'], async () => {
    sbx = await create({
      name: `life-${run}`, labels: { run, odd: 'a=b&c/d é' }, envVars: { FROM: 'create' }, language: 'javascript',
      autoStopInterval: 30, autoArchiveInterval: 600, autoDeleteInterval: 120, networkBlockAll: true,
    });
    assert.equal(sbx.state, 'started');
    assert.equal(sbx.name, `life-${run}`);
    assert.deepEqual(sbx.labels, { run, odd: 'a=b&c/d é', 'code-toolbox-language': 'javascript' });
    assert.equal(sbx.env.FROM, 'create');
    assert.equal(sbx.autoStopInterval, 30);
    assert.equal(sbx.autoArchiveInterval, 600);
    assert.equal(sbx.autoDeleteInterval, 120);
    assert.equal(sbx.networkBlockAll, true);
    assert.ok(sbx.cpu >= 1 && sbx.memory > 0 && sbx.disk > 0 && sbx.snapshot && sbx.user);
  });
  await check('get by id and by name', ['smoke', 'Daytona.get', 'Sandbox.refreshData', 'Sandbox.refreshActivity'], async () => {
    assert.equal((await daytona.get(sbx.id)).id, sbx.id);
    assert.equal((await daytona.get(sbx.name)).id, sbx.id);
    await sbx.refreshActivity();
    await sbx.refreshData();
    assert.equal(sbx.state, 'started');
  });
  await check('a list by labels, state and name, page by page', ['smoke', 'Daytona.list', 'Daytona.delete'], async () => {
    const other = await create({ labels: { run, page: 'two' }, autoStopInterval: 0 });
    const both = await all({ labels: { run, 'code-toolbox-language': 'javascript' } });
    assert.deepEqual(both, [sbx.id]);
    const paged = await all({ labels: { run }, limit: 1, sort: 'createdAt', order: 'asc' });
    assert.deepEqual(await all({ name: `LIFE-${run}` }), [sbx.id]);
    assert.ok(paged.indexOf(sbx.id) >= 0 && paged.indexOf(sbx.id) < paged.indexOf(other.id), `${paged}`);
    assert.deepEqual(await all({ labels: { run }, states: ['stopped'] }), []);
    assert.deepEqual(await all({ labels: { run, page: 'three' } }), []);
    await daytona.delete(other);
    await fails(daytona.get(other.id), 'DaytonaNotFoundError');
  });
  await check('code in the language of the sandbox', ['smoke', 'Process.codeRun'], async () => {
    assert.equal((await sbx.process.codeRun('console.log([1, 2].length, process.env.FROM)')).result, '2 create\n');
    assert.equal((await sbx.process.codeRun('console.log(process.argv.slice(2).join())', { argv: ['a b', '--c'] })).result, 'a b,--c\n');
  });
  await check('other labels', ['Sandbox.setLabels'], async () => {
    assert.deepEqual(await sbx.setLabels({ run, new: 'x' }), { run, new: 'x', 'code-toolbox-language': 'javascript' });
    await sbx.refreshData();
    assert.equal(sbx.labels.odd, undefined);
  });
  await check('other times', ['Sandbox.setAutostopInterval', 'Sandbox.setAutoPauseInterval', 'Sandbox.setAutoArchiveInterval', 'Sandbox.setAutoDeleteInterval', 'Sandbox.setTtl'], async () => {
    await sbx.setAutostopInterval(45);
    await sbx.setAutoArchiveInterval(60);
    await sbx.setAutoDeleteInterval(-1);
    await sbx.refreshData();
    assert.deepEqual([sbx.autoStopInterval, sbx.autoArchiveInterval, sbx.autoDeleteInterval], [45, 60, -1]);
    await fails(sbx.setTtl(60), 'DaytonaValidationError', /autoStopInterval to 0/);
    await sbx.setAutostopInterval(0);
    await sbx.setTtl(60);
    await sbx.refreshData();
    const left = new Date(sbx.autoDestroyAt) - Date.now();
    assert.ok(left > 3_400_000 && left <= 3_660_000, `${left} ms are left`);
    await sbx.setTtl(0);
    await sbx.setAutoPauseInterval(20);
    await sbx.refreshData();
    assert.deepEqual([sbx.autoStopInterval, sbx.autoPauseInterval, sbx.autoDestroyAt], [0, 20, undefined]);
  });
  await check('stop, archive and start, with files and variables', ['smoke', 'Sandbox.stop', 'Sandbox.archive', 'Sandbox.start', 'Sandbox.waitUntilStarted', 'Sandbox.waitUntilStopped'], async () => {
    await sbx.fs.uploadFile(Buffer.from('kept'), '/tmp/kept');
    await sbx.process.createSession('life');
    await sbx.process.executeSessionCommand('life', { command: 'KEPT="in memory"' });
    await sbx.stop();
    await sbx.waitUntilStopped();
    assert.equal(sbx.state, 'stopped');
    await fails(sbx.process.executeCommand('true'), 'DaytonaConflictError', /stopped/);
    await sbx.archive();
    assert.equal(sbx.state, 'archived');
    await sbx.start();
    await sbx.waitUntilStarted();
    assert.equal(sbx.state, 'started');
    assert.equal((await sbx.fs.downloadFile('/tmp/kept')).toString(), 'kept');
  });
  await check('stop and start through the client', ['Daytona.stop', 'Daytona.start', 'Sandbox.pause'], async () => {
    await sbx.pause();
    assert.equal(sbx.state, 'paused');
    await daytona.start(sbx);
    await daytona.stop(sbx);
    assert.equal(sbx.state, 'stopped');
    await daytona.start(sbx);
  });
  await check('a fork with the files and sessions, of its own', ['smoke', 'Sandbox.fork', 'Daytona.fork'], async () => {
    const [a, b] = [keep(await sbx.fork({ name: `fork-${run}` })), keep(await daytona.fork(sbx))];
    assert.equal(a.name, `fork-${run}`);
    await a.fs.uploadFile(Buffer.from('a'), '/tmp/own');
    for (const fork of [a, b]) assert.equal((await fork.process.executeSessionCommand('life', { command: 'echo "$KEPT"' })).stdout, 'in memory\n');
    assert.equal((await b.fs.downloadFile('/tmp/kept')).toString(), 'kept');
    await fails(b.fs.downloadFile('/tmp/own'), 'DaytonaFileNotFoundError');
    await Promise.all([a.delete(), b.delete()]);
  });
  await check('other resources', ['Sandbox.resize', 'Sandbox.waitForResizeComplete'], async () => {
    await sbx.resize({ memory: 2 });
    await sbx.waitForResizeComplete();
    await sbx.refreshData();
    assert.equal(sbx.memory, 2);
    await fails(sbx.resize({ disk: 20 }), 'DaytonaValidationError', /disk/);
  });
  await check('what it may reach', ['Sandbox.updateNetworkSettings'], async () => {
    await sbx.updateNetworkSettings({ networkBlockAll: false, networkAllowList: '192.0.2.0/24,198.51.100.7/32' });
    await sbx.refreshData();
    assert.deepEqual([sbx.networkBlockAll, sbx.networkAllowList], [false, '192.0.2.0/24,198.51.100.7/32']);
    await fails(sbx.updateNetworkSettings({ networkAllowList: 'not-a-range' }), 'DaytonaValidationError', /networkAllowList/);
  });
  await check('an ephemeral sandbox is deleted when it stops', ['Sandbox.delete'], async () => {
    const short = await create({ ephemeral: true });
    assert.equal(short.autoDeleteInterval, 0);
    await short.stop();
    await fails(daytona.get(short.id), 'DaytonaNotFoundError');
    await sbx.delete(60, true);
    await fails(daytona.get(sbx.id), 'DaytonaNotFoundError');
  });
}
