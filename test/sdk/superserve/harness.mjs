// What the checks share: a check is a row of the result, with the methods of the SDK
// that it shows at work.
import assert from 'node:assert/strict';
import { appendFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

export const sdk = await import('@superserve/sdk');
// Run is one of a kind, so that programs that run side by side do not meet.
export const run = `t${process.pid.toString(36)}${Date.now().toString(36)}`;
export const base = (process.env.SUPERSERVE_BASE_URL ?? 'https://api.superserve.ai').trim();
export const key = process.env.SUPERSERVE_API_KEY;

const limit = 120_000; // of a check, in milliseconds
const made = [];
let count = 0;

// create makes a sandbox that is gone when the program ends.
export async function create(options = {}) {
  const box = await sdk.Sandbox.create({ name: `box-${run}-${count++}`, ...options });
  made.push(box);
  return box;
}

// until calls check until it returns something truthy.
export async function until(what, check) {
  const end = Date.now() + 60_000;
  for (;;) {
    const value = await check();
    if (value) return value;
    if (Date.now() > end) assert.fail(`waited in vain for ${what}`);
    await sleep(30);
  }
}

// fails checks that a call fails with the SDK's own class and a text.
export async function fails(promise, kind, text = /./) {
  const err = await promise.then((v) => assert.fail(`no error, but ${JSON.stringify(v)}`), (e) => e);
  assert.equal(err?.name, kind, `${kind} expected, got ${err?.name}: ${err?.message} ${err?.cause ?? ''}`);
  assert.ok(err instanceof (sdk[kind] ?? sdk.SandboxError), String(err));
  assert.match(err.message, text);
  return err;
}

// raw sends a request of no SDK's, and returns its status and text.
export async function raw(url, { key: as, ...init } = {}) {
  const resp = await fetch(url, { ...init, headers: { ...(as ? { 'X-API-Key': as } : {}), ...init.headers } });
  return { status: resp.status, text: await resp.text() };
}

// tokenOf is a sandbox's token.
export async function tokenOf(id) {
  const resp = await raw(`${base}/sandboxes/${id}`, { key });
  return JSON.parse(resp.text).access_token;
}

// reporter makes the function with which a file tells its checks, one after the other.
function reporter(group, only) {
  return async function check(title, methods, body) {
    if (only && !methods.includes('smoke')) return;
    const row = { group, check: title, methods: methods.filter((m) => m !== 'smoke') };
    const began = Date.now();
    let timer;
    try {
      await Promise.race([body(), new Promise((_, no) => { timer = setTimeout(() => no(new Error(`it does not end within ${limit} ms`)), limit); })]);
    } catch (err) {
      row.error = `${err?.constructor?.name}: ${err?.stack ?? err}${err?.cause ? `; cause: ${err.cause.code} ${err.cause}` : ''}`.slice(0, 3000);
      row.methods = []; // it has shown nothing
    }
    clearTimeout(timer);
    row.ms = Date.now() - began;
    appendFileSync(process.env.COVE_RESULTS, JSON.stringify(row) + '\n');
  };
}

// main runs groups of checks, some at a time.
export async function main(groups, { only, atOnce }) {
  const queue = Object.entries(groups);
  const worker = async () => {
    for (let next; (next = queue.shift()); ) {
      try {
        await next[1](reporter(next[0], only));
      } catch (err) {
        appendFileSync(process.env.COVE_RESULTS, JSON.stringify({ group: next[0], check: 'the group as a whole', methods: [], error: `${err?.stack ?? err}; cause: ${err?.cause?.code} ${err?.cause}` }) + '\n');
      }
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
  await Promise.all(made.map((box) => box.kill().catch(() => {})));
}
