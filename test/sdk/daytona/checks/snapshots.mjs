import assert from 'node:assert/strict';
import { rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { create, daytona, fails, keep, run, sdk, until } from '../harness.mjs';

export default async function snapshots(check) {
  await check('a volume outlives its sandbox', ['smoke', 'VolumeService.create', 'VolumeService.get', 'VolumeService.list', 'VolumeService.delete'], async () => {
    const name = `data-${run}`;
    await fails(daytona.volume.get(name), 'DaytonaNotFoundError');
    const v = await daytona.volume.get(name, true);
    assert.deepEqual([v.name, v.state], [name, 'ready']);
    await fails(daytona.volume.create(name), 'DaytonaConflictError');
    assert.ok((await daytona.volume.list()).some((l) => l.id === v.id));
    const one = await create({ volumes: [{ volumeId: v.id, mountPath: '/data' }] });
    assert.equal(one.volumes[0].mountPath, '/data');
    await one.fs.uploadFile(Buffer.from('on the volume'), '/data/file');
    await fails(daytona.volume.delete(v), 'DaytonaConflictError');
    await one.delete();
    const two = await create({ volumes: [{ volumeId: name, mountPath: '/other' }] });
    assert.equal((await two.fs.downloadFile('/other/file')).toString(), 'on the volume');
    await two.delete();
    await daytona.volume.delete(v);
    await fails(daytona.volume.get(name), 'DaytonaNotFoundError');
    await daytona.volume.create(name).then((made) => daytona.volume.delete(made));
  });
  await check('a sandbox of a snapshot', ['Sandbox.createSnapshot', 'SnapshotService.get', 'SnapshotService.list', 'SnapshotService.activate', 'SnapshotService.delete'], async () => {
    const name = `snap.${run}`;
    const sbx = await create();
    await sbx.fs.uploadFile(Buffer.from('in it'), '/opt/kept');
    await sbx.createSnapshot(name);
    const snap = await daytona.snapshot.get(name);
    assert.deepEqual([snap.name, snap.state, snap.sourceSandboxId], [name, 'active', sbx.id]);
    assert.equal((await daytona.snapshot.activate(snap)).state, 'active');
    const page = await daytona.snapshot.list({ limit: 200 });
    assert.ok(page.items.some((s) => s.name === name) && page.total >= 1 && page.totalPages >= 1);
    const made = keep(await daytona.create({ snapshot: name }));
    assert.equal(made.snapshot, name);
    assert.equal((await made.fs.downloadFile('/opt/kept')).toString(), 'in it');
    await Promise.all([sbx.delete(), made.delete()]);
    await daytona.snapshot.delete(snap);
    await fails(daytona.snapshot.get(name), 'DaytonaNotFoundError');
    await fails(daytona.create({ snapshot: 'org/none:1.0' }), 'DaytonaNotFoundError', /none:1\.0/);
  });
  await check('an image as a snapshot', ['SnapshotService.create', 'Image.base'], async () => {
    const image = process.env.COVE_IMAGE;
    const [name, logged] = [`image.${run}`, []];
    const snap = await daytona.snapshot.create({ name, image: sdk.Image.base(image), resources: { cpu: 1, memory: 1, disk: 1 } }, { onLogs: (l) => logged.push(l) });
    assert.deepEqual([snap.state, snap.mem, snap.disk], ['active', 1, 1]);
    assert.ok(logged.length > 2, `${logged}`);
    await fails(daytona.snapshot.create({ name, image }), 'DaytonaConflictError');
    await daytona.snapshot.delete(snap);
    await fails(daytona.snapshot.create({ name: `${name}.none`, image: `${image}-none` }), 'DaytonaError', /image/);
    const sbx = await create({ image, resources: { memory: 0.5 } });
    assert.deepEqual([sbx.memory, sbx.snapshot], [0.5, image]);
    assert.equal((await sbx.process.executeCommand('echo "of an image"')).result, 'of an image\n');
    await fails(sbx.git.init('/r'), 'DaytonaError', /no git/);
    await sbx.delete();
  });
  await check('an image that is built step by step', [
    'SnapshotService.create', 'Image.env', 'Image.workdir', 'Image.runCommands', 'Image.entrypoint', 'Image.cmd', 'Image.dockerfileCommands', 'Image.fromDockerfile',
  ], async () => {
    const image = sdk.Image.base(process.env.COVE_IMAGE).runCommands('echo "[$FROM]" > /before; mkdir /data; chown 1000 /data').env({ FROM: `it's "here"` }).workdir('/srv/app')
      .runCommands('echo "$FROM $PWD" > made', ['sh', '-c', 'echo list > list']).dockerfileCommands(['ARG N=7', 'USER app', 'RUN echo $N > /data/arg && \\', '  stat -L -c %u /proc/self >> /data/arg'])
      .entrypoint(['/bin/sh', '-c', 'echo $0 $FROM > /data/up; exec sleep 1000']).cmd(['told']);
    const [name, logged] = [`steps.${run}`, []];
    const snap = await daytona.snapshot.create({ name, image }, { onLogs: (l) => logged.push(l) });
    assert.ok(logged.some((l) => l.includes('echo list')), `${logged}`);
    const sbx = await create({ snapshot: name });
    await until('the program of the image', async () => (await sbx.process.executeCommand('cat /data/up')).result.endsWith('"here"\n'));
    const { result } = await sbx.process.executeCommand('cat /before /srv/app/made /srv/app/list /data/arg /data/up');
    assert.equal(result, `[]\nit's "here" /srv/app\nlist\n7\n1000\ntold it's "here"\n`);
    await sbx.delete();
    await daytona.snapshot.delete(snap);
    const file = path.join(os.tmpdir(), `Dockerfile-${run}`);
    writeFileSync(file, `FROM ${process.env.COVE_IMAGE}\nRUN echo ${run} > /made\n`);
    for (let i = 0; i < 2; i++) { // the second time it is there
      const box = await create({ image: sdk.Image.fromDockerfile(file) });
      assert.equal((await box.fs.downloadFile('/made')).toString(), `${run}\n`);
      await box.delete();
    }
    rmSync(file);
    await fails(create({ image: sdk.Image.base(process.env.COVE_IMAGE).runCommands('echo no; exit 3') }), 'DaytonaError', /exit|3/);
  });
}
