import assert from 'node:assert/strict';
import { create, fails, sdk, until } from '../harness.mjs';

export default async function commands(check) {
  const box = await create();
  await check('output, exit codes, directory and environment', ['smoke', 'Commands.run'], async () => {
    assert.deepEqual(await box.commands.run('echo out; echo err >&2; exit 42'), { stdout: 'out\n', stderr: 'err\n', exitCode: 42 });
    assert.equal((await box.commands.run('echo $A; pwd; id -un', { env: { A: 'é' }, cwd: '/tmp' })).stdout, 'é\n/tmp\nroot\n');
    assert.equal((await box.commands.run('kill -9 $$')).exitCode, 137);
    await fails(box.commands.run('true', { cwd: 'tmp' }), 'ValidationError', /working_dir/);
    await fails(box.commands.run(''), 'ValidationError', /command/);
  });
  await check('a command that takes too long', ['Commands.run'], async () => {
    assert.deepEqual(await box.commands.run('echo before; sleep 60', { timeoutMs: 5000 }), { stdout: 'before\n', stderr: '', exitCode: 124 });
    const streamed = await box.commands.run('echo before; sleep 60', { timeoutMs: 5000, onStdout: () => {} });
    assert.deepEqual(streamed, { stdout: 'before\n', stderr: '', exitCode: 124 });
  });
  await check('output as it comes', ['smoke', 'Commands.run'], async () => {
    const seen = [];
    const release = box.files.write('/tmp/go', '').then(() => undefined);
    const res = await box.commands.run("printf 'h\\303'; while ! [ -e /tmp/go ]; do sleep 0.02; done; printf '\\251'; echo no >&2; exit 3", {
      onStdout: (s) => seen.push(s), onStderr: (s) => seen.push(`!${s}`),
    });
    await release;
    assert.deepEqual(res, { stdout: 'hé', stderr: 'no\n', exitCode: 3 });
    assert.equal(seen.filter((s) => s[0] !== '!').join(''), 'hé');
    assert.ok(seen.includes('!no\n'), JSON.stringify(seen));
  });
  await check('much output, and more than the client takes', ['Commands.run'], async () => {
    const res = await box.commands.run('head -c 3000000 /dev/zero | tr "\\0" x');
    assert.equal(res.stdout.length, 3_000_000);
    await fails(box.commands.run('head -c 3000000 /dev/zero | tr "\\0" x', { maxOutputBytes: 1000 }), 'ValidationError', /maximum size/);
    const cut = await box.commands.run('head -c 9000000 /dev/zero | tr "\\0" x');
    assert.equal(cut.stdout.length, 8 << 20);
    assert.match(cut.stderr, /cut at 8 MiB/);
  });
  await check('given up by the client', ['Commands.run'], async () => {
    const stop = new AbortController();
    const waiting = box.commands.run('echo $$ > /tmp/pid; exec sleep 300', { signal: stop.signal, timeoutMs: 60_000 });
    const failed = fails(waiting, 'SandboxError', /abort/i);
    const pid = await until('its start', async () => (await box.commands.run('cat /tmp/pid 2>/dev/null')).stdout.trim());
    stop.abort();
    await failed;
    await until('its end', async () => (await box.commands.run(`kill -0 ${pid}`)).exitCode !== 0);
  });
  await check('programs in the background outlive the call', ['Commands.run'], async () => {
    await box.commands.run('sleep 4321 >/dev/null 2>&1 & echo $! > /tmp/bg');
    assert.equal((await box.commands.run('kill -0 $(cat /tmp/bg)')).exitCode, 0);
  });
  await check('a conversation', ['smoke', 'Commands.spawn', 'CommandStdin.write', 'CommandStdin.close', 'CommandSession.wait'], async () => {
    let seen = '';
    const s = await box.commands.spawn('while read -r line; do echo "got $line"; done; echo end >&2; exit 7', { env: { X: '1' }, cwd: '/tmp', onStdout: (t) => { seen += t; } });
    s.stdin.write('one\n');
    await until('an answer', () => seen.includes('got one\n'));
    s.stdin.write(new TextEncoder().encode('zwö\n'));
    s.stdin.close();
    assert.deepEqual(await s.wait(), { stdout: 'got one\ngot zwö\n', stderr: 'end\n', exitCode: 7 });
  });
  await check('much input', ['Commands.spawn', 'CommandStdin.write'], async () => {
    const s = await box.commands.spawn('wc -c');
    s.stdin.write('y'.repeat(1_000_000));
    s.stdin.close();
    assert.equal((await s.wait()).stdout.trim(), '1000000');
  });
  await check('signals, a time limit and hanging up', ['CommandSession.kill', 'CommandSession.close', 'Commands.spawn'], async () => {
    let ready = false;
    const a = await box.commands.spawn("trap 'echo bye; exit 9' INT; echo ready; while :; do sleep 0.05; done", { onStdout: () => { ready = true; } });
    await until('the trap', () => ready);
    a.kill('SIGINT');
    assert.deepEqual(await a.wait(), { stdout: 'ready\nbye\n', stderr: '', exitCode: 9 });
    const b = await box.commands.spawn('sleep 300', { timeoutMs: 1000 });
    assert.equal((await b.wait()).exitCode, 124);
    const c = await box.commands.spawn("trap '' TERM; echo $$ > /tmp/c; while :; do sleep 0.05; done");
    const pid = await until('its start', async () => (await box.commands.run('cat /tmp/c 2>/dev/null')).stdout.trim());
    await c.close();
    await until('its end', async () => (await box.commands.run(`kill -0 ${pid}`)).exitCode !== 0);
  });
}
