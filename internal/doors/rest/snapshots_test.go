package rest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/sandbox"
)

// filled returns a T in which no member has its zero value, and no two strings
// or numbers are the same.
func filled[T any]() T {
	var v T
	n := 0
	fill(reflect.ValueOf(&v).Elem(), &n)
	return v
}

func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("ü&%d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(float64(*n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(-*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2030, 1, 1, 0, 0, *n, 0, time.UTC)))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	default:
		panic("no value for a " + v.Type().String())
	}
}

// parrot is a service that records the arguments of a verb, and answers with values in
// which every member is set.
type parrot struct {
	sandbox.Service
	heard []any
}

func heard[T any](p *parrot, args ...any) (*T, error) {
	p.heard = args
	v := filled[T]()
	return &v, nil
}

func (p *parrot) Create(_ context.Context, req sandbox.CreateRequest) (*sandbox.Sandbox, error) {
	return heard[sandbox.Sandbox](p, req)
}

func (p *parrot) Update(_ context.Context, name string, req sandbox.UpdateRequest) (*sandbox.Sandbox, error) {
	return heard[sandbox.Sandbox](p, name, req)
}

func (p *parrot) Pause(_ context.Context, name string) (*sandbox.Sandbox, error) {
	return heard[sandbox.Sandbox](p, name)
}

func (p *parrot) Resume(_ context.Context, name string, req sandbox.ResumeRequest) (*sandbox.Sandbox, error) {
	return heard[sandbox.Sandbox](p, name, req)
}

func (p *parrot) Fork(_ context.Context, name string, req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) {
	return heard[sandbox.List[sandbox.Sandbox]](p, name, req)
}

func (p *parrot) CreateSnapshot(_ context.Context, name string, req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
	return heard[sandbox.Snapshot](p, name, req)
}

func (p *parrot) GetSnapshot(_ context.Context, name string) (*sandbox.Snapshot, error) {
	return heard[sandbox.Snapshot](p, name)
}

func (p *parrot) ListSnapshots(_ context.Context, req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
	return heard[sandbox.List[sandbox.Snapshot]](p, req)
}

func (p *parrot) RestoreSnapshot(_ context.Context, name string, req sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
	return heard[sandbox.Sandbox](p, name, req)
}

func (p *parrot) DeleteSnapshot(_ context.Context, name string) (*sandbox.Snapshot, error) {
	return heard[sandbox.Snapshot](p, name)
}

func (p *parrot) Diff(_ context.Context, name string, req sandbox.DiffRequest) (*sandbox.Diff, error) {
	return heard[sandbox.Diff](p, name, req)
}

func (p *parrot) Merge(_ context.Context, name string, req sandbox.MergeRequest) (*sandbox.MergeResult, error) {
	return heard[sandbox.MergeResult](p, name, req)
}

func (p *parrot) Try(_ context.Context, name string, req sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	if err := sink(filled[sandbox.TryEvent]()); err != nil {
		return nil, err
	}
	return heard[sandbox.TryResult](p, name, req)
}

// passes calls a verb with a request whose members are all set, with an empty one and
// with one of pointers to zeros, and checks that requests and answers arrive
// completely.
func passes[Req, Res any](t *testing.T, p *parrot, verb string, call func(req Req) (*Res, error), args ...any) {
	t.Helper()
	var empty, zeros Req
	for v, i := reflect.ValueOf(&zeros).Elem(), 0; v.Kind() == reflect.Struct && i < v.NumField(); i++ {
		if f := v.Field(i); f.Kind() == reflect.Pointer {
			f.Set(reflect.New(f.Type().Elem()))
		}
	}
	for name, req := range map[string]Req{"full": filled[Req](), "empty": empty, "zeros": zeros} {
		p.heard = nil
		got, err := call(req)
		if err != nil {
			t.Errorf("%s, %s: %v", verb, name, err)
			continue
		}
		if diff := cmp.Diff(append(args[:len(args):len(args)], req), p.heard); diff != "" {
			t.Errorf("%s, %s: the service was asked for something else (-sent +heard):\n%s", verb, name, diff)
		}
		want := filled[Res]()
		if diff := cmp.Diff(&want, got); diff != "" {
			t.Errorf("%s, %s: the answer differs (-service +client):\n%s", verb, name, diff)
		}
	}
}

