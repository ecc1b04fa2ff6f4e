package agentclient

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1/agentv1connect"
	"github.com/cove-sh/cove/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// impostor is an agent that answers as a test wants.
type impostor struct {
	agentv1connect.UnimplementedAgentHandler
	events []*agentv1.JobEvent
	hang   bool // after the events
	err    error
	job    *agentv1.Job
	jobs   []*agentv1.Job
	output *agentv1.ReadOutputResponse
	info   *agentv1.FileInfo
	list   *agentv1.ListResponse
	reads  []*agentv1.ReadResponse
	zip    []*agentv1.ArchiveResponse
	watch  []*agentv1.WatchEvent
	conf   *agentv1.ConfigureResponse
}

func (i *impostor) Exec(ctx context.Context, _ *connect.Request[agentv1.ExecRequest], s *connect.ServerStream[agentv1.JobEvent]) error {
	for _, e := range i.events {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	if i.hang {
		<-ctx.Done()
	}
	return i.err
}

func (i *impostor) GetJob(context.Context, *connect.Request[agentv1.GetJobRequest]) (*connect.Response[agentv1.GetJobResponse], error) {
	return connect.NewResponse(&agentv1.GetJobResponse{Job: i.job}), i.err
}

func (i *impostor) ListJobs(context.Context, *connect.Request[agentv1.ListJobsRequest]) (*connect.Response[agentv1.ListJobsResponse], error) {
	return connect.NewResponse(&agentv1.ListJobsResponse{Jobs: i.jobs}), i.err
}

func (i *impostor) ReadOutput(context.Context, *connect.Request[agentv1.ReadOutputRequest]) (*connect.Response[agentv1.ReadOutputResponse], error) {
	return connect.NewResponse(i.output), i.err
}

func (i *impostor) Stat(context.Context, *connect.Request[agentv1.StatRequest]) (*connect.Response[agentv1.StatResponse], error) {
	if i.err != nil {
		return nil, i.err
	}
	return connect.NewResponse(&agentv1.StatResponse{Info: i.info}), nil
}

func (i *impostor) List(context.Context, *connect.Request[agentv1.ListRequest]) (*connect.Response[agentv1.ListResponse], error) {
	return connect.NewResponse(i.list), i.err
}

func (i *impostor) Read(_ context.Context, _ *connect.Request[agentv1.ReadRequest], s *connect.ServerStream[agentv1.ReadResponse]) error {
	for _, m := range i.reads {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return i.err
}

func (i *impostor) Archive(_ context.Context, _ *connect.Request[agentv1.ArchiveRequest], s *connect.ServerStream[agentv1.ArchiveResponse]) error {
	for _, m := range i.zip {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return i.err
}

func (i *impostor) Watch(_ context.Context, _ *connect.Request[agentv1.WatchRequest], s *connect.ServerStream[agentv1.WatchEvent]) error {
	for _, m := range i.watch {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return i.err
}

func (i *impostor) Configure(context.Context, *connect.Request[agentv1.ConfigureRequest]) (*connect.Response[agentv1.ConfigureResponse], error) {
	return connect.NewResponse(i.conf), i.err
}

// serve returns a client of a server in memory.
func serve(t testing.TB, h http.Handler) *Client {
	t.Helper()
	conns := make(chan net.Conn)
	l := &chanListener{conns: conns, done: make(chan struct{})}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: h, Protocols: &protocols}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l)
	}()
	c := New("sbx-test", func(ctx context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		select {
		case conns <- far:
			return near, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	t.Cleanup(func() {
		c.Close()
		_ = srv.Close()
		<-served
	})
	return c
}

type chanListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func (l *chanListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *chanListener) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

func (l *chanListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func pose(t testing.TB, i *impostor) *Client { return serveAgent(t, i) }

func serveAgent(t testing.TB, i agentv1connect.AgentHandler) *Client {
	mux := http.NewServeMux()
	mux.Handle(agentv1connect.NewAgentHandler(i))
	return serve(t, mux)
}

func running(id string) *agentv1.Job {
	return &agentv1.Job{JobId: id, State: agentv1.JobState_JOB_STATE_RUNNING}
}

func exited(id string) *agentv1.Job {
	return &agentv1.Job{JobId: id, State: agentv1.JobState_JOB_STATE_EXITED}
}

func started(j *agentv1.Job) *agentv1.JobEvent {
	return &agentv1.JobEvent{Event: &agentv1.JobEvent_Started{Started: j}}
}

func ended(j *agentv1.Job) *agentv1.JobEvent {
	return &agentv1.JobEvent{Event: &agentv1.JobEvent_Exited{Exited: j}}
}

func out(offset int64, data string) *agentv1.JobEvent {
	return &agentv1.JobEvent{Event: &agentv1.JobEvent_Output{Output: &agentv1.Output{Stream: agentv1.Stream_STREAM_STDOUT, Offset: offset, Data: []byte(data)}}}
}

func wantCode(t *testing.T, what string, err error, want sandbox.Code) {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Errorf("%s: error %v has code %q, want %q", what, err, got, want)
	}
	if err != nil {
		if m := err.Error(); m == "" || len(m) > maxErrorText+10 || strings.ContainsFunc(m, unicode.IsControl) {
			t.Errorf("%s: message %q", what, m)
		}
	}
}

func TestHostileJobStreams(t *testing.T) {
	const id = "job-1"
	for name, events := range map[string][]*agentv1.JobEvent{
		"nothing":               nil,
		"no kind":               {{}},
		"no job":                {started(nil)},
		"another job":           {started(running("job-2"))},
		"no state":              {started(&agentv1.Job{JobId: id})},
		"bad id":                {started(running("../x"))},
		"started twice":         {started(running(id)), started(running(id))},
		"no end":                {started(running(id))},
		"output first":          {out(0, "x")},
		"output of no stream":   {started(running(id)), {Event: &agentv1.JobEvent_Output{Output: &agentv1.Output{Data: []byte("x")}}}},
		"negative offset":       {started(running(id)), out(-1, "x")},
		"overlap":               {started(running(id)), out(0, "abc"), out(2, "x")},
		"overflow":              {started(running(id)), out(math.MaxInt64, "x")},
		"events after the last": {started(running(id)), ended(exited(id)), out(0, "x")},
		"two ends":              {started(running(id)), ended(exited(id)), ended(exited(id))},
		"ends as another":       {started(running(id)), ended(exited("job-2"))},
	} {
		c := pose(t, &impostor{events: events})
		_, err := c.Exec(t.Context(), id, &sandbox.ExecRequest{Shell: "x"}, func(sandbox.JobEvent) error { return nil })
		wantCode(t, name, err, sandbox.CodeUnavailable)
	}
	// A stream in order passes, and gaps may be.
	c := pose(t, &impostor{events: []*agentv1.JobEvent{started(running(id)), out(0, "ab"), out(100, "c"), ended(exited(id))}})
	var got string
	job, err := c.Exec(t.Context(), id, &sandbox.ExecRequest{Shell: "x"}, func(e sandbox.JobEvent) error { got += string(e.Data); return nil })
	if err != nil || got != "abc" || job.State != sandbox.JobExited {
		t.Errorf("%+v, %q, %v", job, got, err)
	}
	boom := errors.New("boom")
	if _, err := c.Exec(t.Context(), id, &sandbox.ExecRequest{Shell: "x"}, func(sandbox.JobEvent) error { return boom }); err != boom {
		t.Errorf("the sink's error comes back as %v", err)
	}
}

func TestHostileAnswers(t *testing.T) {
	job := &agentv1.Job{
		JobId: "job-1", State: agentv1.JobState_JOB_STATE_EXITED, Pid: -5, Signal: 1000, StdoutBytes: -7, EndedUnixNano: math.MinInt64,
		StartedUnixNano: math.MaxInt64, User: "a\x1b[31m\n" + strings.Repeat("x", 10_000), Workdir: strings.Repeat("/x", 50_000),
	}
	i := &impostor{
		job: job, jobs: []*agentv1.Job{job, {}}, output: &agentv1.ReadOutputResponse{Data: make([]byte, 11)},
		info: &agentv1.FileInfo{Path: "../../etc"}, list: &agentv1.ListResponse{More: true},
		reads: []*agentv1.ReadResponse{{Info: &agentv1.FileInfo{Path: "/f", Size: -1, Mode: math.MaxUint32}, Data: []byte("12345")}, {Data: []byte("67890")}},
		zip:   []*agentv1.ArchiveResponse{{Data: []byte("PK")}}, watch: []*agentv1.WatchEvent{{Kind: 99}},
		conf: &agentv1.ConfigureResponse{Unenforced: make([]string, 1000)},
	}
	c := pose(t, i)
	ctx := t.Context()

	got, err := c.GetJob(ctx, "job-1", 0)
	if err != nil || got.PID != 0 || got.Signal != "" || got.StdoutBytes != 0 || len(got.User) > 300 || len(got.WorkDir) > 20_000 || strings.ContainsAny(got.User, "\x1b\n") {
		t.Errorf("GetJob: %+v, %v", got, err)
	}
	_, err = c.GetJob(ctx, "job-2", 0)
	wantCode(t, "another job", err, sandbox.CodeUnavailable)
	_, err = c.ListJobs(ctx)
	wantCode(t, "a job without an id", err, sandbox.CodeUnavailable)
	_, err = c.ReadOutput(ctx, "job-1", &sandbox.OutputRequest{Limit: 10})
	wantCode(t, "more output than asked for", err, sandbox.CodeUnavailable)
	for _, p := range []string{"", "../../etc", "/a/../b", "/a\x00", "/" + strings.Repeat("x", 1<<16), "/a/"} {
		i.info = &agentv1.FileInfo{Path: p}
		_, err = c.StatFile(ctx, "f")
		wantCode(t, "path", err, sandbox.CodeUnavailable)
	}
	i.info = nil
	_, err = c.StatFile(ctx, "f")
	wantCode(t, "no description", err, sandbox.CodeUnavailable)
	_, _, err = c.ListFiles(ctx, "/", 1, 5, "")
	wantCode(t, "an endless listing", err, sandbox.CodeUnavailable)
	for range 6 {
		i.list.Entries = append(i.list.Entries, &agentv1.FileInfo{Path: "/f"})
	}
	_, _, err = c.ListFiles(ctx, "/", 1, 5, "")
	wantCode(t, "too many entries", err, sandbox.CodeUnavailable)

	r, err := c.ReadFile(ctx, &sandbox.ReadFileRequest{Path: "f", Limit: 7})
	if err != nil || r.Info.Size != 0 || r.Info.Mode != "7777" {
		t.Fatalf("ReadFile: %+v, %v", r, err)
	}
	b, err := io.ReadAll(r)
	wantCode(t, "more content than asked for", err, sandbox.CodeUnavailable)
	if len(b) > 7 {
		t.Errorf("read %d bytes of 7", len(b))
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	i.reads = nil
	_, err = c.ReadFile(ctx, &sandbox.ReadFileRequest{Path: "f"})
	wantCode(t, "no content at all", err, sandbox.CodeUnavailable)
	zip, err := c.ArchiveDir(ctx, "/", 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.ReadAll(zip)
	wantCode(t, "an archive cut off", err, sandbox.CodeUnavailable)
	_ = zip.Close()
	wantCode(t, "a change of no kind", c.WatchFiles(ctx, &sandbox.WatchRequest{Path: "/"}, func(sandbox.WatchEvent) error { return nil }), sandbox.CodeUnavailable)
	i.watch = nil
	wantCode(t, "a watch that ends", c.WatchFiles(ctx, &sandbox.WatchRequest{Path: "/"}, func(sandbox.WatchEvent) error { return nil }), sandbox.CodeUnavailable)
	if un, err := c.Configure(ctx, &agentv1.ConfigureRequest{}); err != nil || len(un) > 16 {
		t.Errorf("Configure says %d words, %v", len(un), err)
	}
}

func TestErrors(t *testing.T) {
	i := &impostor{}
	c := pose(t, i)
	for code := connect.CodeCanceled; code <= connect.CodeUnauthenticated; code++ {
		want, ok := codes[code]
		if !ok {
			want = sandbox.CodeInternal
		}
		i.err = connect.NewError(code, errors.New("why\x1b[2J\n\x00not"))
		_, err := c.StatFile(t.Context(), "f")
		wantCode(t, code.String(), err, want)
		i.err = connect.NewError(code, nil)
		_, err = c.StatFile(t.Context(), "f")
		wantCode(t, code.String(), err, want)
	}
	i.err = connect.NewError(connect.CodeNotFound, errors.New(strings.Repeat("é", 100_000)))
	_, err := c.StatFile(t.Context(), "f")
	wantCode(t, "long", err, sandbox.CodeNotFound)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.StatFile(ctx, "f")
	wantCode(t, "cancelled", err, sandbox.CodeCancelled)
	ctx, cancel = context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = c.StatFile(ctx, "f")
	wantCode(t, "timeout", err, sandbox.CodeTimeout)
}

// TestNoAgent connects to what does not even speak the protocol.
func TestNoAgent(t *testing.T) {
	garbage := func(b string) Dial {
		return func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				go func() { _, _ = io.Copy(io.Discard, far) }()
				_, _ = io.WriteString(far, b)
				_ = far.Close()
			}()
			return near, nil
		}
	}
	for name, dial := range map[string]Dial{
		"refused":     func(context.Context) (net.Conn, error) { return nil, errors.New("/secret/path: connection refused") },
		"closed":      garbage(""),
		"HTTP/1.1":    garbage("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
		"noise":       garbage(strings.Repeat("\xff\x00garbage", 10_000)),
		"huge frame":  garbage("\xff\xff\xff\x00\x00\x00\x00\x00\x01"),
		"bad setting": garbage("\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff"),
	} {
		c := New("sbx-test", dial)
		_, err := c.Health(t.Context())
		wantCode(t, name, err, sandbox.CodeUnavailable)
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the cause shows in %q", name, err)
		}
		c.Close()
	}
	away := sandbox.Errorf(sandbox.CodeUnavailable, "node a cannot be reached")
	c := New("sbx-test", func(context.Context) (net.Conn, error) { return nil, away })
	if _, err := c.Health(t.Context()); sandbox.MessageOf(err) != "node a cannot be reached" {
		t.Errorf("a dial that says why it failed: %v", err)
	}
	c.Close()
	for name, h := range map[string]http.HandlerFunc{
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		},
		"not found":   http.NotFound,
		"HTML":        func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
		"big headers": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) },
		"big message": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/proto")
			chunk := make([]byte, 1<<20)
			for range 64 {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		},
	} {
		_, err := serve(t, h).Health(t.Context())
		if err == nil {
			t.Errorf("%s: taken for an agent", name)
		}
		wantCode(t, name, err, sandbox.CodeOf(err))
	}
}

// TestSilence waits for an agent that never answers.
func TestSilence(t *testing.T) {
	for name, call := range map[string]struct {
		limit time.Duration
		f     func(context.Context, *Client) error
	}{
		"health": {callTimeout, func(ctx context.Context, c *Client) error { _, err := c.Health(ctx); return err }},
		"delete": {fileTimeout, func(ctx context.Context, c *Client) error { return c.DeleteFile(ctx, "/", true) }},
		"exec with a timeout": {5*time.Second + grace, func(ctx context.Context, c *Client) error {
			_, err := c.Exec(ctx, "job-1", &sandbox.ExecRequest{Shell: "x", TimeoutMS: 5000}, nil)
			return err
		}},
		"exec that is detached": {time.Second + grace, func(ctx context.Context, c *Client) error {
			_, err := c.Exec(ctx, "job-1", &sandbox.ExecRequest{Shell: "x", TimeoutMS: 5000, DetachAfterMS: 1000}, nil)
			return err
		}},
		"background": {callTimeout, func(ctx context.Context, c *Client) error {
			_, err := c.Exec(ctx, "job-1", &sandbox.ExecRequest{Shell: "x", Background: true}, nil)
			return err
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
			begin := time.Now()
			err := call.f(t.Context(), c)
			wantCode(t, name, err, sandbox.CodeUnavailable)
			if d := time.Since(begin); d > call.limit+time.Second {
				t.Errorf("%s: given up after %v, want %v", name, d, call.limit)
			}
		})
	}
}

// TestLingeringStream has an agent that does not end a job's stream.
func TestLingeringStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pose(t, &impostor{events: []*agentv1.JobEvent{started(running("job-1")), ended(exited("job-1"))}, hang: true})
		begin := time.Now()
		if job, err := c.Exec(t.Context(), "job-1", &sandbox.ExecRequest{Shell: "x"}, nil); err != nil || job.State != sandbox.JobExited {
			t.Errorf("%+v, %v", job, err)
		}
		if d := time.Since(begin); d > endWait+time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// TestOneConnection runs many commands at once.
func TestOneConnection(t *testing.T) {
	const n = 50
	c := pose(t, &impostor{events: []*agentv1.JobEvent{started(running("job-1"))}, hang: true})
	var dials atomic.Int64
	dial := c.transport.DialContext
	c.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return dial(ctx, network, addr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{}, n)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			_, err := c.Exec(ctx, "job-1", &sandbox.ExecRequest{Shell: "x"}, func(sandbox.JobEvent) error { begun <- struct{}{}; return nil })
			wantCode(t, "cancelled", err, sandbox.CodeCancelled)
		})
	}
	for range n {
		<-begun
	}
	cancel()
	wg.Wait()
	if got := dials.Load(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}

