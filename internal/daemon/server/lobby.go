package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cove-sh/cove/internal/daemon/config"
	"github.com/cove-sh/cove/sandbox"
)

// readyPath answers probes: whether this server is active.
const readyPath = "/readyz"

// lobbyRetry is after which time those whom a server on standby refuses may come again.
const lobbyRetry = 2 * time.Second

// lobby answers in place of a daemon that waits, at the same addresses: it lives, but nobody
// can be served.
type lobby struct {
	s         *Server
	http      *http.Server
	listeners []net.Listener
	served    sync.WaitGroup
	closing   sync.Once

	mu     sync.Mutex
	state  string // what it waits for, in words; guarded by mu
	logged string // guarded by mu
}

func (s *Server) openLobby(ctx context.Context) (*lobby, error) {
	l := &lobby{s: s, state: "on standby"}
	l.http = &http.Server{
		Handler: http.HandlerFunc(l.serveHTTP), ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if err := s.useTLS(l.http, nil); err != nil {
		return nil, err
	}
	if s.cfg.Listen != config.Off {
		tcp, err := s.listenTCP(ctx)
		if err != nil {
			return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("cannot listen on %s (%v); choose another address with --listen", s.cfg.Listen, err))
		}
		l.listeners = append(l.listeners, s.bounded(tcp))
	}
	local, err := listenUnix(s.cfg.SocketPath())
	if err != nil {
		for _, open := range l.listeners {
			open.Close()
		}
		return nil, sandbox.Wrap(sandbox.CodeUnavailable, err, fmt.Sprintf("cannot listen on the socket %s (%v); choose another with --socket", s.cfg.SocketPath(), err))
	}
	l.listeners = append(l.listeners, local)
	https := l.http.TLSConfig != nil // serving sets it too
	for _, open := range l.listeners {
		l.served.Go(func() {
			if https && open.Addr().Network() == "tcp" {
				_ = l.http.ServeTLS(open, "", "")
			} else {
				_ = l.http.Serve(open)
			}
		})
	}
	return l, nil
}

// close makes way for who serves at the same addresses.
func (l *lobby) close() (err error) {
	l.closing.Do(func() {
		err = l.http.Close()
		l.served.Wait()
	})
	return err
}

// wait notes what is waited for, and logs it when it changes.
func (l *lobby) wait(active string, err error) {
	state := "on standby; another server is active"
	switch {
	case err != nil:
		state = "on standby; the database cannot be reached"
	case active != "":
		state = "on standby; " + active + " is active"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = state
	if l.logged == state {
		return
	}
	l.logged = state
	if err != nil {
		l.s.log.Warn("on standby; the database cannot be reached", "error", err)
	} else {
		l.s.log.Info("on standby; another server is active", "active", active)
	}
}

// begin notes that the server is about to serve.
func (l *lobby) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = "taking over"
}

func (l *lobby) serveHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	state := l.state
	l.mu.Unlock()
	switch r.URL.Path {
	case "/healthz":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(w, `{"status":"standby"}`)
	case readyPath:
		http.Error(w, state, http.StatusServiceUnavailable)
	default:
		err := sandbox.Errorf(sandbox.CodeUnavailable, "this server is %s; call the active one, or try again", state)
		err.RetryAfter = lobbyRetry
		// The client may have a better address next time.
		w.Header().Set("Connection", "close")
		refuse(w, r, err)
	}
}
