// Package client is the Go client of Cove. A [Client] implements
// [sandbox.Service] over the REST interface of a Cove server, so that a program
// cannot tell whether it works with a server or with the service itself:
// errors are [sandbox.Error] values with the same codes and messages.
//
// It depends on the standard library and on coder/websocket.
package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/doors/operation"
	"github.com/cove-sh/cove/internal/silence"
	"github.com/cove-sh/cove/sandbox"
)

// Config says how to reach a server. Exactly one of URL and UnixSocket is set.
type Config struct {
	// URL is the server's address, such as "https://cove.example.com", with or
	// without a path before /v1.
	URL string
	// UnixSocket is the path of a local daemon's socket. The daemon trusts its own
	// user, so no key is needed. Proxies are never used.
	UnixSocket string
	// Key is an API key.
	Key Secret
	// Namespace restricts all requests to this namespace of the team; see
	// [sandbox.Caller]. Empty and "*" are the whole team.
	Namespace string
	// HTTPClient is used for requests to URL. Nil means a client without a timeout
	// that honours HTTP_PROXY and HTTPS_PROXY, except for loopback addresses. A
	// timeout would end long commands.
	HTTPClient *http.Client
	// Dial, if set, makes connections instead of the default: to UnixSocket, or
	// to addr. It is not used with HTTPClient.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// OnVersion, if set, is called once with the version of the server, at its first
	// answer.
	OnVersion func(version string)
	// UserAgent is the User-Agent header of requests; "cove-go" if empty.
	UserAgent string
}

// Secret is a string that logs and %v do not show.
type Secret string

// String hides the secret.
func (Secret) String() string { return "[secret]" }

// GoString hides the secret.
func (Secret) GoString() string { return "[secret]" }

// LogValue hides the secret.
func (Secret) LogValue() slog.Value { return slog.StringValue("[secret]") }

// Client talks to one server. It implements [sandbox.Service] and is safe for
// concurrent use.
type Client struct {
	base  *url.URL
	where string
	key   Secret
	// namespace restricts all requests; empty is the whole team.
	namespace string
	agent     string
	http      *http.Client
	// onVersion is called by the first answer that has a version.
	onVersion func(version string)
	versioned sync.Once
}

var _ sandbox.Service = (*Client)(nil)

// New returns a client. It does not connect: use [Client.Ping] to check whether
// the server answers.
func New(cfg Config) (*Client, error) {
	c := &Client{key: cfg.Key, namespace: cfg.Namespace, agent: cmp.Or(cfg.UserAgent, "cove-go"), where: cfg.URL, onVersion: cfg.OnVersion}
	var err error
	switch {
	case (cfg.URL == "") == (cfg.UnixSocket == ""):
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "client: set either the URL of a server or the path of a socket")
	case cfg.UnixSocket != "":
		c.where = cfg.UnixSocket
		c.base = &url.URL{Scheme: "http", Host: "localhost"}
		c.http = newHTTPClient(unixDial(cfg), nil)
	default:
		if c.base, err = parseBase(cfg.URL); err != nil {
			return nil, err
		}
		c.http = remoteHTTPClient(cfg)
	}
	return c, nil
}

func parseBase(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, sandbox.Wrap(sandbox.CodeInvalid, err, "the server's URL is malformed; use a URL such as https://cove.example.com")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the server's URL %q must be http:// or https:// with a host, such as https://cove.example.com", u.Redacted())
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the server's URL must have only a host and a path; pass the key separately")
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/")}, nil
}

type dialFunc = func(ctx context.Context, network, addr string) (net.Conn, error)

func unixDial(cfg Config) dialFunc {
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dial(ctx, "unix", cfg.UnixSocket)
	}
}

const (
	connectTimeout = 10 * time.Second
	// silentFor is after how long without an answer from the server's machine a call fails.
	silentFor = time.Minute
)

func remoteHTTPClient(cfg Config) *http.Client {
	if cfg.HTTPClient != nil {
		own := *cfg.HTTPClient
		own.CheckRedirect = noRedirect
		return &own
	}
	dial := cfg.Dial
	if dial == nil {
		d := silence.Dialer(silentFor)
		d.Timeout = connectTimeout
		dial = d.DialContext
	}
	return newHTTPClient(dial, http.ProxyFromEnvironment)
}

func newHTTPClient(dial dialFunc, proxy func(*http.Request) (*url.URL, error)) *http.Client {
	return &http.Client{
		CheckRedirect: noRedirect,
		Transport: &http.Transport{
			Proxy:                 proxy,
			DialContext:           dial,
			TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:   10 * time.Second,
			ExpectContinueTimeout: 2 * time.Second,
			IdleConnTimeout:       30 * time.Second,
			MaxIdleConnsPerHost:   16,
			// Files and output are passed on as they are.
			DisableCompression: true,
		},
	}
}

// noRedirect keeps the key from being sent to the target of a redirect.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes connections that are not in use.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Ping returns nil when the server answers. It needs no key.
func (c *Client) Ping(ctx context.Context) error {
	return c.call(ctx, operation.GetHealth, nil, nil)
}

