import assert from 'node:assert/strict';
import { create, daytona, fails, run } from '../harness.mjs';

export default async function secrets(check) {
  const { secret } = daytona;
  const name = `key_${run}`;
  const made = [];
  await check('secrets', ['SecretService.create', 'SecretService.get', 'SecretService.list', 'SecretService.update', 'SecretService.delete'], async () => {
    const one = await secret.create({ name, value: 'value-one', hosts: ['other.test'] });
    const two = await secret.create({ name: `${name}_b`, value: 'sk-real', hosts: ['api.openai.com'] });
    made.push(one, two);
    assert.deepEqual([one.name, one.hosts], [name, ['other.test']]);
    await fails(secret.create({ name, value: 'x', hosts: ['other.test'] }), 'DaytonaConflictError');
    await fails(secret.create({ name: `${name}_c`, value: 'x' }), 'DaytonaValidationError', /hosts/);
    await fails(secret.create({ name: `${name}_c`, value: 'x', description: 'y', hosts: ['other.test'] }), 'DaytonaValidationError', /description/);
    const first = await secret.list({ name, limit: 1, sort: 'name', order: 'asc' });
    assert.deepEqual([first.items.map((s) => s.id), first.total], [[one.id], 2]);
    const rest = await secret.list({ name, cursor: first.nextCursor, sort: 'name', order: 'asc' });
    assert.deepEqual([rest.items.map((s) => s.id), rest.nextCursor], [[two.id], null]);
    assert.equal((await secret.list({ name })).items[0].id, two.id);
    await fails(secret.update(one.id, { hosts: ['evil.test'] }), 'DaytonaValidationError', /hosts/);
    const changed = await secret.update(one.id, { value: 'value-two' });
    assert.ok(new Date(changed.updatedAt) > new Date(one.updatedAt));
    assert.ok(!JSON.stringify([first, rest, changed, await secret.get(one.id)]).includes('value-'));
    await secret.delete(two.id);
    await fails(secret.get(two.id), 'DaytonaNotFoundError');
  });
  await check('a secret in use', ['Daytona.create', 'Sandbox.updateSecrets'], async () => {
    const sbx = await create({ domainAllowList: 'other.test', secrets: { FIRST: name } });
    await fails(sbx.updateSecrets({ KEY: 'none' }), 'DaytonaNotFoundError', /KEY.*none/);
    await sbx.updateSecrets({ KEY: name });
    const { result } = await sbx.process.executeCommand('echo "$FIRST"; echo "$KEY"; curl -fsS --max-time 20 -H "Authorization: Bearer $KEY" https://other.test/used');
    // The server has got the value: what it says of it comes back as as many bytes of the stand-in.
    const [gone, standIn, said] = result.split('\n');
    assert.ok(gone === '' && standIn.startsWith('cove_') && !result.includes('value-two'), result);
    assert.deepEqual(JSON.parse(said).header.Authorization, [`Bearer ${standIn.slice(0, 'value-two'.length)}`]);
    await sbx.updateSecrets({});
    assert.equal((await sbx.process.executeCommand('echo "$KEY"')).result, '\n');
    await sbx.delete();
    await secret.delete(made[0].id);
  });
}
