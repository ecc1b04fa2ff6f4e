package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sh/cove/sandbox"
)

func (p *parrot) GetNetwork(_ context.Context, name string) (*sandbox.NetworkPolicy, error) {
	return heard[sandbox.NetworkPolicy](p, name)
}

func (p *parrot) SetNetwork(_ context.Context, name string, policy sandbox.NetworkPolicy) (*sandbox.NetworkPolicy, error) {
	return heard[sandbox.NetworkPolicy](p, name, policy)
}

func (p *parrot) NetworkLog(_ context.Context, name string, req sandbox.NetworkLogRequest) (*sandbox.List[sandbox.NetworkEvent], error) {
	return heard[sandbox.List[sandbox.NetworkEvent]](p, name, req)
}

func (p *parrot) FollowNetworkLog(_ context.Context, name string, req sandbox.NetworkLogRequest, sink func(sandbox.NetworkEvent) error) error {
	p.heard = []any{name, req}
	return sink(filled[sandbox.NetworkEvent]())
}

func (p *parrot) FollowEvents(_ context.Context, req sandbox.FollowEventsRequest, sink func(sandbox.Event) error) error {
	p.heard = []any{req}
	return sink(filled[sandbox.Event]())
}

func (p *parrot) ListApprovals(_ context.Context, req sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
	return heard[sandbox.List[sandbox.Approval]](p, req)
}

func (p *parrot) GetApproval(_ context.Context, id string) (*sandbox.Approval, error) {
	return heard[sandbox.Approval](p, id)
}

func (p *parrot) AnswerApproval(_ context.Context, id string, req sandbox.AnswerApprovalRequest) (*sandbox.Approval, error) {
	return heard[sandbox.Approval](p, id, req)
}

func (p *parrot) CreateSecret(_ context.Context, req sandbox.CreateSecretRequest) (*sandbox.Secret, error) {
	return heard[sandbox.Secret](p, req, req.Value.Reveal())
}

func (p *parrot) GetSecret(_ context.Context, secret string) (*sandbox.Secret, error) {
	return heard[sandbox.Secret](p, secret)
}

func (p *parrot) ListSecrets(_ context.Context, page sandbox.Page) (*sandbox.List[sandbox.Secret], error) {
	return heard[sandbox.List[sandbox.Secret]](p, page)
}

func (p *parrot) RotateSecret(_ context.Context, secret string, req sandbox.RotateSecretRequest) (*sandbox.Secret, error) {
	return heard[sandbox.Secret](p, secret, req.Value.Reveal())
}

func (p *parrot) DeleteSecret(_ context.Context, secret string) error {
	p.heard = []any{secret}
	return nil
}

func (p *parrot) ListProviders(context.Context) (*sandbox.List[sandbox.Provider], error) {
	return heard[sandbox.List[sandbox.Provider]](p)
}

func (p *parrot) AttachSecret(_ context.Context, name, secret, env string) (*sandbox.Sandbox, error) {
	return heard[sandbox.Sandbox](p, name, secret, env)
}

func (p *parrot) DetachSecret(_ context.Context, name, env string) (*sandbox.Sandbox, error) {
	return heard[sandbox.Sandbox](p, name, env)
}

func (p *parrot) CreatePreview(_ context.Context, name string, req sandbox.CreatePreviewRequest) (*sandbox.NewPreview, error) {
	return heard[sandbox.NewPreview](p, name, req)
}

func (p *parrot) ListPreviews(_ context.Context, name string, page sandbox.Page) (*sandbox.List[sandbox.Preview], error) {
	return heard[sandbox.List[sandbox.Preview]](p, name, page)
}

func (p *parrot) LinkPreview(_ context.Context, name string, port int, req sandbox.PreviewLinkRequest) (*sandbox.PreviewLink, error) {
	return heard[sandbox.PreviewLink](p, name, port, req)
}

func (p *parrot) DeletePreview(_ context.Context, name string, port int) error {
	p.heard = []any{name, port}
	return nil
}

