import assert from 'node:assert/strict';
import { fails, run, shared, until } from '../harness.mjs';

export default async function process(check) {
  const sbx = await shared();
  await check('a command with its output, directory and variables', ['smoke', 'Process.executeCommand'], async () => {
    const r = await sbx.process.executeCommand('echo out; echo err >&2; echo "$FROM $X"; pwd; exit 3', '/tmp', { X: 'y z' });
    assert.equal(r.exitCode, 3);
    for (const line of ['out', 'err', 'create y z', '/tmp']) assert.ok(r.result.split('\n').includes(line), r.result);
    assert.equal((await sbx.process.executeCommand('true')).exitCode, 0);
    assert.equal((await sbx.process.executeCommand('true', '/no/such')).exitCode, -1);
  });
  await check('a command that takes too long', ['Process.executeCommand'], async () => {
    await fails(sbx.process.executeCommand('sleep 60', undefined, undefined, 1), 'DaytonaProcessExecutionTimeoutError');
  });
  await check('code in Python', ['smoke', 'Process.codeRun'], async () => {
    const r = await sbx.process.codeRun('import os\nprint(1 + 1, os.environ["A"])', { env: { A: 'b' } });
    assert.equal(r.exitCode, 0);
    assert.equal(r.result, '2 b\n');
    const bad = await sbx.process.codeRun('print("before")\nraise ValueError("no")');
    assert.equal(bad.exitCode, 1);
    assert.match(bad.result, /before\n[^]*ValueError: no/);
    assert.equal((await sbx.process.codeRun('import sys; print(sys.argv[1:])', { argv: ['a', 'b c'] })).result, "['a', 'b c']\n");
    assert.equal((await sbx.process.codeRun('raise SystemExit(7)')).exitCode, 7);
    await fails(sbx.process.codeRun('import time; time.sleep(60)', undefined, 1), 'DaytonaProcessExecutionTimeoutError');
  });
  await check('charts of code', ['Process.codeRun'], async () => {
    await sbx.process.codeRun('import matplotlib.font_manager'); // where fonts are slow to find, it says so once
    const r = await sbx.process.codeRun('import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label="l")\nplt.title("T")\nplt.show()\nprint("done")');
    assert.equal(r.result, 'done\n');
    assert.deepEqual(r.artifacts.charts.map((c) => [c.type, c.title, c.elements.length]), [['line', 'T', 1]]);
    assert.ok(Buffer.from(r.artifacts.charts[0].png, 'base64').subarray(1, 4).equals(Buffer.from('PNG')));
  });
  await check('home, working directory and what is used', ['Sandbox.getUserHomeDir', 'Sandbox.getUserRootDir', 'Sandbox.getWorkDir', 'Sandbox.getMetricsLatest'], async () => {
    assert.match(await sbx.getUserHomeDir(), /^\//);
    assert.match(await sbx.getUserRootDir(), /^\//);
    assert.equal(await sbx.getWorkDir(), (await sbx.process.executeCommand('pwd')).result.trim());
    const m = await sbx.getMetricsLatest();
    assert.ok(Object.values(m).some((v) => v > 0), JSON.stringify(m));
  });

  await check('variables of later commands', ['Sandbox.updateEnv'], async () => {
    await sbx.updateEnv({ LATER: 'yes', GOES: 'x' });
    await sbx.updateEnv({ LATER: 'now' }, { unset: ['GOES', 'LATER'] });
    assert.equal((await sbx.process.executeCommand('echo "$LATER $FROM <$GOES>"')).result, 'now create <>\n');
  });

  const id = `session ${run}`;
  await check('a session keeps directory and variables', ['smoke', 'Process.createSession', 'Process.executeSessionCommand', 'Process.getSession', 'Process.listSessions'], async () => {
    await sbx.process.createSession(id);
    await fails(sbx.process.createSession(id), 'DaytonaConflictError');
    const one = await sbx.process.executeSessionCommand(id, { command: 'cd /usr && export V=7 && echo here && echo there >&2' });
    assert.deepEqual([one.exitCode, one.stdout, one.stderr], [0, 'here\n', 'there\n']);
    const two = await sbx.process.executeSessionCommand(id, { command: 'echo "$V $PWD"; false' });
    assert.deepEqual([two.exitCode, two.stdout, two.output], [1, '7 /usr\n', '7 /usr\n']);
    const s = await sbx.process.getSession(id);
    assert.deepEqual(s.commands.map((c) => c.exitCode), [0, 1]);
    assert.equal(s.commands[1].command, 'echo "$V $PWD"; false');
    assert.ok((await sbx.process.listSessions()).some((l) => l.sessionId === id));
  });
  await check('a command in the background, with input', ['Process.executeSessionCommand', 'Process.sendSessionCommandInput', 'Process.getSessionCommand', 'Process.getSessionCommandLogs'], async () => {
    const { cmdId } = await sbx.process.executeSessionCommand(id, { command: 'echo ready; read -r line; echo "got $line"; exit_code() { return 5; }; exit_code', runAsync: true });
    await until('its first output', async () => (await sbx.process.getSessionCommandLogs(id, cmdId)).stdout === 'ready\n');
    assert.equal((await sbx.process.getSessionCommand(id, cmdId)).exitCode, undefined);
    await sbx.process.sendSessionCommandInput(id, cmdId, 'some text\n');
    const ended = await until('its end', async () => { const c = await sbx.process.getSessionCommand(id, cmdId); return c.exitCode !== undefined && c; });
    assert.equal(ended.exitCode, 5);
    assert.equal((await sbx.process.getSessionCommandLogs(id, cmdId)).stdout, 'ready\ngot some text\n');
    await fails(sbx.process.sendSessionCommandInput(id, cmdId, 'more\n'), 'DaytonaGoneError');
  });
  await check('logs as they come', ['Process.getSessionCommandLogs'], async () => {
    const { cmdId } = await sbx.process.executeSessionCommand(id, { command: 'for i in 1 2 3; do echo "o$i"; echo "e$i" >&2; sleep 0.2; done; exec 1>&- 2>&-', runAsync: true });
    let out = '', err = '';
    await sbx.process.getSessionCommandLogs(id, cmdId, (c) => { out += c; }, (c) => { err += c; });
    assert.deepEqual([out, err], ['o1\no2\no3\n', 'e1\ne2\ne3\n']);
    let again = '';
    await sbx.process.getSessionCommandLogs(id, cmdId, (c) => { again += c; }, () => {});
    assert.equal(again, out);
  });
  await check('what a session left in the background goes on', ['Process.executeSessionCommand'], async () => {
    const { cmdId } = await sbx.process.executeSessionCommand(id, { command: '(sleep 0.5; echo late) & echo now' });
    assert.equal((await sbx.process.executeSessionCommand(id, { command: 'echo next' })).stdout, 'next\n');
    await until('the late output', async () => (await sbx.process.getSessionCommandLogs(id, cmdId)).stdout === 'now\nlate\n');
  });
  await check('a session whose shell ends, and one that is deleted', ['Process.deleteSession'], async () => {
    const r = await sbx.process.executeSessionCommand(id, { command: 'exit 9' });
    assert.equal(r.exitCode, 9);
    await until('the end of its shell', async () => sbx.process.executeSessionCommand(id, { command: 'true', runAsync: true }).then(() => false, (e) => /has ended/.test(e.message)));
    await sbx.process.deleteSession(id);
    await fails(sbx.process.getSession(id), 'DaytonaNotFoundError');
    await sbx.process.createSession(id);
    assert.equal((await sbx.process.executeSessionCommand(id, { command: 'echo "$V"' })).stdout, '\n');
    await sbx.process.deleteSession(id);
  });
}