// Version returns the server's version. It needs no key.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v operation.VersionInfo
	err := c.call(ctx, operation.GetVersion, &v, nil)
	return v.Version, err
}

// content is a request whose body is sent as it is.
type content struct {
	// query is a value whose fields are the query, like the requests of package
	// sandbox.
	query any
	body  io.Reader
}

// members are the members of a small JSON body.
type members map[string]any

// url returns the URL of an operation; names fill in its path.
func (c *Client) url(info operation.Info, query any, names []string) (string, error) {
	path, err := info.Expand(names...)
	if err != nil {
		return "", err
	}
	u := c.base.Scheme + "://" + c.base.Host + c.base.EscapedPath() + path
	if query != nil {
		if values := operation.Query(query); len(values) > 0 {
			u += "?" + values.Encode()
		}
	}
	return u, nil
}

// request makes a request of an operation. Its sends is nil, a [content], or a value:
// the query if the operation has no body, otherwise the body as JSON.
func (c *Client) request(ctx context.Context, info operation.Info, sends any, names []string) (*http.Request, error) {
	var query any
	var reader io.Reader
	contentType := ""
	switch s := sends.(type) {
	case nil:
	case content:
		query, reader, contentType = s.query, s.body, "application/octet-stream"
	default:
		if info.Method == http.MethodGet || info.Method == http.MethodDelete {
			query = s
			break
		}
		data, err := encode(s)
		if err != nil {
			return nil, err
		}
		reader, contentType = bytes.NewReader(data), "application/json"
	}
	where, err := c.url(info, query, names)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, info.Method, where, reader)
	if err != nil {
		return nil, sandbox.Wrap(sandbox.CodeInvalid, err, "the request cannot be put into a URL; check the name of the sandbox")
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	c.identify(req.Header)
	return req, nil
}

func (c *Client) identify(h http.Header) {
	h.Set("User-Agent", c.agent)
	if c.key != "" {
		h.Set("Authorization", "Bearer "+string(c.key))
	}
	if c.namespace != "" {
		h.Set("Cove-Namespace", c.namespace)
	}
}

// encode refuses strings that are not UTF-8, which encoding/json would alter: it
// writes the escape \ufffd for invalid bytes, and for nothing else.
func encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, sandbox.Wrap(sandbox.CodeInvalid, err, "the request cannot be encoded")
	}
	for rest := data; ; {
		i := bytes.Index(rest, []byte(`\ufffd`))
		if i < 0 {
			return data, nil
		}
		slashes := i
		for slashes > 0 && rest[slashes-1] == '\\' {
			slashes--
		}
		if (i-slashes)%2 == 0 {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the request has text that is not valid UTF-8; send bytes as a file or as standard input")
		}
		rest = rest[i+1:]
	}
}

// versionHeader has the version of the server in each of its answers.
const versionHeader = "Cove-Version"

// noteVersion reports the version of the server, once.
func (c *Client) noteVersion(resp *http.Response) {
	if version := resp.Header.Get(versionHeader); version != "" && c.onVersion != nil {
		c.versioned.Do(func() { c.onVersion(version) })
	}
}

// send sends a request and returns a successful response, whose body the
// caller closes.
func (c *Client) send(req *http.Request) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.connectionError(req.Context(), err)
	}
	c.noteVersion(resp)
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, errorOf(resp)
}

// maxAnswer bounds an answer that is one JSON value, in bytes.
const maxAnswer = 64 << 20

// call sends a request and decodes the answer into out, unless that is nil.
func (c *Client) call(ctx context.Context, info operation.Info, out, sends any, names ...string) error {
	req, err := c.request(ctx, info, sends, names)
	if err != nil {
		return err
	}
	return c.answer(req, out)
}

// answer sends a request and decodes the answer into out, unless that is nil.
func (c *Client) answer(req *http.Request, out any) error {
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.decode(req.Context(), resp, out)
}

func (c *Client) decode(ctx context.Context, resp *http.Response, out any) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return c.connectionError(ctx, err)
	}
	if len(data) > maxAnswer {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the response is larger than %d MiB; request less, with a smaller limit", maxAnswer>>20)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return c.foreign(err)
	}
	return nil
}

// do sends a request of an operation whose answer is empty.
func do[In any](ctx context.Context, c *Client, op operation.Op[In, operation.Empty], sends any, names ...string) error {
	return c.call(ctx, op.Info, nil, sends, names...)
}

// get sends a request and returns the answer. A repeatable operation is performed once,
// however often its request is sent.
func get[In, Out any](ctx context.Context, c *Client, op operation.Op[In, Out], sends any, names ...string) (*Out, error) {
	out := new(Out)
	send := c.call
	if op.Repeat == operation.RepeatWhole {
		send = c.once
	}
	if err := send(ctx, op.Info, out, sends, names...); err != nil {
		return nil, err
	}
	return out, nil
}
