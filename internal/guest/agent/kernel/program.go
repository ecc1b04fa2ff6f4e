package kernel

import (
	"os"
	"sync"
)

// Program is a program that runs once, with the streams of a kernel. Its
// methods are safe for concurrent use.
type Program struct {
	proc    Process
	streams [2]*stream
	readers sync.WaitGroup
	box     *Outbox
}

// StartProgram starts a program whose output goes to box.
func StartProgram(spawn Spawn, names, args []string, stdin []byte, box *Outbox) (_ *Program, err error) {
	p := &Program{box: box}
	var own, child []*os.File
	defer func() {
		CloseAll(child)
		if err != nil {
			CloseAll(own)
		}
	}()
	files := make([]*os.File, 3)
	var input *os.File
	if len(stdin) > 0 {
		if input, files[0], err = Pipe(1); err != nil {
			return nil, err
		}
		own = append(own, input)
	} else if files[0], err = os.Open(os.DevNull); err != nil {
		return nil, err
	}
	child = append(child, files[0])
	for i := range p.streams {
		r, w, err := Pipe(0)
		if err != nil {
			return nil, err
		}
		own, child, files[i+1] = append(own, r), append(child, w), w
		if p.streams[i], err = newStream(r, func(data []byte) { box.Write(i, data) }); err != nil {
			return nil, err
		}
	}
	if p.proc, err = spawn(names, args, files); err != nil {
		return nil, err
	}
	for _, s := range p.streams {
		p.readers.Go(s.run)
	}
	if input != nil {
		go p.feed(input, stdin)
	}
	return p, nil
}

// feed writes standard input until the program has it, or ends.
func (p *Program) feed(input *os.File, data []byte) {
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = input.Write(data)
	}()
	select {
	case <-written:
	case <-p.proc.Done():
	}
	_ = input.Close()
	<-written
}

// Wait returns when the program has ended and what it wrote is in its box.
func (p *Program) Wait() End {
	<-p.proc.Done()
	for _, s := range p.streams {
		s.drain()
	}
	return p.proc.End()
}

// PID is the program's process.
func (p *Program) PID() int { return p.proc.PID() }

// Interrupt does what ^C does.
func (p *Program) Interrupt() { p.proc.Interrupt() }

// Insist reports that one interrupt is enough.
func (p *Program) Insist() bool { return false }

// Kill ends the program and all processes of its session.
func (p *Program) Kill() { p.proc.Kill() }

// Quiet returns when no process can write to the program's streams any more.
func (p *Program) Quiet() { p.readers.Wait() }

// Abandon stops reading what processes write that it has left behind.
func (p *Program) Abandon() {
	for _, s := range p.streams {
		_ = s.file.Close()
	}
}
