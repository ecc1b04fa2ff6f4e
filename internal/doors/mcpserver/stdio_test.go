package mcpserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

// pipe is a server on standard input and output.
type pipe struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Scanner
	done chan error
	stop context.CancelFunc
}

func pipeTo(t *testing.T, cfg Config) *pipe {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	p := &pipe{t: t, in: inW, out: bufio.NewScanner(outR), done: make(chan error, 1), stop: cancel}
	p.out.Buffer(nil, 64<<20)
	go func() {
		err := RunStdio(ctx, cfg, inR, outW)
		_ = inR.Close()
		_ = outW.Close()
		p.done <- err
	}()
	return p
}

func (p *pipe) send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

// next reads a message; anything else on standard output fails the test.
func (p *pipe) next() message {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the output has ended: %v", p.out.Err())
	}
	var m struct {
		JSONRPC string `json:"jsonrpc"`
		message
	}
	if err := json.Unmarshal(p.out.Bytes(), &m); err != nil || m.JSONRPC != "2.0" {
		p.t.Fatalf("not a message: %q", p.out.Text())
	}
	return m.message
}

func (p *pipe) begin() {
	p.t.Helper()
	p.send(initialize)
	p.next()
	p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// end closes the input and returns what is still written.
func (p *pipe) end() []string {
	p.t.Helper()
	_ = p.in.Close()
	var rest []string
	for p.out.Scan() {
		rest = append(rest, p.out.Text())
	}
	if err := <-p.done; err != nil {
		p.t.Errorf("RunStdio: %v", err)
	}
	p.stop()
	return rest
}

func TestStdio(t *testing.T) {
	f := newFake()
	p := pipeTo(t, Config{Service: f})
	p.begin()
	p.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	if names := toolNames(t, p.next()); len(names) != 20 {
		t.Errorf("%v", names)
	}
	p.send(call(3, "sandbox_exec", `{"sandbox":"s","shell":"hi"}`))
	if m := p.next(); !strings.Contains(string(m.Result), `"stdout":"hi"`) {
		t.Errorf("%+v", m)
	}
	if diff := cmp.Diff([]sandbox.Caller{sandbox.LocalCaller()}, f.seen()); diff != "" {
		t.Error(diff)
	}
	if rest := p.end(); len(rest) > 0 {
		t.Errorf("more output: %q", rest)
	}
}

// The era without sessions on standard input and output.
func TestStdioStateless(t *testing.T) {
	p := pipeTo(t, Config{Service: newFake()})
	body, _ := newEraCall(1, "sandbox_exec", `{"sandbox":"s","shell":"hi"}`)
	p.send(body)
	if m := p.next(); !strings.Contains(string(m.Result), `"stdout":"hi"`) {
		t.Errorf("%+v", m)
	}
	p.end()
}

func TestStdioProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		p := pipeTo(t, Config{Service: f})
		p.begin()
		p.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"progressToken":"tok"},"name":"sandbox_exec","arguments":{"sandbox":"s","shell":"sleep"}}}`)
		var seconds []float64
		for range 3 {
			m := p.next()
			var params struct {
				ProgressToken, Message string
				Progress               float64
			}
			if err := json.Unmarshal(m.Params, &params); err != nil || m.Method != "notifications/progress" || params.ProgressToken != "tok" || params.Message != "running" {
				t.Fatalf("%+v %s", m, m.Params)
			}
			seconds = append(seconds, params.Progress)
		}
		if diff := cmp.Diff([]float64{1, 3, 5}, seconds); diff != "" {
			t.Error(diff)
		}
		p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		if err := <-f.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the work ended with %v", err)
		}
		p.end()
	})
}

// built is a service in which a build takes ten seconds.
type built struct{ *fake }

func (built) StartBuild(context.Context, sandbox.BuildTemplateRequest) (*sandbox.Build, error) {
	return &sandbox.Build{ID: "bld-1"}, nil
}

func (built) FollowBuild(_ context.Context, _ string, sink func(sandbox.BuildEvent) error) (*sandbox.Build, error) {
	for _, fraction := range []float64{-1, 0.01, 0.4, 0.4, 1} {
		if err := sink(sandbox.BuildEvent{Step: "installing", Fraction: fraction}); err != nil {
			return nil, err
		}
		time.Sleep(2 * time.Second)
	}
	return &sandbox.Build{ID: "bld-1", State: sandbox.BuildReady}, nil
}

// Progress has a total as soon as the work knows how much of it is done, and
// never goes back.
func TestStdioProgressOfABuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipeTo(t, Config{Service: built{newFake()}, Toolsets: []string{"templates"}})
		p.begin()
		p.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"progressToken":"tok"},"name":"template_build","arguments":{"name":"node"}}}`)
		type told struct{ Progress, Total float64 }
		var got []told
		for {
			m := p.next()
			if m.Method == "" {
				break
			}
			var params told
			if err := json.Unmarshal(m.Params, &params); err != nil {
				t.Fatal(err)
			}
			got = append(got, params)
		}
		want := []told{{1, 0}, {1, 100}, {40, 100}, {40.000001, 100}, {100, 100}}
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 0.01)); diff != "" {
			t.Errorf("progress differs (-want +got):\n%s", diff)
		}
		if len(got) == 5 && got[3].Progress <= got[2].Progress {
			t.Errorf("progress stands still: %v", got)
		}
		p.end()
	})
}

