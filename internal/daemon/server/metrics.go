package server

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cove-sh/cove/internal/doors/console"
	"github.com/cove-sh/cove/internal/doors/rest"
	"github.com/cove-sh/cove/sandbox"
)

// metricsPath is where Prometheus asks. It needs a key with the scope admin,
// or the unix socket.
const metricsPath = "/metrics"

// metrics are what the daemon tells Prometheus of itself and of its doors.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
	active   prometheus.Gauge
}

func newMetrics(version string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cove_http_request_seconds", Help: "Time of requests, by door and status class.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 60},
		}, []string{"door", "status"}),
		active: prometheus.NewGauge(prometheus.GaugeOpts{Name: "cove_http_requests_in_flight", Help: "Requests under way."}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "cove_build_info", Help: "Always 1, with the version.", ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.requests, m.active, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// handler answers Prometheus.
func (m *metrics) handler() http.Handler {
	tell := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := sandbox.CallerOf(r.Context()); !ok || !c.Has(sandbox.ScopeAdmin) {
			rest.WriteError(w, sandbox.Errorf(sandbox.CodeForbidden, "metrics need a key with the scope %q", sandbox.ScopeAdmin))
			return
		}
		tell.ServeHTTP(w, r)
	})
}

// doorOf names the door that a request is for.
func doorOf(path string) string {
	switch {
	case strings.HasPrefix(path, "/v1/"):
		return "rest"
	case path == "/mcp" || strings.HasPrefix(path, "/mcp/"):
		return "mcp"
	case strings.HasPrefix(path, console.Path):
		return "console"
	}
	return "other"
}

// watch measures requests.
func (m *metrics) watch(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.active.Inc()
		began := time.Now()
		s := &statusWriter{ResponseWriter: w}
		door := doorOf(r.URL.Path)
		defer func() {
			m.active.Dec()
			m.requests.WithLabelValues(door, s.class()).Observe(time.Since(began).Seconds())
		}()
		next.ServeHTTP(s, r)
	})
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements [http.ResponseWriter].
func (s *statusWriter) WriteHeader(status int) {
	if s.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		s.status = status
	}
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// Flush implements [http.Flusher], which the MCP library asks for.
func (s *statusWriter) Flush() { _ = http.NewResponseController(s.ResponseWriter).Flush() }

var classes = [...]string{1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}

func (s *statusWriter) class() string {
	if n := s.status / 100; n >= 1 && n < len(classes) {
		return classes[n]
	}
	return classes[2] // nothing was written, which is 200
}
