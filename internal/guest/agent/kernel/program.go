package kernel

import "os"

// Program is a program that runs once, with the streams of a kernel. Its
// methods are safe for concurrent use.
type Program struct{ worker }

// StartProgram starts a program whose output goes to box.
func StartProgram(spawn Spawn, names, args []string, stdin []byte, box *Outbox) (_ *Program, err error) {
	p := &Program{}
	var pipes Pipes
	defer func() { pipes.Close(err) }()
	var input, source *os.File
	if len(stdin) > 0 {
		input, source, err = pipes.Add(1)
	} else if source, err = os.Open(os.DevNull); err == nil {
		pipes.Child = append(pipes.Child, source)
	}
	if err != nil {
		return nil, err
	}
	streams, err := p.addStreams(&pipes, box.Write)
	if err != nil {
		return nil, err
	}
	if p.proc, err = spawn(names, args, []*os.File{source, streams[0], streams[1]}); err != nil {
		return nil, err
	}
	p.read()
	if input != nil {
		go p.feed(input, stdin)
	}
	return p, nil
}

// feed writes standard input until the program has read it or ended.
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

// Wait returns when the program has ended and its output is in its box.
func (p *Program) Wait() End {
	<-p.proc.Done()
	p.drain()
	return p.proc.End()
}

// Interrupt interrupts the program, as ^C does.
func (p *Program) Interrupt() { p.proc.Interrupt() }

// Insist returns false: one interrupt is enough.
func (p *Program) Insist() bool { return false }
