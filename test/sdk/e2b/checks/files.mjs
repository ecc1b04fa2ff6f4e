import assert from 'node:assert/strict';
import { create, fails, newer, sdk, until } from '../harness.mjs';

export default async function files(check) {
  const sbx = await create();
  const f = sbx.files;
  await check('written and read as text', ['smoke', 'Filesystem.write', 'Filesystem.read'], async () => {
    const info = await f.write('dir/new/a.txt', 'héllo');
    assert.deepEqual([info.path, info.name], ['/home/user/dir/new/a.txt', 'a.txt']);
    assert.equal(await f.read('dir/new/a.txt'), 'héllo');
    assert.equal(await f.read('/home/user/dir/new/a.txt'), 'héllo');
    assert.equal((await sbx.commands.run('stat -c "%U %a" dir/new dir/new/a.txt')).stdout, 'user 755\nuser 644\n');
  });
  await check('bytes, blobs and streams', ['smoke', 'Filesystem.write', 'Filesystem.read'], async () => {
    const bytes = Uint8Array.from({ length: 70_000 }, (_, i) => i % 256);
    await f.write('bytes', bytes.buffer);
    assert.deepEqual(await f.read('bytes', { format: 'bytes' }), bytes);
    assert.equal((await f.read('bytes', { format: 'blob' })).size, bytes.length);
    let got = 0;
    for await (const chunk of await f.read('bytes', { format: 'stream' })) got += chunk.length;
    assert.equal(got, bytes.length);
    await f.write('stream', new Blob(['from a ', 'stream']).stream());
    assert.equal(await f.read('stream'), 'from a stream');
  });
  await check('an empty file', ['Filesystem.read', 'Filesystem.write'], async () => {
    await f.write('empty', '');
    assert.equal(await f.read('empty'), '');
    assert.equal((await f.read('empty', { format: 'bytes' })).length, 0);
  });
  await check('several files in one call', ['Filesystem.write', 'Filesystem.writeFiles'], async () => {
    const made = await f.write([{ path: 'many/a', data: '1' }, { path: '/tmp/many b', data: '2' }]);
    assert.deepEqual(made.map((m) => m.path), ['/home/user/many/a', '/tmp/many b']);
    assert.equal(await f.read('/tmp/many b'), '2');
    await f.writeFiles([{ path: 'many/c', data: '3' }]);
    assert.equal(await f.read('many/c'), '3');
  });
  await check('compressed, and as an octet stream', ['Filesystem.write', 'Filesystem.read'], async () => {
    const text = 'again and again '.repeat(10_000);
    await f.write('zipped', text, { gzip: true });
    assert.equal(await f.read('zipped', { gzip: true }), text);
    await f.write('octets', text, { useOctetStream: true });
    assert.equal(await f.read('octets'), text);
  });
  await check('metadata of a file', ['Filesystem.write metadata'], async () => {
    const info = await f.write('noted', 'x', { metadata: { Colour: 'blue', n: '2' } });
    assert.deepEqual(info.metadata, { colour: 'blue', n: '2' });
    assert.deepEqual((await f.getInfo('noted')).metadata, { colour: 'blue', n: '2' });
    await f.write('noted', 'y');
    assert.deepEqual((await f.getInfo('noted')).metadata ?? {}, {});
  });
  await check('what is known of a file', ['smoke', 'Filesystem.getInfo'], async () => {
    await sbx.commands.run('printf 12345 > info; chmod 640 info; ln -sf info link');
    const info = await f.getInfo('info');
    assert.deepEqual([info.name, info.type, info.path, info.size, info.mode, info.permissions, info.owner, info.group],
      ['info', 'file', '/home/user/info', 5, 0o640, '-rw-r-----', 'user', 'user']);
    assert.ok(Math.abs(info.modifiedTime - Date.now()) < 120_000);
    const link = await f.getInfo('link');
    assert.deepEqual([link.type, link.symlinkTarget, link.name], ['file', '/home/user/info', 'link']);
    assert.equal((await f.getInfo('/etc')).type, 'dir');
  });
  await check('directories made once', ['Filesystem.makeDir', 'Filesystem.exists'], async () => {
    assert.equal(await f.makeDir('tree/a/b'), true);
    assert.equal(await f.makeDir('tree/a/b'), false);
    assert.equal(await f.exists('tree/a/b'), true);
    assert.equal(await f.exists('tree/nope'), false);
    await f.write('tree/file', '');
    await fails(f.makeDir('tree/file'), 'InvalidArgumentError');
  });
  await check('lists, with depth', ['smoke', 'Filesystem.list'], async () => {
    await sbx.commands.run('mkdir -p list/d/e; touch list/b list/d/x list/.hidden; ln -sf nowhere list/broken');
    assert.deepEqual((await f.list('list')).map((e) => `${e.type} ${e.name}`), ['file .hidden', 'file b', 'dir d']);
    assert.deepEqual((await f.list('list', { depth: 3 })).map((e) => e.path.replace('/home/user/list/', '')), ['.hidden', 'b', 'd', 'd/e', 'd/x']);
    await fails(f.list('list/nope'), 'FileNotFoundError');
    await fails(f.list('list/b'), 'InvalidArgumentError');
    await fails(f.list('list', { depth: 0 }), 'InvalidArgumentError');
  });
  await check('renamed', ['Filesystem.rename'], async () => {
    await f.write('from', 'moved');
    await f.write('to/here', 'old');
    const info = await f.rename('from', 'to/here');
    assert.equal(info.path, '/home/user/to/here');
    assert.equal(await f.read('to/here'), 'moved');
    assert.equal(await f.exists('from'), false);
    await fails(f.rename('nope', 'x'), 'FileNotFoundError');
  });
  await check('removed', ['Filesystem.remove'], async () => {
    await f.write('gone/a/b', 'x');
    await f.remove('gone');
    assert.equal(await f.exists('gone'), false);
    await f.remove('gone');
  });
  await check('errors of reading', ['Filesystem.read'], async () => {
    await fails(f.read('nope'), 'FileNotFoundError', /does not exist/);
    await fails(f.read('/etc'), 'InvalidArgumentError', /is a directory/);
    await fails(f.write('/etc', 'x'), 'InvalidArgumentError', /directory/);
  });
  await check('files of root, and as another user', ['Filesystem.write', 'Filesystem.read'], async () => {
    await f.write('~/mine', 'root', { user: 'root' });
    assert.equal((await sbx.commands.run('stat -c %U /root/mine', { user: 'root' })).stdout, 'root\n');
    await fails(f.read('x', { user: 'nobody-here' }), 'AuthenticationError');
  });
  await check('a full disk', ['Filesystem.write'], async () => {
    const { stdout } = await sbx.commands.run("df --output=avail -B1 /home/user | tail -1");
    const room = Number(stdout.trim());
    if (room > 300e6) return; // it would take long
    await fails(f.write('full', new Uint8Array(room + 1e6).buffer, { useOctetStream: true }), 'NotEnoughSpaceError');
    await f.remove('full');
  });
  await check('signed links', ['smoke', 'Sandbox.downloadUrl', 'Sandbox.uploadUrl'], async () => {
    await f.write('linked file', 'by link');
    const url = await sbx.downloadUrl('linked file', { useSignatureExpiration: 60 });
    const res = await fetch(url);
    assert.deepEqual([res.status, await res.text()], [200, 'by link']);
    assert.equal((await fetch(url.replace(/signature=v1_..../, 'signature=v1_AAAA'))).status, 401);
    assert.equal((await fetch(url.replace('linked', 'other'))).status, 401);
    const form = new FormData();
    form.append('file', new Blob(['sent']), 'sent.txt');
    const up = await fetch(await sbx.uploadUrl(undefined, { useSignatureExpiration: 60 }), { method: 'POST', body: form });
    assert.equal(up.status, 200, await up.text());
    assert.equal(await f.read('sent.txt'), 'sent');
    assert.equal((await fetch(await sbx.downloadUrl('linked file', { useSignatureExpiration: -5 }))).status, 401);
  });
  await check('a directory that is watched', ['Filesystem.watchDir', 'WatchHandle.stop'], async () => {
    await f.makeDir('watched');
    const events = [];
    const w = await f.watchDir('watched', (e) => { events.push(`${e.type} ${e.name}`); });
    await f.write('watched/a', '1');
    await f.rename('watched/a', 'watched/b');
    await f.remove('watched/b');
    await until('the events', () => events.includes('remove b'));
    for (const want of ['create a', 'write a', 'rename a', 'create b']) assert.ok(events.includes(want), `no ${want} in ${events}`);
    await w.stop();
    const n = events.length;
    await f.write('watched/late', '1');
    await sbx.commands.run('true');
    assert.equal(events.length, n);
  });
  await check('watched with all below, and what is told of entries', ['Filesystem.watchDir'], async () => {
    await f.makeDir('deep/old');
    const events = [];
    const w = await f.watchDir('deep', (e) => { events.push(e); }, { recursive: true, ...(newer('2.49.0') ? { includeEntry: true } : {}) });
    await f.write('deep/old/x', '123');
    await f.makeDir('deep/new');
    await f.write('deep/new/y', '1');
    await until('the events', () => events.some((e) => e.name === 'new/y') && events.some((e) => e.name === 'old/x'));
    if (newer('2.49.0')) assert.ok(events.some((e) => e.name === 'old/x' && e.entry?.path === '/home/user/deep/old/x'), JSON.stringify(events));
    await w.stop();
  });
  await check('watching what is not there', ['Filesystem.watchDir'], async () => {
    await fails(f.watchDir('nope', () => {}), 'FileNotFoundError');
    await f.write('plain', '');
    await fails(f.watchDir('plain', () => {}), 'InvalidArgumentError');
  });
  void sdk;
}
