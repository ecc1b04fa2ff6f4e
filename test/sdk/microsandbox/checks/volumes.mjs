import assert from 'node:assert/strict';
import { create, fails, nameOf, sdk } from '../harness.mjs';

const { Volume } = sdk;

export default async function volumes(check) {
  await check('made, found, mounted and removed', ['smoke', 'Volume.builder', 'Volume.get', 'Volume.list', 'Volume.remove', 'VolumeHandle.remove'], async () => {
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
  await check('files without a sandbox', ['Volume.fs', 'VolumeHandle.fs', ...['read', 'readToString', 'readStream', 'write', 'writeStream', 'list', 'mkdir', 'removeDir', 'remove', 'copy', 'rename', 'stat', 'exists'].map((m) => `VolumeFs.${m}`)], async () => {
    const name = nameOf('data');
    const made = await Volume.builder(name).create();
    const fs = (await Volume.get(name)).fs();
    await fs.mkdir('/d/e');
    await fs.write('/d/a b é.txt', 'one\n');
    assert.equal(await fs.readToString('/d/a b é.txt'), 'one\n');
    assert.equal(Buffer.from(await fs.read('d/a b é.txt')).toString(), 'one\n');
    const sink = await fs.writeStream('/d/big');
    for (let i = 0; i < 8; i++) await sink.write(Buffer.alloc(100_000, String(i)));
    await sink.close();
    const big = await (await fs.readStream('/d/big')).collect();
    assert.ok(big.length === 800_000 && big.at(-1) === '7'.charCodeAt(0), `${big.length} bytes`);
    const stat = await fs.stat('/d/big');
    assert.equal(Number(stat.size), 800_000, JSON.stringify(stat, (_, v) => (typeof v === 'bigint' ? String(v) : v)));
    assert.deepEqual((await fs.list('/d')).map((e) => e.path.split('/').at(-1)).sort(), ['a b é.txt', 'big', 'e']);
    await fs.copy('/d/big', '/copied');
    await fs.rename('/copied', '/d/e/moved');
    assert.deepEqual([await fs.exists('/copied'), await fs.exists('/d/e/moved'), await fs.exists('/../etc/passwd')], [false, true, false]);
    const box = await create((b) => b.volume('/data', (m) => m.named(name)));
    assert.equal((await box.shell('cat "/data/d/a b é.txt"; stat -c %s /data/d/e/moved; echo back > /data/from-box')).stdout(), 'one\n800000\n');
    assert.equal(await made.fs().readToString('/from-box'), 'back\n');
    await box.stop();
    await sdk.Sandbox.remove(box.name);
    await fs.remove('/d/big');
    await fs.removeDir('/d');
    await fails(fs.readToString('/d/big'), /not found|has no|no such/i);
    assert.deepEqual((await fs.list('/')).map((e) => e.path.split('/').at(-1)), ['from-box']);
    await Volume.remove(name);
  });
  await check('what a volume has not is refused by name', ['Volume.builder labels'], async () => {
    await fails(Volume.builder(nameOf('data')).label('a', 'b').create(), /labels/);
  });
}
