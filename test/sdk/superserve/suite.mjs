// All checks of the SDK against a server. COVE_RESULTS is the file for the rows,
// COVE_GROUPS names groups; COVE_SMOKE=1 takes the checks that stand for the others.
import { readdirSync } from 'node:fs';
import { main } from './harness.mjs';

const groups = {};
for (const file of readdirSync(new URL('checks', import.meta.url)).sort()) {
  const name = file.replace(/\.mjs$/, '');
  if (process.env.COVE_GROUPS && !process.env.COVE_GROUPS.split(',').includes(name)) continue;
  groups[name] = (await import(`./checks/${file}`)).default;
}
await main(groups, { only: process.env.COVE_SMOKE === '1', atOnce: Number(process.env.COVE_AT_ONCE ?? 3) });
process.exit(0); // whatever streams are left open
