package intercept

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/gateway/egress"
	"github.com/cove-sh/cove/sandbox"
)

const (
	maxLoggedPath   = 1024
	maxLoggedHost   = 255
	maxLoggedMethod = 32
)

// exchange is one request with its response.
type exchange struct {
	s     *session
	start time.Time
	// host is the host that the request is for. method and path are for the log.
	host, method, path string
	bs                 *bindings
	// forHost are the bindings for the host if the request is over TLS; found are those
	// whose placeholder is in the request.
	forHost []*binding
	found   []finding
	// headers are the headers that the policy sets, or nil.
	headers *sandbox.HeaderRule
	// values are in use until the exchange has ended.
	values []*secretValue
	// body is the request's body if read is set. reserved is the part of the
	// interceptor's budget for bodies that the exchange has acquired.
	body     []byte
	read     bool
	reserved int64

	status   int
	failed   *answer // sent in place of the host's response
	recorded bool
}

type exchangeKey struct{}

// serveHTTP serves one request of the sandbox.
func (x *Interceptor) serveHTTP(w http.ResponseWriter, r *http.Request) {
	s, ok := r.Context().Value(sessionKey{}).(*session)
	if !ok || !s.begin() {
		panic(http.ErrAbortHandler)
	}
	defer s.handlers.Done()
	if r.Method == http.MethodConnect {
		answerConnect.write(w)
		return
	}
	if r.URL.Opaque != "" { // such as "https:evil.example/", which servers interpret differently
		answerTarget.write(w)
		return
	}
	if r.Host == "" { // in HTTP/1.0
		r.Host = s.host
	}
	host := requestHost(r)
	e := &exchange{s: s, start: time.Now(), host: host, method: clip.Valid(r.Method, maxLoggedMethod), path: clip.Valid(r.URL.EscapedPath(), maxLoggedPath)}
	if s.c.TLS && host != s.host {
		a := misdirected(clip.Valid(r.Host, maxLoggedHost), s.host)
		e.recordMisdirected(a)
		a.write(w)
		return
	}
	e.loadBindings(x)
	defer e.releaseValues()
	defer func() { x.bodies.Release(e.reserved) }()
	e.setHeaders(r)
	a := e.check(r)
	if a == nil {
		a = e.mayUse(x, r)
	}
	if a != nil {
		a.write(w)
		return
	}
	if !e.mayUpgrade(r.Header.Get("Upgrade")) {
		r.Header.Del("Upgrade")
	}
	defer e.record() // even if the response is aborted
	x.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, e)))
}

// mayUpgrade reports whether a request may ask for a protocol. It must not be HTTP, whose
// requests would not be checked. If values must be masked, it can only be WebSocket,
// whose messages have visible ends.
func (e *exchange) mayUpgrade(protocol string) bool {
	protocol = strings.ToLower(protocol)
	if e.mustMask() {
		return protocol == "websocket"
	}
	return !strings.Contains(protocol, "h2") && !strings.Contains(protocol, "http") && !strings.Contains(protocol, "tls")
}

// requestHost returns the normalized host that a request is for; an address has no
// brackets.
func requestHost(r *http.Request) string {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	} else {
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return normalName(host)
}

// loadBindings loads the current bindings and acquires the values for the host.
func (e *exchange) loadBindings(x *Interceptor) {
	for {
		e.bs, e.forHost = x.bindings.Load(), nil
		if e.s.c.TLS {
			e.forHost = e.bs.of(e.host)
		}
		if e.acquireValues() {
			return
		}
		e.releaseValues() // the bindings were replaced meanwhile
	}
}

func (e *exchange) acquireValues() bool {
	for _, b := range e.forHost {
		if b.value == nil {
			continue
		}
		if !b.value.acquire() {
			return false
		}
		e.values = append(e.values, b.value)
	}
	return true
}

func (e *exchange) releaseValues() {
	for _, v := range e.values {
		v.release()
	}
	e.values = nil
}

// setHeaders sets the headers that the policy sets on requests to the host. Placeholders
// in them are found like those of the sandbox, so the same rules apply to the secrets in
// them.
func (e *exchange) setHeaders(r *http.Request) {
	if !e.s.c.TLS {
		return
	}
	if e.headers = egress.HeadersFor(e.bs.headers, e.host); e.headers != nil {
		for name, value := range e.headers.Set {
			r.Header.Set(name, value)
		}
	}
}

// check searches for placeholders, and returns an answer if the request must not be
// forwarded.
func (e *exchange) check(r *http.Request) *answer {
	e.found = e.bs.find(r)
	a := e.readBody(r)
	for i := 0; a == nil && i < len(e.found); i++ {
		a = e.checkFinding(e.found[i])
	}
	if a != nil {
		e.recordRefused(*a)
	}
	return a
}

