package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/daemon/auth"
	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/internal/doors/console"
	"github.com/cove-sh/cove/internal/doors/mcpserver"
	"github.com/cove-sh/cove/internal/doors/preview"
	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/internal/limits"
	"github.com/cove-sh/cove/sandbox"
)

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	// hurryTime is how long the body of a request is waited for that comes from
	// somebody without a key.
	hurryTime = 2 * time.Second
	// cutTime is how long requests may take to end after they were cancelled.
	cutTime = 5 * time.Second
)

// front is what the world sees of the daemon: its listeners and what answers
// on them.
type front struct {
	s    *Server
	mcp  io.Closer
	http *http.Server
	// endStreams ends the streams of events, which would not end by themselves.
	endStreams func()
	// cancel ends the requests under way.
	cancel    context.CancelFunc
	listeners []net.Listener
	tcp       net.Addr

	active  atomic.Int64 // requests under way
	asked   atomic.Bool  // whether there was any
	flights sync.WaitGroup
}

func (s *Server) newFront(p *parts) (*front, error) {
	api := rest.New(rest.Config{Service: p.service, Log: s.log, Version: s.deps.Version, Denied: p.service.Denied, Requests: p.store})
	served := mcpserver.Config{Service: p.service, Version: s.deps.Version, Log: s.log, HostChecked: true}
	if s.deps.MCP != nil {
		s.deps.MCP(&served)
	}
	mcp, err := mcpserver.NewHTTP(served)
	if err != nil {
		return nil, fmt.Errorf("make the MCP server: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/healthz", api)
	mux.HandleFunc(readyPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.Handle("/v1/", api)
	mux.Handle(metricsPath, p.metrics.handler())
	mux.Handle("/mcp", mcp)
	mux.Handle("/mcp/", mcp)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		rest.WriteError(w, sandbox.Errorf(sandbox.CodeNotFound, "no such path %s; Cove serves /v1/, /mcp and /console/", r.URL.Path))
	})
	ctx, cancel := context.WithCancel(context.Background())
	f := &front{s: s, mcp: mcp, cancel: cancel, endStreams: p.service.EndStreams}
	bound := newPerKey(s.bounds.RequestsPerKey)
	keys := &auth.Keys{Store: p.store, Limiter: auth.NewLoginLimiter(), Log: s.log} // for all doors
	var people auth.People                                                          // stays nil without single sign-on
	if p.sso != nil {
		people = p.sso
	}
	sessions := auth.NewSessions(p.store, keys, people)
	api = s.authenticate(keys, sessions, bound.handler(mux))
	previews := preview.New(preview.Config{Previews: p.service, Views: p.service, Domain: s.cfg.Previews.Domain, Names: s.cfg.AllowedHosts, Log: s.log})
	doors, memory := s.sdkDoors(p, keys, bound, previews), limits.NewMemoryBudget(sdkMemory)
	paced := func(next http.Handler) http.Handler {
		return auth.WithAddress(s.bounds.MinBodyRate.Handler(next, ownContent))
	}
	// Clients of other products may name a sandbox in headers, whose programs have any paths.
	fronts := splitTo(console.Claims, s.newConsole(p, keys, sessions), s.dialectFronts(p, mcp, keys, bound, api))
	for _, d := range slices.Backward(doors) { // the first of them are asked first
		fronts = splitTo(d.Claims, memory.Share(d), fronts)
	}
	named := splitTo(previews.Claims, previews, p.metrics.watch(s.checkHost(paced(s.uploads(p.service, fronts)))))
	for _, d := range slices.Backward(doors) {
		named = splitTo(d.ClaimsHost, p.metrics.watch(s.checkPages(paced(memory.Share(d)))), named)
	}
	f.http = &http.Server{
		Handler:           f.count(named),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withDialect,
	}
	if err := s.useTLS(f.http, previews); err != nil {
		cancel()
		return nil, errors.Join(err, mcp.Close())
	}
	return f, nil
}

// ownContent reports whether a body is content that the server's own user sends:
// it may come from a pipe, and stand still for as long as that does.
func ownContent(r *http.Request) bool { return auth.ViaUnixSocket(r) && rest.Streams(r) }

// splitTo gives to one door what it claims. By host name previews claim before
// anything is known of a request: what comes by such a name meets no keys, and
// cannot reach the API.
func splitTo(claims func(*http.Request) bool, door, rest http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if claims(r) {
			door.ServeHTTP(w, r)
			return
		}
		rest.ServeHTTP(w, r)
	})
}

// authenticate puts the caller into each request that needs one.
func (s *Server) authenticate(keys *auth.Keys, sessions *auth.Sessions, next http.Handler) http.Handler {
	cfg := auth.Config{
		Authenticator: keys,
		Sessions:      sessions,
		Cookie:        takesCookie,
		Trusted:       auth.ViaUnixSocket,
		Error:         refuse,
	}
	if s.cfg.Dev {
		cfg.Authenticator, cfg.Anonymous, cfg.Sessions = auth.Local{}, true, nil
	}
	checked := auth.Middleware(cfg)(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest.Open(r) || r.URL.Path == readyPath {
			hurry(w, r)
			next.ServeHTTP(w, r)
			return
		}
		checked.ServeHTTP(w, r)
	})
}

