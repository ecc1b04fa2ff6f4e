// Reads a sandbox that somebody else has made, COVE_SANDBOX.
import { Daytona } from '@daytonaio/sdk';

const sbx = await new Daytona().get(process.env.COVE_SANDBOX);
const { result } = await sbx.process.executeCommand('cat /home/user/note; echo; cat /home/user/by-mcp 2>/dev/null || echo none');
process.stdout.write(`${result.trimEnd()}\n`);
process.exit(0);
