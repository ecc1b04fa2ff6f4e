import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fails, run, shared } from '../harness.mjs';

export default async function files(check) {
  const sbx = await shared();
  const { fs } = sbx;
  const dir = `/tmp/files-${run}`;
  const local = mkdtempSync(path.join(tmpdir(), 'cove-daytona-'));
  await check('make, describe and list directories', ['smoke', 'FileSystem.createFolder', 'FileSystem.getFileDetails', 'FileSystem.listFiles'], async () => {
    await fs.createFolder(`${dir}/a/b`, '750');
    const info = await fs.getFileDetails(`${dir}/a/b`);
    assert.deepEqual([info.name, info.isDir, info.mode, info.permissions], ['b', true, 'drwxr-x---', '0750']);
    await fs.uploadFile(Buffer.from('12345'), `${dir}/a/five`);
    const list = await fs.listFiles(`${dir}/a`);
    assert.deepEqual(list.map((f) => [f.name, f.isDir, f.isDir ? 0 : f.size]), [['b', true, 0], ['five', false, 5]]);
    await fails(fs.getFileDetails(`${dir}/none`), 'DaytonaFileNotFoundError');
    await fails(fs.listFiles(`${dir}/none`), 'DaytonaFileNotFoundError');
  });
  await check('files to and fro, with odd names and any bytes', ['smoke', 'FileSystem.uploadFile', 'FileSystem.downloadFile', 'FileSystem.uploadFiles', 'FileSystem.downloadFiles'], async () => {
    const bytes = Buffer.from(Array.from({ length: 300_000 }, (_, i) => (i * 7) % 256));
    for (const name of ['plain', 'with space', 'é "quoted"', 'back\\slash', 'empty']) {
      const data = name === 'empty' ? Buffer.alloc(0) : bytes;
      await fs.uploadFile(data, `${dir}/new/${name}`);
      assert.ok(data.equals(await fs.downloadFile(`${dir}/new/${name}`)), name);
    }
    writeFileSync(path.join(local, 'from'), 'of a file');
    await fs.uploadFile(path.join(local, 'from'), `${dir}/copied`);
    await fs.downloadFile(`${dir}/copied`, path.join(local, 'to'));
    assert.equal(readFileSync(path.join(local, 'to'), 'utf8'), 'of a file');
    await fs.uploadFiles([1, 2, 3].map((n) => ({ source: Buffer.from(`n${n}`), destination: `${dir}/many/${n}` })));
    const got = await fs.downloadFiles([{ source: `${dir}/many/1` }, { source: `${dir}/none` }, { source: `${dir}/many/3` }]);
    assert.deepEqual(got.map((f) => f.result?.toString()), ['n1', undefined, 'n3']);
    assert.match(got[1].error, /no such file/);
    await fails(fs.downloadFile(`${dir}/none`), 'DaytonaFileNotFoundError');
    await fails(fs.uploadFile(Buffer.from('x'), dir), 'DaytonaError');
  });
  await check('files as streams', ['FileSystem.uploadFileStream', 'FileSystem.downloadFileStream'], async () => {
    const { Readable } = await import('node:stream');
    await fs.uploadFileStream(Readable.from([Buffer.from('one '), Buffer.from('two')]), `${dir}/stream`);
    const parts = [];
    for await (const part of await fs.downloadFileStream(`${dir}/stream`)) parts.push(part);
    assert.equal(Buffer.concat(parts).toString(), 'one two');
  });
  await check('links that are signed', ['Sandbox.downloadUrl', 'Sandbox.uploadUrl'], async () => {
    const form = new FormData();
    form.append('file', new Blob(['signed']), 'signed');
    const up = await sbx.uploadUrl(`${dir}/signed file`);
    assert.equal((await fetch(up, { method: 'POST', body: form })).status, 200);
    const down = await sbx.downloadUrl(`${dir}/signed file`);
    assert.equal(await (await fetch(down)).text(), 'signed');
    const forged = [down.replace('signed', 'other'), down.replace('expires=', 'expires=9'), down.replace(/signature=v1_./, 'signature=v1_-'), up, `${down}&path=/etc/passwd`, down.replace('/files/download', '/files')];
    for (const url of forged) assert.equal((await fetch(url)).status, 401, url);
  });
  await check('find text and names, and replace', ['FileSystem.findFiles', 'FileSystem.searchFiles', 'FileSystem.replaceInFiles'], async () => {
    await fs.uploadFile(Buffer.from('first\nneedle: [x]\nlast needle\n'), `${dir}/find/a.txt`);
    await fs.uploadFile(Buffer.from('none\n'), `${dir}/find/b.md`);
    assert.deepEqual(await fs.findFiles(`${dir}/find`, 'needle: [x]'), [{ file: `${dir}/find/a.txt`, line: 2, content: 'needle: [x]' }]);
    assert.deepEqual((await fs.searchFiles(`${dir}/find`, '*.md')).files, [`${dir}/find/b.md`]);
    const done = await fs.replaceInFiles([`${dir}/find/a.txt`, `${dir}/find/b.md`, `${dir}/find/c`], 'needle', 'pin');
    assert.deepEqual(done.map((r) => r.success), [true, true, false]);
    assert.equal((await fs.downloadFile(`${dir}/find/a.txt`)).toString(), 'first\npin: [x]\nlast pin\n');
  });
  await check('move, change and delete', ['FileSystem.moveFiles', 'FileSystem.setFilePermissions', 'FileSystem.deleteFile'], async () => {
    await fs.moveFiles(`${dir}/copied`, `${dir}/moved`);
    await fails(fs.getFileDetails(`${dir}/copied`), 'DaytonaFileNotFoundError');
    await fs.setFilePermissions(`${dir}/moved`, { mode: '600' });
    assert.equal((await fs.getFileDetails(`${dir}/moved`)).permissions, '0600');
    await fails(fs.setFilePermissions(`${dir}/moved`, { mode: '99x' }), 'DaytonaValidationError');
    await fs.deleteFile(`${dir}/moved`);
    await fails(fs.deleteFile(dir), 'DaytonaValidationError', /directory/);
    await fs.deleteFile(dir, true);
    await fails(fs.getFileDetails(dir), 'DaytonaFileNotFoundError');
  });
  rmSync(local, { recursive: true });
}
