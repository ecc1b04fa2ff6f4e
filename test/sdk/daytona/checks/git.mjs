import assert from 'node:assert/strict';
import { fails, run, shared } from '../harness.mjs';

export default async function git(check) {
  const sbx = await shared();
  const g = sbx.git;
  const [bare, work, clone] = ['bare', 'work', 'clone'].map((n) => `/tmp/git-${run}/${n}`);
  await check('a repository, a commit and its history', ['smoke', 'Git.init', 'Git.configureUser', 'Git.setConfig', 'Git.getConfig', 'Git.add', 'Git.status', 'Git.commit'], async () => {
    await g.init(bare, true, 'main');
    await g.init(work, false, 'main');
    await g.configureUser('Ann', 'ann@example.com');
    await g.setConfig('cove.test', 'a b', 'local', work);
    assert.equal(await g.getConfig('cove.test', 'local', work), 'a b');
    assert.equal(await g.getConfig('user.name'), 'Ann');
    assert.equal(await g.getConfig('cove.none'), undefined);
    await sbx.fs.uploadFile(Buffer.from('one\n'), `${work}/a file`);
    assert.deepEqual((await g.status(work)).fileStatus.map((f) => [f.name, f.staging]), [['a file', 'Untracked']]);
    await g.add(work, ['a file']);
    const s = await g.status(work);
    assert.deepEqual([s.currentBranch, s.branchPublished, s.fileStatus[0].staging, s.fileStatus[0].worktree], ['main', false, 'Added', 'Unmodified']);
    assert.match((await g.commit(work, 'first -m', 'Ann', 'ann@example.com')).sha, /^[0-9a-f]{40}$/);
    await fails(g.commit(work, 'again', 'Ann', 'ann@example.com'), 'DaytonaValidationError', /nothing to commit/);
    await g.commit(work, 'empty', 'Ann', 'ann@example.com', true);
  });
  await check('branches', ['Git.branches', 'Git.createBranch', 'Git.checkoutBranch', 'Git.deleteBranch'], async () => {
    await g.createBranch(work, 'side');
    await fails(g.createBranch(work, 'side'), 'DaytonaConflictError');
    assert.deepEqual((await g.branches(work)).branches, ['main', 'side']);
    await g.checkoutBranch(work, 'side');
    assert.equal((await g.status(work)).currentBranch, 'side');
    await g.checkoutBranch(work, 'main');
    await g.deleteBranch(work, 'side');
    assert.deepEqual((await g.branches(work)).branches, ['main']);
    await fails(g.checkoutBranch(work, 'none'), 'DaytonaNotFoundError');
    await fails(g.createBranch(work, '--force'), 'DaytonaValidationError');
  });
  await check('remotes, push, clone and pull', ['Git.remoteAdd', 'Git.remotes', 'Git.remoteGet', 'Git.push', 'Git.clone', 'Git.pull'], async () => {
    await g.remoteAdd(work, 'origin', bare);
    assert.deepEqual((await g.remotes(work)).remotes, [{ name: 'origin', url: bare }]);
    assert.equal(await g.remoteGet(work, 'origin'), bare);
    await g.push(work, undefined, undefined, 'main', 'origin', true);
    await g.clone(bare, clone);
    assert.equal((await sbx.fs.downloadFile(`${clone}/a file`)).toString(), 'one\n');
    await sbx.fs.uploadFile(Buffer.from('two\n'), `${work}/a file`);
    await g.add(work, ['.']);
    await g.commit(work, 'second', 'Ann', 'ann@example.com');
    assert.equal((await g.status(work)).ahead, 1);
    await g.push(work);
    await g.pull(clone);
    assert.equal((await sbx.fs.downloadFile(`${clone}/a file`)).toString(), 'two\n');
    await fails(g.clone('/tmp/no-such-repository', `${clone}2`), 'DaytonaNotFoundError');
    await fails(g.status('/tmp'), 'DaytonaNotFoundError');
  });
  await check('reset and restore', ['Git.reset', 'Git.restore'], async () => {
    await sbx.fs.uploadFile(Buffer.from('changed\n'), `${work}/a file`);
    await g.add(work, ['.']);
    await g.restore(work, ['a file'], true);
    assert.equal((await g.status(work)).fileStatus[0].staging, 'Unmodified');
    await g.restore(work, ['a file']);
    assert.equal((await sbx.fs.downloadFile(`${work}/a file`)).toString(), 'two\n');
    await g.reset(work, 'hard', 'HEAD~1');
    assert.equal((await sbx.fs.downloadFile(`${work}/a file`)).toString(), 'one\n');
  });
}
