package cell

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/cove-sh/cove/internal/engine"
)

// TestStartOverInheritedConnection starts a cell over the single connection that it inherits.
func TestStartOverInheritedConnection(t *testing.T) {
	near, far := net.Pipe()
	mux := http.NewServeMux()
	handle(mux, "Prepare", func(_ context.Context, s *Standby) (*empty, error) {
		if s.AgentDir != "agents" {
			return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no agent"))
		}
		return &empty{}, nil
	})
	delivered := make(chan struct{})
	handleStream(mux, "Start", func(_ context.Context, s *Spec, send func(*Status) error) error {
		if err := send(&Status{Phase: PhaseStarting}); err != nil {
			return err
		}
		<-delivered
		return errors.Join(send(&Status{Phase: PhaseRunning, Unenforced: s.Unenforced}), send(&Status{Phase: PhaseFailed, Reason: "why"}))
	})
	l := make(inherited, 1)
	l <- far
	srv := &http.Server{Handler: mux}
	go srv.Serve(l) //nolint:errcheck // it ends with the test
	defer srv.Close()

	c := NewClient(t.TempDir(), Protocol, near) // nothing listens in that directory
	defer c.Close()
	if err := c.Prepare(t.Context(), &Standby{}); connect.CodeOf(err) != connect.CodeInvalidArgument || !connect.IsWireError(err) {
		t.Errorf("a standby without an agent: %v", err)
	}
	if err := c.Prepare(t.Context(), &Standby{AgentDir: "agents"}); err != nil {
		t.Fatal(err)
	}
	all, first, err := c.Start(t.Context(), &Spec{AwaitValues: true, Unenforced: []string{"memory"}}, func() error { close(delivered); return nil })
	if err != nil || first.Phase != PhaseRunning || len(first.Unenforced) != 1 {
		t.Fatalf("at first: %+v, %v", first, err)
	}
	if last, err := all.Next(); err != nil || last.Reason != "why" {
		t.Errorf("at the end: %+v, %v", last, err)
	}
	if _, err := all.Next(); err == nil {
		t.Error("there is more after the end")
	}
}

// TestUnexpectedRequestForValues runs against a compromised cell, which asks for values that its
// sandbox does not have.
func TestUnexpectedRequestForValues(t *testing.T) {
	near, far := net.Pipe()
	mux := http.NewServeMux()
	handleStream(mux, "Start", func(_ context.Context, _ *Spec, send func(*Status) error) error {
		return send(&Status{Phase: PhaseStarting})
	})
	l := make(inherited, 1)
	l <- far
	srv := &http.Server{Handler: mux}
	go srv.Serve(l) //nolint:errcheck // it ends with the test
	defer srv.Close()
	c := NewClient(t.TempDir(), Protocol, near)
	defer c.Close()
	_, first, err := c.Start(t.Context(), &Spec{}, func() error { t.Error("values were given"); return nil })
	if err == nil {
		t.Errorf("taken for one that runs: %+v", first)
	}
}

