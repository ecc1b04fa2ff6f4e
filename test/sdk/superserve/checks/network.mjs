import assert from 'node:assert/strict';
import { create, fails, raw, run, sdk, until } from '../harness.mjs';

const { Provider, Secret } = sdk;
const get = (host, more = '') => `curl -fsS -o /dev/null --max-time 8 ${more} http://${host}/ && echo reached || echo not`;

export default async function network(check) {
  const box = await create({ network: { allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] } });
  await check('only what is allowed, and a change', ['smoke', 'Sandbox.create', 'Sandbox.update', 'Sandbox.getInfo'], async () => {
    assert.equal((await box.commands.run(get('example.com'))).stdout, 'reached\n');
    assert.equal((await box.commands.run(get('other.test'))).stdout, 'not\n');
    assert.deepEqual((await box.getInfo()).network, { allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] });
    await box.update({ network: { allowOut: ['other.test'], denyOut: ['0.0.0.0/0'] } });
    assert.equal((await box.commands.run(get('other.test'))).stdout, 'reached\n');
    assert.equal((await box.commands.run(get('example.com'))).stdout, 'not\n');
    await box.update({ network: {} });
    assert.equal((await box.commands.run(get('example.com'))).stdout, 'reached\n');
    await fails(box.update({ network: { denyOut: ['example.com'] } }), 'ValidationError', /deny_out/);
  });
  await check('the log, and its pages', ['Sandbox.getNetworkLog'], async () => {
    await box.update({ network: { denyOut: ['203.0.113.0/24'] } });
    assert.equal((await box.commands.run(get('203.0.113.10'))).stdout, 'not\n');
    await box.update({ network: {} });
    const page = await until('the log', async () => {
      const p = await box.getNetworkLog();
      return p.events.some((e) => e.dstIp === '203.0.113.10' && e.verdict === 'blocked') && p;
    });
    assert.ok(page.events.some((e) => e.kind === 'connection' && e.host === 'example.com' && e.verdict === 'allowed' && e.dstPort === 80), JSON.stringify(page));
    const blocked = await box.getNetworkLog({ verdict: 'blocked' });
    assert.ok(blocked.events.length > 0 && blocked.events.every((e) => e.verdict === 'blocked'));
    const ids = [];
    let before;
    do {
      const p = await box.getNetworkLog({ limit: 1, before });
      assert.ok(p.events.length <= 1);
      ids.push(...p.events.map((e) => e.id));
      before = p.hasMore ? p.nextCursor : undefined;
    } while (before && ids.length < 50);
    assert.ok(ids.length >= 4 && new Set(ids).size === ids.length, JSON.stringify(ids));
    assert.deepEqual((await box.getNetworkLog({ since: new Date(Date.now() + 1e6).toISOString() })).events, []);
    await fails(box.getNetworkLog({ before: 'yesterday' }), 'ValidationError', /before/);
  });
  await check('a port that the SDK knows how to find', ['smoke', 'Sandbox.getPreviewUrl'], async () => {
    const url = box.getPreviewUrl(18080);
    assert.equal(url, `https://18080-${box.id}.sandbox.superserve.ai`);
    assert.ok((await raw(`${url}/`)).status >= 400);
    await box.commands.run('mkdir -p /srv/www && echo served > /srv/www/page && cd /srv/www && nohup python3 -m http.server 18080 >/dev/null 2>&1 &');
    await until('the page', async () => (await raw(`${url}/page?x=1`)).text === 'served\n');
    assert.throws(() => box.getPreviewUrl(80), { name: 'ValidationError' });
  });
  const name = `key_${run}`;
  await check('secrets', ['smoke', 'Secret.create', 'Secret.get', 'Secret.list', 'Secret.getInfo', 'Secret.rotate', 'Secret.delete', 'Secret.deleteByName', 'Provider.list'], async () => {
    const providers = await Provider.list();
    const openai = providers.find((p) => p.name === 'openai');
    assert.deepEqual([openai.display, openai.authType, openai.hosts], ['OpenAI', 'bearer', ['api.openai.com']]);
    const p = await Secret.create({ name: `${name}_p`, value: 'sk-real', provider: 'openai' });
    assert.equal(p.providerShortcut, 'openai');
    assert.deepEqual(p.hosts, ['api.openai.com']);
    await fails(Secret.create({ name: `${name}_p`, value: 'x', provider: 'openai' }), 'ConflictError');
    const s = await Secret.create({ name, value: 'value-one', auth: { type: 'api-key', header: 'X-Key' }, hosts: ['other.test'] });
    assert.equal(s.authType, 'api-key');
    assert.deepEqual(s.authConfig, { header: 'X-Key' });
    const all = await Secret.list();
    assert.ok(all.some((x) => x.name === name) && !JSON.stringify(all).includes('value-one'));
    assert.equal((await Secret.get(name)).id, s.id);
    await s.rotate('value-two');
    assert.equal((await s.getInfo()).name, name);
    await p.delete();
    await Secret.deleteByName(`${name}_p`);
    await fails(Secret.get(`${name}_p`), 'NotFoundError');
  });
  await check('a secret in use', ['Sandbox.create', 'Sandbox.attachSecret', 'Sandbox.detachSecret', 'Secret.getSandboxes', 'Secret.getAudit'], async () => {
    const s = await Secret.get(name);
    await box.attachSecret('KEY', name);
    await fails(box.attachSecret('KEY', name), 'ConflictError');
    await fails(box.attachSecret('OTHER', 'none'), 'ValidationError', /none/);
    assert.deepEqual((await box.getInfo()).secrets, [{ envKey: 'KEY', secretName: name, revoked: false }]);
    assert.deepEqual((await s.getSandboxes()).map((b) => [b.sandboxId, b.envKey, b.status]), [[box.id, 'KEY', 'active']]);
    const res = await box.commands.run('echo "$KEY"; curl -fsS --max-time 20 -H "X-Key: $KEY" https://other.test/used');
    // The server has got the value: what it says of it comes back as as many bytes of the stand-in.
    const [standIn, said] = res.stdout.split('\n');
    assert.ok(standIn.startsWith('cove_') && !res.stdout.includes('value-two'), JSON.stringify(res));
    assert.deepEqual(JSON.parse(said).header['X-Key'], [standIn.slice(0, 'value-two'.length)]);
    const row = await until('the record', async () => (await s.getAudit())[0]);
    assert.deepEqual([row.sandboxId, row.method, row.host, row.path, row.status], [box.id, 'GET', 'other.test', '/used', 200]);
    assert.equal((await s.getAudit({ status: '5xx' })).length, 0);
    assert.equal((await s.getAudit({ before: row.id })).length, 0);
    await box.detachSecret('KEY');
    await fails(box.detachSecret('KEY'), 'NotFoundError');
    const two = await create({ secrets: { TOKEN: name } });
    await s.delete();
    assert.deepEqual((await two.getInfo()).secrets, [{ envKey: 'TOKEN', secretName: name, revoked: true }]);
    assert.notEqual((await two.commands.run('echo "$TOKEN"')).stdout, 'value-two\n');
    await two.kill();
  });
  for (const [what, auth] of Object.entries({
    perHost: { perHost: [{ hosts: ['a.test'], type: 'bearer' }, { hosts: ['b.test'], type: 'basic', username: 'u' }] },
    headers: { type: 'custom', headers: { A: '{{ value }}', B: '{{ value }}' } },
    username: { type: 'basic' },
  })) {
    await check(`auth: ${what} is refused by its name`, [`Secret.create auth.${what}`], async () => {
      const named = { perHost: /per_host/ }[what] ?? new RegExp(what);
      await fails(Secret.create({ name: `${name}_r`, value: 'x', auth, hosts: ['a.test', 'b.test'] }), 'ValidationError', named);
    });
  }
  await box.kill();
}
