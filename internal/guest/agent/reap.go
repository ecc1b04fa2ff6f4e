package agent

import (
	"sync"
	"sync/atomic"
	"syscall"
)

// reaper collects every child of PID 1: jobs, whose end it tells, and orphans.
// One thread blocks in wait4, which costs less than waking for SIGCHLD.
type reaper struct {
	// mu is held for reading from before a fork until the child is in jobs,
	// so that a child that ends at once finds its job.
	mu   sync.RWMutex
	jobs map[int]child // by pid; guarded by mapMu
	// mapMu is apart from mu because many may hold mu for reading.
	mapMu sync.Mutex

	forked   chan struct{} // wakes run when it has found no children
	closed   chan struct{}
	children atomic.Bool // whether there may be any
	onChild  func()      // called when children appear
}

// child is a process that the agent has started.
type child interface {
	// reaped is told that it has ended: its number may be another's now.
	reaped(status syscall.WaitStatus)
	// finish does what takes time afterwards.
	finish()
}

func newReaper() *reaper {
	return &reaper{
		jobs:    map[int]child{},
		forked:  make(chan struct{}, 1),
		closed:  make(chan struct{}),
		onChild: func() {},
	}
}

// start calls fork and hands the child's end to j.
func (r *reaper) start(j child, fork func() (int, error)) (int, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	pid, err := fork()
	if err != nil {
		return 0, err
	}
	r.mapMu.Lock()
	r.jobs[pid] = j
	r.mapMu.Unlock()
	select {
	case r.forked <- struct{}{}:
	default:
	}
	if !r.children.Swap(true) {
		r.onChild()
	}
	return pid, nil
}

func (r *reaper) run() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil: // no children
			r.children.Store(false)
			select {
			case <-r.forked:
				r.children.Store(true)
				r.onChild()
			case <-r.closed:
				return
			}
		case status.Exited() || status.Signaled():
			r.dispatch(pid, status)
		}
	}
}

func (r *reaper) dispatch(pid int, status syscall.WaitStatus) {
	r.mu.Lock() // no fork is between its child and its entry now
	r.mapMu.Lock()
	j := r.jobs[pid]
	delete(r.jobs, pid)
	r.mapMu.Unlock()
	r.mu.Unlock()
	if j != nil {
		j.reaped(status)
		go j.finish()
	}
}

func (r *reaper) close() { close(r.closed) }
