package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
)

// childEnv makes the test binary play another role: see childMain.
const childEnv = "COVE_AGENT_TEST_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		childMain(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// server is an agent behind a real HTTP server.
type server struct {
	agentv1connect.AgentClient
	agent *Agent
	dir   string // working directory of the agent
	addr  string
}

// transport speaks HTTP/1.1 or unencrypted HTTP/2.
func transport(t testing.TB, h2 bool) *http.Client {
	var p http.Protocols
	p.SetHTTP1(!h2)
	p.SetUnencryptedHTTP2(h2)
	tr := &http.Transport{Protocols: &p}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func start(t testing.TB) *server { return startWith(t, Config{Version: "test"}, true) }

func startWith(t testing.TB, cfg Config, h2 bool) *server {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := a.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &server{agent: a, dir: t.TempDir(), addr: l.Addr().String()}
	s.AgentClient = agentv1connect.NewAgentClient(transport(t, h2), "http://"+s.addr)
	if _, err := s.Configure(t.Context(), connect.NewRequest(&agentv1.ConfigureRequest{Workdir: &s.dir})); err != nil {
		t.Fatal(err)
	}
	return s
}

// result is everything that a run of a job returned.
type result struct {
	started        *agentv1.Job
	last           *agentv1.Job
	detached       bool
	stdout, stderr strings.Builder
	gaps           int
}

type jobStream interface {
	Receive() bool
	Msg() *agentv1.JobEvent
	Err() error
}

// follow reads a stream of events to its end.
func follow(s jobStream, at ...int64) (*result, error) {
	r := &result{}
	pos := [3]int64{}
	for i, off := range at {
		pos[i+1] = off
	}
	for s.Receive() {
		switch e := s.Msg().GetEvent().(type) {
		case *agentv1.JobEvent_Started:
			r.started = e.Started
		case *agentv1.JobEvent_Output:
			i := e.Output.GetStream()
			if e.Output.GetOffset() != pos[i] {
				r.gaps++
			}
			pos[i] = e.Output.GetOffset() + int64(len(e.Output.GetData()))
			if i == agentv1.Stream_STREAM_STDOUT {
				r.stdout.Write(e.Output.GetData())
			} else {
				r.stderr.Write(e.Output.GetData())
			}
		case *agentv1.JobEvent_Exited:
			r.last = e.Exited
		case *agentv1.JobEvent_Detached:
			r.last, r.detached = e.Detached, true
		}
	}
	return r, s.Err()
}

// exec runs a job to its end.
func (s *server) exec(t testing.TB, req *agentv1.ExecRequest) *result {
	t.Helper()
	r, err := s.tryExec(t, req)
	if err != nil {
		t.Fatalf("exec %v %q: %v", req.GetArgv(), req.GetShell(), err)
	}
	return r
}

func (s *server) tryExec(t testing.TB, req *agentv1.ExecRequest) (*result, error) {
	t.Helper()
	stream, err := s.Exec(t.Context(), connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return follow(stream)
}

func (s *server) sh(t testing.TB, line string) *result {
	t.Helper()
	return s.exec(t, &agentv1.ExecRequest{Shell: line})
}

// background starts a job and leaves its stream as soon as it has started.
func (s *server) background(t testing.TB, req *agentv1.ExecRequest) *agentv1.Job {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := s.Exec(ctx, connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() || stream.Msg().GetStarted() == nil {
		t.Fatalf("exec: %v", stream.Err())
	}
	return stream.Msg().GetStarted()
}

// wait returns the job once it has ended.
func (s *server) wait(t testing.TB, id string) *agentv1.Job {
	t.Helper()
	res, err := s.GetJob(t.Context(), connect.NewRequest(&agentv1.GetJobRequest{JobId: id, WaitMs: patience.Milliseconds()}))
	if err != nil {
		t.Fatal(err)
	}
	if res.Msg.GetJob().GetState() != agentv1.JobState_JOB_STATE_EXITED {
		t.Fatalf("job %s has not ended", id)
	}
	return res.Msg.GetJob()
}

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

// eventually polls until ok, for actions of other processes that nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if ok() {
			return
		}
		<-time.After(5 * time.Millisecond)
	}
	t.Fatalf("never: %s", what)
}

// atOnce runs tests in parallel, even more than there are processors, because each
// mostly waits for time to pass.
func atOnce(t *testing.T, tests map[string]func(*testing.T)) {
	var all sync.WaitGroup
	defer all.Wait()
	for name, test := range tests {
		all.Go(func() { t.Run(name, test) })
	}
}

func wantCode(t testing.TB, err error, want connect.Code, text string) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != want || !strings.Contains(err.Error(), text) {
		t.Errorf("got error %v, want %v with %q", err, want, text)
	}
}

func childMain(role string) {
	switch role {
	case "flood": // writes numbered lines of 50 bytes to stdout
		flood(os.Stdout)
	case "init":
		initMain()
	}
}

const floodBytes = 50 << 20

func flood(w io.Writer) {
	buf := make([]byte, 0, 1<<16)
	for i := range floodBytes / 64 {
		buf = appendLine(buf, i)
		if len(buf) > 60000 {
			if _, err := w.Write(buf); err != nil {
				os.Exit(3)
			}
			buf = buf[:0]
		}
	}
	_, _ = w.Write(buf)
}

// appendLine appends line i, 64 bytes, of the flood.
func appendLine(buf []byte, i int) []byte {
	line := [64]byte{}
	for j := range line {
		line[j] = '.'
	}
	for j := 9; i > 0; j-- {
		line[j] = byte('0' + i%10)
		i /= 10
	}
	line[63] = '\n'
	return append(buf, line[:]...)
}
