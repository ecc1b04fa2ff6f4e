import assert from 'node:assert/strict';
import { fails, run, shared, until } from '../harness.mjs';

export default async function terminal(check) {
  const sbx = await shared();
  const id = `pty-${run}`;
  let text = '';
  let pty;
  await check('a terminal with input, output and size', ['smoke', 'Process.createPty', 'PtyHandle.waitForConnection', 'PtyHandle.isConnected', 'PtyHandle.sendInput', 'PtyHandle.resize'], async () => {
    pty = await sbx.process.createPty({ id, cols: 91, rows: 27, envs: { TERMVAR: 'set' }, cwd: '/tmp', onData: (d) => { text += new TextDecoder().decode(d); } });
    await pty.waitForConnection();
    assert.ok(pty.isConnected());
    await pty.sendInput('stty size; echo "<$TERMVAR $PWD>"\n');
    await until('its output', () => text.includes('27 91') && text.includes('<set /tmp>'));
    const info = await pty.resize(100, 30);
    assert.deepEqual([info.cols, info.rows], [100, 30]);
    await pty.sendInput('stty size\n');
    await until('the new size', () => text.includes('30 100'));
  });
  await check('what terminals there are', ['Process.listPtySessions', 'Process.getPtySessionInfo', 'Process.resizePtySession'], async () => {
    const info = await sbx.process.getPtySessionInfo(id);
    assert.deepEqual([info.id, info.cols, info.rows, info.active, info.cwd], [id, 100, 30, true, '/tmp']);
    assert.ok((await sbx.process.listPtySessions()).some((s) => s.id === id));
    await sbx.process.resizePtySession(id, 80, 24);
    assert.equal((await sbx.process.getPtySessionInfo(id)).cols, 80);
    await fails(sbx.process.getPtySessionInfo('none'), 'DaytonaNotFoundError');
    await fails(sbx.process.createPty({ id, onData() {} }), 'DaytonaError');
  });
  await check('a second client, and the end with its code', ['Process.connectPty', 'PtyHandle.wait', 'PtyHandle.disconnect'], async () => {
    let seen = '';
    const second = await sbx.process.connectPty(id, { onData: (d) => { seen += new TextDecoder().decode(d); } });
    await second.waitForConnection();
    await second.sendInput('echo both-$((40+2))\n');
    await until('the output at both', () => seen.includes('both-42') && text.includes('both-42'));
    await pty.disconnect();
    await second.sendInput('exit 4\n');
    const result = await second.wait();
    assert.equal(result.exitCode, 4);
  });
  await check('a terminal that is killed', ['PtyHandle.kill', 'Process.killPtySession'], async () => {
    for (const kill of [(p) => p.kill(), (p) => sbx.process.killPtySession(p.sessionId)]) {
      const p = await sbx.process.createPty({ id: `${id}-k`, onData() {} });
      await p.waitForConnection();
      await kill(p);
      assert.equal((await p.wait()).exitCode, 137);
    }
  });
}
