// What the checks share: a check is a row of the result, with the methods of the
// SDK that it shows at work.
import assert from 'node:assert/strict';
import { appendFileSync, mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import * as sdk from '@hopx-ai/sdk';

export { sdk };
// The SDK reads no variable for the server. Where its names lead to Cove, nothing is
// given and the program is as it was.
export const baseURL = process.env.HOPX_BASE_URL;
export const at = baseURL ? { baseURL } : {};
export const apiKey = process.env.HOPX_API_KEY;
// Run is one of a kind, so that programs that run side by side do not meet.
export const run = `t${process.pid.toString(36)}${Date.now().toString(36)}`;

console.log = () => {}; // the SDK tells of tokens that it renews

const limit = 120_000; // of a check, in milliseconds
const made = [];
const directories = [];

// directory makes a directory of this machine that is gone when the program ends.
export function directory() {
  directories.push(mkdtempSync(path.join(os.tmpdir(), 'cove-hopx-')));
  return directories.at(-1);
}

// create makes a sandbox that is gone when the program ends.
export async function create(options = {}) {
  const sbx = await sdk.Sandbox.create({ template: 'code-interpreter', timeoutSeconds: 600, ...at, ...options });
  made.push(sbx);
  return sbx;
}

export const connect = (id) => sdk.Sandbox.connect(id, undefined, baseURL);

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

// raw asks an address without the SDK.
export async function raw(method, url, headers = {}, body) {
  const resp = await fetch(url, { method, headers, body });
  const text = await resp.text();
  let json;
  try {
    json = JSON.parse(text);
  } catch {
    json = undefined;
  }
  return { status: resp.status, text, json, headers: resp.headers };
}

// group makes the function with which a file tells its checks, one after the other.
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
  await Promise.all(made.map((sbx) => sbx.kill().catch(() => {})));
  for (const dir of directories) rmSync(dir, { recursive: true });
}