// checkHost keeps web pages of other origins away from every door. The name by
// which a request calls a server that other machines reach is checked only if
// the server is told its names: it asks for keys.
func (s *Server) checkHost(next http.Handler) http.Handler {
	return auth.CheckHost(auth.HostConfig{
		Hosts: s.cfg.AllowedHosts, AnyHost: s.cfg.Exposed() && len(s.cfg.AllowedHosts) == 0, Error: refuse,
	})(next)
}

// checkPages keeps web pages of other origins away from a door that is found by a
// host name of its own.
func (s *Server) checkPages(next http.Handler) http.Handler {
	return auth.CheckHost(auth.HostConfig{Hosts: s.cfg.AllowedHosts, AnyHost: true, Error: refuse})(next)
}

// refuse answers a request of somebody who may not come in.
func refuse(w http.ResponseWriter, r *http.Request, err error) {
	hurry(w, r)
	rest.WriteError(w, err)
}

// hurry bounds how long a connection waits for a body that nobody will read.
// The HTTP server reads what is left of it before it answers, and anybody could
// hold a connection by sending none.
func hurry(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	// Without this the answer would wait for the body too. In HTTP/2 it does not,
	// and the connection has other requests under way, which would end with it.
	if r.ProtoMajor < 2 {
		w.Header().Set("Connection", "close")
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(hurryTime))
}

// count knows how many requests are under way, those that have become
// something else than HTTP included.
func (f *front) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.flights.Add(1)
		f.active.Add(1)
		f.asked.Store(true)
		defer func() {
			f.active.Add(-1)
			f.flights.Done()
		}()
		next.ServeHTTP(w, r)
	})
}

// listen opens the listeners; nothing is accepted yet.
func (f *front) listen(ctx context.Context) error {
	cfg := &f.s.cfg
	if cfg.Listen != config.Off {
		l, err := f.s.listenTCP(ctx)
		if err != nil {
			return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("cannot listen on %s (%v); choose another address with --listen", cfg.Listen, err))
		}
		f.listeners = append(f.listeners, f.s.bounded(l))
		f.tcp = l.Addr()
		if a, ok := f.tcp.(*net.TCPAddr); ok {
			f.s.port.Store(int32(a.Port))
		}
	}
	if err := f.listenDialects(ctx); err != nil {
		f.closeListeners()
		return err
	}
	l, err := listenUnix(cfg.SocketPath())
	if err != nil {
		f.closeListeners()
		return sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("cannot listen on the socket %s (%v); choose another with --socket", cfg.SocketPath(), err))
	}
	f.listeners = append(f.listeners, l)
	return nil
}

// bounded bounds the connections of a listener that others than the server's own
// user may reach.
func (s *Server) bounded(l net.Listener) net.Listener {
	most := s.bounds.Connections
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		most = int(min(files.Cur/2, uint64(most)))
	}
	var said atomic.Int64
	return limits.Listen(l, limits.ListenConfig{MaxConns: most, WriteTimeout: limits.DefaultWriteTimeout, Refused: func() {
		if now, was := time.Now().Unix(), said.Load(); now-was >= 60 && said.CompareAndSwap(was, now) {
			s.log.Warn("connections are refused; there are as many as may be", "address", l.Addr().String(), "connections", most)
		}
	}})
}

func (f *front) closeListeners() {
	for _, l := range f.listeners {
		_ = l.Close()
	}
}

// serve answers until ctx is cancelled, and then lets requests end.
func (f *front) serve(ctx context.Context) error {
	failed := make(chan error, len(f.listeners))
	var wg sync.WaitGroup
	https := f.http.TLSConfig != nil
	for _, l := range f.listeners {
		wg.Go(func() {
			answer := f.http.Serve
			if https && l.Addr().Network() == "tcp" && !ownPlain(l) {
				answer = func(l net.Listener) error { return f.http.ServeTLS(l, "", "") }
			}
			if err := answer(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("serve on %s: %w", l.Addr(), err)
			}
		})
	}
	f.s.log.Info("serving", "version", f.s.deps.Version, "socket", f.s.cfg.SocketPath(), "tcp", addrText(f.tcp), "state", f.s.cfg.StateDir)
	f.sayDialects()
	if f.s.deps.Ready != nil {
		f.s.deps.Ready(f.tcp)
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	patience := f.s.cfg.DrainTimeout
	if errors.Is(context.Cause(ctx), errStoreLost) {
		patience = 0 // there is nothing that they could do
	}
	f.drain(context.WithoutCancel(ctx), patience)
	wg.Wait()
	return err
}

func addrText(a net.Addr) string {
	if a == nil {
		return config.Off
	}
	return a.String()
}

// drain takes no more requests, waits for those under way, and cancels those
// that take too long.
func (f *front) drain(ctx context.Context, patience time.Duration) {
	f.endStreams()
	f.s.log.Info("stopping; sandboxes live on", "requests", f.active.Load())
	defer f.cancel()
	polite, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := f.http.Shutdown(polite)
	if err == nil && f.landed(polite) {
		_ = f.mcp.Close()
		return
	}
	f.s.log.Info("ending requests that take too long", "requests", f.active.Load())
	f.cancel()
	_ = f.mcp.Close()
	cut, cancelCut := context.WithTimeout(ctx, cutTime)
	defer cancelCut()
	if f.http.Shutdown(cut) != nil || !f.landed(cut) {
		_ = f.http.Close()
	}
}

// landed waits for requests under way, which [http.Server.Shutdown] does not
// know of once they have become websockets.
func (f *front) landed(ctx context.Context) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.flights.Wait()
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
