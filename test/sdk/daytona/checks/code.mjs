import assert from 'node:assert/strict';
import { fails, shared } from '../harness.mjs';

export default async function code(check) {
  const sbx = await shared();
  const py = sbx.codeInterpreter;
  await check('code that keeps its state', ['smoke', 'CodeInterpreter.runCode'], async () => {
    const streamed = [];
    const one = await py.runCode('x = 41\nprint("out")\nimport sys; print("err", file=sys.stderr)', { onStdout: (m) => streamed.push(m.output) });
    assert.deepEqual([one.stdout, one.stderr, one.error], ['out\n', 'err\n', undefined]);
    assert.equal(streamed.join(''), 'out\n');
    assert.equal((await py.runCode('print(x + 1)')).stdout, '42\n');
    assert.equal((await py.runCode('import os; print(os.environ["E"])', { envs: { E: 'v' } })).stdout, 'v\n');
  });
  await check('code that fails', ['CodeInterpreter.runCode'], async () => {
    const r = await py.runCode('1/0');
    assert.equal(r.error.name, 'ZeroDivisionError');
    assert.match(r.error.traceback, /division/);
  });
  await check('code that takes too long', ['CodeInterpreter.runCode'], async () => {
    await fails(py.runCode('import time; time.sleep(60)', { timeout: 1 }), 'DaytonaTimeoutError');
  });
  await check('contexts of their own', ['CodeInterpreter.createContext', 'CodeInterpreter.listContexts', 'CodeInterpreter.deleteContext'], async () => {
    const c = await py.createContext('/usr');
    assert.deepEqual([c.language, c.cwd], ['python', '/usr']);
    const r = await py.runCode('import os; print("x" in globals(), os.getcwd())', { context: c });
    assert.equal(r.stdout, 'False /usr\n');
    assert.ok((await py.listContexts()).some((l) => l.id === c.id));
    await py.deleteContext(c);
    assert.ok(!(await py.listContexts()).some((l) => l.id === c.id));
    await fails(py.runCode('1', { context: c }), 'DaytonaError', /not found/);
    await fails(py.createContext('/no/such'), 'DaytonaValidationError');
  });
}
