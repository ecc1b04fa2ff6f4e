import assert from 'node:assert/strict';
import { create, fails, raw, tokenOf } from '../harness.mjs';

export default async function files(check) {
  const box = await create();
  await check('written and read', ['smoke', 'Files.write', 'Files.read', 'Files.readText'], async () => {
    await box.files.write('/srv/new dir/ü.txt', 'first, and long');
    await box.files.write('/srv/new dir/ü.txt', 'hé\n');
    assert.equal(await box.files.readText('/srv/new dir/ü.txt'), 'hé\n');
    const bytes = new Uint8Array(300_000).map((_, i) => i % 251);
    await box.files.write('/srv/bytes', bytes);
    assert.deepEqual(await box.files.read('/srv/bytes'), bytes);
    await box.files.write('/srv/blob', new Blob(['a', new Uint8Array([0, 255])]));
    assert.deepEqual([...(await box.files.read('/srv/blob'))], [97, 0, 255]);
    await box.files.write('/srv/empty', '');
    assert.equal((await box.files.read('/srv/empty')).length, 0);
    assert.match(await box.files.readText('/proc/self/status'), /^Name:/);
  });
  await check('what cannot be read', ['Files.read'], async () => {
    await fails(box.files.read('/srv/none'), 'NotFoundError', /none/);
    await fails(box.files.read('/srv'), 'ValidationError', /directory.*format=zip/);
    await fails(box.files.read('/srv/bytes', { maxBytes: 1000 }), 'ValidationError', /maximum size/);
    await fails(box.files.write('/srv/bytes/under', 'x'), 'ValidationError');
  });
  await check('a directory as a zip file', ['smoke', 'Files.downloadDir'], async () => {
    await box.commands.run('mkdir -p /srv/tree/sub && echo one > /srv/tree/a && echo two > /srv/tree/sub/b && ln -s /etc/passwd /srv/tree/link && ln -s tree /srv/lead');
    const zip = await box.files.downloadDir('/srv/tree');
    await box.files.write('/tmp/t.zip', zip);
    const list = (await box.commands.run(`python3 -c 'import zipfile
for n in sorted(zipfile.ZipFile("/tmp/t.zip").namelist()): print(n)'`)).stdout.split('\n').filter((n) => n && !n.endsWith('/'));
    assert.deepEqual(list, ['tree/a', 'tree/sub/b']);
    assert.equal(new TextDecoder().decode(await box.files.downloadDir('/srv/tree/a')), 'one\n');
    await fails(box.files.downloadDir('/srv/lead'), 'ValidationError', /symbolic link/);
  });
  await check('paths that climb, however they are written', ['Files.read', 'Files.write'], async () => {
    await fails(box.files.read('/srv/../etc/passwd'), 'ValidationError');
    await fails(box.files.write('srv', 'x'), 'ValidationError');
    const headers = { 'X-Access-Token': await tokenOf(box.id), 'X-Superserve-Sandbox-Id': box.id };
    for (const [query, status] of [
      ['path=/srv/%2e%2e/etc/passwd', 400], ['path=srv', 400], ['path=', 400], ['', 400], ['path=/a%00b', 400], ['path=/etc/passwd&path=/srv/empty', 400],
      ['path=/etc/passwd&user=root', 400], ['path=/srv&format=tar', 400], [`path=/${'x'.repeat(5000)}`, 400],
    ]) {
      const resp = await raw(`${process.env.COVE_DATA}/files?${query}`, { headers });
      assert.equal(resp.status, status, `${query}: ${resp.text}`);
      assert.ok(JSON.parse(resp.text).error.message, resp.text);
    }
    const form = await raw(`${process.env.COVE_DATA}/files?path=/srv/x`, { method: 'POST', headers: { ...headers, 'Content-Type': 'multipart/form-data' }, body: 'x' });
    assert.equal(form.status, 400);
  });
}
