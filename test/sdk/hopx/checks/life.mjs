import assert from 'node:assert/strict';
import { apiKey, at, baseURL, connect, create, fails, run, sdk, until } from '../harness.mjs';

const { Sandbox } = sdk;

export default async function life(check) {
  let sbx;
  await check('the server is there', ['smoke', 'Sandbox.healthCheck'], async () => {
    assert.equal((await Sandbox.healthCheck(baseURL)).status, 'healthy');
  });
  await check('create with environment, region and a lifetime', ['smoke', 'Sandbox.create'], async () => {
    sbx = await create({ region: run, envVars: { FROM: 'create' }, timeoutSeconds: 240 });
    assert.equal((await sbx.commands.run('echo $FROM')).stdout, 'create\n');
  });
  await check('what a sandbox says of itself', ['smoke', 'Sandbox.getInfo'], async () => {
    const info = await sbx.getInfo();
    assert.equal(info.sandboxId, sbx.sandboxId);
    assert.equal(info.status, 'running');
    assert.equal(info.templateName && info.region, run);
    assert.equal(info.timeoutSeconds, 240);
    assert.ok(info.resources.vcpu >= 1 && info.resources.memoryMb >= 128 && info.resources.diskMb > 0);
    assert.ok(new Date(info.expiresAt) > new Date() && info.startedAt && info.publicHost.includes(sbx.sandboxId), JSON.stringify(info));
  });
  await check('lists, and those of a region', ['Sandbox.list', 'Sandbox.iter'], async () => {
    assert.deepEqual((await Sandbox.list({ ...at, region: run })).map((s) => s.sandboxId), [sbx.sandboxId]);
    assert.deepEqual(await Sandbox.list({ ...at, region: run, status: 'paused' }), []);
    const seen = [];
    for await (const s of Sandbox.iter({ ...at, region: run, status: 'running' })) seen.push(s.sandboxId);
    assert.deepEqual(seen, [sbx.sandboxId]);
  });
  await check('a sandbox without access to the internet', ['Sandbox.create internetAccess', 'Sandbox.kill'], async () => {
    const alone = await create({ internetAccess: false });
    assert.equal((await alone.getInfo()).internetAccess, false);
    await alone.kill();
  });
  await check('another lifetime', ['Sandbox.setTimeout', 'Sandbox.getTimeToExpiry', 'Sandbox.isExpiringSoon', 'Sandbox.getExpiryInfo'], async () => {
    await sbx.setTimeout(900);
    const left = await sbx.getTimeToExpiry();
    assert.ok(left > 800 && left <= 900, `${left} s`);
    assert.equal(await sbx.isExpiringSoon(), false);
    const info = await sbx.getExpiryInfo();
    assert.equal(info.hasTimeout && !info.isExpired, true);
  });
  await check('paused, and continued where it was', ['smoke', 'Sandbox.pause', 'Sandbox.resume', 'Sandbox.connect'], async () => {
    await sbx.runCode('kept = 41');
    await sbx.pause();
    assert.equal((await sbx.getInfo()).status, 'paused');
    const err = await fails(sbx.files.exists('/workspace/x'), 'APIError', /paused/);
    assert.equal(err.statusCode, 409);
    await sbx.resume();
    assert.equal((await sbx.runCode('print(kept + 1)')).stdout, '42\n');
    await sbx.pause();
    const other = await connect(sbx.sandboxId); // which resumes
    assert.equal((await other.runCode('print(kept + 2)')).stdout, '43\n');
  });
  await check('tokens', ['Sandbox.refreshToken', 'Sandbox.getToken', 'Sandbox.ensureValidToken', 'Sandbox.init'], async () => {
    const before = await sbx.getToken();
    await sbx.refreshToken();
    assert.equal(await sbx.getToken(), before);
    await sbx.ensureValidToken();
    await sbx.init();
    assert.equal(await sbx.files.exists('/workspace'), true);
  });
  await check('its health and figures', ['Sandbox.getHealth', 'Sandbox.isHealthy', 'Sandbox.ensureHealthy', 'Sandbox.getAgentInfo', 'Sandbox.getMetricsSnapshot', 'Sandbox.getAgentMetrics'], async () => {
    const health = await sbx.getHealth();
    assert.equal(health.status, 'healthy');
    assert.ok(health.features.terminal_access && health.uptime_seconds >= 0, JSON.stringify(health));
    assert.equal(await sbx.isHealthy(), true);
    await sbx.ensureHealthy();
    assert.equal((await sbx.getAgentInfo()).vm_id, sbx.sandboxId);
    const m = await sbx.getMetricsSnapshot();
    assert.ok(m.uptime_seconds >= 0 && m.system.memory.total > 0, JSON.stringify(m));
    assert.ok((await sbx.getAgentMetrics()).total_executions >= 0);
  });
  await check('told when it expires soon', ['Sandbox.startExpiryMonitor', 'Sandbox.stopExpiryMonitor'], async () => {
    let told;
    sbx.startExpiryMonitor((info) => { told = info; }, 100_000, 0.05);
    await until('the warning', () => told);
    sbx.stopExpiryMonitor();
    assert.equal(told.isExpired, false);
  });
  await check('addresses of ports', ['Sandbox.getPreviewUrl'], async () => {
    if (baseURL) { // the SDK knows the product's names only
      await fails(sbx.getPreviewUrl(3000), 'HopxError', /preview URL/);
    } else {
      assert.match(await sbx.getPreviewUrl(3000), new RegExp(`^https://3000-${sbx.sandboxId}\\..*\\.vms\\.hopx\\.dev/$`));
    }
  });
  await check('killed, and gone', ['smoke', 'Sandbox.kill', 'Sandbox.connect'], async () => {
    await sbx.kill();
    await fails(sbx.getInfo(), 'SandboxExpiredError', /not found/);
    await fails(sbx.kill(), 'SandboxExpiredError');
    await fails(sbx.runCode('1'), 'SandboxExpiredError');
    await fails(connect(sbx.sandboxId), 'SandboxExpiredError');
    assert.ok(apiKey);
  });
}
