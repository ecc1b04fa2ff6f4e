package agentclient

import (
	"context"
	"math"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sh/cove/internal/clip"
	"github.com/cove-sh/cove/internal/guest/wire/agentv1"
	"github.com/cove-sh/cove/sandbox"
)

// maxProcesses bounds a list of processes; [sandbox.MaxPIDsLimit] counts
// threads too.
const maxProcesses = sandbox.MaxPIDsLimit + 1024

// Bounds of the command line of a process.
const (
	maxProcessArgs  = 64
	maxProcessArg   = 512
	maxProcessBytes = 2048
)

// ListProcesses returns the processes in the sandbox.
func (c *Client) ListProcesses(ctx context.Context) ([]sandbox.Process, error) {
	resp, err := call(ctx, callTimeout, c.rpc.ListProcesses, &agentv1.ListProcessesRequest{})
	if err != nil {
		return nil, err
	}
	return translate(resp.GetProcesses(), maxProcesses, process)
}

func process(w *agentv1.Process) (*sandbox.Process, error) {
	p := &sandbox.Process{
		PID: int(max(0, w.GetPid())), Parent: int(max(0, w.GetParent())), User: clean(w.GetUser(), 256),
		State: clean(w.GetState(), 8), Name: clean(w.GetName(), 64), Command: commandLine(w.GetCommand()),
		CPUSeconds: float64(max(0, w.GetCpuNanos())) / 1e9, CPUPercent: positive(w.GetCpuPercent()),
		MemoryBytes: max(0, w.GetMemoryBytes()), Threads: int(max(0, w.GetThreads())),
		StartedAt: time.Unix(0, w.GetStartedUnixNano()).UTC(), Context: clean(w.GetContext(), 128),
	}
	if sandbox.ValidJobID(w.GetJobId()) {
		p.Job = w.GetJobId()
	}
	return p, nil
}

// commandLine bounds a command line.
func commandLine(args []string) []string {
	var out []string
	size := 0
	for i, a := range args {
		if i == maxProcessArgs || size > maxProcessBytes {
			return append(out, "…")
		}
		a = clip.Text(a, maxProcessArg)
		size += len(a)
		out = append(out, strings.ToValidUTF8(a, "\uFFFD"))
	}
	return out
}

// positive replaces numbers that are negative or that JSON cannot represent by 0.
func positive(f float64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
		return 0
	}
	return f
}

// SignalProcess sends a signal to one process.
func (c *Client) SignalProcess(ctx context.Context, pid int, sig syscall.Signal) error {
	_, err := call(ctx, callTimeout, c.rpc.SignalProcess, &agentv1.SignalProcessRequest{Pid: int32(pid), Signal: int32(sig)})
	return err
}
