import assert from 'node:assert/strict';
import { create, fails, run, sdk } from '../harness.mjs';

const { Volume } = sdk;

export default async function volumes(check) {
  let v;
  await check('made, listed and found', ['smoke', 'Volume.create', 'Volume.list', 'Volume.connect', 'Volume.getInfo'], async () => {
    v = await Volume.create(`data-${run}`);
    assert.equal(v.name, `data-${run}`);
    assert.ok((await Volume.list()).some((x) => x.volumeId === v.volumeId && x.name === v.name));
    assert.equal((await Volume.getInfo(v.volumeId)).name, v.name);
    assert.equal((await Volume.connect(v.volumeId)).volumeId, v.volumeId);
    await fails(Volume.create(v.name), 'VolumeError', /already exists/);
  });
  await check('files without a sandbox', ['smoke', 'Volume#writeFile', 'Volume#readFile', 'Volume#exists', 'Volume#getInfo'], async () => {
    const stat = await v.writeFile('/a.txt', 'in a volume é');
    assert.deepEqual([stat.name, stat.type, stat.path], ['a.txt', 'file', '/a.txt']);
    assert.equal(await v.readFile('/a.txt'), 'in a volume é');
    assert.equal((await v.readFile('/a.txt', { format: 'bytes' })).length, 14);
    await v.writeFile('/empty', '');
    assert.equal(await v.readFile('/empty'), '');
    assert.equal(await v.exists('/a.txt'), true);
    assert.equal(await v.exists('/nope'), false);
    const info = await v.getInfo('/a.txt');
    assert.ok(info.size === 14 && info.mtime instanceof Date, JSON.stringify(info));
    await fails(v.readFile('/nope'), 'VolumePathNotFoundError');
  });
  await check('directories', ['Volume#makeDir', 'Volume#list', 'Volume#remove'], async () => {
    await v.makeDir('/d');
    await v.writeFile('/d/x', '1');
    const names = (await v.list('/')).map((e) => e.name).sort();
    assert.deepEqual(names, ['a.txt', 'd', 'empty']);
    assert.ok((await v.list('/', { depth: 2 })).some((e) => e.path === '/d/x'));
    await v.remove('/d');
    assert.equal(await v.exists('/d'), false);
    await fails(v.list('/d'), 'VolumePathNotFoundError');
  });
  await check('mounted into sandboxes', ['smoke', 'Sandbox.create'], async () => {
    const sbx = await create({ volumeMounts: { '/mnt/vol': v } });
    await sbx.commands.run('echo from the sandbox > /mnt/vol/b.txt');
    assert.deepEqual((await sbx.getInfo()).volumeMounts, [{ name: v.name, path: '/mnt/vol' }]);
    await sbx.kill();
    const two = await create({ volumeMounts: { '/data': v.name } });
    assert.equal(await two.files.read('/data/b.txt'), 'from the sandbox\n');
    await two.kill();
    await fails(sdk.Sandbox.create({ volumeMounts: { '/x': `nope-${run}` } }), 'SandboxError', /there is no volume/);
  });
  await check('owners and modes', ['Volume#updateMetadata'], async () => {
    const stat = await v.updateMetadata('/a.txt', { mode: 0o600 });
    assert.equal(stat.mode & 0o777, 0o600);
  });
  await check('destroyed', ['Volume.destroy'], async () => {
    assert.equal(await Volume.destroy(v.volumeId), true);
    assert.equal(await Volume.destroy(v.volumeId), false);
    await fails(Volume.connect(v.volumeId), 'VolumeNotFoundError');
  });
}
