import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import http from 'node:http';
import { create, fails, until } from '../harness.mjs';

export default async function code(check) {
  const sbx = await create();
  await check('code keeps its variables', ['smoke', 'Sandbox.runCode'], async () => {
    const first = await sbx.runCode('import os\na = 10\nprint("hi")');
    assert.equal(first.success && first.stdout, 'hi\n');
    assert.equal(first.exitCode, 0);
    const second = await sbx.runCode('a + 5');
    assert.equal(second.result ?? second.stdout, '15');
    const env = await sbx.runCode('print(os.environ["X"], os.getcwd())', { env: { X: 'once' }, workingDir: '/tmp' });
    assert.equal(env.stdout, 'once /tmp\n');
    assert.equal((await sbx.runCode('print(os.environ.get("X"))')).stdout, 'None\n');
  });
  await check('code that fails', ['Sandbox.runCode'], async () => {
    const r = await sbx.runCode('raise ValueError("no")');
    assert.equal(r.success, false);
    assert.notEqual(r.exit_code, 0);
    assert.match(r.stderr, /ValueError: no/);
  });
  await check('code that takes too long', ['Sandbox.runCode'], async () => {
    const r = await sbx.runCode('while True: pass', { timeout: 1 });
    assert.equal(r.success, false);
    assert.equal(r.exit_code, 124);
    const err = await fails(sbx.runCode('1', { timeout: 301 }), 'APIError', /timeout is 301 seconds.*POST \/execute\/background/);
    assert.equal(err.statusCode, 400);
  });
  await check('other languages', ['Sandbox.runCode'], async () => {
    assert.equal((await sbx.runCode('echo $((6*7))', { language: 'bash' })).stdout, '42\n');
    assert.equal((await sbx.runCode('console.log(6*7)', { language: 'javascript' })).stdout, '42\n');
    await fails(sbx.runCode('1', { language: 'cobol' }), 'APIError', /language "cobol"/);
  });
  await check('rich results', ['Sandbox.runCode', 'Sandbox.runIpython'], async () => {
    const page = await sbx.runCode('class Page:\n  def _repr_html_(self): return "<b>bold</b>"\nPage()');
    assert.ok(page.richOutputs.some((o) => o.type === 'text/html'), JSON.stringify(page));
    assert.equal(page.html, '<b>bold</b>');
    const picture = await sbx.runIpython('class Dot:\n  def _repr_png_(self): return bytes.fromhex("89504e470d0a1a0a") + b"rest"\nDot()');
    assert.deepEqual(Buffer.from(picture.png, 'base64'), Buffer.from('\x89PNG\r\n\x1a\nrest', 'latin1'));
  });
  await check('code in the background', ['Sandbox.runCodeBackground', 'Sandbox.listProcesses', 'Sandbox.killProcess'], async () => {
    const begun = await sbx.runCodeBackground('import time\nprint("begun", flush=True)\ntime.sleep(600)', { name: 'sleeper' });
    assert.match(begun.process_id, /^bg_/);
    assert.equal(begun.name, 'sleeper');
    const mine = async () => (await sbx.listProcesses()).find((p) => p.process_id === begun.process_id);
    const p = await until('its output', async () => { const p = await mine(); return p?.stdout === 'begun\n' && p; });
    assert.ok(p.status === 'running' && p.started_at && p.pid > 0, JSON.stringify(p));
    await sbx.killProcess(begun.process_id);
    await until('its end', async () => (await mine()).status === 'killed');
    await fails(sbx.killProcess('bg_nothing'), 'APIError', /process bg_nothing does not exist/);
  });
  await check('code that calls back', ['Sandbox.runCodeAsync'], async () => {
    const begun = await sbx.runCodeAsync('print(1)', { callbackUrl: 'http://192.0.2.1/hook', callbackHeaders: { 'X-Mine': 'a' }, callbackSignatureSecret: 'sixteen letters!' });
    assert.match(begun.execution_id, /^exec_/);
    assert.equal(begun.status, 'queued');
    await until('its end', async () => (await sbx.listProcesses()).some((p) => p.execution_id === begun.execution_id && p.status === 'completed'));
    await fails(sbx.runCodeAsync('1', { callbackUrl: 'ftp://x/' }), 'APIError', /callback_url/);
  });
  await check('the call back itself, signed', ['Sandbox.runCodeAsync'], async () => {
    let told;
    const server = http.createServer(async (req, res) => {
      const parts = [];
      for await (const part of req) parts.push(part);
      const body = Buffer.concat(parts);
      told = { headers: req.headers, body };
      res.end();
    });
    await new Promise((ok) => server.listen(0, '127.0.0.1', ok));
    await sbx.runCodeAsync('print("told")', { callbackUrl: `http://127.0.0.1:${server.address().port}/hook`, callbackHeaders: { 'X-Mine': 'a' }, callbackSignatureSecret: 'sixteen letters!' });
    await until('the call', () => told);
    server.close();
    const signed = createHmac('sha256', 'sixteen letters!').update(told.headers['x-hopx-timestamp']).update(told.body).digest('hex');
    assert.deepEqual([told.headers['x-mine'], told.headers['x-hopx-signature']], ['a', `sha256=${signed}`]);
    const said = JSON.parse(told.body);
    assert.deepEqual([said.status, said.stdout, said.exit_code], ['completed', 'told\n', 0]);
  });
  await check('interpreters and processes', ['Sandbox.getJupyterSessions', 'Sandbox.listSystemProcesses'], async () => {
    const kernels = await sbx.getJupyterSessions();
    assert.ok(kernels.some((k) => k.kernel_id.startsWith('python/') && k.execution_state === 'idle'), JSON.stringify(kernels));
    const all = await sbx.listSystemProcesses();
    assert.ok(all.length > 0 && all.every((p) => p.pid > 0 && p.command));
  });
  await check('a cache that is always empty', ['Cache.stats', 'Cache.clear'], async () => {
    assert.equal((await sbx.cache.stats()).cache.size, 0);
    assert.equal((await sbx.cache.clear()).entries_removed, 0);
  });
}
