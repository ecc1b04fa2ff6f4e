// Measures E2B's SDK: a sandbox from its creation to the end of the first
// command, and commands in one that runs. Prints milliseconds as JSON.
import { Sandbox } from 'e2b';
import { setTimeout as sleep } from 'node:timers/promises';

const n = Number(process.env.COVE_RUNS);
const took = async (list, body) => {
  const began = performance.now();
  const result = await body();
  list.push(performance.now() - began);
  return result;
};
const first = [];
const rounds = [];
for (let i = 0; i <= n; i++) {
  await sleep(500); // as long as an agent may think
  const sbx = await took(first, async () => {
    const s = await Sandbox.create();
    await s.commands.run('true');
    return s;
  });
  if (i === n) for (let j = 0; j <= 10 * n; j++) await took(rounds, () => sbx.commands.run('true'));
  await sbx.kill();
}
console.log(JSON.stringify({ first: first.slice(1), rounds: rounds.slice(1) })); // the first of each warms up
process.exit(0);
