import assert from 'node:assert/strict';
import { daytona, fails, run, sdk, shared } from '../harness.mjs';

export default async function errors(check) {
  const sbx = await shared();
  await check('a wrong key, and none', ['smoke', 'Daytona.list'], async () => {
    const wrong = new sdk.Daytona({ apiKey: 'cove_wrong', apiUrl: process.env.DAYTONA_API_URL });
    await fails(wrong.list().next(), 'DaytonaAuthenticationError');
    await fails(wrong.get(sbx.id), 'DaytonaAuthenticationError');
    await fails(wrong.create(), 'DaytonaAuthenticationError');
  });
  await check('what does not exist, and names that are taken', ['Daytona.get', 'Daytona.create'], async () => {
    await fails(daytona.get(`none-${run}`), 'DaytonaNotFoundError', /not found/);
    await fails(daytona.get('../../v1/keys'), 'DaytonaNotFoundError');
    await fails(daytona.create({ name: sbx.name }), 'DaytonaConflictError');
    await fails(daytona.create({ name: 'Not A Name' }), 'DaytonaValidationError', /name/);
  });
  const refused = {
    gpu: { image: 'x', resources: { gpu: 1 } }, 'volumes.subpath': { volumes: [{ volumeId: 'v', mountPath: '/m', subpath: 's' }] },
    dockerfileContent: { image: sdk.Image.base('debian:12').dockerfileCommands(['FROM debian:13']) }, outboundProxyUrl: { outboundProxyUrl: 'http://proxy:1' },
    linkedSandbox: { linkedSandbox: sbx.id }, ttlMinutes: { ttlMinutes: 60 }, autoPauseInterval: { autoPauseInterval: 5, autoStopInterval: 5 },
    networkAllowList: { networkAllowList: 'x' }, domainAllowList: { domainAllowList: '192.0.2.1' }, 'cove\\.': { labels: { 'cove.daytona.public': 'on' } },
  };
  for (const [field, params] of Object.entries(refused)) {
    await check(`create with ${field} that cannot be`, [`Daytona.create ${field.replace('\\', '').replace(/\.$/, '')}`], async () => {
      await fails(daytona.create(params), 'DaytonaValidationError', new RegExp(field));
    });
  }
  await check('a target', ['Daytona.create target'], async () => {
    const far = new sdk.Daytona({ target: 'us' });
    await fails(far.create(), 'DaytonaValidationError', /target/);
  });
  const lsp = () => sbx.createLspServer('python', '/tmp');
  for (const [method, call] of Object.entries({
    'Sandbox.recover': () => sbx.recover(), 'Sandbox.rotateSigningKey': () => sbx.rotateSigningKey(), 'Sandbox.createSshAccess': () => sbx.createSshAccess(),
    'Sandbox.revokeSshAccess': () => sbx.revokeSshAccess('x'), 'Sandbox.validateSshAccess': () => sbx.validateSshAccess('x'),
    'Sandbox.expireSignedPreviewUrl': () => sbx.expireSignedPreviewUrl(8123, 'x'),
    'Git.dangerouslyAuthenticate': () => sbx.git.dangerouslyAuthenticate('u', 'p'),
    'LspServer.start': async () => (await lsp()).start(), 'ComputerUse.start': () => sbx.computerUse.start(),
    'WarmPoolService.list': () => daytona.warmPool.list(),
    'Process.getEntrypointLogs': () => sbx.process.getEntrypointLogs(), 'Process.getEntrypointSession': () => sbx.process.getEntrypointSession(),
  })) {
    await check(`${method} says that it is not served`, [], async () => {
      const err = await fails(call(), 'DaytonaError', /Cove does not serve/);
      assert.equal(err.statusCode, 501);
    });
  }
}
