package envd

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/processpb"
	"github.com/cove-sh/cove/sandbox"
)

// run is what came of a command.
type run struct {
	pid            uint32
	stdout, stderr string
	pty            string
	pings          int
	end            *pb.ProcessEvent_EndEvent
	err            error
}

// events is a stream of them.
type events interface {
	Receive() bool
	Err() error
}

// read reads a stream up to its end, or until stop is true.
func read[M interface{ GetEvent() *pb.ProcessEvent }](s events, msg func() M, stop func(*run) bool) *run {
	r := &run{}
	for (stop == nil || !stop(r)) && s.Receive() {
		switch e := msg().GetEvent().GetEvent().(type) {
		case *pb.ProcessEvent_Start:
			r.pid = e.Start.GetPid()
		case *pb.ProcessEvent_Data:
			r.stdout += string(e.Data.GetStdout())
			r.stderr += string(e.Data.GetStderr())
			r.pty += string(e.Data.GetPty())
		case *pb.ProcessEvent_Keepalive:
			r.pings++
		case *pb.ProcessEvent_End:
			r.end = e.End
		}
	}
	r.err = s.Err()
	return r
}

func shell(line string) *pb.StartRequest {
	no := false
	return &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh", Args: []string{"-c", line}}, Stdin: &no}
}

func (w *world) start(t *testing.T, ctx context.Context, req *pb.StartRequest) (*connect.ServerStreamForClient[pb.StartResponse], *run) {
	t.Helper()
	s, err := w.proc.Start(ctx, connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	r := read(s, s.Msg, func(r *run) bool { return r.pid != 0 })
	if r.pid == 0 {
		t.Fatalf("no process: %v", r.err)
	}
	return s, r
}

func (w *world) run(t *testing.T, req *pb.StartRequest) *run {
	t.Helper()
	s, err := w.proc.Start(t.Context(), connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return read(s, s.Msg, nil)
}

func pid(n uint32) *pb.ProcessSelector {
	return &pb.ProcessSelector{Selector: &pb.ProcessSelector_Pid{Pid: n}}
}

func TestStart(t *testing.T) {
	w := newWorld(t)
	req := shell(`echo "$GIVEN $MORE"; echo oops >&2; pwd; exit 3`)
	req.Process.Envs, req.Process.Cwd = map[string]string{"MORE": "2"}, new(string)
	*req.Process.Cwd = "/tmp"
	r := w.run(t, req)
	if r.err != nil || r.pid == 0 || r.stdout != "1 2\n/tmp\n" || r.stderr != "oops\n" {
		t.Errorf("%+v", r)
	}
	if e := r.end; e.GetExitCode() != 3 || !e.GetExited() || e.GetStatus() != "exit status 3" || e.GetError() != "exit status 3" {
		t.Errorf("the end is %v", e)
	}
	r = w.run(t, shell("exit 0"))
	if e := r.end; e.GetExitCode() != 0 || !e.GetExited() || e.GetStatus() != "exit status 0" || e.Error != nil {
		t.Errorf("the end is %v", e)
	}
	// No output is lost that exceeds a message. Output that exceeds the agent's memory
	// goes to the sandbox's disk, which this engine does not have.
	r = w.run(t, shell("head -c 1000000 /dev/zero | tr '\\0' x"))
	if len(r.stdout) != 1000000 || strings.Trim(r.stdout, "x") != "" {
		t.Errorf("%d bytes, %v", len(r.stdout), r.err)
	}
}

func TestStartRefused(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		req  *pb.StartRequest
		code connect.Code
		text string
	}{
		"no command":    {&pb.StartRequest{}, connect.CodeInvalidArgument, "process.cmd"},
		"no program":    {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "no-such-program"}}, connect.CodeInvalidArgument, "error starting process 'no-such-program'"},
		"no directory":  {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "true", Cwd: ptr("/no/such")}}, connect.CodeInvalidArgument, "cwd '/no/such' does not exist"},
		"another's":     {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "true", Cwd: ptr("~nobody/x")}}, connect.CodeInvalidArgument, "cannot expand user-specific home dir"},
		"no size":       {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "true"}, Pty: &pb.PTY{}}, connect.CodeInvalidArgument, "0 columns"},
		"huge terminal": {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "true"}, Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 1 << 20, Rows: 1}}}, connect.CodeInvalidArgument, "65535"},
		"NUL":           {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "tr\x00ue"}}, connect.CodeInvalidArgument, ""},
		"long tag":      {&pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "true"}, Tag: ptr(strings.Repeat("x", 1000))}, connect.CodeInvalidArgument, "tag has 1000 bytes"},
	} {
		r := w.run(t, c.req)
		if connect.CodeOf(r.err) != c.code || !strings.Contains(r.err.Error(), c.text) {
			t.Errorf("%s: %v", name, r.err)
		}
	}
	req := connect.NewRequest(shell("true"))
	req.Header().Set("Authorization", "Basic bm9ib2R5LWhlcmU6") // nobody-here
	s, err := w.proc.Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if r := read(s, s.Msg, nil); connect.CodeOf(r.err) != connect.CodeUnauthenticated || !strings.Contains(r.err.Error(), "invalid username: 'nobody-here'") {
		t.Error(r.err)
	}
}

