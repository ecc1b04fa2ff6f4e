// What the checks of HOPX's SDK share.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { errorOf, run, until } from '../checks.mjs';

export { run, until };

export const sdk = await import(process.env.COVE_SDK || '@hopx-ai/sdk');
// The SDK reads no variable for the server. Where its names lead to Cove, nothing is
// given and the program is as it was.
export const baseURL = process.env.HOPX_BASE_URL;
export const at = baseURL ? { baseURL } : {};
export const apiKey = process.env.HOPX_API_KEY;
console.log = () => {}; // the SDK tells of tokens that it renews

// The SDK opens the archive of a COPY, without reading it, and deletes it as soon as it is
// told that the server has it: if that is sooner, its stream fails with nobody to hear it.
process.on('uncaughtException', (err) => {
  if (err.code !== 'ENOENT' || !/\/tar-[^/]+\.tar\.gz$/.test(err.path ?? '')) throw err;
});

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

// fails checks that a call fails with the SDK's own class and a text.
export async function fails(promise, kind, text = /./) {
  const err = await errorOf(promise);
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

// finish ends what the checks have made.
export async function finish() {
  await Promise.all(made.map((sbx) => sbx.kill().catch(() => {})));
  for (const dir of directories) rmSync(dir, { recursive: true });
}
