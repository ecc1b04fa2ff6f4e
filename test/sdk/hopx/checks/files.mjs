import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { create, directory, fails } from '../harness.mjs';

export default async function files(check) {
  const sbx = await create();
  await check('text', ['smoke', 'Files.write', 'Files.read', 'Files.exists'], async () => {
    await sbx.files.write('/workspace/a/b.txt', 'ä\n');
    assert.equal(await sbx.files.read('/workspace/a/b.txt'), 'ä\n');
    assert.equal(await sbx.files.exists('/workspace/a/b.txt'), true);
    assert.equal(await sbx.files.exists('/workspace/a/none'), false);
  });
  await check('the mode of a file, and one that is not replaced', ['Files.write'], async () => {
    await sbx.files.write('/workspace/run.sh', '#!/bin/sh\necho ran', { mode: '0755' });
    assert.equal((await sbx.commands.run('./run.sh')).stdout, 'ran\n');
    const err = await fails(sbx.files.write('/workspace/run.sh', 'x', { overwrite: false }), 'APIError', /exist/);
    assert.deepEqual([err.code, err.statusCode], ['FILE_ALREADY_EXISTS', 409]);
  });
  await check('bytes', ['Files.writeBytes', 'Files.readBytes', 'Files.download'], async () => {
    const bytes = Buffer.from(Array.from({ length: 100_000 }, (_, i) => (i * 7) % 256));
    await sbx.files.writeBytes('/workspace/bytes', bytes, { mode: '0600' });
    assert.ok(bytes.equals(await sbx.files.readBytes('/workspace/bytes')));
    assert.ok(bytes.equals(await sbx.files.download('/workspace/bytes')));
    assert.equal((await sbx.files.readBytes('/proc/version').catch((e) => e)).statusCode, 403);
  });
  await check('files of this machine, small and large', ['Files.upload'], async () => {
    const dir = directory();
    for (const size of [10, 3 << 20]) {
      const bytes = Buffer.alloc(size, 'abc');
      writeFileSync(path.join(dir, 'up'), bytes);
      await sbx.files.upload(path.join(dir, 'up'), `/workspace/up/${size}`);
      assert.ok(bytes.equals(await sbx.files.readBytes(`/workspace/up/${size}`)), `${size} bytes`);
    }
    assert.equal((await sbx.commands.run('ls -A /tmp | grep -c cove-upload')).stdout, '0\n', 'something is left');
    await fails(sbx.files.upload(path.join(dir, 'up'), '/etc/up'), 'APIError', /not allowed/);
  });
  await check('directories', ['Files.mkdir', 'Files.list', 'Files.remove'], async () => {
    await sbx.files.mkdir('/workspace/d/e');
    await sbx.files.write('/workspace/d/f.txt', '12345');
    const list = await sbx.files.list('/workspace/d');
    assert.deepEqual(list.map((f) => [f.name, f.isDir, f.isFile && f.size, f.permissions]), [['e', true, false, 'drwxr-xr-x'], ['f.txt', false, 5, '-rw-r--r--']]);
    assert.ok(!Number.isNaN(Date.parse(list[0].modified)));
    await sbx.files.remove('/workspace/d');
    assert.equal(await sbx.files.exists('/workspace/d'), false);
  });
  await check('files that are not there, and must not be', ['smoke', 'Files.read', 'Files.remove', 'Files.list'], async () => {
    const err = await fails(sbx.files.read('/workspace/none'), 'FileNotFoundError', /\/workspace\/none/);
    assert.equal(err.path, '/workspace/none');
    assert.match(err.requestId, /^req_/);
    await fails(sbx.files.remove('/workspace/none'), 'FileNotFoundError');
    await fails(sbx.files.list('/workspace/none'), 'FileNotFoundError');
    for (const p of ['/etc/shadow', '/workspace/../etc/shadow', '/tmp/../../etc/shadow', '']) {
      assert.match((await fails(sbx.files.read(p), 'APIError')).code, /PATH_NOT_ALLOWED|INVALID_REQUEST/, p);
    }
  });
}
