// What the checks of all SDKs share: a check is a row of the result, with the methods of
// the SDK that it shows at work.
import assert from 'node:assert/strict';
import { appendFileSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

// Run is one of a kind, so that programs that run side by side do not meet.
export const run = `t${process.pid.toString(36)}${Date.now().toString(36)}`;

const limit = 300_000; // of a check, in milliseconds, so that none hangs

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

// errorOf returns what a call fails with.
export function errorOf(promise) {
  return Promise.resolve(promise).then((v) => assert.fail(`no error, but ${JSON.stringify(v)}`), (e) => e);
}

// differences returns the methods that a differences.txt says are not served. Calls of them
// must fail, so that the file tells no less than the truth.
export function differences(file) {
  return readFileSync(file, 'utf8').split('\n').map((l) => /^([^:]+): not served: /.exec(l)?.[1]).filter(Boolean);
}

const shown = (err) => `${err?.constructor?.name}: ${err?.stack ?? err}${err?.cause ? `; cause: ${err.cause.code} ${err.cause}` : ''}`.slice(0, 3000);
const report = (row) => appendFileSync(process.env.COVE_RESULTS, JSON.stringify(row) + '\n');

// reporter makes the function with which a file tells its checks, one after the other.
function reporter(group, { only, without, notServed, accepts = () => true }) {
  return async function check(title, methods, body, options = {}) {
    if ((only && !methods.includes('smoke')) || !accepts(options) || without?.test(`${group}: ${title}`)) return;
    const row = { group, check: title, methods: methods.filter((m) => m !== 'smoke') };
    const began = Date.now();
    let timer;
    try {
      await Promise.race([body(), new Promise((_, no) => { timer = setTimeout(() => no(new Error(`it does not end within ${limit} ms`)), limit); })]);
      if (row.methods.some((m) => notServed.includes(m))) row.error = `differences.txt says of one of ${methods} that it is not served, but it is`;
    } catch (err) {
      if (!row.methods.length || !row.methods.every((m) => notServed.includes(m))) row.error = shown(err);
      row.methods = []; // it has shown nothing
    }
    clearTimeout(timer);
    row.ms = Date.now() - began;
    report(row);
  };
}

// main runs groups of checks, some at a time.
export async function main(groups, { atOnce, ...rules }) {
  const queue = Object.entries(groups);
  const worker = async () => {
    for (let next; (next = queue.shift()); ) {
      try {
        await next[1](reporter(next[0], rules));
      } catch (err) {
        report({ group: next[0], check: 'the group as a whole', methods: [], error: shown(err) });
      }
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
}