// TestLegacyStart starts cells of earlier versions with the protocols that they expect.
func TestLegacyStart(t *testing.T) {
	standby := `{"shell":true}`
	for name, test := range map[string]struct {
		answers []string
		await   bool
		code    connect.Code // 0 if Start gets far enough to watch the cell
	}{
		"runs":      {answers: []string{standby, `{"unenforced":["x"]}`}},
		"delivered": {answers: []string{standby, `{}`}, await: true},
		"refuses":   {answers: []string{standby, `{"error":"no such user","refused":"no such user"}`}, code: connect.CodeInvalidArgument},
		"damaged":   {answers: []string{standby, `{"error":"sums differ","damaged":true}`}, code: connect.CodeDataLoss},
		"silent":    {answers: []string{standby, `{"error":"late","silent":true}`}, code: connect.CodeDeadlineExceeded},
		"ends":      {answers: []string{standby}, code: connect.CodeUnknown},
		"floods":    {answers: []string{standby, `{"error":"` + strings.Repeat("x", 100<<10)}, code: connect.CodeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			delivered := make(chan struct{})
			go func() {
				defer far.Close()
				requests := json.NewDecoder(far)
				for i, answer := range test.answers {
					var req json.RawMessage
					if requests.Decode(&req) != nil {
						return
					}
					if i == 1 && test.await {
						<-delivered
					}
					if _, err := io.WriteString(far, answer); err != nil {
						return
					}
				}
			}()
			c := NewClient(t.TempDir(), 1, near)
			if err := c.Prepare(t.Context(), &Standby{}); err != nil {
				t.Fatal(err)
			}
			tries := 0
			_, _, err := c.Start(t.Context(), &Spec{AwaitValues: test.await}, func() error {
				if tries++; tries < 3 { // the cell does not listen yet
					return fs.ErrNotExist
				}
				close(delivered)
				return nil
			})
			if test.code == 0 && !errors.Is(err, fs.ErrNotExist) || test.code != 0 && connect.CodeOf(err) != test.code {
				t.Errorf("%v", err)
			}
			if wire := test.code != 0 && test.code != connect.CodeUnknown; connect.IsWireError(err) != wire {
				t.Errorf("%v is told by the cell: %v", err, !wire)
			}
			if test.await && tries != 3 {
				t.Errorf("values were delivered after %d tries", tries)
			}
		})
	}
}

// answering returns a client of a cell that answers each call with answers[method].
func answering(t *testing.T, protocol int, answers map[string]string) *Client {
	t.Helper()
	dir := t.TempDir()
	l, err := Listen(dir, ControlSocket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		body, _ := io.ReadAll(r.Body)
		answer, ok := answers[name]
		switch {
		case !ok:
			http.NotFound(w, r)
		case strings.HasPrefix(answer, "want "):
			if string(body) != answer[len("want "):] {
				t.Errorf("%s got %s", name, body)
			}
			answer = "{}"
			fallthrough
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
		}
	})}
	go srv.Serve(l) //nolint:errcheck // it ends with the test
	t.Cleanup(func() { srv.Close() })
	c := NewClient(dir, protocol, nil)
	t.Cleanup(c.Close)
	return c
}

// TestAnswersOfProtocol1 reads the JSON of cells of protocol 1, which protobuf wrote.
func TestAnswersOfProtocol1(t *testing.T) {
	c := answering(t, 1, map[string]string{
		"Stats":      `{"cpuNanos":"12","memoryBytes":"34","netRxBytes":"56"}`,
		"Deleted":    `{"bytes":{"/data":"78"}}`,
		"Update":     `want {"memoryBytes":90,"maxPids":12}`,
		"SetNetwork": `want {"network":"eyJTYW5kYm94SUQiOiJzYngiLCJQb2xpY3kiOnt9LCJCaW5kaW5ncyI6bnVsbH0="}`,
	})
	if st, err := c.Stats(t.Context()); err != nil || *st != (engine.Stats{CPUNanos: 12, MemoryBytes: 34, NetRxBytes: 56}) {
		t.Errorf("stats: %+v, %v", st, err)
	}
	if got, err := c.Deleted(t.Context()); err != nil || len(got) != 1 || got["/data"] != 78 {
		t.Errorf("deleted: %v, %v", got, err)
	}
	if _, err := c.Update(t.Context(), Limits{MemoryBytes: 90, MaxPIDs: 12}); err != nil {
		t.Error(err)
	}
	if err := c.SetNetwork(t.Context(), &engine.Network{SandboxID: "sbx"}); err != nil {
		t.Error(err)
	}
	if err := c.Probe(t.Context()); connect.CodeOf(err) != connect.CodeUnimplemented {
		t.Errorf("what it does not know: %v", err)
	}
}

// TestAnswersAreBounded checks that the answers of a cell, which may be compromised, are
// bounded.
func TestAnswersAreBounded(t *testing.T) {
	c := answering(t, Protocol, map[string]string{"Stats": `{"x":"` + strings.Repeat("x", maxAnswer) + `"}`})
	if _, err := c.Stats(t.Context()); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("%v, want that it is too large", err)
	}
}
