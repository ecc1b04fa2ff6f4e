import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { apiKey, at, connect, directory, fails, run, sdk } from '../harness.mjs';

const { Sandbox, Template } = sdk;

export default async function templates(check) {
  await check('templates that there are', ['smoke', 'Sandbox.listTemplates', 'Sandbox.getTemplate'], async () => {
    const all = await Sandbox.listTemplates(at);
    const one = all.find((t) => t.isActive);
    assert.ok(one, JSON.stringify(all));
    const same = await Sandbox.getTemplate(one.name, at);
    assert.deepEqual([same.id, same.status, same.displayName], [one.id, 'active', one.displayName]);
    assert.ok(same.defaultResources.vcpu >= 1 && Array.isArray(same.features));
    assert.deepEqual(await Sandbox.listTemplates({ ...at, category: 'none-such' }), []);
  });
  await check('what a build refuses', ['Template.build', 'Template.build agent_version', 'Template.fromAWSPrivateImage'], async () => {
    const from = new Template('example.com/x').runCmd('true');
    await assert.rejects(Template.build(from, { ...at, apiKey, name: run, cpu: 100 }), /cpu is 100/);
    await assert.rejects(Template.build(new Template('example.com/x').copy('package.json', '/', { owner: 'a:b:c' }), { ...at, apiKey, name: run }), /owner/);
    await assert.rejects(Template.build(new Template('example.com/x').copy('package.json', '/', { permissions: 'rw' }), { ...at, apiKey, name: run }), /mode/);
    await assert.rejects(Template.build(new Template('example.com/x').runCmd('true').addMetadata('agent_version', '1'), { ...at, apiKey, name: run }), /agent_version/);
    const aws = new Template().fromAWSPrivateImage('1.dkr.ecr.us-east-1.amazonaws.com/x:1', { accessKeyId: 'AKIA0000', secretAccessKey: 's', region: 'us-east-1' }).runCmd('true');
    await assert.rejects(Template.build(aws, { ...at, apiKey, name: run }), /keys of AWS/);
    await fails(Sandbox.deleteTemplate(run, at), 'APIError', /does not exist/);
  });
  await check('built from an image with files, and used', [
    'smoke', 'Template.build', 'Template.fromPrivateImage', 'Template.copy', 'Template.runCmd', 'Template.setEnv', 'Template.setEnvs', 'Template.setWorkdir', 'Template.setStartCmd', 'Sandbox.deleteTemplate',
  ], async () => {
    const dir = directory();
    writeFileSync(path.join(dir, 'a.txt'), 'from here\n');
    writeFileSync(path.join(dir, 'b.txt'), `theirs ${run}\n`);
    const name = `made-${run}`;
    const logs = [];
    const template = new Template().fromPrivateImage(process.env.COVE_IMAGE, { username: 'me', password: process.env.COVE_IMAGE_PASSWORD })
      .setEnv('A', 'b').setEnvs({ C: 'd' }).setWorkdir('/app').copy('a.txt', '/app/').copy('b.txt', '/app/theirs.txt', { owner: 'app:0', permissions: '0640' })
      .runCmd('read x < a.txt; echo "$A$C, $x, $PWD" > /app/made; stat -c "%u:%g %a" theirs.txt > owner')
      .setStartCmd('echo up > /app/up; exec sleep 1000', sdk.waitForFile('/app/up'));
    const built = await Template.build(template, { ...at, apiKey, name, cpu: 1, memory: 512, diskGB: 1, contextPath: dir, onLog: (l) => logs.push(l.message) });
    assert.equal(built.templateID, name);
    assert.ok(logs.length > 0);
    assert.notEqual((await built.getLogs()).logs, '');
    const vm = await built.createVM({ envVars: { E: 'e' } });
    const sbx = await connect(vm.vmID);
    assert.equal(await sbx.files.read('/app/made'), 'bd, from here, /app\n');
    assert.equal(await sbx.files.read('/app/up'), 'up\n');
    // The server of an ordinary user can give no file away, and lets all do what its owner may.
    assert.equal(await sbx.files.read('/app/owner'), process.env.COVE_ROOT ? '1000:0 640\n' : '0:0 666\n');
    assert.deepEqual([await sbx.env.get('A'), await sbx.env.get('E')], ['b', 'e']);
    await vm.delete();
    // Without files: the SDK stumbles over an archive of its own where the server has it already.
    await assert.rejects(Template.build(new Template('example.com/x').runCmd('true'), { ...at, apiKey, name }), /exists already/);
    assert.equal((await Sandbox.deleteTemplate(name, at)).status, 'deleted');
  });
}
