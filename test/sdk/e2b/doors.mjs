// Makes a sandbox for others to find, and prints its id.
import { Sandbox } from 'e2b';

const sbx = await Sandbox.create({ metadata: { made: 'here' }, timeoutMs: 600_000 });
await sbx.files.write('/home/user/note', 'made by E2B');
console.log(JSON.stringify({ id: sbx.sandboxId }));
process.exit(0);
