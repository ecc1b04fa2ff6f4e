package kernel

import (
	"os"
	"sync"
)

// worker is a process whose output is read as long as any process can write to it, even
// after its own end.
type worker struct {
	proc    Process
	streams [2]*stream
	readers sync.WaitGroup
}

// addStreams makes the streams, whose data it passes to take, and returns the child's
// ends.
func (w *worker) addStreams(p *Pipes, take func(stream int, data []byte)) ([]*os.File, error) {
	for i := range w.streams {
		own, _, err := p.Add(0)
		if err != nil {
			return nil, err
		}
		if w.streams[i], err = newStream(own, func(data []byte) { take(i, data) }); err != nil {
			return nil, err
		}
	}
	return p.Child[len(p.Child)-len(w.streams):], nil
}

// read starts to read the streams.
func (w *worker) read() {
	for _, s := range w.streams {
		w.readers.Go(s.run)
	}
}

func (w *worker) drain() {
	for _, s := range w.streams {
		s.drain()
	}
}

// PID returns the pid of the process.
func (w *worker) PID() int { return w.proc.PID() }

// Kill kills all processes of the session.
func (w *worker) Kill() { w.proc.Kill() }

// Quiet waits until no process can write to the streams any more.
func (w *worker) Quiet() { w.readers.Wait() }

// Abandon stops reading from processes that the worker has left behind.
func (w *worker) Abandon() {
	for _, s := range w.streams {
		_ = s.file.Close()
	}
}
