import assert from 'node:assert/strict';
import { create, fails, sdk, until } from '../harness.mjs';

export default async function commands(check) {
  const sbx = await create();
  const c = sbx.commands;
  await check('both streams', ['smoke', 'Commands.run'], async () => {
    const r = await c.run('echo out; echo err >&2');
    assert.deepEqual([r.exitCode, r.stdout, r.stderr], [0, 'out\n', 'err\n']);
  });
  await check('a failing command is a CommandExitError', ['smoke', 'Commands.run'], async () => {
    const err = await fails(c.run('echo half; echo why >&2; exit 7'), 'CommandExitError');
    assert.deepEqual([err.exitCode, err.stdout, err.stderr], [7, 'half\n', 'why\n']);
    assert.equal((await fails(c.run('no-such-program'), 'CommandExitError')).exitCode, 127);
  });
  await check('environment and directory of a command', ['Commands.run'], async () => {
    const { stdout } = await c.run('echo "$A $PWD"', { envs: { A: 'é "x"' }, cwd: '/tmp' });
    assert.equal(stdout, 'é "x" /tmp\n');
    assert.equal((await c.run('echo "[$A]"')).stdout, '[]\n');
  });
  await check('the default user has a home, where commands begin', ['Commands.run'], async () => {
    const { stdout } = await c.run('id -un; echo "$HOME $USER"; pwd');
    assert.equal(stdout, 'user\n/home/user user\n/home/user\n');
  });
  await check('a command as root', ['Commands.run'], async () => {
    assert.equal((await c.run('id -u', { user: 'root' })).stdout, '0\n');
  });
  await check('a login shell', ['Commands.run'], async () => {
    assert.equal((await c.run('shopt -q login_shell && echo login')).stdout, 'login\n');
  });
  await check('output comes while the command runs', ['smoke', 'Commands.run'], async () => {
    const seen = [];
    let first;
    const came = new Promise((done) => { first = done; });
    const running = c.run('echo one; until [ -e /tmp/goon ]; do sleep 0.05; done; echo two >&2', {
      onStdout: (s) => { seen.push(`out ${s}`); first(); },
      onStderr: (s) => { seen.push(`err ${s}`); },
    });
    await came;
    await c.run('touch /tmp/goon');
    await running;
    assert.deepEqual(seen, ['out one\n', 'err two\n']);
  });
  await check('much output, and characters that are cut in two', ['Commands.run'], async () => {
    const { stdout } = await c.run(`i=0; while [ $i -lt 40 ]; do printf '%050000d' 0 | tr 0 é; i=$((i+1)); done`, { timeoutMs: 60_000 }).catch((e) => e);
    const { stdout: long } = await c.run(`head -c 3000000 /dev/zero | tr '\\0' x`);
    assert.equal(long.length, 3_000_000);
    const { stdout: wide } = await c.run(`yes 'é€😀' | head -n 60000`);
    assert.equal(wide, 'é€😀\n'.repeat(60_000));
    assert.ok(typeof stdout === 'string');
  });
  await check('a command in the background', ['smoke', 'Commands.run', 'CommandHandle.wait'], async () => {
    const h = await c.run('sleep 0.2; echo late; exit 3', { background: true });
    assert.ok(h.pid > 0);
    const err = await fails(h.wait(), 'CommandExitError');
    assert.deepEqual([err.exitCode, err.stdout, h.exitCode, h.stdout], [3, 'late\n', 3, 'late\n']);
  });
  await check('standard input', ['smoke', 'Commands.sendStdin', 'Commands.closeStdin', 'CommandHandle.sendStdin', 'CommandHandle.closeStdin'], async () => {
    const h = await c.run('cat; echo end', { background: true, stdin: true });
    await c.sendStdin(h.pid, 'by number\n');
    await h.sendStdin('by handle é\n');
    await h.closeStdin();
    const { stdout } = await h.wait();
    assert.equal(stdout, 'by number\nby handle é\nend\n');
    const other = await c.run('wc -c', { background: true, stdin: true });
    await c.sendStdin(other.pid, '12345');
    await c.closeStdin(other.pid);
    assert.equal((await other.wait()).stdout.trim(), '5');
  });
  await check('without standard input there is none', ['Commands.run', 'Commands.sendStdin'], async () => {
    assert.equal((await c.run('cat | wc -c')).stdout.trim(), '0');
    const h = await c.run('sleep 30', { background: true });
    await fails(c.sendStdin(h.pid, 'x'), 'SandboxError');
    await h.kill();
  });
  await check('the list of commands', ['Commands.list'], async () => {
    const h = await c.run('sleep 31', { background: true, envs: { A: '1' }, cwd: '/tmp' });
    const found = (await c.list()).find((p) => p.pid === h.pid);
    assert.ok(found, 'it is not listed');
    assert.deepEqual([found.cmd, found.args.at(-1), found.cwd], ['/bin/bash', 'sleep 31', '/tmp']);
    await h.kill();
    await until('its end in the list', async () => !(await c.list()).some((p) => p.pid === h.pid));
  });
  await check('killed', ['smoke', 'Commands.kill', 'CommandHandle.kill', 'CommandHandle.wait'], async () => {
    const h = await c.run('sleep 32', { background: true });
    assert.equal(await c.kill(h.pid), true);
    const err = await h.wait().catch((e) => e);
    assert.equal(err.exitCode, -1, String(err));
    assert.match(String(err.error ?? err.message), /killed/);
    assert.equal(await c.kill(h.pid), false);
    const two = await c.run('sleep 33', { background: true });
    assert.equal(await two.kill(), true);
  });
  await check('a command outlives its caller, and others listen', ['CommandHandle.disconnect', 'Commands.connect'], async () => {
    const h = await c.run('until [ -e /tmp/heard ]; do sleep 0.05; done; echo heard; exit 4', { background: true, timeoutMs: 0 });
    await h.disconnect();
    const seen = [];
    const again = await c.connect(h.pid, { onStdout: (s) => { seen.push(s); } });
    assert.equal(again.pid, h.pid);
    await c.run('touch /tmp/heard');
    const err = await fails(again.wait(), 'CommandExitError');
    assert.deepEqual([err.exitCode, seen.join('')], [4, 'heard\n']);
  });
  await check('connect to what is not there', ['Commands.connect'], async () => {
    await fails(c.connect(999_999), 'NotFoundError');
  });
  await check('a time limit ends the command', ['smoke', 'Commands.run'], async () => {
    await fails(c.run('echo $$ > /tmp/limited; exec sleep 34', { timeoutMs: 1000 }), 'TimeoutError');
    await until('its end', async () => (await c.run('kill -0 $(cat /tmp/limited) 2>/dev/null || echo gone')).stdout === 'gone\n');
  });
  await check('a directory that is not there', ['Commands.run'], async () => {
    await fails(c.run('true', { cwd: '/no/such' }), 'InvalidArgumentError', /does not exist/);
  });
  await check('a user that is not there', ['Commands.run'], async () => {
    await fails(c.run('true', { user: 'nobody-here' }), 'AuthenticationError', /invalid username/);
  });
  await check('many commands at once', ['Commands.run'], async () => {
    const all = await Promise.all(Array.from({ length: 20 }, (_, i) => c.run(`echo ${i}`)));
    assert.deepEqual(all.map((r) => r.stdout), Array.from({ length: 20 }, (_, i) => `${i}\n`));
  });
  await check('git, by its commands', ['Git.init', 'Git.configureUser', 'Git.add', 'Git.commit', 'Git.status', 'Git.branches', 'Git.createBranch', 'Git.checkoutBranch', 'Git.deleteBranch',
    'Git.remoteAdd', 'Git.remoteGet', 'Git.setConfig', 'Git.getConfig', 'Git.clone', 'Git.push', 'Git.pull', 'Git.reset', 'Git.restore'], async () => {
    const g = sbx.git;
    await g.init('/tmp/repo', { initialBranch: 'main' });
    await g.configureUser('A', 'a@example.com', { scope: 'local', path: '/tmp/repo' });
    await sbx.files.write('/tmp/repo/a.txt', 'one');
    assert.equal((await g.status('/tmp/repo')).fileStatus.length, 1);
    await g.add('/tmp/repo', { all: true });
    await g.commit('/tmp/repo', 'first');
    await g.createBranch('/tmp/repo', 'side');
    await g.checkoutBranch('/tmp/repo', 'main');
    await g.deleteBranch('/tmp/repo', 'side');
    assert.equal((await g.branches('/tmp/repo')).currentBranch, 'main');
    await c.run('git init -q --bare -b main /tmp/bare');
    await g.remoteAdd('/tmp/repo', 'origin', '/tmp/bare');
    assert.equal(await g.remoteGet('/tmp/repo', 'origin'), '/tmp/bare');
    await g.push('/tmp/repo', { remote: 'origin', branch: 'main', setUpstream: true });
    await g.clone('/tmp/bare', { path: '/tmp/cloned' });
    assert.equal(await sbx.files.read('/tmp/cloned/a.txt'), 'one');
    await g.pull('/tmp/cloned');
    await g.setConfig('user.name', 'B', { scope: 'local', path: '/tmp/cloned' });
    assert.equal(await g.getConfig('user.name', { scope: 'local', path: '/tmp/cloned' }), 'B');
    await sbx.files.write('/tmp/repo/a.txt', 'two');
    await g.restore('/tmp/repo', { paths: ['a.txt'] });
    assert.equal(await sbx.files.read('/tmp/repo/a.txt'), 'one');
    await g.reset('/tmp/repo', { mode: 'hard' });
  });
  await check('a terminal', ['Pty.create', 'Pty.sendInput', 'Pty.resize', 'Pty.kill'], async () => {
    let screen = '';
    const bytes = (s) => new TextEncoder().encode(s);
    const p = await sbx.pty.create({ cols: 91, rows: 20, onData: (d) => { screen += new TextDecoder().decode(d); }, envs: { MARK: 'm1' }, cwd: '/tmp', timeoutMs: 0 });
    await sbx.pty.sendInput(p.pid, bytes('stty size; echo "$MARK $PWD $TERM"; test -t 0 && echo is-a-"tty"\n'));
    await until('the size', () => /20 91/.test(screen) && /m1 \/tmp xterm-256color/.test(screen) && /is-a-tty/.test(screen));
    await sbx.pty.resize(p.pid, { cols: 120, rows: 33 });
    await sbx.pty.sendInput(p.pid, bytes('stty size\n'));
    await until('the new size', () => /33 120/.test(screen));
    assert.equal(await sbx.pty.kill(p.pid), true);
    await p.wait().catch(() => {});
    assert.equal(await sbx.pty.kill(p.pid), false);
  });
  await check('a terminal that others attach to, and its end', ['Pty.connect', 'Pty.create'], async () => {
    const bytes = (s) => new TextEncoder().encode(s);
    const p = await sbx.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 });
    let screen = '';
    const q = await sbx.pty.connect(p.pid, { onData: (d) => { screen += new TextDecoder().decode(d); } });
    await sbx.pty.sendInput(p.pid, bytes('echo re-"attached"\n'));
    await until('the output', () => /re-attached/.test(screen));
    await sbx.pty.sendInput(p.pid, bytes('exit 5\n'));
    const err = await q.wait().catch((e) => e);
    assert.equal(err.exitCode, 5, String(err));
    assert.ok(err instanceof sdk.CommandExitError);
  });
}
