import assert from 'node:assert/strict';
import { create, fails, run, sdk } from '../harness.mjs';

const { Sandbox } = sdk;
const ask = async (sbx, host) => JSON.parse((await sbx.commands.run(`curl -fsS --max-time 8 https://${host}/`)).stdout);
const get = (host, more = '') => `curl -fsS -o /dev/null --max-time 8 ${more} http://${host}/ && echo reached || echo not`;

export default async function network(check) {
  await check('the Internet, and none', ['Sandbox.create', 'Sandbox.getInfo'], async () => {
    const open = await create();
    assert.equal((await open.commands.run(get('example.com'))).stdout, 'reached\n');
    await open.kill();
    const shut = await create({ allowInternetAccess: false });
    assert.equal((await shut.commands.run(get('example.com'))).stdout, 'not\n');
    assert.equal((await shut.getInfo()).allowInternetAccess, false);
    await shut.kill();
  });
  await check('names that are allowed, and a change', ['Sandbox.create', 'Sandbox.updateNetwork'], async () => {
    const sbx = await create({ network: { allowOut: ['example.com'], denyOut: ['0.0.0.0/0'] } });
    assert.equal((await sbx.commands.run(get('example.com'))).stdout, 'reached\n');
    assert.equal((await sbx.commands.run(get('other.test'))).stdout, 'not\n');
    await sbx.updateNetwork({ allowOut: ['other.test'], denyOut: [sdk.ALL_TRAFFIC] });
    assert.equal((await sbx.commands.run(get('example.com'))).stdout, 'not\n');
    assert.equal((await sbx.commands.run(get('other.test'))).stdout, 'reached\n');
    assert.deepEqual((await sbx.getInfo()).network?.allowOut, ['other.test']);
    await Sandbox.updateNetwork(sbx.sandboxId, {});
    assert.equal((await sbx.commands.run(get('example.com'))).stdout, 'reached\n');
    await sbx.kill();
  });
  await check('what a policy may not hold', ['Sandbox.create'], async () => {
    await fails(Sandbox.create({ network: { denyOut: ['not a cidr'] } }), 'SandboxError', /400/);
    await fails(Sandbox.create({ network: { allowOut: ['example.com'] } }), 'SandboxError', /400/);
  });
  await check('secrets', ['Secret.create', 'Secret.list', 'Secret.getInfo', 'Secret.exists', 'Secret.update', 'Secret.destroy', 'Secret.fill', 'SecretPaginator.nextItems'], async () => {
    const { Secret } = sdk;
    const name = `s_${run}`;
    const s = await Secret.create(name, 'value-1');
    assert.equal(s.name, name);
    assert.equal(await Secret.exists(name), true);
    assert.equal((await Secret.getInfo(name)).secretId ?? (await Secret.getInfo(name)).secretID, s.secretId ?? s.secretID);
    assert.equal((await Secret.update(name, 'value-2', { metadata: { owner: 'us' } })).currentVersion ?? 2, 2);
    assert.deepEqual((await Secret.getInfo(name)).metadata, { owner: 'us' });
    const list = Secret.list();
    const all = [];
    while (list.hasNext) all.push(...(await list.nextItems()));
    assert.ok(all.some((x) => x.name === name));
    assert.ok(!JSON.stringify(all).includes('value-'));
    assert.equal(Secret.fill(name), `\${e2b.secrets.${name}}`);
    assert.equal(await Secret.destroy(name), true);
    assert.equal(await Secret.destroy(name), false);
    await fails(Secret.getInfo(name), 'SecretNotFoundError');
  }, { since: '2.49.0' });
  await check('rules that set headers, with a secret', ['Sandbox.create network.rules', 'Sandbox.updateNetwork', 'Secret.fill'], async () => {
    const { Secret } = sdk;
    const name = `r_${run}`;
    await Secret.create(name, 'value-of-a-rule-1');
    const headers = { Authorization: `Bearer ${Secret.fill(name)}`, 'X-Plain': 'plain' };
    const sbx = await create({ network: { rules: { 'api.example.com': [{ transform: { headers } }] } } });
    const sent = async (host) => (await ask(sbx, host)).header;
    const got = await sent('api.example.com');
    assert.deepEqual(got['X-Plain'], ['plain']);
    // The server has got the value, and what it says of that is masked.
    assert.match(got.Authorization[0], /^Bearer /);
    assert.ok(!got.Authorization[0].includes('value-') && !got.Authorization[0].includes('$'));
    assert.equal((await sent('www.example.com')).Authorization, undefined);
    assert.deepEqual((await sbx.getInfo()).network?.rules, { 'api.example.com': [{ transform: { headers } }] });
    await sbx.updateNetwork({ rules: { 'www.example.com': [{ transform: { headers: { 'X-Plain': 'new' } } }] } });
    assert.deepEqual((await sent('www.example.com'))['X-Plain'], ['new']);
    assert.equal((await sent('api.example.com')).Authorization, undefined);
    await Secret.destroy(name);
    await fails(sbx.updateNetwork({ rules: { 'api.example.com': [{ transform: { headers } }] } }), 'SandboxError', /400.*there is not/);
    await fails(Sandbox.create({ network: { rules: { 'api.example.com': [{ transform: { headers: { A: '${e2b.identity.tokens.x}' } } }] } } }), 'SandboxError', /400/);
    await sbx.kill();
  }, { since: '2.49.0' });
}
