package agent

import (
	"context"
	"math"
	"runtime"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
)

// Stats implements [agentv1connect.AgentHandler]. Unknown values are 0.
func (a *Agent) Stats(context.Context, *connect.Request[agentv1.StatsRequest]) (*connect.Response[agentv1.StatsResponse], error) {
	m := &agentv1.StatsResponse{
		Cpus:        int32(runtime.NumCPU()),
		RunningJobs: int64(a.jobs.running()),
	}
	info := meminfo{path: "/proc/meminfo"}
	m.MemoryUsed, m.MemoryTotal, _ = info.read()
	if info.file != nil {
		_ = info.file.Close()
	}
	var fs unix.Statfs_t
	if err := unix.Statfs("/", &fs); err == nil {
		// A file system without a limit reports the highest possible number of blocks.
		most := uint64(math.MaxInt64 / max(1, fs.Bsize))
		m.DiskTotal = int64(min(fs.Blocks, most)) * fs.Bsize
		m.DiskUsed = int64(min(fs.Blocks-min(fs.Bfree, fs.Blocks), most)) * fs.Bsize
	}
	_ = processes(func(int) { m.Processes++ })
	return connect.NewResponse(m), nil
}
