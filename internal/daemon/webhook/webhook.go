// Package webhook reports events to URLs: a signed POST as specified by
// standardwebhooks.com. It checks, signs and sends; the service schedules deliveries and
// retries.
//
// The URL comes from a sandbox's owner, who must not use it to reach what only the host can
// reach. So connections to internal addresses are refused at dial time, whatever name
// resolved to them.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/internal/lazyregexp"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxResponse bounds how much of a response is read, in bytes.
	maxResponse = 64 << 10

	maxURL     = 2048
	maxHeaders = 32
	maxHeader  = 8 << 10 // all headers together
	maxSecret  = 1024
	minKey     = 8

	// secretPrefix marks secrets that are a key in base64, as specified by
	// standardwebhooks.com. Other secrets are used as keys without decoding.
	secretPrefix = "whsec_"
)

// Config configures a [Sender]. Its zero value is the default.
type Config struct {
	// AllowPrivate permits internal addresses.
	AllowPrivate bool
	// Proxy selects the proxy of a request; nil is [http.ProxyFromEnvironment].
	Proxy func(*http.Request) (*url.URL, error)
	// UserAgent is the default User-Agent of requests; "" is "Cove-Webhook".
	UserAgent string
	// Timeout bounds a request with its response; 0 is ten seconds.
	Timeout time.Duration
	// FirstWait is the approximate wait after the first attempt; 0 is ten seconds.
	// Later waits grow.
	FirstWait time.Duration
}

// Sender sends webhooks. It is safe for concurrent use.
type Sender struct {
	cfg      Config
	direct   *http.Client
	internal *egress.InternalAddrs
}

// New returns a sender.
func New(cfg Config) *Sender {
	if cfg.Proxy == nil {
		cfg.Proxy = http.ProxyFromEnvironment
	}
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "Cove-Webhook")
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	cfg.FirstWait = cmp.Or(cfg.FirstWait, 10*time.Second)
	s := &Sender{cfg: cfg, internal: egress.NewInternalAddrs(nil)}
	dialer := &net.Dialer{Timeout: cfg.Timeout}
	if !cfg.AllowPrivate {
		dialer.Control = s.refusePrivate
	}
	s.direct = s.newClient(dialer, nil)
	return s
}