// A fast call sends no progress.
func TestStdioNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipeTo(t, Config{Service: newFake()})
		p.begin()
		p.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"progressToken":1},"name":"sandbox_list","arguments":{}}}`)
		if m := p.next(); string(m.ID) != "2" {
			t.Errorf("%+v", m)
		}
		p.end()
	})
}

// The end of input, and cancellation, end calls that run.
func TestStdioEnds(t *testing.T) {
	for name, end := range map[string]func(p *pipe){
		"input ends":    func(p *pipe) { _ = p.in.Close() },
		"is terminated": func(p *pipe) { p.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				p := pipeTo(t, Config{Service: f})
				p.begin()
				p.send(call(2, "sandbox_exec", `{"sandbox":"s","shell":"sleep"}`))
				<-f.started
				start := time.Now()
				go func() {
					for p.out.Scan() {
					}
				}()
				end(p)
				if err := <-f.ended; !errors.Is(err, context.Canceled) {
					t.Errorf("the work ended with %v", err)
				}
				if err := <-p.done; err != nil {
					t.Error(err)
				}
				if d := time.Since(start); d > answerTime {
					t.Errorf("it took %v", d)
				}
				p.stop()
				_ = p.in.Close()
			})
		})
	}
}

// A client that has gone altogether gets no time for answers.
func TestStdioClientGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		f := newFake()
		in, writes := io.Pipe()
		done := make(chan error, 1)
		go func() { done <- RunStdio(t.Context(), Config{Service: f}, in, out) }()
		_, _ = io.WriteString(writes, initialize+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"+
			call(2, "sandbox_exec", `{"sandbox":"s","shell":"sleep"}`)+"\n")
		<-f.started
		start := time.Now()
		_ = reads.Close()
		_ = writes.Close()
		if err := <-f.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the work ended with %v", err)
		}
		<-done // how, matters to nobody
		if d := time.Since(start); d > time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

// Once everything is answered, the end of input ends the connection, whatever the answers
// contain.
func TestStdioEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipeTo(t, Config{Service: newFake()})
		p.begin()
		p.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
		p.next()
		start := time.Now()
		p.end()
		if d := time.Since(start); d > 0 {
			t.Errorf("it waited %v for answers", d)
		}
	})
}

// Answers that are due when the input ends are still given: a script may pipe
// its calls in.
func TestStdioAnswersAtTheEnd(t *testing.T) {
	for name, takes := range map[string]time.Duration{"at once": 0, "from a daemon that starts": 8 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				in := initialize + "\n" + `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" + call(2, "sandbox_list", "{}")
				if err := RunStdio(t.Context(), Config{Service: slowList{newFake(), takes}}, strings.NewReader(in), &out); err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(out.String(), "\n"); n != 2 || !strings.Contains(out.String(), `"sandboxes":[]`) {
					t.Errorf("got %s", out.String())
				}
			})
		})
	}
}

