package agent

import (
	"context"
	"errors"
	"os"
	"time"

	"connectrpc.com/connect"
)

// endOfInput is the character that means end of file to a terminal.
const endOfInput = "\x04"

// input is the agent's end of a job's standard input.
type input struct {
	file     *os.File
	terminal bool
	// turn holds one value, which the current writer takes: writes do not mix.
	turn   chan struct{}
	closed bool // guarded by turn
}

func newInput(file *os.File, terminal bool) *input {
	in := &input{file: file, terminal: terminal, turn: make(chan struct{}, 1)}
	in.turn <- struct{}{}
	return in
}

// first writes the input that the request contains and, unless open is set, closes
// the input. It does not block: what the pipe does not take at once is written in the
// background.
func (in *input) first(data []byte, open bool) {
	if len(data) == 0 && open {
		return
	}
	<-in.turn
	if len(data) <= 1024 { // any pipe or terminal holds that
		in.writeFirst(data, open)
		return
	}
	go in.writeFirst(data, open)
}

func (in *input) writeFirst(data []byte, open bool) {
	defer func() { in.turn <- struct{}{} }()
	if len(data) > 0 {
		if _, err := in.file.Write(data); err != nil {
			return // the job does not read it, which is no error of the agent
		}
	}
	if !open {
		_ = in.end()
	}
}

// end closes the input; on a terminal it writes a character for that.
//
// Preconditions: the caller has the turn.
func (in *input) end() error {
	in.closed = true
	if in.terminal {
		_, err := in.file.WriteString(endOfInput)
		return err
	}
	return in.file.Close()
}

// write blocks until the job has taken data or ctx ends.
func (in *input) write(ctx context.Context, data []byte, end bool) error {
	select {
	case <-in.turn:
		defer func() { in.turn <- struct{}{} }()
	case <-ctx.Done():
		return cancelled(ctx)
	}
	if in.closed {
		if len(data) == 0 && end {
			return nil
		}
		return fail(connect.CodeFailedPrecondition, "standard input is closed; start the command with an open standard input to write to it later")
	}
	stop := context.AfterFunc(ctx, func() { _ = in.file.SetWriteDeadline(time.Unix(1, 0)) })
	n, err := in.file.Write(data)
	if !stop() {
		_ = in.file.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil && end:
		// The command may have read everything and ended, which closes its input.
		err = in.end()
		if err == nil || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
			return nil
		}
	case err == nil:
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fail(connect.CodeCanceled, "the call ended after %d of %d bytes were written; the command does not read its standard input", n, len(data))
	}
	return fail(connect.CodeFailedPrecondition, "the command has closed its standard input after %d of %d bytes; it takes no more", n, len(data))
}

// abort makes blocked and later writes fail.
func (in *input) abort() {
	if !in.terminal { // the pump owns a terminal
		_ = in.file.Close()
		return
	}
	_ = in.file.SetWriteDeadline(time.Unix(1, 0))
}
