// Package webhook tells a URL of its owner that something has happened: a
// signed POST as of standardwebhooks.com. Whose turn it is, and how often it is
// tried, is the service's to know; this package checks, signs and sends.
//
// The URL is of a sandbox's owner, who may not reach through the host what
// only the host can reach: its internal addresses are refused when they
// are dialled, whatever name stood for them.
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
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

const (
	// maxAnswer is how much of an answer is read.
	maxAnswer = 64 << 10

	maxURL     = 2048
	maxHeaders = 32
	maxHeader  = 8 << 10 // all headers together
	maxSecret  = 1024
	leastKey   = 8

	// secretPrefix begins secrets whose rest is base64 of the key, as
	// standardwebhooks.com has them. Other secrets are the key themselves.
	secretPrefix = "whsec_"
)

// Config says how webhooks are sent. Its zero value is right.
type Config struct {
	// AllowPrivate sends to internal addresses too.
	AllowPrivate bool
	// Proxy chooses the way out; nil is that of the environment.
	Proxy func(*http.Request) (*url.URL, error)
	// UserAgent is that of requests; "" is "Cove-Webhook".
	UserAgent string
	// Timeout bounds one request with its answer; 0 is ten seconds.
	Timeout time.Duration
	// FirstWait is the wait after the first attempt, about; 0 is ten seconds.
	// Each wait is longer than the last.
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
	if cfg.UserAgent == "" {
		cfg.UserAgent = "Cove-Webhook"
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	cfg.FirstWait = cmp.Or(cfg.FirstWait, 10*time.Second)
	s := &Sender{cfg: cfg, internal: egress.NewInternalAddrs(nil)}
	dialer := &net.Dialer{Timeout: cfg.Timeout}
	if !cfg.AllowPrivate {
		dialer.Control = s.refusePrivate
	}
	s.direct = s.through(dialer, nil)
	return s
}

// through makes a client whose way out is a dialer and a proxy, if any.
func (s *Sender) through(dialer *net.Dialer, proxy *url.URL) *http.Client {
	t := &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: s.cfg.Timeout, ResponseHeaderTimeout: s.cfg.Timeout,
		MaxResponseHeaderBytes: maxAnswer, DisableCompression: true, ForceAttemptHTTP2: true,
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

// Close lets go of connections.
func (s *Sender) Close() { s.direct.CloseIdleConnections() }

// Check refuses a webhook that cannot be sent. The error is a [sandbox.Error]
// that does not tell its secret.
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
		return invalid("webhook.url leads to the server's own network; give a public address, or have webhooks.allow_private set in the server's configuration")
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

// ours are headers that a caller cannot set.
var ours = map[string]bool{
	"Host": true, "Content-Length": true, "Content-Type": true, "Transfer-Encoding": true, "Connection": true, "Trailer": true, "Te": true,
	"Upgrade": true, "Expect": true, "Keep-Alive": true, "Proxy-Connection": true, "Proxy-Authorization": true,
}

var headerNames = regexp.MustCompile(`^[A-Za-z0-9!#$%&'*+.^_|~-]{1,128}$`)

// control reports a character that no header can carry.
func control(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }

func checkHeaders(headers map[string]string) error {
	if len(headers) > maxHeaders {
		return invalid("webhook.headers has %d entries; give at most %d", len(headers), maxHeaders)
	}
	size := 0
	for name, value := range headers {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case !headerNames.MatchString(name), strings.ContainsFunc(value, control):
			return invalid("webhook header %.64q is not valid; use letters, digits and dashes in its name, and one line as its value", name)
		case ours[canonical] || strings.HasPrefix(canonical, "Webhook-") || strings.HasPrefix(canonical, "X-Hopx-"):
			return invalid("webhook header %.64q is set by Cove; leave it out", name)
		}
		size += len(name) + len(value)
	}
	if size > maxHeader {
		return invalid("webhook.headers have %d bytes; give at most %d", size, maxHeader)
	}
	return nil
}

// key is what a secret signs with; nil for none.
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
	if len(k) < leastKey {
		return nil, invalid("webhook.secret is too short to sign with; give 24 random bytes or more")
	}
	return k, nil
}

// Message is one POST.
type Message struct {
	// ID is the same in all attempts, so that a receiver can tell a repetition.
	ID     string
	URL    string
	Header map[string]string
	Secret string
	Body   []byte
	Format sandbox.WebhookFormat
}

// Result is what came of an attempt. It was delivered if Err is nil.
type Result struct {
	// Status is that of the answer, 0 if there was none.
	Status int
	// Final says that another attempt is of no use.
	Final bool
	// RetryAfter is what the receiver asked for, or 0.
	RetryAfter time.Duration
	// Err says in words for the sandbox's owner what went wrong.
	Err error
}

// Sign returns the signature of a message: "v1," and an HMAC in base64.
func Sign(key []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// sign sets the headers that tell a message's time and, with a secret, who has
// sent it.
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
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer)) // so that the connection can be used again
	return answered(resp)
}

func answered(resp *http.Response) Result {
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

// client returns that of the way out for a request. A proxy may be anywhere;
// where the request leads by it is looked at first, as far as names are known
// here.
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
		found, _ := net.DefaultResolver.LookupNetIP(ctx, "ip", host) // the proxy may know a name that we do not
		for _, addr := range found {
			if s.internal.Has(addr) {
				return nil, errPrivate
			}
		}
	}
	return s.through(&net.Dialer{Timeout: s.cfg.Timeout}, proxy), nil
}

var errPrivate = errors.New("the URL leads to the server's own network, which is not allowed")

// describe says what went wrong without the URL, which may hold a token, and
// without addresses of the host's network.
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
	text := strings.ToValidUTF8(err.Error(), "")
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "…"
	}
	return fmt.Errorf("the receiver cannot be reached: %s", text)
}

// refusePrivate is a [net.Dialer.Control]: it sees the address that a name has
// led to.
func (s *Sender) refusePrivate(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || s.internal.Has(at.Addr()) {
		return errPrivate
	}
	return nil
}

// private reports whether a host of a URL is internal without
// being asked for.
func (s *Sender) private(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if addr, err := netip.ParseAddr(host); err == nil {
		return s.internal.Has(addr)
	}
	// The system's resolver, or a proxy's, may take a number for an address in
	// another spelling; no domain ends in one.
	if last := host[strings.LastIndexByte(host, '.')+1:]; last == "" || last[0] >= '0' && last[0] <= '9' {
		return true
	}
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || strings.HasSuffix(host, ".internal") || strings.HasSuffix(host, ".local")
}

// The waits between attempts grow from [Config.FirstWait]: seven of them come
// to about an hour.
const (
	waitGrowth = 2.4
	waitJitter = 0.2
)

// Wait returns how long to wait after an attempt, numbered from 1, that has
// failed.
func (s *Sender) Wait(attempt int) time.Duration {
	base := float64(s.cfg.FirstWait) * math.Pow(waitGrowth, float64(max(0, min(attempt, 16)-1)))
	return time.Duration(base * (1 + waitJitter*(2*rand.Float64()-1)))
}
