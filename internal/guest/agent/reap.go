package agent

import (
	"sync"
	"sync/atomic"
	"syscall"
)

// reaper waits for every child of PID 1: those that the agent has started, which it
// notifies, and orphans. One thread blocks in wait4, which costs less than waking for SIGCHLD.
type reaper struct {
	// mu is held for reading from before a fork until the child is registered, so
	// that dispatch finds a child that ends at once.
	mu       sync.RWMutex
	children map[int]child // by pid; guarded by mapMu
	// mapMu is separate from mu because several forks may hold mu for reading.
	mapMu sync.Mutex

	forked      chan struct{} // wakes run after it has found no children
	closed      chan struct{}
	hasChildren atomic.Bool // whether there may be children
	onChild     func()      // called when hasChildren becomes true
}

// child is a process that the agent has started.
type child interface {
	// reaped records that the process has ended; its pid may be reused from now on.
	reaped(status syscall.WaitStatus)
	// finish does the slow rest of the work.
	finish()
}

// startChild starts the program of p, and has c notified of its end.
func (a *Agent) startChild(c child, p *plan, attr *syscall.ProcAttr) (pid int, err error) {
	fork := func() (int, error) { return a.fork(p.path, p.argv, attr) }
	if a.reaper != nil {
		pid, err = a.reaper.start(c, fork)
	} else if pid, err = fork(); err == nil {
		go waitFor(pid, c)
	}
	if err != nil {
		return 0, explainStart(p, err)
	}
	return pid, nil
}

// waitFor does the reaper's work for one child.
func waitFor(pid int, c child) {
	var status syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != syscall.EINTR {
			break
		}
	}
	c.reaped(status)
	c.finish()
}

func newReaper() *reaper {
	return &reaper{
		children: map[int]child{},
		forked:   make(chan struct{}, 1),
		closed:   make(chan struct{}),
		onChild:  func() {},
	}
}

// start calls fork and has c notified of the process's end.
func (r *reaper) start(c child, fork func() (int, error)) (int, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	pid, err := fork()
	if err != nil {
		return 0, err
	}
	r.mapMu.Lock()
	r.children[pid] = c
	r.mapMu.Unlock()
	notify(r.forked)
	if !r.hasChildren.Swap(true) {
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
			r.hasChildren.Store(false)
			select {
			case <-r.forked:
				r.hasChildren.Store(true)
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
	r.mu.Lock() // waits for forks whose child is not registered yet
	r.mapMu.Lock()
	c := r.children[pid]
	delete(r.children, pid)
	r.mapMu.Unlock()
	r.mu.Unlock()
	if c != nil {
		c.reaped(status)
		go c.finish()
	}
}

func (r *reaper) close() { close(r.closed) }
