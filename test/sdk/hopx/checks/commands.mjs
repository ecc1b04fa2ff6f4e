import assert from 'node:assert/strict';
import { create, fails, until } from '../harness.mjs';

export default async function commands(check) {
  const sbx = await create();
  await check('commands with both streams, environment and directory', ['smoke', 'Commands.run'], async () => {
    const r = await sbx.commands.run('echo "$A in $PWD"; echo no >&2; exit 3', { env: { A: 'x y' }, workingDir: '/tmp' });
    assert.deepEqual([r.stdout, r.stderr, r.exit_code, r.success], ['x y in /tmp\n', 'no\n', 3, false]);
    assert.ok(r.execution_time >= 0 && r.pid > 0 && r.timestamp);
    assert.equal((await sbx.commands.run('pwd')).stdout, '/workspace\n');
    assert.equal((await sbx.commands.run('echo a | tr a b; [[ 1 == 1 ]] && echo bash')).stdout, 'b\nbash\n');
  });
  await check('a command that takes too long', ['Commands.run'], async () => {
    const r = await sbx.commands.run('echo begun; sleep 60', { timeout: 5 });
    assert.deepEqual([r.stdout, r.exit_code], ['begun\n', 124]);
    await fails(sbx.commands.run('true', { timeout: 100_000 }), 'APIError', /timeout is 100000 seconds/);
    await fails(sbx.commands.run('true', { workingDir: '/no/such' }), 'APIError', /no.such/);
  });
  await check('commands in the background', ['Commands.runBackground', 'Commands.run', 'Sandbox.listProcesses'], async () => {
    const one = await sbx.commands.runBackground('echo one; sleep 600');
    const two = await sbx.commands.run('echo two; exit 2', { background: true });
    assert.match(one.process_id, /^cmd_/);
    const get = async (id) => (await sbx.listProcesses()).find((p) => p.process_id === id);
    await until('the first', async () => (await get(one.process_id))?.stdout === 'one\n');
    const ended = await until('the second', async () => { const p = await get(two.process_id); return p?.status === 'failed' && p; });
    assert.equal(ended.exit_code, 2);
    await sbx.killProcess(one.process_id);
  });
  await check('environment variables', ['EnvironmentVariables.getAll', 'EnvironmentVariables.get', 'EnvironmentVariables.set', 'EnvironmentVariables.update', 'EnvironmentVariables.setAll', 'EnvironmentVariables.delete'], async () => {
    await sbx.env.set('ONE', '1');
    assert.equal((await sbx.env.update({ TWO: '2', MY_TOKEN: 'hidden' })).TWO, '2');
    assert.equal(await sbx.env.get('ONE'), '1');
    assert.equal((await sbx.env.getAll()).MY_TOKEN, '***MASKED***');
    await sbx.env.delete('ONE'); // which gives the masked value back
    assert.equal((await sbx.commands.run('echo "$ONE,$TWO,$MY_TOKEN"')).stdout, ',2,hidden\n');
    const left = await sbx.env.setAll({ THREE: '3' });
    assert.deepEqual([left.THREE, left.TWO], ['3', undefined]);
  });
}
