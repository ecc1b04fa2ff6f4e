package agent

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"
)

const (
	// maxEnded is how many ended jobs are remembered.
	maxEnded = 256
	// maxEndedBytes is how much output of ended jobs is kept in total, apart from
	// that of the job that ended last.
	maxEndedBytes = 32 << 20
)

// jobTable holds the running jobs and the newest of those that have ended.
type jobTable struct {
	mu     sync.Mutex
	closed bool // guarded by mu
	// starting counts the jobs between reserve and release or add. No more are added once
	// the table is closed.
	starting sync.WaitGroup
	byID     map[string]*job // guarded by mu; nil while a job starts
	order    []*job          // guarded by mu; oldest first
	// left has the forgotten jobs whose processes still write. Guarded by mu.
	left map[*job]struct{}
}

func newJobTable() *jobTable {
	return &jobTable{byID: map[string]*job{}, left: map[*job]struct{}{}}
}

// reserve takes id, or a new one if it is empty, for a job about to start.
func (t *jobTable) reserve(id string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return "", errStopping
	}
	if id == "" {
		id = "job_" + strings.ToLower(rand.Text())
	}
	if _, taken := t.byID[id]; taken {
		return "", fail(connect.CodeAlreadyExists, "job %s already exists; attach to it, or choose another id", id)
	}
	t.byID[id] = nil
	t.starting.Add(1)
	return id, nil
}

// release frees the id of a job that did not start.
func (t *jobTable) release(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.byID, id)
	t.starting.Done()
}

// add registers a job that has started. It reports false if the table is closed.
func (t *jobTable) add(j *job) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.starting.Done()
	t.byID[j.id] = j
	t.order = append(t.order, j)
	t.collect()
	return !t.closed
}

func (t *jobTable) get(id string) (*job, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if j := t.byID[id]; j != nil {
		return j, nil
	}
	return nil, fail(connect.CodeNotFound, "there is no job %q; list the jobs to see which exist", strings.ToValidUTF8(id, ""))
}

func (t *jobTable) list() []*job {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.order)
}

// running counts the jobs that have not ended.
func (t *jobTable) running() (n int) {
	for _, j := range t.list() {
		if j.running() {
			n++
		}
	}
	return n
}

// done announces the end of a job. From then on the table is within its limits.
func (t *jobTable) done(j *job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(j.done)
	t.collect()
}

// collect forgets the oldest ended jobs if there are too many or their output takes
// too much memory.
//
// Preconditions: t.mu is held.
func (t *jobTable) collect() {
	count, size := 0, 0
	kept := len(t.order)
	for i := len(t.order) - 1; i >= 0; i-- {
		j := t.order[i]
		if !j.running() {
			_, _, n := j.out.totals()
			count++
			size += n
			if count > maxEnded || count > 1 && size > maxEndedBytes {
				t.forget(j)
				continue
			}
		}
		kept--
		t.order[kept] = j
	}
	if kept > 0 {
		clear(t.order[:kept])
		t.order = t.order[kept:]
	}
}

// Preconditions: t.mu is held.
func (t *jobTable) forget(j *job) {
	delete(t.byID, j.id)
	j.out.drop()
	if !j.out.ended() {
		t.left[j] = struct{}{}
	}
}

// quiet removes a forgotten job once no process writes to its output.
func (t *jobTable) quiet(j *job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.left, j)
}

// bySession finds the job whose session sid is.
func (t *jobTable) bySession(sid int) *job {
	for _, j := range t.list() {
		if j.pid == sid && j.running() {
			return j
		}
	}
	return nil
}

// close refuses new jobs and returns every job that may have processes.
func (t *jobTable) close() []*job {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return slices.AppendSeq(slices.Clone(t.order), maps.Keys(t.left))
}

// settle waits until no job is about to start any more in a closed table. It fails if ctx
// ends first.
func (t *jobTable) settle(ctx context.Context) error {
	started := make(chan struct{})
	go func() {
		t.starting.Wait()
		close(started)
	}()
	return await(ctx, started)
}
