// An agent of Mastra works in a sandbox by E2B's SDK, which the framework has
// built in. The model is a script: it asks for tools, and its last answer is made
// of what they have said.
import assert from 'node:assert/strict';
import { Agent } from '@mastra/core/agent';
import { Workspace } from '@mastra/core/workspace';
import { E2BSandbox } from '@mastra/e2b';

const usage = { inputTokens: 1, outputTokens: 1, totalTokens: 2 };

// results are the texts of all tool results of a conversation.
function results(prompt) {
  return prompt.flatMap((m) => (m.role === 'tool' ? m.content : [])).map((c) => JSON.stringify(c.output ?? c.result));
}

// A model that follows a script: a function of the results so far and the names of
// the tools, which returns a call or the answer.
function scripted(script) {
  const next = ({ prompt, tools }) => {
    const step = script(results(prompt), (tools ?? []).map((t) => t.name));
    return typeof step === 'string'
      ? { finishReason: 'stop', content: [{ type: 'text', text: step }] }
      : { finishReason: 'tool-calls', content: [{ type: 'tool-call', toolCallId: `call-${results(prompt).length}`, toolName: step.tool, input: JSON.stringify(step.input) }] };
  };
  return {
    specificationVersion: 'v2', provider: 'script', modelId: 'script', supportedUrls: {},
    doGenerate: async (options) => ({ ...next(options), usage, warnings: [] }),
    doStream: async (options) => {
      const { finishReason, content } = next(options);
      const parts = [{ type: 'stream-start', warnings: [] }];
      for (const c of content) {
        if (c.type === 'text') parts.push({ type: 'text-start', id: '1' }, { type: 'text-delta', id: '1', delta: c.text }, { type: 'text-end', id: '1' });
        else parts.push(c);
      }
      parts.push({ type: 'finish', finishReason, usage });
      return { stream: new ReadableStream({ start(s) { for (const p of parts) s.enqueue(p); s.close(); } }) };
    },
  };
}

const sandbox = new E2BSandbox({ id: `agent-${process.pid}-${Date.now()}`, template: 'base', timeout: 120_000, env: { GREETING: 'hello' } });
const workspace = new Workspace({ sandbox });
const commands = [
  `printf 'def fib(n):\\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\\nprint("$GREETING", fib(20))\\n' | sed "s/\\$GREETING/$GREETING/" > fib.py`,
  'python3 fib.py',
  'ls no-such-file',
];
const agent = new Agent({
  id: 'worker', name: 'worker', instructions: 'Do what you are asked.', workspace,
  model: scripted((said, tools) => {
    const tool = tools.find((name) => /execute_command$/.test(name));
    assert.ok(tool, `no tool for commands among ${tools}`);
    if (said.length < commands.length) return { tool, input: { command: commands[said.length] } };
    return `the program says ${/hello \d+/.exec(said[1])?.[0]}; the list says ${/No such file/.exec(said[2])?.[0]}`;
  }),
});
try {
  await workspace.init();
  const { text } = await agent.generate('Compute the twentieth number of Fibonacci.', { maxSteps: 8 });
  assert.equal(text, 'the program says hello 6765; the list says No such file');
  const before = sandbox.e2b.sandboxId;
  await sandbox.stop(); // the framework pauses
  const again = new E2BSandbox({ id: sandbox.id, template: 'base' });
  await again.start(); // and finds it by its metadata
  assert.equal(again.e2b.sandboxId, before);
  assert.match((await again.executeCommand('cat', ['fib.py'])).stdout, /def fib/);
  await again.destroy();
  console.log('done');
} finally {
  await workspace.destroy().catch(() => {});
}
process.exit(0);
