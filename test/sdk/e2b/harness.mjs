// What the checks of E2B's SDK share.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { errorOf, run, until } from '../checks.mjs';

export { run, until };

const require = createRequire(import.meta.url);
const name = process.env.COVE_SDK ?? 'e2b';
export const sdk = await import(name);
export const version = JSON.parse(readFileSync(path.join(path.dirname(require.resolve(name)), '..', 'package.json'))).version;
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

// fails checks that a call fails with the SDK's own class and a text.
export async function fails(promise, kind, text = /./) {
  const err = await errorOf(promise);
  assert.ok(err instanceof sdk[kind], `${kind} expected, got ${err?.constructor?.name}: ${err?.message} ${err?.cause ?? ''}`);
  assert.match(err.message, text);
  return err;
}

// finish ends what the checks have made.
export async function finish() {
  await Promise.all(made.map((sbx) => sbx.kill().catch(() => {})));
}

// accepts tells whether a check holds for the SDK: since is the version from which on.
export const accepts = ({ since }) => !since || newer(since);
