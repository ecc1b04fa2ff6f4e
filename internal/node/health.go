package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Health answers probes: /healthz as long as the process runs, and /readyz while a server
// drives the node. The zero value is ready for use. Its methods are safe for concurrent use.
type Health struct{ driven atomic.Bool }

// ServeHTTP implements [http.Handler].
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/healthz" && r.URL.Path != "/readyz":
		http.Error(w, "not found; ask /healthz or /readyz", http.StatusNotFound)
	case r.URL.Path == "/readyz" && !h.driven.Load():
		http.Error(w, "no server drives this node; its log says why", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ok")
	}
}

// probeTimeout is how long a probe may take to ask, to take the answer, and to ask again on
// the same connection.
const probeTimeout = 5 * time.Second

// Serve answers probes on l until ctx ends, and closes l.
func (h *Health) Serve(ctx context.Context, l net.Listener, log *slog.Logger) {
	s := &http.Server{
		Handler: h, ReadTimeout: probeTimeout, WriteTimeout: probeTimeout, IdleTimeout: probeTimeout, MaxHeaderBytes: 4 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		log.Error("answer probes", "error", err)
	}
}
