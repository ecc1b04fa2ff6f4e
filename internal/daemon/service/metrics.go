package service

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cove-sh/cove/internal/daemon/store"
	"github.com/cove-sh/cove/sandbox"
)

// scrapeTimeout bounds reading the store for one scrape.
const scrapeTimeout = 5 * time.Second

// metrics are the service's Prometheus metrics. The values of labels are small fixed
// sets: no ids, teams or texts.
type metrics struct {
	s     *Service
	verbs *prometheus.HistogramVec
	// checkpoints counts automatic checkpoints.
	checkpoints *prometheus.CounterVec

	sandboxes, cpu, memory, disk, processes, netIn, netOut, waiting *prometheus.Desc
}

// newMetrics makes the metrics of a service and registers them if the service has a
// registry.
func newMetrics(s *Service) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cove_"+name, help, labels, nil)
	}
	m := &metrics{
		s: s,
		verbs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cove_verb_seconds", Help: "Time of verbs that change something, by verb and error code; of commands with the time they ran.",
			Buckets: []float64{.002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30, 60, 300},
		}, []string{"verb", "code"}),
		checkpoints: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cove_automatic_checkpoints_total", Help: "Automatic checkpoints by what came of them: kept, failed, deferred for another change of the sandbox, or restored, after the sandbox had failed.",
		}, []string{"result"}),
		sandboxes: desc("sandboxes", "Sandboxes that have not ended, by state.", "state"),
		cpu:       desc("sandboxes_cpu_cores", "Processors that all sandboxes used together at the last look."),
		memory:    desc("sandboxes_memory_bytes", "Memory that all sandboxes used together at the last look."),
		disk:      desc("sandboxes_disk_bytes", "What all sandboxes had written at the last look."),
		processes: desc("sandboxes_processes", "Processes in all sandboxes at the last look."),
		netIn:     desc("sandboxes_network_in_bytes_total", "Bytes that all sandboxes have received, as seen at each look since the daemon's first."),
		netOut:    desc("sandboxes_network_out_bytes_total", "Bytes that all sandboxes have sent, as seen at each look since the daemon's first."),
		waiting:   desc("calls_in_flight", "Verbs under way."),
	}
	if s.cfg.Metrics != nil {
		s.cfg.Metrics.MustRegister(m.verbs, m.checkpoints, m)
	}
	return m
}

// observe records that a verb has ended.
func (m *metrics) observe(action string, began time.Time, err error) {
	if action == "" {
		return
	}
	code := string(sandbox.CodeOf(err))
	if code == "" {
		code = "ok"
	}
	m.verbs.WithLabelValues(action, code).Observe(time.Since(began).Seconds())
}

// checkpoint counts what came of an automatic checkpoint.
func (m *metrics) checkpoint(result string) { m.checkpoints.WithLabelValues(result).Inc() }

// Describe implements [prometheus.Collector].
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.sandboxes, m.cpu, m.memory, m.disk, m.processes, m.netIn, m.netOut, m.waiting} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	ctx, cancel := context.WithTimeout(m.s.gate.Context(), scrapeTimeout)
	defer cancel()
	counts, err := m.s.countStates(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(m.sandboxes, err)
	}
	for state, n := range counts {
		gauge(m.sandboxes, float64(n), string(state))
	}
	total := m.s.meter.sum(m.s.running())
	gauge(m.cpu, total.CPUPercent/100)
	gauge(m.memory, float64(total.MemoryBytes))
	gauge(m.disk, float64(total.DiskBytes))
	gauge(m.processes, float64(total.Processes))
	in, out := m.s.meter.network()
	ch <- prometheus.MustNewConstMetric(m.netIn, prometheus.CounterValue, float64(in))
	ch <- prometheus.MustNewConstMetric(m.netOut, prometheus.CounterValue, float64(out))
	calls, _ := m.s.gate.Calls()
	gauge(m.waiting, float64(calls))
}

// countStates counts the sandboxes that have not ended.
func (s *Service) countStates(ctx context.Context) (map[sandbox.State]int, error) {
	counts := map[sandbox.State]int{sandbox.StateCreating: 0, sandbox.StateRunning: 0, sandbox.StatePaused: 0, sandbox.StateStopping: 0}
	f := store.SandboxFilter{}
	for state := range counts {
		f.States = append(f.States, state)
	}
	for r, err := range store.All(ctx, s.cfg.Store.ListSandboxes, f) {
		if err != nil {
			return nil, err
		}
		counts[r.State]++
	}
	return counts, nil
}
