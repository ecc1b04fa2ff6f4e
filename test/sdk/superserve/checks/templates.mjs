import assert from 'node:assert/strict';
import { create, fails, run, sdk } from '../harness.mjs';

const { Template } = sdk;
const from = process.env.COVE_IMAGE;
const poll = { pollIntervalMs: 100 };

export default async function templates(check) {
  const name = `built-${run}`;
  await check('built from all kinds of steps, and used', ['smoke', 'Template.create', 'Template.waitUntilReady', 'Template.getInfo', 'Template.connect', 'Template.list',
    'Template.getBuild', 'Template.listBuilds', 'Template.streamBuildLogs', 'Template.delete', 'Template.deleteById'], async () => {
    const t = await Template.create({
      name, from, vcpu: 1, memoryMib: 512, diskMib: 1024,
      steps: [
        { run: 'echo before=$COLOR > /before' },
        { env: { key: 'COLOR', value: 'blue' } },
        { workdir: '/srv' },
        { user: { name: 'app' } },
        { workdir: 'app' },
        { run: 'echo built by $COLOR > made; echo a line of the log' },
      ],
    });
    assert.equal(t.name, name);
    assert.ok(t.latestBuildId && t.teamId);
    const log = [];
    const info = await t.waitUntilReady({ ...poll, onLog: (e) => log.push(e) });
    assert.equal(info.status, 'ready');
    assert.ok(info.builtAt instanceof Date);
    assert.deepEqual([info.vcpu, info.memoryMib, info.diskMib], [1, 512, 1024]);
    const events = [];
    await t.streamBuildLogs({ onEvent: (e) => events.push(e) });
    assert.ok(events.some((e) => e.text.includes('a line of the log')), JSON.stringify(events));
    assert.deepEqual([events.at(-1).finished, events.at(-1).status], [true, 'ready']);
    const [build] = await t.listBuilds({ limit: 1 });
    assert.deepEqual([build.id, build.status, build.templateId], [t.latestBuildId, 'ready', t.id]);
    assert.equal((await t.getBuild(build.id)).buildSpecHash, build.buildSpecHash);
    assert.equal((await Template.connect(name)).id, t.id);
    assert.deepEqual((await Template.list({ namePrefix: name })).map((x) => x.name), [name]);
    assert.ok((await Template.list()).some((x) => x.name === 'superserve/base' && x.status === 'ready'));
    assert.equal((await Template.connect('superserve/base')).status, 'ready');
    const box = await create({ fromTemplate: t });
    const res = await box.commands.run('cat made /before; echo $COLOR; pwd; while read -r k v _; do [ "$k" = Uid: ] && echo uid $v; done < /proc/self/status');
    assert.equal(res.stdout, 'built by blue\nbefore=\nblue\n/srv/app\nuid 1000\n', JSON.stringify(res));
    assert.equal((await box.getInfo()).memoryMib, 512);
    await fails(t.delete(), 'ConflictError', new RegExp(box.id));
    await box.kill();
    await t.delete();
    await t.delete();
    await Template.deleteById(name);
    await fails(Template.connect(name), 'NotFoundError');
  });
  await check('a step that fails', ['Template.waitUntilReady'], async () => {
    const t = await Template.create({ name: `${name}-bad`, from, steps: [{ run: 'echo on the way; exit 5' }] });
    const err = await fails(t.waitUntilReady(poll), 'BuildError');
    assert.deepEqual([err.code, err.buildId, err.templateId], ['step_failed', t.latestBuildId, t.id]);
    await t.delete();
  });
  await check('built again, and cancelled', ['Template.rebuild', 'Template.cancelBuild'], async () => {
    const t = await Template.create({ name: `${name}-slow`, from, startCmd: 'sleep 1000', readyCmd: 'true', steps: [{ run: 'sleep 600' }] });
    assert.equal((await t.rebuild()).id, t.latestBuildId); // the one that runs
    await fails(t.delete(), 'ConflictError', /being built/);
    await t.cancelBuild(t.latestBuildId);
    const err = await fails(t.waitUntilReady(poll), 'ConflictError');
    assert.equal(err.code, 'cancelled');
    await t.cancelBuild(t.latestBuildId);
    await t.delete().catch(() => {});
  });
  await check('what is no template', ['Template.create'], async () => {
    await fails(Template.create({ name: 'superserve/mine', from }), 'ValidationError', /reserved/);
    await fails(Template.create({ name: 'Bad Name', from }), 'ValidationError', /name/);
    await fails(Template.create({ name: `${name}-x`, from, steps: [{ copy: 'a' }] }), 'ValidationError', /copy/);
    await fails(Template.create({ name: `${name}-x`, from, steps: [{ run: 'a', workdir: '/b' }] }), 'ValidationError', /exactly one/);
    await fails(Template.create({ name: `${name}-x`, from, steps: [{ env: { key: 'A B', value: '' } }] }), 'ValidationError', /variable/);
    await fails(Template.create({ name: `${name}-x`, from, steps: [{ user: { name: "x'; rm -rf /" } }] }), 'ValidationError', /user/);
    await fails(Template.deleteById('superserve/base'), 'AuthenticationError', /server/);
    await fails(create({ fromTemplate: 'none-of-these' }), 'NotFoundError', /none-of-these/);
  });
}
