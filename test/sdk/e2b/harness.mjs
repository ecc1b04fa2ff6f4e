// What the checks share: a check is a row of the result, with the methods of the
// SDK that it shows at work.
import assert from 'node:assert/strict';
import { appendFileSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

const require = createRequire(import.meta.url);
const name = process.env.COVE_E2B ?? 'e2b';
export const sdk = await import(name);
export const version = JSON.parse(readFileSync(path.join(path.dirname(require.resolve(name)), '..', 'package.json'))).version;
// Run is one of a kind, so that programs that run side by side do not meet.
export const run = `t${process.pid.toString(36)}${Date.now().toString(36)}`;

// What differences.txt says is not served must fail, so that the file tells no
// less than the truth.
const notServed = readFileSync(new URL('differences.txt', import.meta.url), 'utf8').split('\n').map((l) => /^([^:]+): not served: /.exec(l)?.[1]).filter(Boolean);

const limit = 120_000; // of a check, in milliseconds
const made = [];

// newer reports whether the SDK is of a version or newer.
export function newer(wanted) {
  const [a, b] = [version, wanted].map((v) => v.split('.').map(Number));
  for (let i = 0; i < 3; i++) if (a[i] !== b[i]) return a[i] > b[i];
  return true;
}

// create makes a sandbox that is gone when the program ends.
export async function create(...args) {
  const sbx = await sdk.Sandbox.create(...args);
  made.push(sbx);
  return sbx;
}

export function keep(sbx) {
  made.push(sbx);
  return sbx;
}

// until calls check until it returns something truthy.
export async function until(what, check) {
  const end = Date.now() + 30_000;
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
  assert.ok(err instanceof sdk[kind], `${kind} expected, got ${err?.constructor?.name}: ${err?.message} ${err?.cause ?? ''}`);
  assert.match(err.message, text);
  return err;
}

// group makes the function with which a file tells its checks, one after the
// other. Options: since is the version from which on a check holds.
function reporter(group, only) {
  return async function check(title, methods, body, { since } = {}) {
    if ((since && !newer(since)) || (only && !methods.some((m) => m === 'smoke'))) return;
    const row = { group, check: title, methods: methods.filter((m) => m !== 'smoke') };
    const began = Date.now();
    let timer;
    try {
      await Promise.race([body(), new Promise((_, no) => { timer = setTimeout(() => no(new Error(`it does not end within ${limit} ms`)), limit); })]);
      if (methods.some((m) => notServed.includes(m))) row.error = `differences.txt says of one of ${methods} that it is not served, but it is`;
    } catch (err) {
      if (!methods.some((m) => notServed.includes(m))) row.error = `${err?.constructor?.name}: ${err?.stack ?? err}${err?.cause ? `; cause: ${err.cause.code} ${err.cause}` : ''}`.slice(0, 3000);
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
      const check = reporter(next[0], only);
      try {
        await next[1](check);
      } catch (err) {
        appendFileSync(process.env.COVE_RESULTS, JSON.stringify({ group: next[0], check: 'the group as a whole', methods: [], error: `${err?.stack ?? err}; cause: ${err?.cause?.code} ${err?.cause}` }) + '\n');
      }
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
  await Promise.all(made.map((sbx) => sbx.kill().catch(() => {})));
}