// TestReconnect breaks the connection, and refuses some, again and again.
func TestReconnect(t *testing.T) {
	c := pose(t, &impostor{info: &agentv1.FileInfo{Path: "/f"}})
	var last net.Conn
	var refuse atomic.Bool
	dial := c.transport.DialContext
	c.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if refuse.Load() {
			return nil, errors.New("refused")
		}
		conn, err := dial(ctx, network, addr)
		last = conn
		return conn, err
	}
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		// The first call may still meet the broken connection.
		if _, err := c.StatFile(ctx, "f"); err != nil {
			wantCode(t, "broken", err, sandbox.CodeUnavailable)
			if _, err := c.StatFile(ctx, "f"); err != nil {
				t.Fatalf("round %d: %v", i, err)
			}
		}
		_ = last.Close()
		if i%3 == 0 {
			refuse.Store(true)
			_, err := c.StatFile(ctx, "f")
			wantCode(t, "refused", err, sandbox.CodeUnavailable)
			refuse.Store(false)
		}
		cancel()
	}
}

func TestParseSignal(t *testing.T) {
	for in, want := range map[string]int{"TERM": 15, "SIGKILL": 9, "int": 2, "64": 64, "1": 1, "": 0, "SIG": 0, "0": 0, "65": 0, "-9": 0, "TERM\x00": 0, "RTMIN": 0} {
		got, err := ParseSignal(in)
		if int(got) != want || (err == nil) != (want != 0) {
			t.Errorf("ParseSignal(%q) = %d, %v", in, got, err)
		}
	}
}