func TestEveryMemberArrives(t *testing.T) {
	p := &parrot{}
	_, c := serve(t, p)
	ctx := t.Context()
	const name = "a/b ü?"
	passes(t, p, "Create", func(req sandbox.CreateRequest) (*sandbox.Sandbox, error) { return c.Create(ctx, req) })
	passes(t, p, "Update", func(req sandbox.UpdateRequest) (*sandbox.Sandbox, error) { return c.Update(ctx, name, req) }, name)
	passes(t, p, "Resume", func(req sandbox.ResumeRequest) (*sandbox.Sandbox, error) { return c.Resume(ctx, name, req) }, name)
	passes(t, p, "Fork", func(req sandbox.ForkRequest) (*sandbox.List[sandbox.Sandbox], error) { return c.Fork(ctx, name, req) }, name)
	passes(t, p, "CreateSnapshot", func(req sandbox.CreateSnapshotRequest) (*sandbox.Snapshot, error) {
		return c.CreateSnapshot(ctx, name, req)
	}, name)
	passes(t, p, "ListSnapshots", func(req sandbox.ListSnapshotsRequest) (*sandbox.List[sandbox.Snapshot], error) {
		return c.ListSnapshots(ctx, req)
	})
	passes(t, p, "RestoreSnapshot", func(req sandbox.RestoreRequest) (*sandbox.Sandbox, error) {
		return c.RestoreSnapshot(ctx, name, req)
	}, name)
	passes(t, p, "Diff", func(req sandbox.DiffRequest) (*sandbox.Diff, error) { return c.Diff(ctx, name, req) }, name)
	passes(t, p, "Merge", func(req sandbox.MergeRequest) (*sandbox.MergeResult, error) { return c.Merge(ctx, name, req) }, name)
	passes(t, p, "Try", func(req sandbox.TryRequest) (*sandbox.TryResult, error) {
		var events []sandbox.TryEvent
		v, err := c.Try(ctx, name, req, func(ev sandbox.TryEvent) error {
			events = append(events, ev)
			return nil
		})
		if diff := cmp.Diff([]sandbox.TryEvent{filled[sandbox.TryEvent]()}, events); diff != "" {
			t.Errorf("Try: the events differ (-service +client):\n%s", diff)
		}
		return v, err
	}, name)
	for verb, call := range map[string]func(string) (any, error){
		"Pause":          func(name string) (any, error) { return c.Pause(ctx, name) },
		"GetSnapshot":    func(name string) (any, error) { return c.GetSnapshot(ctx, name) },
		"DeleteSnapshot": func(name string) (any, error) { return c.DeleteSnapshot(ctx, name) },
	} {
		got, err := call(name)
		if err != nil || !cmp.Equal(p.heard, []any{name}) {
			t.Errorf("%s: %v, the service heard %q", verb, err, p.heard)
		}
		var want any
		switch got.(type) {
		case *sandbox.Sandbox:
			v := filled[sandbox.Sandbox]()
			want = &v
		case *sandbox.Snapshot:
			v := filled[sandbox.Snapshot]()
			want = &v
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: the answer differs (-service +client):\n%s", verb, diff)
		}
	}
}

