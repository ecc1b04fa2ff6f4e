import assert from 'node:assert/strict';
import { create, fails, sdk } from '../harness.mjs';

const { Sandbox } = sdk;
const key = { apiKey: `e2b_${'0'.repeat(40)}` };

export default async function errors(check) {
  await check('a key that is none', ['smoke', 'Sandbox.create', 'Sandbox.list'], async () => {
    await fails(Sandbox.create(key), 'AuthenticationError');
    await fails(Sandbox.list(key).nextItems(), 'AuthenticationError');
    await fails(Sandbox.kill('sbx00000000000000000000000000', key), 'AuthenticationError');
    await fails(sdk.Template.exists('x', key), 'AuthenticationError');
  });
  await check('sandboxes that are not there', ['smoke', 'Sandbox.getInfo', 'Sandbox.connect', 'Sandbox.kill', 'Sandbox.setTimeout', 'Sandbox.createSnapshot'], async () => {
    const id = 'sbx00000000000000000000000000';
    await fails(Sandbox.getInfo(id), 'SandboxNotFoundError');
    await fails(Sandbox.connect(id), 'SandboxNotFoundError');
    await fails(Sandbox.setTimeout(id, 1000), 'SandboxNotFoundError');
    await fails(Sandbox.createSnapshot(id), 'SandboxNotFoundError');
    assert.equal(await Sandbox.kill(id), false);
  });
  await check('a lifetime of nothing', ['Sandbox.create'], async () => {
    await fails(Sandbox.create({ timeoutMs: -1000 }), 'SandboxError', /400/);
  });
  for (const [what, opts] of Object.entries({
    iam: { iam: { tokens: { A: { audience: 'a', tokenType: 'JWT-SVID' } } } },
    mcp: { mcp: { time: {} } },
    'network.egressProxy': { network: { egressProxy: { address: '192.0.2.9:1080' } } },
    'network.maskRequestHost': { network: { maskRequestHost: 'x.test' } },
    'network.httpsPorts': { network: { httpsPorts: [8443] } },
  })) {
    const since = { iam: '2.49.0', 'network.egressProxy': '2.49.0', 'network.httpsPorts': '2.49.0' }[what];
    await check(`${what} is refused by its name`, [`Sandbox.create ${what}`], async () => {
      await fails(Sandbox.create(opts), 'SandboxError', new RegExp(what.split('.').at(-1), 'i'));
    }, { since });
  }
  await check('a token that is another sandbox’s', ['Sandbox.connect'], async () => {
    const [a, b] = [await create(), await create()];
    const theirs = new Sandbox({ sandboxId: b.sandboxId, envdVersion: '0.6.13', envdAccessToken: a.envdAccessToken });
    await fails(theirs.commands.run('true'), 'AuthenticationError');
    await fails(theirs.files.read('/etc/hostname'), 'AuthenticationError');
    const none = new Sandbox({ sandboxId: b.sandboxId, envdVersion: '0.6.13' });
    await fails(none.commands.run('true'), 'AuthenticationError');
    await Promise.all([a.kill(), b.kill()]);
  });
  await check('a disk that is full', ['smoke', 'Filesystem.write'], async () => {
    const sbx = await create('small'); // with a disk of 32 MiB
    const fill = async () => { for (let i = 0; i < 16; i++) await sbx.files.write(`/home/user/big${i}`, new Uint8Array(4 << 20).buffer); };
    await fails(fill(), 'NotEnoughSpaceError');
    await sbx.files.remove('/home/user/big0');
    await sbx.files.write('/home/user/little', 'fits');
    await sbx.kill();
  });
  await check('a request that takes too long', ['Sandbox.create'], async () => {
    await fails(Sandbox.create({ requestTimeoutMs: 1 }), 'TimeoutError').catch((err) => assert.match(String(err), /TimeoutError|abort|timed out/i));
  });
}
