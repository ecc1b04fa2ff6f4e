// The main job with the official TypeScript SDK: create a sandbox, write a
// program, run it, read its output, kill; and what can go wrong on the way.
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect, ways } from './server.mjs';

// until calls check until it returns something truthy.
async function until(what, check) {
  for (let i = 0; i < 200; i++) {
    const value = await check();
    if (value) return value;
    await sleep(50);
  }
  assert.fail(`waited in vain for ${what}`);
}

for (const way of ways) {
  describe(way.name, () => {
    let c;
    let sandbox;

    before(async () => {
      c = await connect(way);
      sandbox = (await c.call('sandbox_create', { metadata: { test: 'conversation' } })).id;
    });
    after(async () => {
      if (sandbox) await c.call('sandbox_kill', { sandbox });
      await c?.close();
    });

    test('the server describes itself', () => {
      assert.equal(c.client.getServerVersion().name, 'cove');
      assert.match(c.client.getInstructions(), /sandbox_create/);
    });

    test('tools are complete', async () => {
      const { tools } = await c.client.listTools();
      for (const tool of tools) {
        assert.match(tool.name, /^[a-z0-9_]{1,32}$/);
        assert.ok(tool.title && tool.description && tool.outputSchema, tool.name);
        for (const hint of ['readOnlyHint', 'destructiveHint', 'idempotentHint', 'openWorldHint']) {
          assert.equal(typeof tool.annotations[hint], 'boolean', `${tool.name} ${hint}`);
        }
        assert.equal(tool.inputSchema.additionalProperties, false, tool.name);
      }
    });

    test('write, run, read', async () => {
      await c.call('file_write', { sandbox, path: 'dir/prog.sh', content: 'echo "to stdout: $1"\necho wrong >&2\necho kept > out.txt\nexit 3\n' });
      const run = await c.call('sandbox_exec', { sandbox, command: ['sh', 'prog.sh', 'é'], workdir: (await c.call('file_list', { sandbox, path: 'dir' })).files[0].path.replace(/\/prog\.sh$/, '') });
      assert.deepEqual(
        [run.state, run.exit_code, run.stdout, run.stderr, run.truncated],
        ['exited', 3, 'to stdout: é\n', 'wrong\n', false],
      );
      const read = await c.call('file_read', { sandbox, path: 'dir/out.txt' });
      assert.equal(read.content, 'kept\n');
      const resource = await c.client.readResource({ uri: read.uri });
      assert.equal(resource.contents[0].text, 'kept\n');
      const zip = await c.raw('dir_download', { sandbox, path: 'dir' });
      const embedded = zip.content.find((b) => b.type === 'resource');
      assert.equal(Buffer.from(embedded.resource.blob, 'base64').subarray(0, 2).toString(), 'PK');
      assert.ok(zip.content.some((b) => b.type === 'resource_link'));
    });

    test('binary content survives', async () => {
      const bytes = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
      await c.call('file_write', { sandbox, path: 'bytes', content: bytes.toString('base64'), encoding: 'base64' });
      const read = await c.call('file_read', { sandbox, path: 'bytes', encoding: 'base64' });
      assert.equal(read.content, bytes.toString('base64'));
    });

    test('a flood of output is cut, and the rest readable', async () => {
      const run = await c.call('sandbox_exec', { sandbox, shell: 'i=0; while [ $i -lt 20000 ]; do echo "line $i"; i=$((i+1)); done' });
      assert.equal(run.truncated, true);
      assert.ok(run.stdout.startsWith('line 0\n') && run.stdout.endsWith('line 19999\n'));
      assert.ok(Buffer.byteLength(run.stdout) < 33 * 1024 && run.stdout_bytes > 150_000);
      let got = '';
      for (let offset = 0; offset < run.stdout_bytes; ) {
        const part = await c.call('job_get', { sandbox, job_id: run.job_id, stdout_offset: offset });
        assert.ok(part.stdout_next_offset > offset);
        got += part.stdout;
        offset = part.stdout_next_offset;
      }
      assert.equal(got, Array.from({ length: 20000 }, (_, i) => `line ${i}\n`).join(''));
    });

    test('a background job is followed and stopped', async () => {
      const { job_id, state } = await c.call('sandbox_exec', { sandbox, shell: 'echo up; exec sleep 300', background: true });
      assert.equal(state, 'running');
      await until('output', async () => (await c.call('job_get', { sandbox, job_id })).stdout === 'up\n');
      const { jobs } = await c.call('job_list', { sandbox, state: 'running' });
      assert.ok(jobs.some((j) => j.job_id === job_id));
      const stopped = await c.call('job_stop', { sandbox, job_id });
      assert.equal(stopped.state, 'exited');
    });

    test('errors are results with a code', async () => {
      for (const [tool, args, code] of [
        ['sandbox_get', { sandbox: 'sbx-nope' }, 'not_found'],
        ['file_read', { sandbox, path: 'nope' }, 'not_found'],
        ['file_read', { sandbox, path: 'a\u0000b' }, 'invalid'],
        ['sandbox_create', { template: 'nope' }, 'not_found'],
        ['sandbox_exec', { sandbox, shell: 'true', timeout_ms: -5 }, 'invalid'],
        ['sandbox_exec', { sandbox, shell: 'true', nope: 1 }, 'invalid'],
      ]) {
        const result = await c.raw(tool, args);
        assert.equal(result.isError, true, `${tool} ${JSON.stringify(args)}: ${JSON.stringify(result)}`);
        assert.equal(result.structuredContent.error.code, code, JSON.stringify(result));
        assert.match(result.content[0].text, new RegExp(`\\(${code}\\)$`));
        assert.ok(!/goroutine|\.go:/.test(result.content[0].text));
      }
    });

    test('changes of a sandbox and of the list are told', async () => {
      const told = [];
      c.onNotification('notifications/resources/updated', ({ params }) => told.push(params.uri));
      c.onNotification('notifications/resources/list_changed', () => told.push('list'));
      const uri = `cove://sandbox/${sandbox}`;
      await c.client.listResources();
      const end = await c.subscribe(uri);
      await c.call('sandbox_update', { sandbox, name: `told-${Date.now()}` });
      await until('the sandbox to be told', () => told.includes(uri));
      await until('the list to be told', () => told.includes('list'));
      const { contents } = await c.client.readResource({ uri });
      assert.match(JSON.parse(contents[0].text).name, /^told-/);
      await end();
      await assert.rejects(c.subscribe('cove://sandbox/sbx-nope'));
    });

    test('progress is told, and cancelling stops the work', async () => {
      const abort = new AbortController();
      let progress = 0;
      const call = c.raw(
        'sandbox_exec',
        { sandbox, command: ['sleep', '301'] },
        { signal: abort.signal, onprogress: () => (progress++ || abort.abort()) },
      );
      await assert.rejects(call);
      assert.ok(progress > 0);
      await until('the end of the job', async () => {
        const { jobs } = await c.call('job_list', { sandbox, state: 'running' });
        return !jobs.some((j) => j.command.includes('sleep 301'));
      });
    });
  });
}
