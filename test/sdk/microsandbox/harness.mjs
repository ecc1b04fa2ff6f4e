// What the checks of microsandbox's SDK share.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { errorOf, run, until } from '../checks.mjs';

export { run, until };
export const sdk = await import(process.env.COVE_SDK || 'microsandbox');

export const base = process.env.MSB_API_URL;
export const key = process.env.MSB_API_KEY;
export const image = process.env.COVE_IMAGE;

const made = [];
let count = 0;

export const nameOf = (what = 'box') => `${what}-${run}-${count++}`;

// create makes a sandbox that is gone when the program ends.
export async function create(configure = (b) => b, { name = nameOf(), image: from = 'microsandbox/python' } = {}) {
  made.push(name);
  return configure(sdk.Sandbox.builder(name).image(from)).create();
}

// shared is a sandbox for all checks that leave it as it is.
let one;
export function shared() {
  one ??= create((b) => b.env('FROM', 'create').workdir('/srv'));
  return one;
}

// fails checks that a call fails with a text, and with the SDK's own class if one is named.
export async function fails(promise, text = /./, kind = undefined) {
  const err = await errorOf(promise);
  if (kind) assert.ok(err instanceof sdk[kind], `${kind} expected, got ${err?.constructor?.name}: ${err?.message}`);
  assert.match(String(err?.message), text);
  return err;
}

// msb runs the product's program, and returns its exit code and output.
export function msb(args, { input = '', env = {} } = {}) {
  return new Promise((resolve) => {
    const child = execFile(process.env.COVE_MSB, args, { env: { ...process.env, ...env }, timeout: 60_000 }, (err, stdout, stderr) => {
      resolve({ code: err ? (err.code ?? 1) : 0, stdout, stderr });
    });
    child.stdin.on('error', () => {});
    child.stdin.end(input);
  });
}

// ok is msb of a call that must not fail.
export async function ok(args, options) {
  const res = await msb(args, options);
  assert.equal(res.code, 0, `msb ${args.join(' ')}: ${JSON.stringify(res)}`);
  return res;
}

// keep has a sandbox gone when the program ends.
export function keep(name) {
  made.push(name);
  return name;
}

// raw sends a request of no SDK's, and returns its status and text.
export async function raw(method, path, { body, as = key, headers = {} } = {}) {
  const resp = await fetch(base + path, { method, body, headers: { ...(as ? { Authorization: `Bearer ${as}` } : {}), ...headers } });
  return { status: resp.status, text: await resp.text() };
}

// idOf is the id by which the server knows a sandbox.
export async function idOf(name) {
  return JSON.parse((await raw('GET', `/v1/sandboxes/by-name/${name}`)).text).id;
}

// finish ends what the checks have made.
export async function finish() {
  await Promise.all(made.map((name) => raw('DELETE', `/v1/sandboxes/by-name/${encodeURIComponent(name)}`).catch(() => {})));
}