func ptr[T any](v T) *T { return &v }

// A command continues when its client goes away. Clients can connect to it by its
// number and its tag, and do not get earlier output. It is no longer found once it is
// killed.
func TestOutlivesItsClient(t *testing.T) {
	w := newWorld(t)
	req := shell("echo before; read x; echo $x; sleep 1000")
	req.Stdin, req.Tag = nil, ptr("mine")
	ctx, leave := context.WithCancel(t.Context())
	s, first := w.start(t, ctx, req)
	if r := read(s, s.Msg, func(r *run) bool { return r.stdout != "" }); r.stdout != "before\n" {
		t.Fatalf("%+v", r)
	}
	leave()
	list, err := w.proc.List(t.Context(), connect.NewRequest(&pb.ListRequest{}))
	if err != nil || len(list.Msg.GetProcesses()) != 1 {
		t.Fatal(list, err)
	}
	if p := list.Msg.GetProcesses()[0]; p.GetPid() != first.pid || p.GetTag() != "mine" || p.GetConfig().GetCmd() != "/bin/sh" || p.GetConfig().GetCwd() == "" {
		t.Errorf("it is listed as %v", p)
	}
	again, err := w.proc.Connect(t.Context(), connect.NewRequest(&pb.ConnectRequest{Process: &pb.ProcessSelector{Selector: &pb.ProcessSelector_Tag{Tag: "mine"}}}))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if r := read(again, again.Msg, func(r *run) bool { return r.pid != 0 }); r.pid != first.pid {
		t.Fatalf("%+v", r)
	}
	input := &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte("after\n")}}
	if _, err := w.proc.SendInput(t.Context(), connect.NewRequest(&pb.SendInputRequest{Process: pid(first.pid), Input: input})); err != nil {
		t.Fatal(err)
	}
	if r := read(again, again.Msg, func(r *run) bool { return r.stdout != "" }); r.stdout != "after\n" {
		t.Errorf("%+v", r)
	}
	kill := func() error {
		_, err := w.proc.SendSignal(t.Context(), connect.NewRequest(&pb.SendSignalRequest{Process: pid(first.pid), Signal: pb.Signal_SIGNAL_SIGKILL}))
		return err
	}
	if err := kill(); err != nil {
		t.Fatal(err)
	}
	r := read(again, again.Msg, nil)
	if e := r.end; r.err != nil || e.GetExitCode() != -1 || e.GetExited() || e.GetStatus() != "signal: killed" || e.GetError() != "signal: killed" {
		t.Errorf("the end is %v, %v", e, r.err)
	}
	wantCode(t, kill(), connect.CodeNotFound)
	// Its end can still be heard of for a while.
	late, err := w.proc.Connect(t.Context(), connect.NewRequest(&pb.ConnectRequest{Process: pid(first.pid)}))
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if r := read(late, late.Msg, nil); r.pid != first.pid || r.stdout != "" || r.end.GetExitCode() != -1 {
		t.Errorf("%+v", r)
	}
}

func TestDeadline(t *testing.T) {
	w := newWorld(t)
	// On a busy machine, a deadline may be over before the command was started.
	var r *run
	for d := 300 * time.Millisecond; r == nil || r.pid == 0; d *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		s, err := w.proc.Start(ctx, connect.NewRequest(shell("sleep 1000")))
		if err != nil {
			t.Fatal(err)
		}
		r = read(s, s.Msg, nil)
		_ = s.Close()
		cancel()
		if connect.CodeOf(r.err) != connect.CodeDeadlineExceeded {
			t.Fatalf("%+v", r)
		}
	}
	jobs, err := w.ListJobs(w.ctx, w.box.ID, sandbox.Page{})
	if err != nil || len(jobs.Items) == 0 {
		t.Fatal(jobs, err)
	}
	// The command was ended, not only the stream.
	job, err := w.Attach(w.ctx, w.box.ID, jobs.Items[0].ID, sandbox.AttachRequest{}, nil)
	if err != nil || job.EndCause != sandbox.EndTimeout {
		t.Error(job, err)
	}
}

