import assert from 'node:assert/strict';
import { apiKey, at, create, fails, raw, sdk } from '../harness.mjs';

const { Sandbox } = sdk;
const nobody = 'sbx-00000000000000000000000000';

export default async function errors(check) {
  const [a, b] = [await create(), await create()];
  const control = at.baseURL ?? 'https://api.hopx.dev';
  const host = async (s) => (await s.getInfo()).publicHost;

  await check('a key that is none', ['smoke', 'Sandbox.create', 'Sandbox.list'], async () => {
    const wrong = { ...at, apiKey: 'hopx_live_none' };
    await fails(Sandbox.create({ ...wrong, template: 'base' }), 'AuthenticationError');
    await fails(Sandbox.list(wrong), 'AuthenticationError');
    await fails(Sandbox.listTemplates(wrong), 'AuthenticationError');
  });
  await check('sandboxes and templates that are not there', ['smoke', 'Sandbox.connect', 'Sandbox.create', 'Sandbox.getTemplate'], async () => {
    await fails(Sandbox.connect(nobody, apiKey, at.baseURL), 'SandboxExpiredError', /not found/);
    await fails(Sandbox.create({ ...at, template: 'no-such' }), 'APIError', /Template 'no-such' does not exist/);
    const err = await fails(Sandbox.getTemplate('no-such', at), 'APIError', /does not exist/);
    assert.equal(err.statusCode, 404);
    await fails(Sandbox.create({ ...at, template: 'base', timeoutSeconds: -1 }), 'APIError', /timeout_seconds is -1/);
  });
  await check('fields that would have no effect are refused by name', ['Sandbox.create'], async () => {
    const key = { 'X-API-Key': apiKey, 'Content-Type': 'application/json' };
    const r = await raw('POST', `${control}/v1/sandboxes`, key, JSON.stringify({ template_name: 'base', gpu: 'h100' }));
    assert.deepEqual([r.status, /gpu/.test(r.json.message)], [400, true], r.text);
    const unknown = await raw('GET', `${control}/v1/regions`, key);
    assert.deepEqual([unknown.status, /GET \/v1\/regions/.test(unknown.json.message)], [404, true], unknown.text);
    const agent = await raw('GET', `${await host(a)}/update/backups`, { Authorization: `Bearer ${await a.getToken()}` });
    assert.deepEqual([agent.status, /GET \/update\/backups/.test(agent.json.message)], [404, true], agent.text);
    const sneaky = await raw('POST', `${await host(a)}/execute`, { Authorization: `Bearer ${await a.getToken()}` }, JSON.stringify({ code: '1', sandbox_id: b.sandboxId }));
    assert.deepEqual([sneaky.status, /sandbox_id/.test(sneaky.json.message)], [400, true], sneaky.text);
  });
  await check('a token is good for its sandbox alone', ['Sandbox.getToken'], async () => {
    const [ta, tb] = [await a.getToken(), await b.getToken()];
    const ask = async (s, headers) => (await raw('GET', `${await host(s)}/files/exists?path=/workspace`, headers)).status;
    assert.equal(await ask(a, { Authorization: `Bearer ${ta}` }), 200);
    assert.equal(await ask(b, { Authorization: `Bearer ${ta}` }), 401);
    assert.equal(await ask(a, { Authorization: `Bearer ${tb}` }), 401);
    assert.equal(await ask(a, {}), 401);
    assert.equal(await ask(a, { Authorization: `Bearer ${ta.slice(0, -1)}${ta.endsWith('0') ? '1' : '0'}` }), 401);
    assert.equal(await ask(a, { Authorization: `Bearer ${tb.replace(b.sandboxId, a.sandboxId)}` }), 401);
    assert.equal(await ask(a, { 'X-API-Key': apiKey }), 200);
    assert.equal((await raw('DELETE', `${control}/v1/sandboxes/${a.sandboxId}`, { Authorization: `Bearer ${ta}` })).status, 401);
  });
  await check('a sandbox of another team is not there', ['Sandbox.connect', 'Sandbox.list'], async () => {
    const other = process.env.COVE_OTHER_KEY;
    await fails(Sandbox.connect(a.sandboxId, other, at.baseURL), 'SandboxExpiredError');
    assert.ok(!(await Sandbox.list({ ...at, apiKey: other })).some((s) => s.sandboxId === a.sandboxId));
    assert.equal((await raw('GET', `${await host(a)}/env`, { 'X-API-Key': other })).status, 404);
    for (const [method, path] of [['DELETE', ''], ['POST', '/pause'], ['POST', '/token/refresh'], ['PUT', '/timeout']]) {
      const r = await raw(method, `${control}/v1/sandboxes/${a.sandboxId}${path}`, { 'X-API-Key': other, 'Content-Type': 'application/json' }, method === 'PUT' ? '{"timeout_seconds":60}' : undefined);
      assert.equal(r.status, 404, `${method} ${path}: ${r.text}`);
    }
  });
  await check('a sandbox without a desktop', ['Desktop.screenshot', 'Desktop.mouseClick'], async () => {
    await fails(a.desktop.screenshot(), 'DesktopNotAvailableError', /desktop/);
    await fails(a.desktop.mouseClick(1, 1), 'DesktopNotAvailableError');
  });
}