func TestEveryMemberOfTheNetworkArrives(t *testing.T) {
	p := &parrot{}
	_, c := serve(t, p)
	ctx := t.Context()
	const name, other = "a/b ü?", "x%2f&"
	passes(t, p, "SetNetwork", func(req sandbox.NetworkPolicy) (*sandbox.NetworkPolicy, error) { return c.SetNetwork(ctx, name, req) }, name)
	passes(t, p, "ListApprovals", func(req sandbox.ListApprovalsRequest) (*sandbox.List[sandbox.Approval], error) {
		return c.ListApprovals(ctx, req)
	})
	passes(t, p, "AnswerApproval", func(req sandbox.AnswerApprovalRequest) (*sandbox.Approval, error) {
		return c.AnswerApproval(ctx, name, req)
	}, name)
	passes(t, p, "ListSecrets", func(req sandbox.Page) (*sandbox.List[sandbox.Secret], error) { return c.ListSecrets(ctx, req) })
	passes(t, p, "CreatePreview", func(req sandbox.CreatePreviewRequest) (*sandbox.NewPreview, error) {
		return c.CreatePreview(ctx, name, req)
	}, name)
	passes(t, p, "LinkPreview", func(req sandbox.PreviewLinkRequest) (*sandbox.PreviewLink, error) {
		return c.LinkPreview(ctx, name, -3, req)
	}, name, -3)
	since := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	until := since.Add(time.Hour)
	page := sandbox.Page{Limit: 7, Cursor: "x&="}
	log := sandbox.NetworkLogRequest{
		Kind: "k&", Verdict: "v&", Host: "*.ü", Since: &since, Until: &until, Page: sandbox.Page{Limit: 3, Cursor: "c&="},
	}
	follow := log
	follow.Page = sandbox.Page{}
	events := sandbox.FollowEventsRequest{Sandbox: name, Kinds: []sandbox.EventKind{"k&", "l"}, After: "a-1&=", Once: true}
	value := sandbox.NewSecretValue("väl<ue>&\"")
	secret := sandbox.CreateSecretRequest{
		Name: "n", Value: value, Provider: "p", Hosts: []string{"h"}, Auth: &sandbox.SecretAuth{Type: "t", Name: "N", Prefix: "P ", User: "u", Body: true},
	}
	one := func(v any, err error) (any, error) { return v, err }
	none := func(err error) (any, error) { return nil, err }
	for verb, c := range map[string]struct {
		call func() (any, error)
		want any
		args []any
	}{
		"GetNetwork":   {func() (any, error) { return one(c.GetNetwork(ctx, name)) }, filled[sandbox.NetworkPolicy](), []any{name}},
		"NetworkLog":   {func() (any, error) { return one(c.NetworkLog(ctx, name, log)) }, filled[sandbox.List[sandbox.NetworkEvent]](), []any{name, log}},
		"log, all":     {func() (any, error) { return one(c.NetworkLog(ctx, name, sandbox.NetworkLogRequest{})) }, filled[sandbox.List[sandbox.NetworkEvent]](), []any{name, sandbox.NetworkLogRequest{}}},
		"GetApproval":  {func() (any, error) { return one(c.GetApproval(ctx, name)) }, filled[sandbox.Approval](), []any{name}},
		"GetSecret":    {func() (any, error) { return one(c.GetSecret(ctx, name)) }, filled[sandbox.Secret](), []any{name}},
		"DeleteSecret": {func() (any, error) { return none(c.DeleteSecret(ctx, name)) }, nil, []any{name}},
		"CreateSecret": {func() (any, error) { return one(c.CreateSecret(ctx, secret)) }, filled[sandbox.Secret](), []any{secret, value.Reveal()}},
		"RotateSecret": {
			func() (any, error) {
				return one(c.RotateSecret(ctx, name, sandbox.RotateSecretRequest{Value: value}))
			}, filled[sandbox.Secret](), []any{name, value.Reveal()},
		},
		"ListProviders": {func() (any, error) { return one(c.ListProviders(ctx)) }, filled[sandbox.List[sandbox.Provider]](), nil},
		"AttachSecret":  {func() (any, error) { return one(c.AttachSecret(ctx, name, "s", "E")) }, filled[sandbox.Sandbox](), []any{name, "s", "E"}},
		"DetachSecret":  {func() (any, error) { return one(c.DetachSecret(ctx, name, other)) }, filled[sandbox.Sandbox](), []any{name, other}},
		"ListPreviews":  {func() (any, error) { return one(c.ListPreviews(ctx, name, page)) }, filled[sandbox.List[sandbox.Preview]](), []any{name, page}},
		"all previews":  {func() (any, error) { return one(c.ListPreviews(ctx, "", page)) }, filled[sandbox.List[sandbox.Preview]](), []any{"", page}},
		"DeletePreview": {func() (any, error) { return none(c.DeletePreview(ctx, name, 80)) }, nil, []any{name, 80}},
		"FollowNetworkLog": {
			func() (any, error) {
				var got sandbox.NetworkEvent
				err := c.FollowNetworkLog(ctx, name, follow, func(ev sandbox.NetworkEvent) error { got = ev; return nil })
				return &got, err
			}, filled[sandbox.NetworkEvent](), []any{name, follow},
		},
		"FollowEvents": {
			func() (any, error) {
				var got sandbox.Event
				err := c.FollowEvents(ctx, events, func(e sandbox.Event) error { got = e; return nil })
				return &got, err
			}, filled[sandbox.Event](), []any{events},
		},
	} {
		p.heard = nil
		got, err := c.call()
		if err != nil {
			t.Errorf("%s: %v", verb, err)
			continue
		}
		if diff := cmp.Diff(c.args, p.heard, cmp.Comparer(func(a, b sandbox.SecretValue) bool { return a == b })); diff != "" {
			t.Errorf("%s: the service was asked for something else (-sent +heard):\n%s", verb, diff)
		}
		if c.want == nil {
			continue
		}
		want, err := json.Marshal(c.want)
		if err != nil {
			t.Fatal(err)
		}
		have, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(have)); diff != "" {
			t.Errorf("%s: the answer differs (-service +client):\n%s", verb, diff)
		}
	}
	if err := c.FollowNetworkLog(ctx, name, follow, func(sandbox.NetworkEvent) error { return io.ErrShortWrite }); err != io.ErrShortWrite {
		t.Errorf("an error of the sink became %v", err)
	}
	for name, err := range map[string]error{
		"visit": func() error { _, err := c.VisitPreview(ctx, sandbox.PreviewVisit{}); return err }(),
		"dial":  func() error { _, err := c.DialPreview(ctx, &sandbox.Preview{}); return err }(),
	} {
		if sandbox.CodeOf(err) != sandbox.CodeUnsupported {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// noSecrets is a service that accepts no secrets.
type noSecrets struct{ sandbox.Service }

var errNo = sandbox.Errorf(sandbox.CodeInvalid, "no")

func (noSecrets) CreateSecret(context.Context, sandbox.CreateSecretRequest) (*sandbox.Secret, error) {
	return nil, errNo
}

func (noSecrets) RotateSecret(context.Context, string, sandbox.RotateSecretRequest) (*sandbox.Secret, error) {
	return nil, errNo
}

// TestBadSecretsAreNotEchoed sends values in requests that are refused: no
// answer repeats them.
func TestBadSecretsAreNotEchoed(t *testing.T) {
	url, _ := serve(t, noSecrets{})
	const value = "c4n4ry"
	for _, body := range []string{
		`{"name":"a","value":["c4n4ry"]}`, `{"name":"a","value":{"c4n4ry":1}}`, `{"name":"a","value":4,"vaule":"c4n4ry"}`,
		`{"name":1,"value":"c4n4ry"}`, `{"value":"c4n4ry"`, `{"value":"c4n4ry"}{}`, `"c4n4ry"`, `{"value":"c4n4ry\ud800"}`,
		"{\"value\":\"c4n4ry\xff\"}", `{"hosts":"c4n4ry","value":"c4n4ry"}`,
	} {
		for _, path := range []string{"/v1/secrets", "/v1/secrets/x/rotate"} {
			resp, err := http.Post(url+path, "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || strings.Contains(string(answer), value) || resp.StatusCode < 400 {
				t.Errorf("%s to %s: %d %s, %v", body, path, resp.StatusCode, answer, err)
			}
		}
	}
}

// port is a service with one port, which is far.
type port struct {
	sandbox.Service
	far chan net.Conn
	err error
}

func (p *port) DialPort(_ context.Context, name string, number int) (net.Conn, error) {
	if p.err != nil {
		return nil, p.err
	}
	if name != "x" || number != 80 {
		return nil, fmt.Errorf("dialled %s %d", name, number)
	}
	// A real pair: that of net.Pipe has no halves.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	far, err := l.Accept()
	if err != nil {
		return nil, err
	}
	p.far <- far
	return near, nil
}

func TestTunnel(t *testing.T) {
	p := &port{far: make(chan net.Conn, 1)}
	_, c := serve(t, p)
	dial := func() (near, far net.Conn) {
		t.Helper()
		near, err := c.DialPort(t.Context(), "x", 80)
		if err != nil {
			t.Fatal(err)
		}
		far = <-p.far
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		return near, far
	}
	// Each direction ends by itself, and large data passes whole.
	near, far := dial()
	data := strings.Repeat("0123456789abcdef", 1<<16)
	for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			_, _ = io.WriteString(pair[0], data)
			_ = pair[0].(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(pair[1])
		if err != nil || string(got) != data {
			t.Errorf("%d of %d bytes came, %v", len(got), len(data), err)
		}
	}
	if _, err := near.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a write after the end: %v", err)
	}
	// A reset on the far side is not an orderly end.
	near, far = dial()
	_ = far.(*net.TCPConn).SetLinger(0)
	_ = far.Close()
	if _, err := near.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("a reset became %v", err)
	}
	// A client that goes takes the connection with it.
	near, far = dial()
	_ = near.Close()
	_ = far.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := far.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the client has gone: %v", err)
	}
	near, _ = dial()
	_ = near.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	var timeout net.Error
	if _, err := near.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("after the deadline: %v", err)
	}
}

