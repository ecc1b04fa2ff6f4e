// All checks of one SDK against a server: those in checks/ of the directory in which it is
// run. COVE_RESULTS is the file for the rows, COVE_GROUPS names groups; COVE_SMOKE=1 takes
// the checks that stand for the others, COVE_AT_ONCE groups run side by side: as many as there
// are processors, since each has sandboxes of its own. harness.mjs there exports what is special: finish()
// is called at the end, and accepts(options) tells whether a check holds for the SDK.
import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { differences, main } from './checks.mjs';

const here = (...names) => pathToFileURL(path.resolve(...names));
const { accepts, finish } = await import(here('harness.mjs'));
const groups = {};
for (const file of readdirSync('checks').sort()) {
  const name = file.replace(/\.mjs$/, '');
  if (process.env.COVE_GROUPS && !process.env.COVE_GROUPS.split(',').includes(name)) continue;
  groups[name] = (await import(here('checks', file))).default;
}
// Volumes are on the server's machine, which runs no sandboxes if it has nodes only.
const without = process.env.COVE_TEST_ENGINE === 'nodes' ? /volume/ : undefined;
await main(groups, { without, only: process.env.COVE_SMOKE === '1', atOnce: Number(process.env.COVE_AT_ONCE ?? availableParallelism()), notServed: differences(here('differences.txt')), accepts });
await finish();
process.exit(0); // whatever streams are left open
