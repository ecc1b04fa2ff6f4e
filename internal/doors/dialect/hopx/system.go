package hopx

import (
	"cmp"
	"context"
	"math"
	"strings"
	"time"

	"github.com/cove-sh/cove/internal/doors/dialect"
	"github.com/cove-sh/cove/sandbox"
)

const (
	agentName    = "cove-agent"
	agentVersion = "3.2.8" // the version of the product's agent that these answers imitate
)

func health(ctx context.Context, c *dialect.Call, _ struct{}) (any, error) {
	_, err := c.Service.List(ctx, sandbox.ListRequest{Page: sandbox.Page{Limit: 1}})
	switch sandbox.CodeOf(err) {
	case "", sandbox.CodeUnauthenticated, sandbox.CodeForbidden: // the server responds
		return object(pair{"status", "healthy"}, pair{"timestamp", dialect.Stamp(time.Now())}), nil
	}
	return nil, control("/health", "server", err)
}

// opened returns the sandbox once it is open, without asking it for anything.
func opened(_ context.Context, m *vm, _ *target) (*vm, error) { return m, nil }

// ping returns the sandbox if its agent responds.
func ping(ctx context.Context, m *vm, _ *target) (*vm, error) {
	if _, err := m.Service.StatFile(ctx, m.id, "/"); err != nil { // answered by the agent
		return nil, m.missing(ctx, "/ping", "NOT_FOUND", err)
	}
	return m, nil
}

// uptime returns how long the sandbox has been running.
func (m *vm) uptime() time.Duration { return time.Since(m.started()) }

func (m *vm) started() time.Time {
	if m.box.StartedAt != nil {
		return *m.box.StartedAt
	}
	return m.box.CreatedAt
}

// features returns what the agent can do; sockets reports whether WebSockets are served.
func features(sockets bool) pairs {
	return object(
		pair{"code_execution", true}, pair{"file_operations", true}, pair{"terminal_access", sockets}, pair{"websocket_streaming", sockets},
		pair{"rich_output", true}, pair{"background_jobs", true}, pair{"ipython_kernel", true}, pair{"system_metrics", true},
		pair{"languages", []sandbox.Language{sandbox.Python, sandbox.JavaScript, sandbox.Bash, sandbox.Go}})
}

func vmInfo(ctx context.Context, m *vm, _ *target) (pairs, error) {
	os := m.osInfo(ctx)
	_, sockets := placeOf(ctx)
	return object(
		pair{"vm_id", m.id}, pair{"agent", agentName}, pair{"agent_version", agentVersion}, pair{"version", agentVersion},
		pair{"os", "linux"}, pair{"arch", os.arch}, pair{"vm_port", 7777},
		pair{"start_time", dialect.Stamp(m.started())}, pair{"uptime", uptime(m.started())}, pair{"features", features(sockets)}), nil
}

// osInfo is what a sandbox's files say about its system. Unknown fields are empty.
type osInfo struct{ name, version, kernel, arch, hostname string }

// maxInfo bounds the part of such a file that is read.
const maxInfo = 8 << 10

func (m *vm) osInfo(ctx context.Context) osInfo {
	word := func(p string) string {
		data, err := m.read(ctx, p, maxInfo)
		if err != nil {
			return ""
		}
		return strings.ToValidUTF8(strings.TrimSpace(string(data)), "")
	}
	o := osInfo{hostname: word("/proc/sys/kernel/hostname")}
	if fields := strings.Fields(word("/proc/version")); len(fields) > 2 { // Linux version 4.4.0 …
		o.kernel = fields[2]
	}
	for l := range strings.SplitSeq(word("/etc/os-release"), "\n") {
		key, value, _ := strings.Cut(l, "=")
		switch value = strings.Trim(value, `"'`); key {
		case "NAME":
			o.name = value
		case "VERSION_ID":
			o.version = value
		}
	}
	o.arch = arch(word("/proc/cpuinfo"))
	return o
}

// arch derives the architecture from the kernel's list of processors.
func arch(cpuinfo string) string {
	switch {
	case strings.Contains(cpuinfo, "vendor_id"):
		return "x86_64"
	case strings.Contains(cpuinfo, "CPU implementer"):
		return "aarch64"
	}
	return ""
}

// tenths rounds to one decimal.
func tenths(f float64) float64 { return math.Round(f*10) / 10 }

func percent(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return tenths(100 * float64(part) / float64(whole))
}

// usage returns a sandbox's resource usage, and its use of a processor.
func (m *vm) usage(ctx context.Context) (*sandbox.Stats, float64, error) {
	list, err := m.Service.ListStats(ctx, sandbox.StatsRequest{Sandbox: m.id})
	if err != nil {
		return nil, 0, m.missing(ctx, "/system", "NOT_FOUND", err)
	}
	if len(list.Items) == 1 && list.Items[0].Stats != nil {
		return list.Items[0].Stats, tenths(list.Items[0].CPUPercent), nil
	}
	s, err := m.Service.Stats(ctx, m.id)
	if err != nil {
		return nil, 0, m.missing(ctx, "/system", "NOT_FOUND", err)
	}
	return s, 0, nil
}

// systemMetrics returns the agent's answer in all three shapes that clients read: the
// system, percentages, and amounts.
func systemMetrics(ctx context.Context, c *dialect.Call, in target) (any, error) {
	m, err := in.open(ctx, c)
	if err != nil {
		return nil, err
	}
	u, cpu, err := m.usage(ctx)
	if err != nil {
		return nil, err
	}
	r := m.box.Resources
	memory, disk := cmp.Or(u.MemoryMaxBytes, r.MemoryMiB<<20), cmp.Or(u.DiskMaxBytes, r.DiskMiB<<20)
	os := m.osInfo(ctx)
	return object(
		pair{"cpu_percent", cpu}, pair{"memory_percent", percent(u.MemoryBytes, memory)}, pair{"disk_percent", percent(u.DiskBytes, disk)},
		pair{"uptime", int64(time.Since(m.started()).Seconds())},
		pair{"cpu", object(pair{"usage_percent", cpu}, pair{"cores", r.VCPUs})},
		pair{"memory", amounts(u.MemoryBytes, memory)},
		pair{"disk", amounts(u.DiskBytes, disk)},
		pair{"network", object(pair{"bytes_in", u.NetworkInBytes}, pair{"bytes_out", u.NetworkOutBytes})},
		pair{"processes", u.Processes},
		pair{"os", object(pair{"name", os.name}, pair{"version", os.version}, pair{"kernel", os.kernel}, pair{"arch", os.arch}, pair{"hostname", os.hostname})},
		pair{"hardware", object(pair{"cpu_cores", r.VCPUs}, pair{"memory_mb", r.MemoryMiB}, pair{"disk_mb", r.DiskMiB})},
		pair{"capabilities", []string{"code_execution", "file_operations", "background_jobs", "rich_output"}},
		pair{"timestamp", dialect.Stamp(time.Now())}), nil
}

func amounts(used, total int64) pairs {
	return object(pair{"total", total}, pair{"used", used}, pair{"free", max(0, total-used)}, pair{"usage_percent", percent(used, total)})
}

// cacheStats describes the result cache, which is always empty.
func cacheStats(*target, *vm) any {
	return object(
		pair{"cache", object(pair{"size", 0}, pair{"max_size", 0}, pair{"total_hits", 0}, pair{"ttl", "0s"})},
		pair{"total_cached", 0}, pair{"hit_rate", 0}, pair{"timestamp", dialect.Stamp(time.Now())})
}