// A request that listens has no answer that anybody waits for: it does not delay the end,
// and its end does not take the time of others.
func TestStdioEndsWhileItListens(t *testing.T) {
	const takes = 5 * time.Second
	listen, _ := newEra(7, methodListen, "", `"notifications":{"resourcesListChanged":true}`)
	list, _ := newEraCall(8, "sandbox_list", "{}")
	for name, tt := range map[string]struct {
		in   []string
		took time.Duration
	}{
		"alone":      {[]string{listen}, 0},
		"and calls":  {[]string{listen, list}, takes},
		"and is cut": {[]string{listen, list, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`}, takes},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				start := time.Now()
				if err := RunStdio(t.Context(), Config{Service: uneventful{slowList{newFake(), takes}}}, strings.NewReader(strings.Join(tt.in, "\n")), &out); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took != tt.took || (takes == tt.took) != strings.Contains(out.String(), `"sandboxes":[]`) {
					t.Errorf("it took %s, and said %s", took, out.String())
				}
			})
		})
	}
}

// uneventful is a service in which nothing happens.
type uneventful struct{ slowList }

func (e uneventful) FollowEvents(ctx context.Context, _ sandbox.FollowEventsRequest, sink func(sandbox.Event) error) error {
	if err := sink(sandbox.Event{Kind: sandbox.EventBegun}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// slowList is a service that takes some time to list.
type slowList struct {
	*fake
	takes time.Duration
}

func (s slowList) List(ctx context.Context, req sandbox.ListRequest) (*sandbox.List[sandbox.Sandbox], error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.takes):
		return s.fake.List(ctx, req)
	}
}

func TestStdioBadLines(t *testing.T) {
	p := pipeTo(t, Config{Service: newFake()})
	p.begin()
	long := strings.Repeat("x", maxMessage)
	tests := []struct{ name, line, id, want string }{
		{"too long, id last", `{"method":"tools/call","params":{"name":"file_write","arguments":{"content":"` + long + `"}},"jsonrpc":"2.0","id":41}`, "41", "12 MiB"},
		{"too long, id first", `{"jsonrpc":"2.0","id":"a-1","method":"tools/call","params":{"content":"` + long + `"}}`, `"a-1"`, "12 MiB"},
		{"too long, no id", long, "null", "12 MiB"},
		{"not UTF-8", `{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"` + "\xff" + `"}}`, "42", "UTF-8"},
		{"a member twice", `{"jsonrpc":"2.0","id":43,"method":"tools/call","params":{"name":"sandbox_list","name":"sandbox_kill"}}`, "43", `"name" is given twice`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p.t = t
			p.send(tt.line)
			if m := p.next(); string(m.ID) != tt.id || m.Error == nil || !strings.Contains(m.Error.Message, tt.want) {
				t.Errorf("%s %+v", m.ID, m.Error)
			}
		})
	}
	p.t = t
	p.send("")
	p.send(call(50, "sandbox_list", "{}"))
	if m := p.next(); string(m.ID) != "50" {
		t.Errorf("the connection does not go on: %+v", m)
	}
	p.end()
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"id\":1,\"method\":\"x\"}\n\xff\n\n"))
	f.Add([]byte(`{"id":1,"a\u0000é":2,"a\u0000é":3}`))
	f.Add([]byte("a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		l := newLines(bytes.NewReader(data), &out)
		_ = l.Close() // no wait for answers
		got, err := io.ReadAll(l)
		if err != nil {
			t.Fatal(err)
		}
		if strings.ToValidUTF8(string(got), "") != string(got) {
			t.Fatalf("%q is not UTF-8", got)
		}
		for line := range bytes.Lines(out.Bytes()) {
			if !json.Valid(line) {
				t.Fatalf("%q is not JSON", line)
			}
		}
	})
}

// What a dialect keeps in a session ends with the session.
func TestSessionState(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, nil)
	near, far := mcp.NewInMemoryTransports()
	ss, err := server.Connect(t.Context(), near, nil)
	if err != nil {
		t.Fatal(err)
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "t", Version: "1"}, nil).Connect(t.Context(), far, nil)
	if err != nil {
		t.Fatal(err)
	}
	kept := newSessions(false)
	d := kept.of(sandbox.WithCaller(t.Context(), sandbox.LocalCaller()), ss)
	if kept.of(t.Context(), ss) != d {
		t.Fatal("the state is not kept")
	}
	type key struct{}
	var ended []string
	value := func(v string) (any, func(context.Context), error) {
		return v, func(ctx context.Context) {
			c, _ := sandbox.CallerOf(ctx)
			ended = append(ended, fmt.Sprint(v, " by ", c.KeyID))
		}, nil
	}
	for range 2 {
		v, err := d.Value(key{}, func() (any, func(context.Context), error) { return value("sandbox") })
		if v != "sandbox" || err != nil {
			t.Fatal(v, err)
		}
	}
	if _, err := d.Value(1, func() (any, func(context.Context), error) { return value("fork") }); err != nil {
		t.Fatal(err)
	}
	if err := cs.Close(); err != nil {
		t.Error(err)
	}
	kept.wait()
	if diff := cmp.Diff([]string{"fork by local", "sandbox by local"}, ended); diff != "" {
		t.Error(diff)
	}
	if _, err := d.Value(key{}, func() (any, func(context.Context), error) { return value("late") }); err == nil {
		t.Error("an ended session takes more")
	}
	if newSessions(true).of(t.Context(), ss) != nil {
		t.Error("a session of one request has state")
	}
	var _ *dialect.Session = d
}
