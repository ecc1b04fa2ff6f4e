// What the checks of Daytona's SDK share.
import assert from 'node:assert/strict';
import { errorOf, run, until } from '../checks.mjs';

export const sdk = await import(process.env.COVE_SDK || '@daytonaio/sdk');

export { run, until };

export const daytona = new sdk.Daytona();
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

// fails checks that a call fails with the SDK's own class and a text.
export async function fails(promise, kind, text = /./) {
  const err = await errorOf(promise);
  assert.ok(err instanceof sdk[kind], `${kind} expected, got ${err?.constructor?.name}: ${err?.message}`);
  assert.match(err.message, text);
  return err;
}

// finish ends what the checks have made.
export async function finish() {
  await Promise.all(made.map((sbx) => sbx.delete().catch(() => {})));
}
