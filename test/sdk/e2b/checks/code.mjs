import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { keep, newer, sdk, until } from '../harness.mjs';

export default async function code(check) {
  if (!newer('2.48.0')) return; // what the package for code stands on
  const { Sandbox, ...own } = await import(process.env.COVE_CODE_SDK ?? '@e2b/code-interpreter');
  void createRequire;
  const sbx = keep(await Sandbox.create());
  const kinds = { ...sdk, ...own };
  const fails = async (promise, kind, text = /./) => {
    const err = await promise.then((v) => assert.fail(`no error, but ${JSON.stringify(v)}`), (e) => e);
    assert.ok(err instanceof kinds[kind], `${kind} expected, got ${err?.constructor?.name}: ${err?.message}`);
    assert.match(err.message, text);
  };
  await check('the value of the last expression, and state', ['smoke', 'code Sandbox.runCode'], async () => {
    assert.equal((await sbx.runCode('x = 6')).text, undefined);
    const r = await sbx.runCode('x * 7');
    assert.deepEqual([r.text, r.executionCount, r.error], ['42', 2, undefined]);
    assert.equal((await sbx.runCode("'it' + '\\'s'")).text, "it's");
  });
  await check('output as it comes', ['smoke', 'code Sandbox.runCode'], async () => {
    const seen = [];
    let goOn;
    const r = await sbx.runCode("import os, sys, time\nprint('one', flush=True)\nwhile not os.path.exists('/tmp/go-on'): time.sleep(0.05)\nprint('two', file=sys.stderr)", {
      onStdout: (m) => { seen.push(`out ${m.line}`); assert.ok(m.timestamp > 0); goOn = sbx.files.write('/tmp/go-on', ''); }, onStderr: (m) => { seen.push(`err ${m.line}`); assert.equal(m.error, true); },
    });
    await goOn;
    assert.deepEqual(seen, ['out one\n', 'err two\n']);
    assert.deepEqual(r.logs, { stdout: ['one\n'], stderr: ['two\n'] });
  });
  await check('an error of the code is no exception', ['smoke', 'code Sandbox.runCode'], async () => {
    let told;
    const r = await sbx.runCode('def f():\n    1/0\nf()', { onError: (e) => { told = e; } });
    assert.deepEqual([r.error.name, r.error.value], ['ZeroDivisionError', 'division by zero']);
    assert.match(r.error.traceback, /line 2, in f/);
    assert.equal(told.name, 'ZeroDivisionError');
  });
  await check('rich results', ['code Sandbox.runCode'], async () => {
    const results = [];
    const r = await sbx.runCode(`class R:
    def _repr_html_(self): return '<b>r</b>'
    def _repr_markdown_(self): return '*r*'
    def _repr_latex_(self): return '$r$'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'png'
    def _repr_jpeg_(self): return b'jpeg'
    def _repr_javascript_(self): return '1'
    def _repr_json_(self): return {'n': 1}
    def __repr__(self): return 'R'
display(R())
display({'application/pdf': b'pdf', 'x/y': b'z'}, raw=True)
R()`, { onResult: (x) => { results.push(x); } });
    assert.equal(results.length, 3);
    assert.deepEqual(r.results.map((x) => x.isMainResult), [false, false, true]);
    const x = r.results[0];
    assert.deepEqual([x.text, x.html, x.markdown, x.latex, x.svg, x.png, x.jpeg, x.javascript, x.json],
      ['R', '<b>r</b>', '*r*', '$r$', '<svg/>', btoa('png'), btoa('jpeg'), '1', { n: 1 }]);
    assert.equal(r.results[1].pdf, btoa('pdf'));
    assert.deepEqual(r.results[1].raw.extra, { 'x/y': btoa('z') });
    assert.equal(r.text, 'R');
    assert.deepEqual((await sbx.runCode("{'a': [1, None]}")).results[0].json, { a: [1, null] });
  });
  await check('a chart, as a picture and as data', ['smoke', 'code Sandbox.runCode'], async () => {
    const r = await sbx.runCode("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6], label='up')\nplt.xlabel('time (s)')\nplt.title('Growth')\nplt.show()");
    const [x] = r.results;
    assert.ok(x, JSON.stringify(r));
    assert.deepEqual([...Buffer.from(x.png, 'base64').subarray(1, 4)], [...Buffer.from('PNG')]);
    assert.deepEqual([x.chart.type, x.chart.title, x.chart.x_label, x.chart.x_unit, x.chart.elements], ['line', 'Growth', 'time (s)', 's', [{ label: 'up', points: [[1, 4], [2, 5], [3, 6]] }]]);
    const b = (await sbx.runCode("plt.bar(['a', 'b'], [3, 4])\nplt.show()")).results[0];
    assert.deepEqual(b.chart.elements, [{ label: 'a', group: 'Group 0', value: 3 }, { label: 'b', group: 'Group 0', value: 4 }]);
  });
  await check('a table, as text and as data', ['code Sandbox.runCode'], async () => {
    const [x] = (await sbx.runCode("import pandas as pd\npd.DataFrame({'n': [1, 2], 's': ['x', None]})")).results;
    assert.deepEqual(x.data, { n: [1, 2], s: ['x', null] });
    assert.match(x.html, /<table/);
    assert.ok(x.formats().includes('data'));
  });
  await check('variables of one run', ['code Sandbox.runCode'], async () => {
    const r = await sbx.runCode("import os; print(os.environ.get('ONLY'), os.environ['E2B_SANDBOX'])", { envs: { ONLY: 'now' } });
    assert.deepEqual(r.logs.stdout, ['now true\n']);
    assert.equal((await sbx.runCode("os.environ.get('ONLY', 'gone')")).text, 'gone');
  });
  await check('other languages', ['smoke', 'code Sandbox.runCode'], async () => {
    assert.equal((await sbx.runCode('const y = await Promise.resolve(20); y + 1', { language: 'javascript' })).text, '21');
    assert.equal((await sbx.runCode('const z: number = 5; z', { language: 'ts' })).text, '5');
    const r = await sbx.runCode('cd /tmp; v=1; pwd; (exit 3)', { language: 'bash' });
    assert.deepEqual([r.logs.stdout.join(''), r.error.value], ['/tmp\n', '3']);
    assert.deepEqual((await sbx.runCode('echo $v $PWD', { language: 'bash' })).logs.stdout, ['1 /tmp\n']);
    await fails(sbx.runCode('1', { language: 'cobol' }), 'SandboxError', /500/);
    const js = await sbx.runCode('throw new TypeError("t")', { language: 'js' });
    assert.deepEqual([js.error.name, js.error.value], ['TypeError', 't']);
  });
  await check('code and commands have the same home', ['code Sandbox.runCode'], async () => {
    assert.equal((await sbx.runCode('import os; os.getcwd()')).text, '/home/user');
    await sbx.runCode("open('from-code.txt', 'w').write('x')");
    assert.equal(await sbx.files.read('from-code.txt'), 'x');
    assert.equal((await sbx.runCode('!echo shell')).logs.stdout.join(''), 'shell\n');
  });
  await check('contexts keep apart, each in its directory', ['smoke', 'code Sandbox.createCodeContext', 'code Sandbox.runCode', 'code Sandbox.listCodeContexts'], async () => {
    const a = await sbx.createCodeContext({ cwd: '/tmp' });
    const b = await sbx.createCodeContext({ language: 'bash' });
    assert.deepEqual([a.language, a.cwd, b.language, b.cwd], ['python', '/tmp', 'bash', '/home/user']);
    assert.equal((await sbx.runCode('import os; mine = 1; os.getcwd()', { context: a })).text, '/tmp');
    assert.equal((await sbx.runCode('mine')).error.name, 'NameError');
    assert.equal((await sbx.runCode('echo $0', { context: b })).error, undefined);
    const list = await sbx.listCodeContexts();
    assert.deepEqual(list.slice(0, 2).map((c) => c.language), ['python', 'javascript']);
    assert.equal(list.at(-1).id, b.id);
  });
  await check('contexts restarted and removed', ['code Sandbox.restartCodeContext', 'code Sandbox.removeCodeContext'], async () => {
    const a = await sbx.createCodeContext({ cwd: '/tmp' });
    await sbx.runCode('mine = 1', { context: a });
    await sbx.restartCodeContext(a);
    const r = await sbx.runCode("import os; ['mine' in dir(), os.getcwd()]", { context: a });
    assert.deepEqual(r.results[0].json, [false, '/tmp']);
    await sbx.removeCodeContext(a.id);
    assert.ok(!(await sbx.listCodeContexts()).some((c) => c.id === a.id));
    await fails(sbx.runCode('1', { context: a }), 'NotFoundError', /Context/);
    await fails(sbx.removeCodeContext(a), 'NotFoundError');
    await fails(sbx.restartCodeContext(a), 'NotFoundError');
    await fails(sbx.createCodeContext({ cwd: '/no/such' }), 'SandboxError');
  });
  await check('a time limit interrupts code and keeps state', ['code Sandbox.runCode'], async () => {
    await fails(sbx.runCode('kept = 1\nimport time; time.sleep(60)', { timeoutMs: 1500 }), 'TimeoutError', /Execution timed out/);
    assert.equal((await sbx.runCode('kept')).text, '1');
  });
  await check('an interpreter that dies, and its next', ['code Sandbox.runCode'], async () => {
    const r = await sbx.runCode('import os; os._exit(1)');
    assert.equal(r.error.name, 'UnexpectedEndOfExecution');
    assert.equal((await sbx.runCode('1 + 1')).text, '2');
  });
  await check('variables survive a pause', ['code Sandbox.runCode', 'Sandbox.pause'], async () => {
    await sbx.runCode('through = [1]');
    await sbx.pause();
    await sbx.connect();
    assert.deepEqual((await sbx.runCode('through')).results[0].json, [1]);
  });
  await check('a sandbox that is killed meanwhile', ['code Sandbox.runCode'], async () => {
    const two = keep(await Sandbox.create());
    const running = two.runCode("print('begun')\nimport time; time.sleep(60)", { onStdout: () => { void two.kill(); } });
    await fails(running, 'TimeoutError', /killed/);
    await until('its end', async () => !(await two.isRunning()));
    await fails(two.runCode('1'), 'TimeoutError');
  });
}