func FuzzJobEvents(f *testing.F) {
	for _, e := range []*agentv1.JobEvent{started(running("job-1")), out(5, "x"), ended(exited("job-1"))} {
		b, err := proto.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, b)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		c := &Client{sandboxID: "sbx-test"}
		end := int64(0)
		fo := &follower{jobID: "job-1", sink: func(e sandbox.JobEvent) error {
			switch {
			case e.Job != nil:
				if e.Job.ID != "job-1" || e.Job.PID < 0 || e.Job.StdoutBytes < 0 || len(e.Job.User) > 300 {
					t.Fatalf("passed on %+v", e.Job)
				}
			case e.Offset < 0 || e.Stream == "":
				t.Fatalf("passed on %+v", e)
			case e.Stream == sandbox.Stdout:
				if e.Offset < end {
					t.Fatalf("output at %d after %d", e.Offset, end)
				}
				end = e.Offset + int64(len(e.Data))
			}
			return nil
		}}
		for _, b := range [][]byte{first, second} {
			m := &agentv1.JobEvent{}
			if proto.Unmarshal(b, m) != nil {
				return
			}
			if _, err := c.event(fo, m); err != nil {
				return
			}
		}
	})
}

func FuzzFileInfo(f *testing.F) {
	b, err := proto.Marshal(&agentv1.FileInfo{Path: "/a/b", Mode: 0o644, SymlinkTarget: "x"})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &agentv1.FileInfo{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		info, err := fileInfo(m)
		if err != nil {
			return
		}
		if !strings.HasPrefix(info.Path, "/") || strings.Contains(info.Path, "\x00") || strings.Contains(info.Name, "/") && info.Name != "/" || info.Size < 0 || len(info.Mode) != 4 {
			t.Fatalf("passed on %+v", info)
		}
	})
}

func FuzzClean(f *testing.F) {
	f.Add("plain", 10)
	f.Add("a\x1b[31m\n\xff"+strings.Repeat("é", 20), 7)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit &= 1023
		got := clean(s, limit)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, unicode.IsControl) || len(got) > 3*limit+len("…") {
			t.Fatalf("clean(%q, %d) = %q", s, limit, got)
		}
	})
}

// A command that was not shortened takes no memory of the daemon's.
func TestCommandIsBounded(t *testing.T) {
	short := command(slices.Repeat([]string{strings.Repeat("x", 1<<20)}, 1000))
	if len(short) != maxArgs || len(short[0]) != maxArg || len(command(nil)) != 0 {
		t.Errorf("%d arguments of %d bytes stay", len(short), len(short[0]))
	}
}
