package cell

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
)

// legacyStart starts a cell of protocol 0 or 1, which reads a [Standby] and a [Spec] from
// standard input and answers each on file descriptor 3. Both are the same connection
// here.
type legacyStart struct {
	conn    net.Conn
	answers *json.Decoder
}

// legacyAnswer says that the standby is ready or that the sandbox runs, or why it does
// not.
type legacyAnswer struct {
	Error   string `json:"error"`
	Refused string `json:"refused"`
	Damaged bool   `json:"damaged"`
	Silent  bool   `json:"silent"`
}

func newLegacyStart(conn net.Conn) *legacyStart {
	return &legacyStart{conn, json.NewDecoder(io.LimitReader(conn, 64<<10))}
}

func (l *legacyStart) prepare(ctx context.Context, s *Standby) error {
	if err := json.NewEncoder(l.conn).Encode(s); err != nil {
		return err
	}
	return l.answer(ctx)
}

func (l *legacyStart) start(ctx context.Context, s *Spec, deliver func() error) error {
	defer l.conn.Close()
	if err := json.NewEncoder(l.conn).Encode(s); err != nil {
		return err
	}
	answered := make(chan error, 1)
	go func() { answered <- l.answer(ctx) }()
	for s.AwaitValues {
		err := deliver()
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ECONNREFUSED) {
			return err
		}
		select { // the cell does not listen yet
		case err := <-answered:
			return err
		case <-time.After(time.Millisecond):
		}
	}
	return <-answered
}

// answer waits for an answer of the cell. If ctx ends, it closes the connection. It
// returns the errors of the control protocol.
func (l *legacyStart) answer(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { l.conn.Close() })
	defer stop()
	var a legacyAnswer
	if err := l.answers.Decode(&a); err != nil {
		return cmp.Or(ctx.Err(), err)
	}
	code := connect.CodeInternal
	switch {
	case a.Error == "":
		return nil
	case a.Refused != "":
		return connect.NewWireError(connect.CodeInvalidArgument, errors.New(a.Refused))
	case a.Damaged:
		code = connect.CodeDataLoss
	case a.Silent:
		code = connect.CodeDeadlineExceeded
	}
	return connect.NewWireError(code, errors.New(a.Error))
}
