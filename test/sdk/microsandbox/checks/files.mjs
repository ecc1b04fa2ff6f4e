import assert from 'node:assert/strict';
import { fails, shared } from '../harness.mjs';

export default async function files(check) {
  const box = await shared();
  const fs = box.fs();
  await check('written and read', ['smoke', 'Sandbox.fs', 'SandboxFsOps.write', 'SandboxFsOps.read', 'SandboxFsOps.readToString', 'SandboxFsOps.exists'], async () => {
    await fs.write('/srv/ü.txt', 'first, and long');
    await fs.write('/srv/ü.txt', 'hé\n');
    assert.equal(await fs.readToString('/srv/ü.txt'), 'hé\n');
    const bytes = Buffer.alloc(5_000_000, 'abcdefg');
    await fs.write('/srv/bytes', bytes);
    assert.ok(Buffer.from(await fs.read('/srv/bytes')).equals(bytes));
    await fs.write('/srv/empty', '');
    assert.equal((await fs.read('/srv/empty')).length, 0);
    assert.equal(await fs.exists('/srv/empty'), true);
    assert.equal(await fs.exists('/srv/none'), false);
  });
  await check('streamed', ['SandboxFsOps.writeStream', 'SandboxFsOps.readStream', 'FsWriteSink.write', 'FsWriteSink.close', 'FsReadStream.recv', 'FsReadStream.collect'], async () => {
    const sink = await fs.writeStream('/srv/stream');
    for (let i = 0; i < 10; i++) await sink.write(`part ${i}\n`);
    await sink.close();
    const stream = await fs.readStream('/srv/stream');
    let text = '';
    for (let p = await stream.recv(); p; p = await stream.recv()) text += Buffer.from(p).toString();
    assert.equal(text, Array.from({ length: 10 }, (_, i) => `part ${i}\n`).join(''));
    assert.equal(Buffer.from(await (await fs.readStream('/srv/stream')).collect()).length, 70);
  });
  await check('directories, copies and names', ['smoke', 'SandboxFsOps.mkdir', 'SandboxFsOps.list', 'SandboxFsOps.stat', 'SandboxFsOps.copy', 'SandboxFsOps.rename', 'SandboxFsOps.remove', 'SandboxFsOps.removeDir'], async () => {
    await fs.mkdir('/srv/dir/sub');
    await fs.write('/srv/dir/a', 'one');
    await fs.copy('/srv/dir/a', '/srv/dir/b');
    await fs.rename('/srv/dir/b', '/srv/dir/c');
    assert.deepEqual((await fs.list('/srv/dir')).map((e) => [e.path, e.kind, e.kind === 'file' ? e.size : 0]), [['/srv/dir/a', 'file', 3], ['/srv/dir/c', 'file', 3], ['/srv/dir/sub', 'directory', 0]]);
    const info = await fs.stat('/srv/dir/a');
    assert.deepEqual([info.kind, info.size, info.mode & 0o777], ['file', 3, 0o644]);
    assert.ok(Math.abs(Date.now() - info.modified) < 600_000);
    await fs.remove('/srv/dir/a');
    await fails(fs.stat('/srv/dir/a'));
    await fails(fs.remove('/srv/dir/sub'), /directory/);
    await fs.removeDir('/srv/dir');
    assert.equal(await fs.exists('/srv/dir'), false);
    await fails(fs.read('/srv/none'), /none/);
    await fails(fs.read('/srv'), /directory/);
  });
  await check('by SFTP', ['Sandbox.ssh', 'SandboxSshOps.openClient', 'SshClient.exec', 'SshClient.sftp', 'SshClient.close', 'SftpClient.read', 'SftpClient.write', 'SftpClient.mkdir', 'SftpClient.removeFile', 'SftpClient.removeDir', 'SftpClient.rename', 'SftpClient.realPath', 'SftpClient.readLink', 'SftpClient.symlink', 'SftpClient.close'], async () => {
    const client = await box.ssh().openClient();
    const out = await client.exec('echo by ssh; exit 5');
    assert.deepEqual([out.status, out.stdout.toString()], [5, 'by ssh\n']);
    const sftp = await client.sftp();
    await sftp.mkdir('/srv/sftp');
    const data = Buffer.alloc(200_000, 'sftp');
    await sftp.write('/srv/sftp/file', data);
    assert.ok((await sftp.read('/srv/sftp/file')).equals(data));
    await sftp.symlink('/srv/sftp/file', '/srv/sftp/link');
    assert.equal(await sftp.readLink('/srv/sftp/link'), '/srv/sftp/file');
    assert.equal(await sftp.realPath('/srv/sftp/../sftp/link'), '/srv/sftp/file');
    await sftp.rename('/srv/sftp/file', '/srv/sftp/other');
    await sftp.removeFile('/srv/sftp/other');
    await sftp.removeFile('/srv/sftp/link');
    await sftp.removeDir('/srv/sftp');
    await sftp.close();
    await client.close();
  });
}
