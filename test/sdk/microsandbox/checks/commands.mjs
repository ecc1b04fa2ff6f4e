import assert from 'node:assert/strict';
import { fails, idOf, shared, until } from '../harness.mjs';

export default async function commands(check) {
  const box = await shared();
  await check('output, exit code and environment', ['smoke', 'Sandbox.exec', 'Sandbox.execWith', 'Sandbox.shell'], async () => {
    const out = await box.execWith('sh', (b) => b.args(['-c', 'echo $FROM $MORE; pwd; echo err >&2; exit 3']).env('MORE', 'x y').cwd('/tmp'));
    assert.deepEqual([out.code, out.success, out.stdout(), out.stderr()], [3, false, 'create x y\n/tmp\n', 'err\n']);
    assert.equal((await box.shell('echo "$FROM" | tr a-z A-Z')).stdout(), 'CREATE\n');
    assert.equal((await box.execWith('sh', (b) => b.args(['-c', 'id -u']).user('nobody'))).stdout().trim() === '0', false);
  });
  await check('input of all kinds', ['smoke', 'Sandbox.execWith', 'Sandbox.execStreamWith', 'ExecHandle.takeStdin', 'ExecSink.write', 'ExecSink.close', 'ExecHandle.wait', 'ExecHandle.collect', 'ExecHandle.recv'], async () => {
    assert.equal((await box.execWith('cat', (b) => b.stdinBytes(Buffer.from('given\n')))).stdout(), 'given\n');
    const h = await box.execStreamWith('sh', (b) => b.args(['-c', 'read line; echo got $line; cat >/dev/null; echo end']).stdinPipe());
    const stdin = await h.takeStdin();
    await stdin.write('one\n');
    let seen = '';
    for (;;) {
      const e = await h.recv();
      if (e.kind === 'stdout') seen += Buffer.from(e.data).toString();
      if (seen.includes('got one')) break;
    }
    await stdin.close();
    const rest = await h.collect();
    assert.equal(seen + rest.stdout(), 'got one\nend\n');
    const big = Buffer.alloc(3_000_000, 'x');
    assert.equal((await box.execWith('wc', (b) => b.args(['-c']).stdinBytes(big))).stdout().trim(), '3000000');
  });
  await check('much output, in its order', ['Sandbox.execStream', 'Sandbox.shellStream'], async () => {
    const out = await box.exec('sh', ['-c', 'i=0; while [ $i -lt 20000 ]; do echo "line $i of the output"; i=$((i+1)); done']);
    const lines = out.stdout().trimEnd().split('\n');
    assert.equal(lines.length, 20000);
    assert.equal(lines[19999], 'line 19999 of the output');
    const kinds = [];
    for await (const e of await box.execStream('sh', ['-c', 'echo a'])) kinds.push(e.kind);
    assert.deepEqual(kinds, ['started', 'stdout', 'exited']);
    assert.equal((await (await box.shellStream('exit 4')).wait()).code, 4);
  });
  await check('signals and time limits', ['ExecHandle.signal', 'ExecHandle.kill', 'ExecHandle.wait', 'Sandbox.execWith'], async () => {
    const h = await box.execStream('sh', ['-c', 'trap "echo caught; exit 7" TERM; echo ready; while :; do sleep 0.1; done']);
    for (;;) if ((await h.recv()).kind === 'stdout') break;
    await h.signal(15);
    assert.equal((await h.wait()).code, 7);
    const k = await box.execStream('sleep', ['1000']);
    await k.recv();
    await k.kill();
    assert.notEqual((await k.wait()).code, 0);
    await fails(box.execWith('sleep', (b) => b.arg('1000').timeout(300)), /time/i);
    assert.equal((await box.exec('sh', ['-c', 'pgrep -x sleep >/dev/null && echo there || echo none'])).stdout().trim(), 'none');
  });
  await check('a terminal', ['smoke', 'Sandbox.execStreamWith', 'ExecHandle.resize'], async () => {
    const h = await box.execStreamWith('sh', (b) => b.args(['-c', 'stty size; read x; until [ "$(stty size)" = "50 132" ]; do sleep 0.05; done; stty size; test -t 1 && echo tty']).tty(true).stdinPipe());
    const stdin = await h.takeStdin();
    let text = '';
    const read = async (want) => { while (!want.test(text)) { const e = await h.recv(); if (!e || e.kind === 'exited') break; if (e.data) text += Buffer.from(e.data).toString(); } };
    await read(/24 80/);
    await h.resize(50, 132);
    await stdin.write('\n');
    await read(/tty/);
    assert.match(text, /24 80[\s\S]*50 132[\s\S]*tty/);
  });
  await check('what cannot run says why', ['Sandbox.exec', 'Sandbox.execWith', 'Sandbox.execWith rlimits'], async () => {
    await fails(box.exec('no-such-program'), /no-such-program/);
    await fails(box.exec('/etc/passwd'), /executable|permission/i);
    await fails(box.execWith('true', (b) => b.cwd('/no/such')), /no\/such/);
    await fails(box.execWith('true', (b) => b.user('nosuchuser')), /user/);
    await fails(box.execWith('true', (b) => b.rlimit('nofile', 10)), /rlimits/);
  });
  await check('a connection that breaks ends its commands', ['Sandbox.execStream'], async () => {
    const ws = new WebSocket(`${process.env.MSB_API_URL.replace('http', 'ws')}/v1/sandboxes/${await idOf(box.name)}/agent`, { headers: { Authorization: `Bearer ${process.env.MSB_API_KEY}` } });
    ws.binaryType = 'arraybuffer';
    await new Promise((yes, no) => { ws.onmessage = yes; ws.onerror = no; });
    const text = (s) => { const b = Buffer.from(s); return Buffer.concat([b.length < 24 ? Buffer.from([0x60 | b.length]) : Buffer.from([0x78, b.length]), b]); };
    const payload = Buffer.concat([Buffer.from([0xa2]), text('cmd'), text('sleep'), text('args'), Buffer.from([0x81]), text('4321')]);
    const body = Buffer.concat([Buffer.from([0xa3]), text('v'), Buffer.from([7]), text('t'), text('core.exec.request'), text('p'), Buffer.from([0x58, payload.length]), payload]);
    const frame = Buffer.alloc(9 + body.length);
    frame.writeUInt32BE(5 + body.length, 0); frame.writeUInt32BE(1, 4); frame[8] = 2; body.copy(frame, 9);
    const answered = new Promise((yes) => { ws.onmessage = yes; });
    for (const byte of frame) ws.send(Buffer.from([byte])); // messages are no frames
    assert.match(Buffer.from((await answered).data).toString('latin1'), /core\.exec\.started/);
    const alive = async () => (await box.exec('sh', ['-c', 'pgrep -f "^sleep 4321" >/dev/null && echo there || echo none'])).stdout().trim();
    assert.equal(await alive(), 'there');
    ws.close();
    await until('the end of the command', async () => (await alive()) === 'none');
  });
  await check('the log as it is written', ['Sandbox.logStream', 'LogStream.recv'], async () => {
    const stream = await box.logStream({ sources: ['stdout'], follow: true });
    await box.exec('sh', ['-c', 'echo into the log; echo not this >&2']);
    let seen = '';
    while (!seen.includes('into the log\n')) {
      const e = await stream.recv();
      assert.ok(e, seen);
      assert.equal(e.source, 'stdout');
      seen += e.text();
    }
    assert.ok(!seen.includes('not this'));
  });
}
