import assert from 'node:assert/strict';
import { create, sdk, until } from '../harness.mjs';

export default async function streams(check) {
  const sbx = await create();
  const told = async (code, options, heard = () => {}) => {
    const out = [];
    for await (const m of sbx.runCodeStream(code, options)) {
      out.push(m);
      heard(m);
    }
    const text = (type) => out.filter((m) => m.type === type).map((m) => m.data).join('');
    return { out, stdout: text('stdout'), stderr: text('stderr'), result: out.find((m) => m.type === 'result'), last: out.at(-1) };
  };
  await check('output as it comes', ['smoke', 'Sandbox.runCodeStream'], async () => {
    // The code ends when its first output has come.
    const code = 'import os, sys, time\nprint(0, flush=True)\nwhile not os.path.exists("/tmp/came"): time.sleep(0.05)\nprint(1); print("ä", file=sys.stderr)';
    let wrote; // not awaited there: the SDK loses what comes while its reader waits for something else
    const r = await told(code, {}, (m) => m.type === 'stdout' && (wrote ??= sbx.files.write('/tmp/came', '')));
    await wrote;
    assert.deepEqual([r.stdout, r.stderr, r.result.exit_code, r.last.success], ['0\n1\n', 'ä\n', 0, true]);
  });
  await check('much output, and none is lost', ['Sandbox.runCodeStream'], async () => {
    const r = await told('for i in range(20000): print(f"line {i} äöü")');
    assert.equal(r.stdout, Array.from({ length: 20000 }, (_, i) => `line ${i} äöü\n`).join(''));
  });
  await check('streams that fail', ['Sandbox.runCodeStream'], async () => {
    const r = await told('1/0');
    assert.match(r.stderr, /ZeroDivisionError/);
    assert.deepEqual([r.result.exit_code, r.last.success], [1, false]);
    const wrong = await told('x', { language: 'cobol' });
    assert.deepEqual([wrong.out[0].type, wrong.out[0].code, wrong.last.type], ['error', 'INVALID_REQUEST', 'complete']);
  });
  await check('a terminal', ['smoke', 'Terminal.connect', 'Terminal.sendInput', 'Terminal.resize', 'Terminal.output'], async () => {
    const ws = await sbx.terminal.connect();
    sbx.terminal.resize(ws, 101, 37);
    sbx.terminal.sendInput(ws, 'stty size; echo $((40+2)); exit 7\r');
    let text = '';
    let code;
    for await (const m of sbx.terminal.output(ws)) {
      if (m.type === 'output') text += m.data;
      if (m.type === 'exit') code = m.code;
    }
    ws.close();
    assert.match(text, /37 101/);
    assert.match(text, /\b42\r?\n/);
    assert.equal(code, 7);
  });
  await check('a terminal ends with its client', ['Terminal.connect'], async () => {
    const ws = await sbx.terminal.connect();
    sbx.terminal.sendInput(ws, 'exec sleep 54321\r');
    const there = async () => (await sbx.listSystemProcesses()).some((p) => p.command.includes('54321'));
    await until('the command', there);
    ws.close();
    await until('its end', async () => !(await there()));
  });
  await check('changes of files', ['Sandbox.watchFiles'], async () => {
    await sbx.files.mkdir('/workspace/seen');
    const seen = [];
    for await (const m of sbx.watchFiles('/workspace/seen')) {
      seen.push(m);
      if (m.type === 'status') await sbx.files.write('/workspace/seen/new', 'x');
      if (m.type === 'change' && m.path === '/workspace/seen/new') break;
    }
    assert.equal(seen[0].status, 'Watching /workspace/seen');
    assert.ok(['created', 'modified', 'renamed'].includes(seen.at(-1).event), JSON.stringify(seen));
  });
  await check('a token of another sandbox opens no stream', ['WSClient.connect'], async () => {
    const info = await sbx.getInfo();
    for (const token of ['', 'x', `${await sbx.getToken()}0`]) {
      const err = await new sdk.WSClient(info.publicHost, token).connect('/terminal').catch((e) => e);
      assert.match(String(err), /Unexpected server response: 40[14]/, token);
    }
  });
}
