// Package client is the Go client of Cove. A [Client] implements
// [sandbox.Service] over the REST interface of a Cove server, so that a program
// cannot tell whether it works with a server or with the service itself:
// errors are [sandbox.Error] values with the same codes and messages.
//
// It depends on the standard library and on coder/websocket.
package client

import (
	"bytes"
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

	"github.com/cove-sh/cove/sandbox"
)

// Config says how to reach a server. One of URL and UnixSocket is set.
type Config struct {
	// URL is where the server is, such as "https://cove.example.com", with or
	// without a path before /v1.
	URL string
	// UnixSocket is the path of a local daemon's socket. Its user is trusted, so
	// no key is needed; proxies are never used.
	UnixSocket string
	// Key is an API key.
	Key Secret
	// Namespace has all requests work in this namespace of the team only; see
	// [sandbox.Caller]. Empty and "*" are the whole team.
	Namespace string
	// HTTPClient is used for requests to URL. Nil means one of the client's own,
	// which honours HTTP_PROXY and HTTPS_PROXY but for loopback addresses. A
	// timeout would end long commands.
	HTTPClient *http.Client
	// Dial, if set, makes connections in place of the default: to UnixSocket, or
	// to addr. It is not used with HTTPClient.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// OnVersion, if set, is called with the version of the server, once, when it
	// has answered for the first time.
	OnVersion func(version string)
	// UserAgent is the name under which requests are made; "cove-go" when empty.
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
	// namespace is where all requests are made.
	namespace string
	agent     string
	http      *http.Client
	// onVersion is called by the first answer that has a version.
	onVersion func(version string)
	versioned sync.Once
}

var _ sandbox.Service = (*Client)(nil)

// New returns a client. It makes no connection: use [Client.Ping] to see
// whether the server answers.
func New(cfg Config) (*Client, error) {
	c := &Client{key: cfg.Key, namespace: cfg.Namespace, agent: cfg.UserAgent, where: cfg.URL, onVersion: cfg.OnVersion}
	if c.agent == "" {
		c.agent = "cove-go"
	}
	var err error
	switch {
	case (cfg.URL == "") == (cfg.UnixSocket == ""):
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "give either the URL of a server or the path of a socket")
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
		return nil, sandbox.Wrap(sandbox.CodeInvalid, err, "the server's URL is malformed; it looks like https://cove.example.com")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the server's URL %q is not http:// or https:// with a host; it looks like https://cove.example.com", u.Redacted())
	case u.User != nil, u.RawQuery != "", u.Fragment != "":
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the server's URL holds more than a host and a path; give the key by itself")
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

func remoteHTTPClient(cfg Config) *http.Client {
	if cfg.HTTPClient != nil {
		own := *cfg.HTTPClient
		own.CheckRedirect = noRedirect
		return &own
	}
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
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

// noRedirect keeps the key from going where the server points.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes connections that are not in use.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Ping returns nil when the server answers. It needs no key.
func (c *Client) Ping(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, c.path("/healthz"), nil, nil)
}

// Version returns the server's version. It needs no key.
func (c *Client) Version(ctx context.Context) (string, error) {
	var v struct {
		Version string `json:"version"`
	}
	err := c.call(ctx, http.MethodGet, c.path("/v1/version"), nil, &v)
	return v.Version, err
}

// endpoint is a path, escaped, with a query.
type endpoint struct {
	path  string
	query url.Values
	err   error
}

// path makes an endpoint of a path in which each "%" stands for one of the
// segments. A segment that no path can carry names nothing.
func (c *Client) path(pattern string, segments ...string) endpoint {
	var b strings.Builder
	e := endpoint{query: url.Values{}}
	for _, r := range pattern {
		if r != '%' {
			b.WriteRune(r)
			continue
		}
		segment := segments[0]
		segments = segments[1:]
		if segment == "" || segment == "." || segment == ".." {
			e.err = sandbox.Errorf(sandbox.CodeNotFound, "there is no %q; list what there is and use an id from there", segment)
		}
		b.WriteString(url.PathEscape(segment))
	}
	e.path = b.String()
	return e
}

// with adds a query parameter unless its value is empty.
func (e endpoint) with(name, value string) endpoint {
	if value != "" {
		e.query.Add(name, value)
	}
	return e
}

// must adds a query parameter whatever its value.
func (e endpoint) must(name, value string) endpoint {
	e.query.Add(name, value)
	return e
}

func (c *Client) url(e endpoint) string {
	u := c.base.Scheme + "://" + c.base.Host + c.base.EscapedPath() + e.path
	if len(e.query) > 0 {
		u += "?" + e.query.Encode()
	}
	return u
}

// request makes a request; a body that is not an [io.Reader] is sent as JSON.
func (c *Client) request(ctx context.Context, method string, e endpoint, body any) (*http.Request, error) {
	if e.err != nil {
		return nil, e.err
	}
	var reader io.Reader
	contentType := ""
	switch b := body.(type) {
	case nil:
	case io.Reader:
		reader, contentType = b, "application/octet-stream"
	default:
		data, err := encode(body)
		if err != nil {
			return nil, err
		}
		reader, contentType = bytes.NewReader(data), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url(e), reader)
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

// encode refuses strings that are not UTF-8, which encoding/json would alter:
// it writes bytes that are none as the escape \ufffd, and only them.
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
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "the request holds text that is not UTF-8; send bytes as a file or as standard input")
		}
		rest = rest[i+1:]
	}
}

// versionHeader has the version of the server in each of its answers.
const versionHeader = "Cove-Version"

// noteVersion tells of the version of the server, once.
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
func (c *Client) call(ctx context.Context, method string, e endpoint, body, out any) error {
	req, err := c.request(ctx, method, e, body)
	if err != nil {
		return err
	}
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return c.decode(ctx, resp, out)
}

func (c *Client) decode(ctx context.Context, resp *http.Response, out any) error {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return c.connectionError(ctx, err)
	}
	if len(data) > maxAnswer {
		return sandbox.Errorf(sandbox.CodeTooLarge, "the answer has more than %d MiB; ask for less, with a smaller limit", maxAnswer>>20)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return sandbox.Wrap(sandbox.CodeUnavailable, err, "the answer of "+c.where+" is not Cove's; check the URL")
	}
	return nil
}

// get sends a request and returns the value that is answered.
func get[T any](ctx context.Context, c *Client, method string, e endpoint, body any) (*T, error) {
	out := new(T)
	if err := c.call(ctx, method, e, body, out); err != nil {
		return nil, err
	}
	return out, nil
}
