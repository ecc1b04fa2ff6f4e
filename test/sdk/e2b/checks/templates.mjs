import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { create, fails, run, sdk } from '../harness.mjs';

const { Sandbox, Template } = sdk;

export default async function templates(check) {
  const name = `built-${run}`;
  const dir = mkdtempSync(path.join(tmpdir(), 'cove-e2b-'));
  mkdirSync(path.join(dir, 'src'));
  writeFileSync(path.join(dir, 'src', 'a.txt'), 'copied');
  writeFileSync(path.join(dir, 'one.sh'), '#!/bin/sh\necho one\n', { mode: 0o755 });
  await check('built from steps, with files, and used', ['smoke', 'Template.build', 'TemplateBuilder.fromTemplate', 'TemplateBuilder.runCmd', 'TemplateBuilder.copy', 'TemplateBuilder.setEnvs',
    'TemplateBuilder.setWorkdir', 'TemplateBuilder.makeDir', 'TemplateBuilder.makeSymlink', 'TemplateBuilder.rename', 'TemplateBuilder.remove', 'TemplateBuilder.copyItems'], async () => {
    const t = Template({ fileContextPath: dir }).fromTemplate('base')
      .setEnvs({ BUILT: 'yes', PATHS: '$BUILT/x' })
      .makeDir('/home/user/work').setWorkdir('/home/user/work')
      .copy('src', 'src').copyItems([{ src: 'one.sh', dest: '/home/user/one.sh' }])
      .runCmd(['echo "$BUILT in $PWD" > made', 'id -un > who'])
      .runCmd('echo root > /etc/by-root', { user: 'root' })
      .makeSymlink('/home/user/work/made', '/home/user/link').rename('/home/user/one.sh', '/home/user/two.sh').remove('/home/user/work/who');
    const logs = [];
    const info = await Template.build(t, name, { cpuCount: 1, memoryMB: 512, onBuildLogs: (l) => logs.push(l.message) });
    assert.ok(info.templateId && info.buildId, JSON.stringify(info));
    assert.ok(logs.length > 2, `${logs.length} lines of log`);
    const sbx = await create(name);
    const { stdout } = await sbx.commands.run('pwd; cat /home/user/link /home/user/work/src/a.txt; sh /home/user/two.sh; cat /etc/by-root; echo "$BUILT $PATHS"; ls /home/user/work');
    assert.equal(stdout, '/home/user/work\nyes in /home/user/work\ncopiedone\nroot\nyes yes/x\nmade\nsrc\n');
    assert.equal((await sbx.getInfo()).memoryMB, 512);
    await sbx.kill();
  });
  await check('a template that exists', ['Template.exists', 'Template.aliasExists'], async () => {
    assert.equal(await Template.exists('base'), true);
    assert.equal(await Template.aliasExists('base'), true);
    assert.equal(await Template.exists(`nope-${run}`), false);
  });
  await check('tags', ['Template.assignTags', 'Template.getTags', 'Template.removeTags'], async () => {
    const tagged = await Template.assignTags(name, ['v1']);
    assert.deepEqual(tagged.tags, ['v1']);
    assert.ok((await Template.getTags(name)).some((t) => t.tag === 'v1'));
    const sbx = await create(`${name}:v1`);
    await sbx.kill();
    await Template.removeTags(name, 'v1');
    assert.ok(!(await Template.getTags(name)).some((t) => t.tag === 'v1'));
  });
  await check('built in the background', ['Template.buildInBackground', 'Template.getBuildStatus'], async () => {
    const t = Template().fromTemplate('base').runCmd(`echo ${run}`);
    const info = await Template.buildInBackground(t, `later-${run}`);
    let status;
    do {
      status = await Template.getBuildStatus(info);
      assert.ok(['waiting', 'building', 'ready'].includes(status.status), JSON.stringify(status));
    } while (status.status !== 'ready');
  });
  await check('a step that fails', ['smoke', 'Template.build', 'TemplateBuilder.runCmd'], async () => {
    const t = Template().fromTemplate('base').runCmd('echo first').runCmd('echo told >&2; exit 9');
    await fails(Template.build(t, `bad-${run}`), 'BuildError', /exit|told|9/);
    assert.equal(await Template.exists(`bad-${run}`), false);
  });
  await check('a program that runs from the start', ['Template.build', 'TemplateBuilder.setStartCmd', 'TemplateBuilder.setReadyCmd'], async () => {
    const t = Template().fromTemplate('base').setStartCmd('echo up > /tmp/up; sleep 100000', sdk.waitForFile('/tmp/up'));
    await Template.build(t, `started-${run}`);
    const sbx = await create(`started-${run}`);
    assert.equal((await sbx.commands.run('cat /tmp/up; pgrep -f "sleep 10000[0]" > /dev/null && echo runs')).stdout, 'up\nruns\n');
    await sbx.kill();
  });
  await check('a user of its own', ['Template.build', 'TemplateBuilder.setUser', 'TemplateBuilder.gitClone', 'TemplateBuilder.copy', 'TemplateBuilder.runCmd'], async () => {
    const t = Template({ fileContextPath: dir }).fromTemplate('base').setUser('worker').setWorkdir('/home/worker')
      .runCmd('id -un > who; git init -q --bare bare; git config --global safe.directory "*"').gitClone('/home/worker/bare', '/home/worker/r')
      .copy('one.sh', 'mine.sh').copy('one.sh', '/srv/theirs.sh', { user: 'root:worker', mode: 0o711 });
    await Template.build(t, `user-${run}`);
    const sbx = await create(`user-${run}`);
    assert.equal((await sbx.commands.run('id -un; cat who; ls -d ~/r; stat -c "%U:%G %a" /srv/theirs.sh; [ -w mine.sh ] && sh mine.sh')).stdout, 'worker\nworker\n/home/worker/r\nroot:GROUP 711\none\n'.replace('GROUP', process.env.COVE_ROOT ? 'worker' : 'root'));
    await sbx.kill();
  });
  await check('an image of a registry with a login', ['TemplateBuilder.fromImage', 'TemplateBuilder.fromGCPRegistry', 'TemplateBuilder.skipCache', 'Template.build'], async () => {
    const password = process.env.COVE_IMAGE_PASSWORD;
    const steps = (from) => from.setUser('app').setWorkdir('/srv/made').setEnvs({ FROM: 'image' });
    await Template.build(steps(Template().fromImage(process.env.COVE_IMAGE, { username: 'me', password })).runCmd('echo "$FROM $PWD" > made'), `image-${run}`);
    const sbx = await create(`image-${run}`);
    assert.equal(await sbx.files.read('/srv/made/made', { user: 'app' }), 'image /srv/made\n');
    await sbx.kill();
    const google = Template().fromGCPRegistry(process.env.COVE_IMAGE, { serviceAccountJSON: JSON.parse(password) }).skipCache();
    await Template.build(steps(google).runCmd('echo again > made'), `image-${run}`);
    await fails(Template.build(Template().fromImage(process.env.COVE_IMAGE, { username: 'me', password: 'wrong' }).runCmd('true'), `other-${run}`), 'BuildError');
  });
  await check('keys of AWS are refused by name', ['TemplateBuilder.fromAWSRegistry'], async () => {
    const t = Template().fromAWSRegistry(process.env.COVE_IMAGE, { accessKeyId: 'a', secretAccessKey: 'b', region: 'c' });
    await fails(Template.build(t, `aws-${run}`), 'BuildError', /AWS/);
  });
  await check('more builds at once than a team may have', ['Template.buildInBackground'], async () => {
    const builds = await Promise.allSettled(Array.from({ length: 4 }, (_, i) => Template.buildInBackground(Template().fromTemplate('base').runCmd(`sleep 2 # ${i}`), `many${i}-${run}`, { retries: 0 })));
    const refused = builds.filter((b) => b.status === 'rejected');
    assert.ok(refused.length > 0 && refused.every((b) => b.reason instanceof sdk.RateLimitError), JSON.stringify(builds.map((b) => String(b.reason))));
  });
  await check('a Dockerfile', ['TemplateBuilder.fromDockerfile', 'TemplateBuilder.fromDebianImage', 'TemplateBuilder.fromBaseImage', 'Template.toJSON', 'Template.toDockerfile'], async () => {
    const made = JSON.parse(await Template.toJSON(Template().fromDockerfile('FROM debian:stable\nRUN echo hi\nWORKDIR /srv\n'), false));
    assert.equal(made.fromImage, 'debian:stable');
    assert.match(Template.toDockerfile(Template().fromDebianImage().runCmd('x')), /RUN x/);
    assert.ok(JSON.parse(await Template.toJSON(Template().fromBaseImage(), false)).fromImage);
  });
  await check('a template that is not there', ['smoke', 'Sandbox.create'], async () => {
    await fails(Sandbox.create(`nope-${run}`), 'SandboxError', /not found/);
  });
  rmSync(dir, { recursive: true });
}
