// All checks of the SDK against a server. COVE_RESULTS is the file for the rows,
// COVE_GROUPS names groups, COVE_IMAGE is an image of a shell that the server can pull.
import { readdirSync } from 'node:fs';
import { main } from './harness.mjs';

const groups = {};
for (const file of readdirSync(new URL('checks', import.meta.url)).sort()) {
  const name = file.replace(/\.mjs$/, '');
  if (process.env.COVE_GROUPS && !process.env.COVE_GROUPS.split(',').includes(name)) continue;
  groups[name] = (await import(`./checks/${file}`)).default;
}
await main(groups, 3);
process.exit(0); // whatever streams are left open
