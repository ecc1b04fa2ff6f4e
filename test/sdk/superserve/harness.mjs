// What the checks of Superserve's SDK share.
import assert from 'node:assert/strict';
import { errorOf, run, until } from '../checks.mjs';

export { run, until };

export const sdk = await import(process.env.COVE_SDK || '@superserve/sdk');
export const base = (process.env.SUPERSERVE_BASE_URL ?? 'https://api.superserve.ai').trim();
export const key = process.env.SUPERSERVE_API_KEY;

const made = [];
let count = 0;

// create makes a sandbox that is gone when the program ends.
export async function create(options = {}) {
  const box = await sdk.Sandbox.create({ name: `box-${run}-${count++}`, ...options });
  made.push(box);
  return box;
}

// fails checks that a call fails with the SDK's own class and a text.
export async function fails(promise, kind, text = /./) {
  const err = await errorOf(promise);
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

// finish ends what the checks have made.
export async function finish() {
  await Promise.all(made.map((sbx) => sbx.kill().catch(() => {})));
}
