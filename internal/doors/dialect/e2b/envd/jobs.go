package envd

import (
	"context"
	"iter"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	pb "github.com/cove-sh/cove/internal/doors/dialect/e2b/envd/processpb"
	"github.com/cove-sh/cove/sandbox"
)

// jobs are all jobs of a sandbox, the oldest first.
func (s processes) jobs(ctx context.Context, id string) iter.Seq2[sandbox.Job, error] {
	return sandbox.Each(ctx, sandbox.Of(id, s.cfg.Service.ListJobs))
}

// find returns the newest job that matches a selector, and its sandbox: a running job,
// or else one that has ended within the given time.
func (s processes) find(ctx context.Context, sel *pb.ProcessSelector, ended time.Duration) (id string, _ *sandbox.Job, _ error) {
	box, err := sandboxOf(ctx)
	if err != nil {
		return "", nil, err
	}
	id = box.ID
	match, err := matcher(sel)
	if err != nil {
		return "", nil, err
	}
	var running, last *sandbox.Job
	for job, err := range s.jobs(ctx, id) {
		switch {
		case err != nil:
			return "", nil, s.explain(ctx, id, err)
		case !match(&job):
		case job.State == sandbox.JobRunning:
			running = &job
		default:
			last = &job
		}
	}
	switch {
	case running != nil:
		return id, running, nil
	case last != nil && last.EndedAt != nil && time.Since(*last.EndedAt) < ended:
		return id, last, nil
	}
	return "", nil, noProcess(sel)
}

func matcher(sel *pb.ProcessSelector) (func(*sandbox.Job) bool, error) {
	switch by := sel.GetSelector().(type) {
	case *pb.ProcessSelector_Pid:
		return func(job *sandbox.Job) bool { return uint64(job.PID) == uint64(by.Pid) && by.Pid != 0 }, nil
	case *pb.ProcessSelector_Tag:
		return func(job *sandbox.Job) bool { return job.Tag == by.Tag && by.Tag != "" }, nil
	}
	return nil, fail(connect.CodeInvalidArgument, "no process is named; give a pid or a tag")
}

func noProcess(sel *pb.ProcessSelector) error {
	if by, ok := sel.GetSelector().(*pb.ProcessSelector_Tag); ok {
		return fail(connect.CodeNotFound, "process with tag %.256s not found", by.Tag)
	}
	return fail(connect.CodeNotFound, "process with pid %d not found", sel.GetPid())
}

// endOf describes the end of a job.
func endOf(job *sandbox.Job) *pb.ProcessEvent_EndEvent {
	if job.Signal != "" {
		status := "signal: " + signalText(job.Signal)
		reason := status
		switch job.EndCause {
		case sandbox.EndOutOfMemory:
			reason += " (the sandbox ran out of memory)"
		case sandbox.EndProcessLimit:
			reason += " (it kept the sandbox at its limit of processes)"
		}
		return &pb.ProcessEvent_EndEvent{ExitCode: -1, Status: status, Error: &reason}
	}
	end := &pb.ProcessEvent_EndEvent{ExitCode: int32(job.ExitCode), Exited: true, Status: exitStatus(job.ExitCode)}
	if job.ExitCode != 0 {
		end.Error = &end.Status
	}
	return end
}

// signalText describes a signal as the C library does: "killed".
func signalText(name string) string {
	if n := unix.SignalNum("SIG" + name); n != 0 {
		return n.String()
	}
	return "signal " + name
}
