// What the checks share: a check is a row of the result, with the methods of the
// SDK that it shows at work.
import assert from 'node:assert/strict';
import { appendFileSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import * as sdk from '@daytonaio/sdk';

export { sdk };
export const daytona = new sdk.Daytona();
// Run is one of a kind, so that programs that run side by side do not meet.
export const run = `t${process.pid.toString(36)}${Date.now().toString(36)}`;

// What differences.txt says is not served must fail, so that the file tells no
// less than the truth.
const notServed = readFileSync(new URL('differences.txt', import.meta.url), 'utf8').split('\n').map((l) => /^([^:]+): not served: /.exec(l)?.[1]).filter(Boolean);

const limit = 120_000; // of a check, in milliseconds
const made = [];

// create makes a sandbox that is gone when the program ends.
export async function create(params = {}) {
  const sbx = await daytona.create(params);
  made.push(sbx);
  return sbx;
}

export function keep(sbx) {
  made.push(sbx);
  return sbx;
}

// shared is a sandbox for all checks of the toolbox.
let one;
export function shared() {
  one ??= create({ name: `shared-${run}`, labels: { run }, envVars: { FROM: 'create' } });
  return one;
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
  const err = await Promise.resolve(promise).then((v) => assert.fail(`no error, but ${JSON.stringify(v)}`), (e) => e);
  assert.ok(err instanceof sdk[kind], `${kind} expected, got ${err?.constructor?.name}: ${err?.message}`);
  assert.match(err.message, text);
  return err;
}

function reporter(group) {
  return async function check(title, methods, body) {
    const row = { group, check: title, methods };
    const began = Date.now();
    let timer;
    try {
      await Promise.race([body(), new Promise((_, no) => { timer = setTimeout(() => no(new Error(`it does not end within ${limit} ms`)), limit); })]);
      if (methods.some((m) => notServed.includes(m))) row.error = `differences.txt says of one of ${methods} that it is not served, but it is`;
    } catch (err) {
      if (!methods.length || !methods.every((m) => notServed.includes(m))) row.error = `${err?.constructor?.name}: ${err?.stack ?? err}`.slice(0, 3000);
      row.methods = []; // it has shown nothing
    }
    clearTimeout(timer);
    row.ms = Date.now() - began;
    appendFileSync(process.env.COVE_RESULTS, JSON.stringify(row) + '\n');
  };
}

// main runs groups of checks, some at a time.
export async function main(groups, atOnce) {
  const queue = Object.entries(groups);
  const worker = async () => {
    for (let next; (next = queue.shift()); ) {
      try {
        await next[1](reporter(next[0]));
      } catch (err) {
        appendFileSync(process.env.COVE_RESULTS, JSON.stringify({ group: next[0], check: 'the group as a whole', methods: [], error: `${err?.stack ?? err}` }) + '\n');
      }
    }
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
  await Promise.all(made.map((sbx) => sbx.delete().catch(() => {})));
}
