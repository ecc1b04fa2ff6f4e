package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"

	"github.com/cove-sh/cove/internal/clip"
)

const (
	// dialTimeout limits the time to connect to one address.
	dialTimeout = 10 * time.Second
	// maxProxyAnswer limits a proxy's answer to CONNECT, in bytes.
	maxProxyAnswer = 64 << 10
)

// Proxy holds the proxies of the host, with the meaning of the environment variables of
// these names. URLs are http, https, socks5 or socks5h. The proxy is trusted: it resolves
// names, and must protect its own network.
type Proxy struct {
	HTTPProxy, HTTPSProxy, AllProxy, NoProxy string
}

// hostDialer opens connections from the host. It is safe for concurrent use.
type hostDialer struct {
	dialer Dialer
	// choose returns the proxy for a URL, or nil.
	choose func(*url.URL) (*url.URL, error)
	any    bool // there are proxies
}

func newHostDialer(d Dialer, p Proxy) (*hostDialer, error) {
	for _, s := range []*string{&p.HTTPProxy, &p.HTTPSProxy} {
		if *s == "" {
			*s = p.AllProxy
		}
		if *s == "" {
			continue
		}
		if u, err := url.Parse(*s); err == nil && u.Host != "" {
			switch u.Scheme {
			case "http", "https", "socks5", "socks5h":
			default:
				return nil, fmt.Errorf("the proxy's scheme %q is not known; use http, https or socks5", clip.Text(u.Scheme, maxShown))
			}
		}
	}
	cfg := httpproxy.Config{HTTPProxy: p.HTTPProxy, HTTPSProxy: p.HTTPSProxy, NoProxy: p.NoProxy}
	return &hostDialer{dialer: d, choose: cfg.ProxyFunc(), any: p.HTTPProxy != "" || p.HTTPSProxy != ""}, nil
}

// proxyFor returns the proxy for a host's port, or nil.
func (o *hostDialer) proxyFor(host string, port uint16) (*url.URL, error) {
	if !o.any {
		return nil, nil
	}
	u := &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}
	if port == 80 {
		u.Scheme = "http"
	}
	return o.choose(u)
}

// resolves reports whether a proxy resolves the name.
func (o *hostDialer) resolves(name string) bool {
	p, err := o.proxyFor(name, 443)
	return err == nil && p != nil
}

// plainProxy returns the HTTP proxy to which plain HTTP for a host is sent as requests:
// such proxies rarely allow CONNECT for anything other than TLS.
func (o *hostDialer) plainProxy(host string, port uint16) *url.URL {
	p, err := o.proxyFor(host, port)
	if err != nil || p == nil || port != 80 || p.Scheme != "http" && p.Scheme != "https" {
		return nil
	}
	return p
}

// dial connects to an address, which belongs to name unless name is empty. The address
// may be invalid if there is a proxy for the name.
func (o *hostDialer) dial(ctx context.Context, name string, addr netip.Addr, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	host := name
	if host == "" {
		host = addr.String()
	}
	p, err := o.proxyFor(host, port)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the host's proxy setting is not usable: %w", err)
	case p != nil:
		c, err := o.through(ctx, p, net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			return nil, fmt.Errorf("through the host's proxy: %w", err)
		}
		return c, nil
	case !addr.IsValid():
		return nil, fmt.Errorf("%s has no address", name)
	}
	return o.dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(addr, port).String())
}

// through connects to target, a host and port, through a proxy.
func (o *hostDialer) through(ctx context.Context, p *url.URL, target string) (net.Conn, error) {
	if p.Scheme == "socks5" || p.Scheme == "socks5h" {
		var auth *proxy.Auth
		if p.User != nil {
			password, _ := p.User.Password()
			auth = &proxy.Auth{User: p.User.Username(), Password: password}
		}
		d, err := proxy.SOCKS5("tcp", p.Host, auth, proxyDialer{o, p})
		if err != nil {
			return nil, err
		}
		return d.(proxy.ContextDialer).DialContext(ctx, "tcp", target)
	}
	c, err := o.toProxy(ctx, p)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	tunnel, err := connect(c, p, target)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return tunnel, nil
}

// proxyDialer dials a proxy, whatever address it is given.
type proxyDialer struct {
	o *hostDialer
	p *url.URL
}

func (d proxyDialer) Dial(_, _ string) (net.Conn, error) {
	return d.o.toProxy(context.Background(), d.p)
}

func (d proxyDialer) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	return d.o.toProxy(ctx, d.p)
}

var proxyPorts = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}

// toProxy connects to a proxy, over TLS if its URL says https.
func (o *hostDialer) toProxy(ctx context.Context, p *url.URL) (net.Conn, error) {
	c, err := o.rawProxy(ctx, p)
	if err != nil || p.Scheme != "https" {
		return c, err
	}
	t := tls.Client(c, &tls.Config{ServerName: p.Hostname()})
	if err := t.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return t, nil
}

// rawProxy connects to a proxy. The host itself resolves the proxy's name.
func (o *hostDialer) rawProxy(ctx context.Context, p *url.URL) (net.Conn, error) {
	port := p.Port()
	if port == "" {
		port = proxyPorts[p.Scheme]
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", p.Hostname())
	if err != nil {
		return nil, err
	}
	var c net.Conn
	for _, a := range addrs {
		if c, err = o.dialer.DialContext(ctx, "tcp", net.JoinHostPort(a.Unmap().String(), port)); err == nil {
			break
		}
	}
	return c, err
}

// connect asks a proxy for a tunnel to target.
func connect(c net.Conn, p *url.URL, target string) (net.Conn, error) {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: target}, Host: target, Header: http.Header{"User-Agent": {"cove"}}}
	if p.User != nil {
		password, _ := p.User.Password()
		token := base64.StdEncoding.EncodeToString([]byte(p.User.Username() + ":" + password))
		req.Header.Set("Proxy-Authorization", "Basic "+token)
	}
	if err := req.Write(c); err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: c, N: maxProxyAnswer}
	r := bufio.NewReader(limited)
	resp, err := http.ReadResponse(r, req)
	if err != nil && limited.N == 0 {
		err = errors.New("the proxy's answer is too long")
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the proxy answered %s", clip.Text(resp.Status, maxShown))
	}
	if n := r.Buffered(); n > 0 {
		early, _ := r.Peek(n)
		return &earlyConn{Conn: c, early: early}, nil
	}
	return c, nil
}

// earlyConn is a connection whose first bytes have been read already.
type earlyConn struct {
	net.Conn
	early []byte
}

func (c *earlyConn) Read(p []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(p, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite closes the sending direction.
func (c *earlyConn) CloseWrite() error { return closeWrite(c.Conn) }
