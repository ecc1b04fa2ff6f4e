import assert from 'node:assert/strict';
import { create, fails, nameOf, sdk } from '../harness.mjs';

const { Volume } = sdk;

export default async function volumes(check) {
  await check('made, found, mounted and removed', ['Volume.builder', 'Volume.get', 'Volume.list', 'Volume.remove', 'VolumeHandle.remove'], async () => {
    const name = nameOf('data');
    await Volume.builder(name).create();
    assert.equal((await Volume.get(name)).name, name);
    assert.ok((await Volume.list()).some((v) => v.name === name));
    await fails(Volume.builder(name).create(), /name|exists/i, 'VolumeAlreadyExistsError');
    const box = await create((b) => b.volume('/data', (m) => m.named(name)));
    assert.equal((await box.shell('echo one > /data/a; cat /data/a')).stdout(), 'one\n');
    await fails(Volume.remove(name), /409|used|use/i);
    await box.stop();
    await sdk.Sandbox.remove(box.name);
    await Volume.remove(name);
    await fails(Volume.get(name), /not found/i, 'VolumeNotFoundError');
    await Volume.builder(name).create();
    await (await Volume.get(name)).remove();
  });
  await check('what a volume has not is refused by name', ['Volume.builder labels'], async () => {
    await fails(Volume.builder(nameOf('data')).label('a', 'b').create(), /labels/);
  });
}