func TestTunnelRefused(t *testing.T) {
	p := &port{err: sandbox.Errorf(sandbox.CodeUnavailable, "nothing listens on port 80 of the sandbox; start a server there first")}
	url, c := serve(t, p)
	if _, err := c.DialPort(t.Context(), "x", 80); sandbox.CodeOf(err) != sandbox.CodeUnavailable || err.Error() != p.err.Error() {
		t.Errorf("refused: %v", err)
	}
	for path, want := range map[string]int{
		"/v1/sandboxes/x/ports/80": 400, "/v1/sandboxes/x/ports/": 404, "/v1/sandboxes/x/ports/80/x": 404,
	} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s without a WebSocket: %d, want %d", path, resp.StatusCode, want)
		}
	}
	// Pages of other origins do not get in.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/v1/sandboxes/x/ports/80", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Origin": "http://evil.example",
	} {
		req.Header.Set(k, v)
	}
	p.err, p.far = nil, make(chan net.Conn, 1)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("another origin: %d", resp.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestEventsForBrowsers sends events as a browser's EventSource reads them, and takes a
// stream up again by the header that it sends.
func TestEventsForBrowsers(t *testing.T) {
	p := &parrot{}
	url, _ := serve(t, p)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/v1/events?kind=job", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Last-Event-ID", "run-7")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	id := filled[sandbox.Event]().ID
	if !strings.HasPrefix(string(body), "id: "+id+"\ndata: {") || !strings.HasSuffix(string(body), "\ndata: {\"final\":true}\n\n") {
		t.Errorf("it is sent as\n%s", body)
	}
	want := []any{sandbox.FollowEventsRequest{Kinds: []sandbox.EventKind{"job"}, After: "run-7"}}
	if diff := cmp.Diff(want, p.heard); diff != "" {
		t.Error(diff)
	}
}