// newClient returns a client that connects through dialer and, if proxy is not nil,
// through the proxy.
func (s *Sender) newClient(dialer *net.Dialer, proxy *url.URL) *http.Client {
	t := &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: s.cfg.Timeout, ResponseHeaderTimeout: s.cfg.Timeout,
		MaxResponseHeaderBytes: maxResponse, DisableCompression: true, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second,
	}
	if proxy != nil {
		t.Proxy = http.ProxyURL(proxy)
	}
	return &http.Client{
		Transport:     t,
		Timeout:       s.cfg.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Close closes idle connections.
func (s *Sender) Close() { s.direct.CloseIdleConnections() }

// Check refuses a webhook that cannot be sent. The error is a [sandbox.Error] and does not
// reveal the secret.
func (s *Sender) Check(w *sandbox.Webhook) error {
	if len(w.URL) > maxURL {
		return invalid("webhook.url has %d bytes; give at most %d", len(w.URL), maxURL)
	}
	u, err := url.Parse(w.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return invalid("webhook.url is not a URL; give one such as https://example.com/hook")
	}
	if u.User != nil {
		return invalid("webhook.url has a user name; send credentials in headers")
	}
	if u.Fragment != "" {
		return invalid("webhook.url has a fragment, which no server sees; leave it out")
	}
	if !s.cfg.AllowPrivate && s.private(u.Hostname()) {
		return invalid("webhook.url points to the server's own network; give a public address, or have webhooks.allow_private set in the server's configuration")
	}
	switch w.Format {
	case sandbox.WebhookStandard:
		if _, err := key(w.Secret.Reveal()); err != nil {
			return err
		}
	case sandbox.WebhookHOPX:
		if n := len(w.Secret.Reveal()); n > maxSecret {
			return invalid("webhook.secret has %d bytes; give at most %d", n, maxSecret)
		}
	default:
		return invalid("webhook.format %.32q is not known; leave it out, or use hopx", w.Format)
	}
	return checkHeaders(w.Headers)
}

func invalid(format string, args ...any) error {
	return sandbox.Errorf(sandbox.CodeInvalid, format, args...)
}

// reservedHeaders are headers that callers cannot set.
var reservedHeaders = map[string]bool{
	"Host": true, "Content-Length": true, "Content-Type": true, "Transfer-Encoding": true, "Connection": true, "Trailer": true, "Te": true,
	"Upgrade": true, "Expect": true, "Keep-Alive": true, "Proxy-Connection": true, "Proxy-Authorization": true,
}

var headerNames = lazyregexp.New(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,128}$`)

// isControl reports whether a character cannot be in a header value.
func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

func checkHeaders(headers map[string]string) error {
	if len(headers) > maxHeaders {
		return invalid("webhook.headers has %d entries; give at most %d", len(headers), maxHeaders)
	}
	size := 0
	for name, value := range headers {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case !headerNames.MatchString(name), strings.ContainsFunc(value, isControl):
			return invalid("webhook header %.64q is not valid; use letters, digits and dashes in its name, and one line as its value", name)
		case reservedHeaders[canonical] || strings.HasPrefix(canonical, "Webhook-") || strings.HasPrefix(canonical, "X-Hopx-"):
			return invalid("webhook header %.64q is set by Cove; leave it out", name)
		}
		size += len(name) + len(value)
	}
	if size > maxHeader {
		return invalid("webhook.headers have %d bytes; give at most %d", size, maxHeader)
	}
	return nil
}

// key returns the signing key of a secret; nil if secret is "".
func key(secret string) ([]byte, error) {
	if secret == "" {
		return nil, nil
	}
	if len(secret) > maxSecret {
		return nil, invalid("webhook.secret has %d bytes; give at most %d", len(secret), maxSecret)
	}
	k := []byte(secret)
	if text, ok := strings.CutPrefix(secret, secretPrefix); ok {
		var err error
		if k, err = base64.StdEncoding.DecodeString(text); err != nil {
			return nil, invalid("webhook.secret begins with %q, but its rest is not base64; give 24 to 64 random bytes in base64", secretPrefix)
		}
	}
	if len(k) < minKey {
		return nil, invalid("webhook.secret is too short to sign with; give 24 random bytes or more")
	}
	return k, nil
}

// Message is a webhook to send.
type Message struct {
	// ID is the same in all attempts, so that a receiver can recognize repetitions.
	ID     string
	URL    string
	Header map[string]string
	Secret string
	Body   []byte
	Format sandbox.WebhookFormat
}

// Result is the result of an attempt. The message was delivered if Err is nil.
type Result struct {
	// Status is the status of the response; 0 if there was none.
	Status int
	// Final means that further attempts are useless.
	Final bool
	// RetryAfter is the wait that the receiver asked for, or 0.
	RetryAfter time.Duration
	// Err explains to the sandbox's owner what went wrong.
	Err error
}

// Sign returns the signature of a message: "v1," and an HMAC in base64.
func Sign(key []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// sign sets the headers with a message's time and, if there is a secret, its
// signature.
func (m *Message) sign(h http.Header, at time.Time) error {
	stamp := strconv.FormatInt(at.Unix(), 10)
	if m.Format == sandbox.WebhookHOPX {
		h.Set("X-HOPX-Timestamp", stamp)
		if m.Secret != "" {
			mac := hmac.New(sha256.New, []byte(m.Secret))
			fmt.Fprint(mac, stamp)
			mac.Write(m.Body)
			h.Set("X-HOPX-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
		}
		return nil
	}
	h.Set("Webhook-Id", m.ID)
	h.Set("Webhook-Timestamp", stamp)
	k, err := key(m.Secret)
	if k != nil {
		h.Set("Webhook-Signature", Sign(k, m.ID, at, m.Body))
	}
	return err
}

// Send makes one attempt.
func (s *Sender) Send(ctx context.Context, m *Message) Result {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.URL, bytes.NewReader(m.Body))
	if err != nil {
		return Result{Final: true, Err: errors.New("the URL is not valid")}
	}
	for name, value := range m.Header {
		req.Header.Set(name, value)
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", s.cfg.UserAgent)
	}
	req.Header.Set("Content-Type", "application/json")
	if err := m.sign(req.Header, time.Now()); err != nil {
		return Result{Final: true, Err: err}
	}
	c, err := s.client(ctx, req)
	if err != nil {
		return Result{Err: describe(err)}
	}
	if c != s.direct {
		defer c.CloseIdleConnections()
	}
	resp, err := c.Do(req)
	if err != nil {
		return Result{Err: describe(err)}
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxResponse)) // so that the connection can be used again
	return resultOf(resp)
}

func resultOf(resp *http.Response) Result {
	r := Result{Status: resp.StatusCode}
	switch {
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return r
	case resp.StatusCode == http.StatusGone:
		r.Final = true
		r.Err = errors.New("the receiver wants no more: 410 Gone")
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		r.Err = fmt.Errorf("the receiver answered %d; redirects are not followed", resp.StatusCode)
	default:
		r.Err = fmt.Errorf("the receiver answered %d", resp.StatusCode)
	}
	if n, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && n > 0 && n <= 3600 {
		r.RetryAfter = time.Duration(n) * time.Second
	}
	return r
}

// client returns the client for a request. A proxy resolves names itself, so a request
// through a proxy is refused here if this host can tell that its destination is internal.
func (s *Sender) client(ctx context.Context, req *http.Request) (*http.Client, error) {
	proxy, err := s.cfg.Proxy(req)
	if err != nil || proxy == nil {
		return s.direct, err
	}
	if !s.cfg.AllowPrivate {
		host := req.URL.Hostname()
		if s.private(host) {
			return nil, errPrivate
		}
		addrs, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // the proxy may resolve a name that this host cannot
		if slices.ContainsFunc(addrs, s.internal.Has) {
			return nil, errPrivate
		}
	}
	return s.newClient(&net.Dialer{Timeout: s.cfg.Timeout}, proxy), nil
}

var errPrivate = errors.New("the URL points to the server's own network, which is not allowed")

// describe explains an error without the URL, which may hold a token, and without
// addresses of the host's network.
func describe(err error) error {
	if errors.Is(err, errPrivate) {
		return errPrivate
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok {
		if e.IsNotFound {
			return errors.New("the receiver's name is not known")
		}
		return errors.New("the receiver's name cannot be looked up now")
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		if e.Op == "proxyconnect" {
			return errors.New("the server's proxy cannot be reached")
		}
		err = e.Err
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return errors.New("the receiver does not answer in time")
	}
	return fmt.Errorf("the receiver cannot be reached: %s", clip.Text(strings.ToValidUTF8(err.Error(), ""), 300))
}

// refusePrivate is a [net.Dialer.Control]: address is the one that a name resolved to.
func (s *Sender) refusePrivate(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || s.internal.Has(at.Addr()) {
		return errPrivate
	}
	return nil
}

// private reports whether the host of a URL is internal, without a lookup.
func (s *Sender) private(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if addr, err := netip.ParseAddr(host); err == nil {
		return s.internal.Has(addr)
	}
	// A resolver or a proxy may take a number for an address in another notation; no
	// top-level domain begins with a digit.
	if last := host[strings.LastIndexByte(host, '.')+1:]; last == "" || last[0] >= '0' && last[0] <= '9' {
		return true
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || strings.HasSuffix(host, ".internal") || strings.HasSuffix(host, ".local")
}

// The waits between attempts grow from [Config.FirstWait]; the first seven add up to about
// an hour.
const (
	waitGrowth = 2.4
	waitJitter = 0.2
)

// Wait returns how long to wait after a failed attempt; the first is number 1.
func (s *Sender) Wait(attempt int) time.Duration {
	base := float64(s.cfg.FirstWait) * math.Pow(waitGrowth, float64(max(0, min(attempt, 16)-1)))
	return time.Duration(base * (1 + waitJitter*(2*rand.Float64()-1)))
}
