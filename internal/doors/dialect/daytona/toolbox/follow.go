package toolbox

import (
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/coder/websocket"

	"github.com/cove-sh/cove/sandbox"
)

// chunk bounds the output of a message, in bytes.
const chunk = 64 << 10

// streams are the files of a command's output, and the mark that begins a piece of each.
var streams = []struct{ file, mark string }{{"/stdout", "\x01\x01\x01"}, {"/stderr", "\x02\x02\x02"}}

// follower sends the output of a session's command as it comes.
type follower struct {
	p    *plane
	conn *websocket.Conn
	s    *session
	dir  string
	sent [2]int64
}

// followLogs sends a command's past and new output, and closes the connection when the
// command has ended.
func (p *plane) followLogs(w http.ResponseWriter, r *http.Request, s *session, id string) {
	conn, err := accept(w, r)
	if err != nil {
		return // it has answered
	}
	defer conn.CloseNow()
	ctx, cancel := context.WithCancel(conn.CloseRead(r.Context()))
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	f := &follower{p: p, conn: conn, s: s, dir: s.dir + "/" + id}
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
	over := make(chan struct{}) // the shell has ended
	workers.Go(func() {
		defer cancel() // without it there is nothing to follow
		err := p.svc.WatchFiles(ctx, s.job.SandboxID, sandbox.WatchRequest{Path: f.dir}, func(sandbox.WatchEvent) error { notify(); return nil })
		if err != nil {
			p.log.DebugContext(ctx, "watch the output of a command", "sandbox", s.job.SandboxID, "error", err)
		}
	})
	workers.Go(func() {
		job, err := p.svc.Attach(ctx, s.job.SandboxID, s.job.ID, sandbox.AttachRequest{StdoutOffset: s.job.StdoutBytes}, nil)
		if err == nil && job.State == sandbox.JobExited {
			close(over)
		}
	})
	f.follow(ctx, changed, over)
	_ = conn.Close(websocket.StatusNormalClosure, "")
}

// follow sends output until there will be no more.
func (f *follower) follow(ctx context.Context, changed, over <-chan struct{}) {
	for {
		last := false
		select {
		case <-ctx.Done():
			return
		case <-over:
			last = true
		case <-changed:
			_, err := f.p.svc.StatFile(ctx, f.s.job.SandboxID, f.dir+"/exit")
			if err != nil && !notFound(err) {
				return
			}
			last = err == nil
		}
		if f.send(ctx) != nil || last {
			return
		}
	}
}

// send sends the part of the files that was not sent yet.
func (f *follower) send(ctx context.Context) error {
	for i, stream := range streams {
		file, err := f.p.svc.ReadFile(ctx, f.s.job.SandboxID, sandbox.ReadFileRequest{Path: f.dir + stream.file, Offset: f.sent[i]})
		if notFound(err) {
			continue // not begun
		}
		if err != nil {
			return err
		}
		err = f.copy(ctx, i, stream.mark, file)
		_ = file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) copy(ctx context.Context, i int, mark string, from io.Reader) error {
	buf := make([]byte, len(mark)+chunk)
	copy(buf, mark)
	for {
		n, err := from.Read(buf[len(mark):])
		if n > 0 {
			if err := f.conn.Write(ctx, websocket.MessageBinary, buf[:len(mark)+n]); err != nil {
				return err
			}
			f.sent[i] += int64(n)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
