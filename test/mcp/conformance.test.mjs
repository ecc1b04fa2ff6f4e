// The conformance suite of the Model Context Protocol, at every revision it
// has requirements for, each scenario green. COVE_CONFORMANCE_URL is a server
// of package conformance.
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';

const url = process.env.COVE_CONFORMANCE_URL;
assert.ok(url, 'set COVE_CONFORMANCE_URL');
const suite = fileURLToPath(new URL('node_modules/@modelcontextprotocol/conformance/dist/index.js', import.meta.url));

function run(args, cwd) {
  return new Promise((resolve) => {
    execFile(process.execPath, [suite, ...args], { cwd, maxBuffer: 64 << 20 }, (error, stdout, stderr) =>
      resolve({ code: error ? error.code : 0, stdout, stderr }),
    );
  });
}

// A scenario fails if it fails one check, or if it ran none.
for (const [revision, count] of [['2026-07-28', 37], ['2025-11-25', 30]]) {
  test(`requirements of ${revision}`, { timeout: 300_000 }, async () => {
    const dir = await mkdtemp(join(tmpdir(), 'cove-conformance-'));
    try {
      const { code, stdout, stderr } = await run(['server', '--url', url, '--requirements', revision], dir);
      const results = new Map();
      for (const m of stdout.slice(stdout.indexOf('=== SUMMARY ===')).matchAll(/^([✓✗]) (\S+): (\d+) passed, (\d+) failed/gm)) {
        results.set(m[2], { green: m[1] === '✓' && +m[3] > 0 && m[4] === '0', text: m[0] });
      }
      const unscored = new Set([...stdout.matchAll(/^ {2}[✓✗] (\S+) \(/gm)].map((m) => m[1]));
      const scored = [...results.keys()].filter((name) => !unscored.has(name));
      assert.deepEqual(scored.filter((name) => !results.get(name).green).map((name) => results.get(name).text), [], stdout + stderr);
      assert.equal(scored.length, count, `scenarios that count: ${scored}`);
      assert.equal(code, 0, stdout + stderr);
    } finally {
      await rm(dir, { recursive: true, force: true });
    }
  });
}

// The tasks extension has no revision of its own. Its scenario for notifications
// of a task's state, which a server may leave out, skips its only check.
const tasks = {
  'tasks-lifecycle': 9, 'tasks-capability-negotiation': 5, 'tasks-wire-fields': 4, 'tasks-request-state-removal': 3, 'tasks-mrtr-input': 4,
  'tasks-request-headers': 5, 'tasks-dispatch-and-envelope': 9, 'tasks-required-task-error': 3, 'tasks-mrtr-composition': 2,
};
describe('tasks extension', { concurrency: 4 }, () => {
  for (const [scenario, count] of Object.entries(tasks)) {
    test(scenario, { timeout: 120_000 }, async () => {
      const dir = await mkdtemp(join(tmpdir(), 'cove-conformance-'));
      try {
        const { code, stdout, stderr } = await run(['server', '--url', url, '--scenario', scenario], dir);
        assert.equal(code, 0, stdout + stderr);
        assert.match(stdout, new RegExp(`Passed: ${count}/${count}, 0 failed`));
      } finally {
        await rm(dir, { recursive: true, force: true });
      }
    });
  }
});