func TestSnapshotAnswers(t *testing.T) {
	p := &parrot{}
	url, _ := serve(t, p)
	const js = "application/json"
	for _, c := range []struct {
		method, path, contentType, body string
		status                          int
		location                        string
		heard                           []any
	}{
		{"POST", "/v1/sandboxes/x/pause", "", "", 200, "", []any{"x"}},
		{"POST", "/v1/sandboxes/x/resume", "", "", 200, "", []any{"x", sandbox.ResumeRequest{}}},
		{"POST", "/v1/sandboxes/x/resume", js, `{"files_only":true}`, 200, "", []any{"x", sandbox.ResumeRequest{FilesOnly: true}}},
		{"POST", "/v1/sandboxes/x/fork", js, `{"count":3}`, 201, "", []any{"x", sandbox.ForkRequest{Count: 3}}},
		{"POST", "/v1/sandboxes/x/snapshots", js, `{}`, 201, "/v1/snapshots/" + filled[sandbox.Snapshot]().ID, []any{"x", sandbox.CreateSnapshotRequest{}}},
		{"GET", "/v1/snapshots?sandbox=x&automatic=true&limit=2&cursor=c", "", "", 200, "", []any{sandbox.ListSnapshotsRequest{Sandbox: "x", Automatic: true, Page: sandbox.Page{Limit: 2, Cursor: "c"}}}},
		{"POST", "/v1/sandboxes/x/restore", js, `{"step":-2}`, 200, "", []any{"x", sandbox.RestoreRequest{Step: -2}}},
		{"POST", "/v1/diff/x", js, `{"against":"y"}`, 200, "", []any{"x", sandbox.DiffRequest{Against: "y"}}},
		{"POST", "/v1/sandboxes/x/resume", js, `{"files":true}`, 400, "", nil},
		{"POST", "/v1/sandboxes/x/fork", js, `{"cout":3}`, 400, "", nil},
		{"POST", "/v1/sandboxes/x/merge", js, `{"winer":"y"}`, 400, "", nil},
		{"POST", "/v1/sandboxes/x/try", js, `{"commands":[{"line":"x"}]}`, 400, "", nil},
		{"POST", "/v1/diff/x", js, `{"paths":"/x"}`, 400, "", nil},
		{"GET", "/v1/snapshots?auto=true", "", "", 400, "", nil},
		{"GET", "/v1/snapshots?automatic=perhaps", "", "", 400, "", nil},
	} {
		p.heard = nil
		resp, body := fetch(t, c.method, url+c.path, c.contentType, c.body)
		if resp.StatusCode != c.status || resp.Header.Get("Location") != c.location {
			t.Errorf("%s %s: got %s at %q, want %d at %q: %s", c.method, c.path, resp.Status, resp.Header.Get("Location"), c.status, c.location, body)
		}
		if diff := cmp.Diff(c.heard, p.heard); diff != "" {
			t.Errorf("%s %s %s: the service was asked for something else (-want +heard):\n%s", c.method, c.path, c.body, diff)
		}
	}
}

// trier is a service whose try continues after the first attempt until it is cancelled.
type trier struct {
	sandbox.Service
	ended chan error
}

func (s trier) Try(ctx context.Context, _ string, _ sandbox.TryRequest, sink func(sandbox.TryEvent) error) (*sandbox.TryResult, error) {
	if err := sink(sandbox.TryEvent{Attempt: sandbox.Attempt{Index: 1, Stdout: "one"}, Done: 1, Total: 2}); err != nil {
		return nil, err
	}
	<-ctx.Done()
	s.ended <- ctx.Err()
	return nil, ctx.Err()
}

func (s trier) waitEnded(t *testing.T) {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the try goes on without its client")
	}
}

func TestTryEndsWithItsClient(t *testing.T) {
	s := trier{ended: make(chan error, 1)}
	url, c := serve(t, s)
	t.Run("the sink fails", func(t *testing.T) {
		full := errors.New("sink is full")
		_, err := c.Try(t.Context(), "x", sandbox.TryRequest{}, func(sandbox.TryEvent) error { return full })
		if !errors.Is(err, full) {
			t.Errorf("got %v", err)
		}
		s.waitEnded(t)
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := c.Try(ctx, "x", sandbox.TryRequest{}, func(ev sandbox.TryEvent) error {
			if ev.Attempt.Stdout != "one" || ev.Done != 1 || ev.Total != 2 {
				t.Errorf("event %+v", ev)
			}
			cancel()
			return nil
		})
		if sandbox.CodeOf(err) != sandbox.CodeCancelled {
			t.Errorf("got %v", err)
		}
		s.waitEnded(t)
	})
	t.Run("the connection ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/sandboxes/x/try", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		// The first attempt is sent at once, not with the last.
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, `{"attempt":{"index":1,`) || !strings.HasSuffix(line, `"done":1,"total":2}`+"\n") {
			t.Errorf("the first line is %s, %v", line, err)
		}
		cancel()
		s.waitEnded(t)
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
}

func TestTryStreamHasAnEnd(t *testing.T) {
	url, _ := serve(t, &parrot{})
	resp, body := fetch(t, http.MethodPost, url+"/v1/sandboxes/x/try", "application/json", `{"commands":[{"shell":"true"}]}`)
	if resp.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("type %s", resp.Header.Get("Content-Type"))
	}
	var lines []operation.TryLine
	for text := range strings.Lines(string(body)) {
		var line operation.TryLine
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("line %s: %v", text, err)
		}
		lines = append(lines, line)
	}
	ev, result := filled[sandbox.TryEvent](), filled[sandbox.TryResult]()
	want := []operation.TryLine{{Attempt: &ev.Attempt, Done: ev.Done, Total: ev.Total}, {Result: &result, End: operation.Final}}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}