func TestTerminal(t *testing.T) {
	w := newWorld(t)
	req := &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: "/bin/sh"}, Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 91, Rows: 17}}}
	s, first := w.start(t, t.Context(), req)
	send := func(input *pb.ProcessInput) error {
		_, err := w.proc.SendInput(t.Context(), connect.NewRequest(&pb.SendInputRequest{Process: pid(first.pid), Input: input}))
		return err
	}
	line := func(text string) {
		t.Helper()
		if err := send(&pb.ProcessInput{Input: &pb.ProcessInput_Pty{Pty: []byte(text)}}); err != nil {
			t.Fatal(err)
		}
	}
	await := func(text string) {
		t.Helper()
		if r := read(s, s.Msg, func(r *run) bool { return strings.Contains(r.pty, text) }); !strings.Contains(r.pty, text) || r.stdout != "" {
			t.Fatalf("%+v", r)
		}
	}
	line("stty size\n")
	await("17 91")
	size := &pb.PTY{Size: &pb.PTY_Size{Cols: 101, Rows: 33}}
	if _, err := w.proc.Update(t.Context(), connect.NewRequest(&pb.UpdateRequest{Process: pid(first.pid), Pty: size})); err != nil {
		t.Fatal(err)
	}
	line("stty size\n")
	await("33 101")
	wantCode(t, send(&pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte("x")}}), connect.CodeInternal)
	wantCode(t, send(&pb.ProcessInput{}), connect.CodeUnimplemented)
	_, err := w.proc.CloseStdin(t.Context(), connect.NewRequest(&pb.CloseStdinRequest{Process: pid(first.pid)}))
	wantCode(t, err, connect.CodeUnknown)
	line("exit 7\n")
	if r := read(s, s.Msg, nil); r.end.GetExitCode() != 7 {
		t.Errorf("%+v", r)
	}
}

func TestInput(t *testing.T) {
	w := newWorld(t)
	req := shell("cat")
	req.Stdin = ptr(true)
	s, first := w.start(t, t.Context(), req)
	in := w.proc.StreamInput(t.Context())
	data := &pb.StreamInputRequest{Event: &pb.StreamInputRequest_Data{Data: &pb.StreamInputRequest_DataEvent{
		Input: &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte("a line\n")}},
	}}}
	for _, m := range []*pb.StreamInputRequest{
		{Event: &pb.StreamInputRequest_Start{Start: &pb.StreamInputRequest_StartEvent{Process: pid(first.pid)}}},
		data, {Event: &pb.StreamInputRequest_Keepalive{Keepalive: &pb.StreamInputRequest_KeepAlive{}}}, data,
	} {
		if err := in.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := in.CloseAndReceive(); err != nil {
		t.Fatal(err)
	}
	closeStdin := func(n uint32) error {
		_, err := w.proc.CloseStdin(t.Context(), connect.NewRequest(&pb.CloseStdinRequest{Process: pid(n)}))
		return err
	}
	if err := closeStdin(first.pid); err != nil {
		t.Fatal(err)
	}
	if r := read(s, s.Msg, nil); r.stdout != "a line\na line\n" || r.end.GetExitCode() != 0 {
		t.Errorf("%+v", r)
	}
	in = w.proc.StreamInput(t.Context())
	_ = in.Send(data)
	_, err := in.CloseAndReceive()
	wantCode(t, err, connect.CodeInvalidArgument)

	// A command without input takes none; closing its input repeatedly is not an error.
	_, second := w.start(t, t.Context(), shell("sleep 1000"))
	_, err = w.proc.SendInput(t.Context(), connect.NewRequest(&pb.SendInputRequest{Process: pid(second.pid), Input: &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: []byte("x")}}}))
	wantCode(t, err, connect.CodeInternal)
	for range 2 {
		if err := closeStdin(second.pid); err != nil {
			t.Error(err)
		}
	}
	_, err = w.proc.Update(t.Context(), connect.NewRequest(&pb.UpdateRequest{Process: pid(second.pid), Pty: &pb.PTY{Size: &pb.PTY_Size{Cols: 1, Rows: 1}}}))
	wantCode(t, err, connect.CodeInternal)
	_, err = w.proc.SendSignal(t.Context(), connect.NewRequest(&pb.SendSignalRequest{Process: pid(second.pid), Signal: 2}))
	wantCode(t, err, connect.CodeUnimplemented)
	for _, sel := range []*pb.ProcessSelector{pid(0), pid(1 << 31), {Selector: &pb.ProcessSelector_Tag{}}, {Selector: &pb.ProcessSelector_Tag{Tag: "none"}}} {
		_, err := w.proc.SendSignal(t.Context(), connect.NewRequest(&pb.SendSignalRequest{Process: sel, Signal: pb.Signal_SIGNAL_SIGKILL}))
		wantCode(t, err, connect.CodeNotFound)
	}
	wantCode(t, closeStdin(0), connect.CodeNotFound)
}

// Attack: a message larger than any may be.
func TestGiantMessage(t *testing.T) {
	w := newWorld(t)
	data := bytes.Repeat([]byte("x"), maxMessage+1)
	_, err := w.proc.SendInput(t.Context(), connect.NewRequest(&pb.SendInputRequest{Process: pid(1), Input: &pb.ProcessInput{Input: &pb.ProcessInput_Stdin{Stdin: data}}}))
	wantCode(t, err, connect.CodeResourceExhausted)
}

// What other clients of the protocol speak is served too.
func TestBinaryAndGRPCWeb(t *testing.T) {
	for name, option := range map[string]connect.ClientOption{"connect": connect.WithClientOptions(), "gRPC-Web": connect.WithGRPCWeb()} {
		w := newWorld(t, option)
		if r := w.run(t, shell("echo hello; kill -TERM $$")); r.stdout != "hello\n" || r.end.GetExitCode() != -1 || r.end.GetStatus() != "signal: terminated" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
