import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { keep, msb, nameOf, ok, until } from '../harness.mjs';

const from = 'microsandbox/python';

export default async function program(check) {
  const name = keep(nameOf('msb'));
  await check('msb create, ls, inspect, exec, stop, start, rm', ['smoke', 'Sandbox.exec'], async () => {
    await ok(['create', from, '--name', name, '-e', 'COLOR=blue', '--workdir', '/srv']);
    assert.match((await ok(['ls'])).stdout, new RegExp(name));
    assert.match((await ok(['inspect', name])).stdout, /running/);
    const res = await msb(['exec', name, '--', 'sh', '-c', 'echo $COLOR; pwd; echo err >&2; exit 9']);
    assert.deepEqual([res.code, res.stdout], [9, 'blue\n/srv\n'], JSON.stringify(res));
    assert.match(res.stderr, /err/);
    assert.equal((await ok(['exec', name, '--', 'cat'], { input: 'typed\n' })).stdout, 'typed\n');
    await ok(['stop', name]);
    assert.match((await ok(['inspect', name])).stdout, /stopped/);
    await ok(['start', name]);
    assert.equal((await ok(['exec', name, '--', 'echo', 'again'])).stdout, 'again\n');
  });
  await check('msb cp both ways', ['smoke', 'SandboxFsOps.copyFromHost', 'SandboxFsOps.copyToHost'], async () => {
    const dir = mkdtempSync(path.join(os.tmpdir(), 'cove-msb-'));
    const data = Buffer.alloc(3_000_000, 'copied ');
    writeFileSync(path.join(dir, 'in'), data, { mode: 0o750 });
    await ok(['cp', path.join(dir, 'in'), `${name}:/srv/in`]);
    assert.equal((await ok(['exec', name, '--', 'stat', '-c', '%a %s', '/srv/in'])).stdout, '750 3000000\n');
    await ok(['cp', `${name}:/srv/in`, path.join(dir, 'out')]);
    assert.ok(readFileSync(path.join(dir, 'out')).equals(data));
    assert.notEqual((await msb(['cp', `${name}:/srv/none`, path.join(dir, 'x')])).code, 0);
  });
  await check('msb run', ['Sandbox.exec'], async () => {
    const res = await ok(['run', from, '--', 'sh', '-c', 'echo ran']);
    assert.equal(res.stdout, 'ran\n');
  });
  await check('msb ssh', ['SshClient.exec'], async () => {
    const res = await ok(['ssh', name, '--', 'echo by ssh; id -u']);
    assert.equal(res.stdout, 'by ssh\n0\n');
  });
  await check('msb logs, which follow', ['Sandbox.logStream'], async () => {
    const child = spawn(process.env.COVE_MSB, ['logs', '-f', name]);
    let seen = '';
    child.stdout.on('data', (data) => { seen += data; });
    await until('what a command writes', async () => {
      await ok(['exec', name, '--', 'echo', 'written for the log']);
      return seen.includes('written for the log');
    });
    child.kill();
  });
  await check('msb volume', ['Volume.list'], async () => {
    const volume = nameOf('data');
    await ok(['volume', 'create', volume]);
    assert.match((await ok(['volume', 'ls'])).stdout, new RegExp(volume));
    await ok(['volume', 'rm', volume]);
    assert.doesNotMatch((await ok(['volume', 'ls'])).stdout, new RegExp(volume));
    assert.notEqual((await msb(['volume', 'rm', volume])).code, 0);
  });
  await check('msb create --no-net', ['Sandbox.exec'], async () => {
    const box = keep(nameOf('closed'));
    await ok(['create', from, '--name', box, '--no-net']);
    const res = await msb(['exec', box, '--', 'sh', '-c', 'curl -sS --max-time 3 http://203.0.113.10/ || echo closed']);
    assert.match(res.stdout, /closed/);
    await ok(['stop', box]);
  });
  await check('msb rm', ['smoke', 'Sandbox.remove'], async () => {
    await ok(['stop', name]);
    await ok(['rm', name]);
    assert.notEqual((await msb(['inspect', name])).code, 0);
  });
}
