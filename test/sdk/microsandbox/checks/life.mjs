import assert from 'node:assert/strict';
import { create, fails, idOf, image, nameOf, raw, run, sdk } from '../harness.mjs';

const { Sandbox } = sdk;

export default async function life(check) {
  const box = await create((b) => b.label('job', run).label('what', 'a b+c').env('GREETING', 'hello').workdir('/srv').cpus(1).memory(512));
  await check('made, found and described', ['smoke', 'Sandbox.builder', 'Sandbox.get', 'Sandbox.list', 'Sandbox.listWith', 'SandboxListBuilder.label', 'SandboxListBuilder.labels', 'SandboxListBuilder.limit', 'SandboxListBuilder.toNapi', 'SandboxHandle.refresh', 'SandboxHandle.connect', 'Sandbox.exec', 'SandboxHandle.config'], async () => {
    const handle = await Sandbox.get(box.name);
    assert.equal(handle.status, 'running');
    assert.equal(handle.id, box.id);
    assert.equal((await handle.refresh()).status, 'running');
    handle.config();
    assert.ok((await Sandbox.list()).sandboxes.some((s) => s.name === box.name));
    assert.deepEqual((await Sandbox.listWith((l) => l.label('job', run).label('what', 'a b+c').limit(10))).sandboxes.map((s) => s.name), [box.name]);
    assert.deepEqual((await Sandbox.listWith((l) => l.labels({ job: run, what: 'other' }))).sandboxes, []);
    const again = await handle.connect();
    const out = await again.exec('sh', ['-c', 'echo $GREETING; pwd']);
    assert.equal(out.stdout(), 'hello\n/srv\n');
  });
  await check('pages', ['SandboxListBuilder.cursor'], async () => {
    const other = await create((b) => b.label('job', run));
    const first = await Sandbox.listWith((l) => l.label('job', run).limit(1));
    assert.equal(first.sandboxes.length, 1);
    const second = await Sandbox.listWith((l) => l.label('job', run).limit(1).cursor(first.nextCursor));
    assert.deepEqual(new Set([...first.sandboxes, ...second.sandboxes].map((s) => s.name)), new Set([box.name, other.name]));
    await other.stop();
    await Sandbox.remove(other.name);
    await fails(Sandbox.get(other.name), /not found/i, 'SandboxNotFoundError');
  });
  await check('a name is one sandbox\'s, and may have capitals', ['Sandbox.builder', 'Sandbox.remove'], async () => {
    await fails(create(undefined, { name: box.name }), /exists|taken|name/i, 'SandboxAlreadyExistsError');
    const name = `${nameOf()}_Capital.Letters`;
    const odd = await create(undefined, { name });
    assert.equal((await Sandbox.get(name)).id, odd.id);
    await fails(create(undefined, { name }), /name/i, 'SandboxAlreadyExistsError');
    await odd.stop();
    await Sandbox.remove(name);
    await fails(Sandbox.get(name), /not found/i, 'SandboxNotFoundError');
  });
  await check('stopped and started, with its files', ['smoke', 'Sandbox.stop', 'Sandbox.start', 'SandboxHandle.start', 'SandboxHandle.stop', 'SandboxHandle.connectOrStart'], async () => {
    await box.exec('sh', ['-c', 'echo kept > /srv/kept']);
    await box.stop();
    assert.equal((await Sandbox.get(box.name)).status, 'stopped');
    await fails(box.exec('true'), /409/);
    let again = await Sandbox.start(box.name);
    assert.equal((await again.exec('cat', ['/srv/kept'])).stdout(), 'kept\n');
    await (await Sandbox.get(box.name)).stop();
    again = await (await Sandbox.get(box.name)).start();
    assert.equal((await again.exec('cat', ['/srv/kept'])).stdout(), 'kept\n');
    await again.stop();
    again = await (await Sandbox.get(box.name)).connectOrStart();
    assert.equal((await again.exec('cat', ['/srv/kept'])).stdout(), 'kept\n');
  });
  await check('gone when it stops', ['Sandbox.stop', 'SandboxHandle.remove'], async () => {
    const short = await create((b) => b.ephemeral(true));
    await fails(short.stop(), /not found/); // it is gone before the SDK asks
    await fails(Sandbox.get(short.name), /not found/i, 'SandboxNotFoundError');
    const other = await create();
    await other.stop();
    await (await Sandbox.get(other.name)).remove();
    await fails(Sandbox.get(other.name), /not found/i, 'SandboxNotFoundError');
  });
  await check('from an image of a registry, with its own program', ['Sandbox.builder', 'Sandbox.execDefault'], async () => {
    const made = await create((b) => b.cmd(['sh', '-c', 'echo default']), { image });
    assert.equal((await made.exec('sh', ['-c', 'echo of the image'])).stdout(), 'of the image\n');
    assert.equal((await made.execDefault()).stdout(), 'default\n');
    await fails(create(undefined, { image: 'registry.invalid/no:such' }), /registry\.invalid|pull|resolve/i);
  });
  await check('what is not enforced is refused by name', ['Sandbox.builder'], async () => {
    await fails(create((b) => b.rlimit('nofile', 100)), /rlimits/);
    await fails(create((b) => b.script('x', 'echo')), /scripts/);
    await fails(create((b) => b.security('restricted')), /security_profile/);
    await fails(create((b) => b.init('/sbin/init')), /init/);
    await fails(create((b) => b.logLevel('debug')), /log_level/);
    await fails(create((b) => b.volume('/data', (m) => m.bind('/etc'))), /bind|host/i);
  });
  await check('other teams, and no key', ['Sandbox.get'], async () => {
    const id = await idOf(box.name);
    for (const [method, path] of [['GET', ''], ['POST', '/stop'], ['POST', '/start'], ['DELETE', ''], ['GET', '/logs'], ['GET', '/agent']]) {
      for (const at of [`/v1/sandboxes/by-name/${box.name}`, `/v1/sandboxes/${id}`]) {
        if (at.includes('by-name') && ['/logs', '/agent'].includes(path)) continue;
        const theirs = await raw(method, at + path, { as: process.env.COVE_FOREIGN_KEY });
        assert.equal(theirs.status, 404, `${method} ${path}: ${theirs.text}`);
        assert.equal(JSON.parse(theirs.text).error.code, 'sandbox_not_found');
        assert.equal((await raw(method, at + path, { as: '' })).status, 401);
      }
    }
    assert.equal((await raw('GET', `/v1/sandboxes/${id}/agent`)).status, 426);
  });
  await check('patches', ['Sandbox.builder patch', 'Sandbox.builder'], async () => {
    const made = await create((b) => b.patch((p) => p.text('/etc/motd.d/hello', 'hi\n', { mode: 0o600 }).file('/srv/p/bytes', Buffer.from([0, 255])).mkdir('/srv/p/dir').symlink('/srv/p/bytes', '/srv/p/link').append('/etc/motd.d/hello', 'there\n').remove('/srv/p/dir')));
    assert.equal((await made.shell('cat /etc/motd.d/hello; stat -c %a /etc/motd.d/hello; wc -c < /srv/p/link; ls /srv/p')).stdout(), 'hi\nthere\n600\n2\nbytes\nlink\n');
    await fails(create((b) => b.patch((p) => p.text('/etc/passwd', 'x'))), /patches\[0\].*exists|patches\[0\]/);
  });
}