// mayUse waits until the request may carry the secrets that would be put into it, where
// the policy says to ask, and returns an answer if it may not.
func (e *exchange) mayUse(x *Interceptor, r *http.Request) *answer {
	var a *answer
	asked, swapped := false, e.swapped()
	for i := 0; a == nil && i < len(swapped); i++ {
		f := swapped[i]
		waited, err := e.s.c.MayUse(r.Context(), f.Secret, e.host)
		asked = asked || waited
		if err != nil {
			refused := credentialAnswer(http.StatusForbidden, "credential_not_allowed", f.Secret, "the policy asks before it is sent to "+strconv.Quote(e.host)+": "+clip.Valid(err.Error(), maxReason))
			a = &refused
		}
	}
	// That may have taken long, and the secrets may have changed.
	if now := x.bindings.Load(); a == nil && asked && now != e.bs && !e.stillBound(swapped, now) {
		a = &answerChanged
	}
	if a != nil {
		e.recordRefused(*a)
	}
	return a
}

// swapped returns the findings whose placeholders are replaced by values.
func (e *exchange) swapped() []finding {
	return slices.DeleteFunc(slices.Clone(e.found), func(f finding) bool { return f.at&swappable == 0 || !slices.Contains(e.forHost, f.binding) })
}

// stillBound reports whether the secrets that would be put into the request are still the
// sandbox's, for its host, and with the same values.
func (e *exchange) stillBound(swapped []finding, now *bindings) bool {
	for _, f := range swapped {
		i := slices.IndexFunc(now.list, func(b *binding) bool { return b.Placeholder == f.Placeholder })
		if i < 0 || now.list[i].Revoked || !now.list[i].isFor(e.host) || !now.list[i].sameValue(f.value) {
			return false
		}
	}
	return true
}

func (e *exchange) checkFinding(f finding) *answer {
	var a answer
	block := e.bs.placeholders == sandbox.PlaceholderBlock
	switch {
	case f.Revoked:
		a = credentialAnswer(http.StatusForbidden, "credential_revoked", f.Secret, "it was deleted, so its placeholder no longer works")
	case !f.isFor(e.host) && block:
		a = credentialAnswer(http.StatusForbidden, "credential_host_mismatch", f.Secret,
			"it is not for "+strconv.Quote(e.host)+", but for "+strings.Join(f.Hosts, ", "))
	case !f.isFor(e.host):
		return nil
	case !e.s.c.TLS && block:
		a = credentialAnswer(http.StatusForbidden, "credential_needs_tls", f.Secret, "it is sent over TLS only: use https")
	case e.s.c.TLS && f.value == nil:
		a = credentialAnswer(http.StatusServiceUnavailable, "credential_unavailable", f.Secret, "its value is missing; rotate the secret, or start the sandbox again")
	default:
		return nil
	}
	return &a
}

// readBody reads the request's body if a placeholder in it would be replaced.
func (e *exchange) readBody(r *http.Request) *answer {
	wanted := func(b *binding) bool { return b.Auth.Body && b.value != nil }
	kind := r.Header.Get("Content-Type")
	if !slices.ContainsFunc(e.forHost, wanted) || r.Body == nil || r.Body == http.NoBody || r.Header.Get("Content-Encoding") != "" ||
		r.Header.Get("Upgrade") != "" || strings.HasPrefix(kind, "application/grpc") || r.ContentLength > sandbox.MaxSecretBody {
		return nil
	}
	need := r.ContentLength
	if need < 0 {
		need = sandbox.MaxSecretBody
	}
	if err := e.s.x.bodies.Acquire(r.Context(), need); err != nil {
		return &answer{http.StatusServiceUnavailable, "busy", "too many requests with bodies at the same time"}
	}
	e.reserved = need
	body, err := io.ReadAll(io.LimitReader(r.Body, sandbox.MaxSecretBody+1))
	if err != nil {
		return &answer{http.StatusBadRequest, "body_unreadable", "the request's body ended early"}
	}
	whole := len(body) <= sandbox.MaxSecretBody
	for _, b := range e.forHost {
		if !wanted(b) || !bytes.Contains(body, []byte(b.Placeholder)) {
			continue
		}
		if !whole {
			return &answerTooLong
		}
		i := slices.IndexFunc(e.found, func(f finding) bool { return f.binding == b })
		if i < 0 {
			i, e.found = len(e.found), append(e.found, finding{binding: b})
		}
		e.found[i].at |= inBody
	}
	if whole {
		e.body, e.read = body, true
		r.Header.Del("Expect")
	} else {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	}
	return nil
}

// rewrite makes the request to the host from the sandbox's request. Only hop-by-hop
// fields differ.
func rewrite(p *httputil.ProxyRequest) {
	e, _ := p.In.Context().Value(exchangeKey{}).(*exchange)
	out, in := p.Out, p.In
	out.URL.Scheme = "http"
	if e.s.c.TLS {
		out.URL.Scheme = "https"
	}
	out.URL.Host = net.JoinHostPort(e.host, strconv.Itoa(int(e.s.c.Destination.Port())))
	out.Host = in.Host
	out.Trailer = in.Trailer // the map is filled when the body has ended
	// The proxy has removed these, which may come from a proxy in the sandbox.
	out.URL.RawQuery = in.URL.RawQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := in.Header[name]; ok {
			out.Header[name] = slices.Clone(v)
		}
	}
	if e.headers != nil { // a program that names them in Connection cannot remove them
		for name := range e.headers.Set {
			out.Header[name] = slices.Clone(in.Header[name])
		}
	}
	if e.mustMask() {
		out.Header.Set("Accept-Encoding", "identity")
		out.Header.Del("Sec-Websocket-Extensions") // which may compress
		out.Header.Del("Grpc-Accept-Encoding")
	}
}

