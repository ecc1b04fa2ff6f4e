import assert from 'node:assert/strict';
import { base, create, fails, key, raw, run, sdk, tokenOf } from '../harness.mjs';

const { Sandbox, Secret, Template } = sdk;
const none = 'sbx-00000000000000000000000000';
const data = process.env.COVE_DATA;
const exec = (headers, path = '/exec') => raw(`${data}${path}`, { method: 'POST', headers: { 'Content-Type': 'application/json', ...headers }, body: '{"command":"echo in"}' });

export default async function errors(check) {
  const box = await create();
  await check('a key that is none', ['smoke', 'Sandbox.create', 'Sandbox.list'], async () => {
    const wrong = { apiKey: 'ss_live_0000000000000000000000000000000x' };
    await fails(Sandbox.create({ name: 'x', ...wrong, baseUrl: base }), 'AuthenticationError');
    await fails(Sandbox.list({ ...wrong, baseUrl: base }), 'AuthenticationError');
    await fails(Secret.list({ ...wrong, baseUrl: base }), 'AuthenticationError');
  });
  await check('what is not there', ['Sandbox.connect', 'Sandbox.killById', 'Sandbox.updateById', 'Template.connect'], async () => {
    await fails(Sandbox.connect(none), 'NotFoundError', /not found/);
    await fails(Sandbox.updateById(none, { metadata: {} }), 'NotFoundError');
    await Sandbox.killById(none);
    await fails(Template.connect('nothing'), 'NotFoundError');
    await fails(Sandbox.connect(box.name), 'NotFoundError'); // a name is no id
  });
  await check('values out of bounds', ['Sandbox.create'], async () => {
    for (const [what, options] of Object.entries({
      name: { name: '' }, timeout_seconds: { timeoutSeconds: 0 }, auto_delete_seconds: { autoDeleteSeconds: 1e7 }, reserved: { metadata: { '_Superserve.name': 'x' } },
      from_snapshot: { fromTemplate: 'superserve/base', fromSnapshot: 'snap-x' }, deny_out: { network: { denyOut: ['nowhere'] } },
    })) await fails(Sandbox.create({ name: `x-${run}`, ...options }), 'ValidationError', new RegExp(what));
  });
  await check('fields and routes that are not served', ['Sandbox.create'], async () => {
    const headers = { 'Content-Type': 'application/json' };
    for (const [body, want] of [['{"name":"x","preview_access":"private"}', /preview_access/], ['{"name":"x","name":"y"}', /twice/], ['[]', /not valid/], ['{"name":"x"} {}', /more after/]]) {
      const resp = await raw(`${base}/sandboxes`, { key, method: 'POST', headers, body });
      assert.equal(resp.status, 400, resp.text);
      assert.match(JSON.parse(resp.text).error.message, want);
    }
    const route = await raw(`${base}/sandboxes/${box.id}/snapshots`, { key, method: 'POST', headers, body: '{}' });
    assert.equal(route.status, 404);
    assert.match(route.text, /POST \/sandboxes\/sbx-[a-z0-9]+\/snapshots/);
    assert.equal((await raw(`${base}/sandboxes`, { key, method: 'PUT', headers, body: '{}' })).status, 405);
    assert.equal((await raw(`${base}/sandboxes?status=active`, { key })).status, 400);
    assert.equal((await raw(`${base}/sandboxes/..%2f..%2fsecrets`, { key })).status, 404);
    assert.equal((await raw(`${base}/health`)).status, 200);
  });
  await check('another team', ['Sandbox.connect', 'Sandbox.kill', 'Sandbox.list', 'Sandbox.pause'], async () => {
    const foreign = { apiKey: process.env.COVE_FOREIGN_KEY, baseUrl: base };
    await fails(Sandbox.connect(box.id, foreign), 'NotFoundError');
    await Sandbox.killById(box.id, foreign); // the SDK takes 404 for done
    await fails(Sandbox.updateById(box.id, { metadata: {} }, foreign), 'NotFoundError');
    assert.deepEqual(await Sandbox.list(foreign), []);
    for (const [method, path] of [['GET', ''], ['POST', '/pause'], ['POST', '/resume'], ['POST', '/activate'], ['GET', '/network'], ['DELETE', '/secrets/X']]) {
      assert.equal((await raw(`${base}/sandboxes/${box.id}${path}`, { key: foreign.apiKey, method })).status, 404, path);
    }
    assert.equal((await box.getInfo()).status, 'active');
  });
  await check('the token of another sandbox, or none', ['smoke', 'Commands.run'], async () => {
    const two = await create();
    const [mine, theirs] = [await tokenOf(box.id), await tokenOf(two.id)];
    const id = { 'X-Superserve-Sandbox-Id': box.id };
    assert.equal((await exec({ ...id, 'X-Access-Token': mine })).status, 200);
    for (const token of [theirs, '', 'cst_x_00', mine.slice(0, -1) + (mine.endsWith('0') ? '1' : '0'), key]) assert.equal((await exec({ ...id, 'X-Access-Token': token })).status, 401, token);
    assert.equal((await exec({ ...id, 'X-API-Key': key })).status, 401);
    // A token opens no control plane.
    assert.equal((await raw(`${base}/sandboxes`, { headers: { 'X-API-Key': mine } })).status, 401);
    await two.kill();
  });
  await check('requests that name two sandboxes', ['Commands.run'], async () => {
    const two = await create();
    const token = await tokenOf(box.id);
    const at = (id) => (new URL(data).hostname === 'sandbox.superserve.ai' ? `https://boxd-${id}.sandbox.superserve.ai` : `${data}/boxd-${id}`);
    const to = (url, headers) => raw(`${url}/exec`, { method: 'POST', headers: { 'X-Access-Token': token, ...headers }, body: '{"command":"echo in"}' });
    assert.equal((await to(at(box.id), {})).status, 200);
    assert.equal((await to(at(box.id), { 'X-Superserve-Sandbox-Id': box.id })).status, 200);
    assert.equal((await to(at(two.id), {})).status, 401);
    assert.equal((await to(at(two.id), { 'X-Superserve-Sandbox-Id': box.id })).status, 400);
    assert.equal((await to(at(box.id), { 'X-Superserve-Sandbox-Id': `${box.id}, ${two.id}` })).status, 400);
    assert.equal((await to(at(box.id), { 'X-Superserve-Sandbox-Id': `../${box.id}` })).status, 400);
    const dial = (url, protocols) => new Promise((resolve) => {
      const ws = new WebSocket(url, protocols);
      ws.onopen = () => { ws.close(); resolve('open'); };
      ws.onerror = () => resolve('refused');
    });
    const name = (id) => `wss://boxd-${id}.sandbox.superserve.ai/exec/connect`;
    assert.equal(await dial(name(box.id), ['superserve.exec.v1', `token.${token}`]), 'open');
    assert.equal(await dial(name(two.id), ['superserve.exec.v1', `token.${token}`]), 'refused');
    assert.equal(await dial(name(box.id), ['superserve.exec.v1']), 'refused');
    assert.equal(await dial(name(box.id), ['superserve.exec.v1', `token.${token}`, 'token.other']), 'refused');
    await two.kill();
  });
  await box.kill();
}
