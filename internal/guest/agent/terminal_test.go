package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// session follows a job step by step.
type session struct {
	t   *testing.T
	s   *server
	id  string
	str *connect.ServerStreamForClient[agentv1.JobEvent]
	out strings.Builder
}

func (s *server) open(t *testing.T, req *agentv1.ExecRequest) *session {
	t.Helper()
	str, err := s.Exec(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = str.Close() })
	if !str.Receive() {
		t.Fatal(str.Err())
	}
	return &session{t: t, s: s, id: str.Msg().GetStarted().GetJobId(), str: str}
}

// until reads output up to text.
func (c *session) until(text string) {
	c.t.Helper()
	for !strings.Contains(c.out.String(), text) {
		if !c.str.Receive() {
			c.t.Fatalf("the stream ended before %q: got %q, %v", text, c.out.String(), c.str.Err())
		}
		c.out.Write(c.str.Msg().GetOutput().GetData())
	}
	_, rest, _ := strings.Cut(c.out.String(), text)
	c.out.Reset()
	c.out.WriteString(rest)
}

func (c *session) write(text string, end bool) {
	c.t.Helper()
	_, err := c.s.WriteInput(c.t.Context(), connect.NewRequest(&agentv1.WriteInputRequest{JobId: c.id, Data: []byte(text), Close: end}))
	if err != nil {
		c.t.Fatal(err)
	}
}

func TestTerminal(t *testing.T) {
	s := start(t)
	c := s.open(t, &agentv1.ExecRequest{
		Argv: []string{"sh"}, OpenStdin: true, Env: map[string]string{"PS1": "$ ", "ENV": ""},
		Terminal: &agentv1.TerminalSize{Cols: 101, Rows: 33},
	})
	c.until("$ ")
	c.write("stty size; echo $TERM; tty; echo err >&2\n", false)
	c.until("33 101\r\n")
	c.until("xterm-256color\r\n")
	c.until("/dev/pts/")
	c.until("err\r\n")
	_, err := s.ResizeTerminal(t.Context(), connect.NewRequest(&agentv1.ResizeTerminalRequest{
		JobId: c.id, Size: &agentv1.TerminalSize{Cols: 44, Rows: 55},
	}))
	if err != nil {
		t.Fatal(err)
	}
	c.write("stty size\n", false)
	c.until("55 44\r\n")
	c.write("exit 5\n", false)
	r, err := follow(c.str)
	if err != nil || r.last.GetExitCode() != 5 || !r.last.GetTerminal() {
		t.Errorf("job: %v, %v", r.last, err)
	}
	_, err = s.ResizeTerminal(t.Context(), connect.NewRequest(&agentv1.ResizeTerminalRequest{JobId: c.id}))
	wantCode(t, err, connect.CodeFailedPrecondition, "terminal")
}

// TestTerminalEnd ends the input of a terminal, by a call and by the request.
func TestTerminalEnd(t *testing.T) {
	s := start(t)
	c := s.open(t, &agentv1.ExecRequest{Argv: []string{"cat"}, OpenStdin: true, Terminal: &agentv1.TerminalSize{}})
	c.write("hello\n", true)
	if r, err := follow(c.str); err != nil || r.last.GetExitCode() != 0 || !strings.HasPrefix(r.stdout.String(), "hello\r\nhello\r\n") {
		t.Errorf("closed by a call: %q, %v, %v", r.stdout.String(), r.last, err)
	}
	r := s.exec(t, &agentv1.ExecRequest{Argv: []string{"cat"}, Stdin: []byte("x\n"), Terminal: &agentv1.TerminalSize{}})
	if r.last.GetExitCode() != 0 || !strings.Contains(r.stdout.String(), "x\r\n") {
		t.Errorf("ended by the request: %q, %v", r.stdout.String(), r.last)
	}
}

// TestTerminalHangup kills a shell while another process group runs in its session.
func TestTerminalHangup(t *testing.T) {
	s := start(t)
	c := s.open(t, &agentv1.ExecRequest{
		Argv: []string{"sh"}, OpenStdin: true, Env: map[string]string{"PS1": "$ ", "ENV": ""}, Terminal: &agentv1.TerminalSize{},
	})
	c.until("$ ")
	c.write("sleep 300; echo done-$?\n", false)
	eventually(t, "sleep runs", func() bool { return len(sessionMembers(s.agent.jobs.list()[0].pid)) == 2 })
	if _, err := s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: c.id, Signal: 9})); err != nil {
		t.Fatal(err)
	}
	r, err := follow(c.str)
	if err != nil || r.last.GetSignal() != 9 || r.last.GetEndCause() != agentv1.EndCause_END_CAUSE_SIGNAL {
		t.Errorf("job: %v, %v", r.last, err)
	}
	eventually(t, "the session is empty", func() bool {
		for _, pid := range sessionMembers(int(r.last.GetPid())) {
			if alive(pid) {
				return false
			}
		}
		return true
	})
}

func TestWriteInput(t *testing.T) {
	s := start(t)
	c := s.open(t, &agentv1.ExecRequest{Argv: []string{"cat"}, Stdin: []byte("first "), OpenStdin: true})
	c.write("second ", false)
	c.until("first second ")
	c.write("third", true)
	if r, err := follow(c.str); err != nil || r.stdout.String() != "third" || r.last.GetExitCode() != 0 {
		t.Errorf("got %q, %v, %v", r.stdout.String(), r.last, err)
	}
	_, err := s.WriteInput(t.Context(), connect.NewRequest(&agentv1.WriteInputRequest{JobId: c.id, Data: []byte("x")}))
	wantCode(t, err, connect.CodeFailedPrecondition, "ended")

	c = s.open(t, &agentv1.ExecRequest{Shell: "exec <&-; echo ready; exec sleep 300", OpenStdin: true})
	c.until("ready")
	_, err = s.WriteInput(t.Context(), connect.NewRequest(&agentv1.WriteInputRequest{JobId: c.id, Data: []byte("x")}))
	wantCode(t, err, connect.CodeFailedPrecondition, "closed its standard input")

	c = s.open(t, &agentv1.ExecRequest{Argv: []string{"sleep", "300"}})
	_, err = s.WriteInput(t.Context(), connect.NewRequest(&agentv1.WriteInputRequest{JobId: c.id, Data: []byte("x")}))
	wantCode(t, err, connect.CodeFailedPrecondition, "open standard input")
}

// TestWriteInputBlocks writes more than fits to a job that does not read: the call ends
// with its caller or with the job.
func TestWriteInputBlocks(t *testing.T) {
	s := start(t)
	c := s.open(t, &agentv1.ExecRequest{Argv: []string{"sleep", "300"}, OpenStdin: true})
	big := &agentv1.WriteInputRequest{JobId: c.id, Data: make([]byte, 1<<20)}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.WriteInput(ctx, connect.NewRequest(big)); err == nil {
		t.Error("the write did not block")
	}
	ended := make(chan error, 1)
	go func() {
		_, err := s.WriteInput(context.Background(), connect.NewRequest(big))
		ended <- err
	}()
	j, err := s.agent.jobs.get(c.id)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second write has its turn", func() bool { return len(j.in.turn) == 0 })
	if _, err := s.Signal(t.Context(), connect.NewRequest(&agentv1.SignalRequest{JobId: c.id, Signal: 9})); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-ended, connect.CodeFailedPrecondition, "")
}