// mustMask reports whether values must be masked in the response.
func (e *exchange) mustMask() bool { return len(e.values) > 0 }

// upstream sends requests to hosts. It puts the values into them.
type upstream struct{}

// RoundTrip changes the request, which the proxy made for it.
func (upstream) RoundTrip(r *http.Request) (*http.Response, error) {
	e, _ := r.Context().Value(exchangeKey{}).(*exchange)
	transport := e.s.transportFor(r)
	if !e.mustMask() {
		if e.read {
			setBody(r, bytes.Clone(e.body))
		}
		res, err := transport.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		e.received(res)
		return res, nil
	}
	swapped := e.swapped()
	err := swap(r, swapped)
	ms := masksOf(e.forHost)
	if err == nil && e.read {
		var body []byte
		if body, err = swapBody(e.body, r.Header.Get("Content-Type"), swapped); err == nil {
			setBody(r, body)
		}
	}
	if err != nil {
		ms.release()
		return nil, err
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { ms.header(http.Header(h)); return nil },
	}))
	res, err := transport.RoundTrip(r)
	if err != nil {
		ms.release()
		return nil, err
	}
	ms.header(res.Header)
	res.Body = newMaskedBody(res.Body, ms, filterFor(r, res, ms), func() { ms.header(res.Trailer) })
	e.received(res)
	return res, nil
}

// setBody sets the body of a request. It is wiped when the body is closed.
func setBody(r *http.Request, body []byte) {
	r.Body, r.ContentLength, r.TransferEncoding = newWipedBody(body), int64(len(body)), nil
	if len(body) == 0 {
		r.Body = http.NoBody
	}
}

// received records the status of the host's response.
func (e *exchange) received(res *http.Response) {
	e.status = res.StatusCode
	if res.StatusCode == http.StatusSwitchingProtocols {
		e.record() // now, since the connection may last
	}
}

// endWithHost closes the sandbox's connection after a response with which the host closes
// its own connection.
func endWithHost(res *http.Response) error {
	if res.Close && res.StatusCode != http.StatusSwitchingProtocols && res.Request.ProtoMajor == 1 {
		res.Header.Set("Connection", "close")
	}
	return nil
}

// answerFailure answers a request that could not be forwarded.
func answerFailure(w http.ResponseWriter, r *http.Request, err error) {
	e, _ := r.Context().Value(exchangeKey{}).(*exchange)
	a := failure(e.host, err)
	e.failed, e.status = &a, a.status
	a.write(w)
}

// recordRefused records a request that the gateway does not forward.
func (e *exchange) recordRefused(a answer) {
	for _, f := range e.found {
		ev := e.event(f)
		ev.Verdict, ev.Status, ev.Reason = sandbox.NetworkBlocked, a.status, a.message
		e.s.c.Record(ev)
	}
}

// recordMisdirected records a request for a host other than that of its connection.
func (e *exchange) recordMisdirected(a answer) {
	ev := e.event(finding{binding: &binding{}})
	ev.Host = clip.Valid(e.host, maxLoggedHost)
	ev.Verdict, ev.Match, ev.Rule = sandbox.NetworkBlocked, sandbox.MatchDomain, ""
	ev.Status, ev.Reason = a.status, a.message
	e.s.c.Record(ev)
}

// record records a request with placeholders that was sent.
func (e *exchange) record() {
	if e.recorded {
		return
	}
	e.recorded = true
	for _, f := range e.found {
		ev := e.event(f)
		ev.Verdict, ev.Status, ev.Reason = sandbox.NetworkAllowed, e.status, e.unreplaced(f)
		if e.failed != nil {
			ev.Verdict, ev.Reason = sandbox.NetworkFailed, e.failed.message
			if e.failed.status < 500 {
				ev.Verdict = sandbox.NetworkBlocked
			}
		}
		e.s.c.Record(ev)
	}
}

// unreplaced says why a placeholder was not replaced, or "" if it was.
func (e *exchange) unreplaced(f finding) string {
	switch {
	case !f.isFor(e.host):
		return "the placeholder was sent unchanged: the secret is not for this host"
	case !e.s.c.TLS:
		return "the placeholder was sent unchanged: the secret is sent over TLS only"
	case f.at&swappable == 0:
		return "the placeholder was sent unchanged: it is " + f.at.String() + ", where this secret is not put"
	}
	return ""
}

func (e *exchange) event(f finding) sandbox.NetworkEvent {
	protocol := "http"
	if e.s.c.TLS {
		protocol = "https"
	}
	return sandbox.NetworkEvent{
		Kind: sandbox.NetworkRequest, Time: e.start, DurationMS: time.Since(e.start).Milliseconds(),
		Protocol: protocol, Host: e.host, Match: sandbox.MatchSecret, Rule: "secret " + f.Secret, Secret: f.Secret,
		Method: e.method, Path: e.path,
	}
}
