package boot

import (
	"time"

	"gvisor.dev/gvisor/pkg/gomaxprocs"
)

const (
	// restoreProcs are the additional processors of Go's scheduler around a restore. A
	// goroutine in a blocking system call keeps its processor until the scheduler's monitor
	// takes it away, up to 10 ms later. A sandbox with one or two processors runs nothing
	// else meanwhile, and a restore starts many such goroutines.
	restoreProcs = 3
	// restoreTime is how long they are kept: until the programs have continued, too.
	restoreTime = time.Second
)

// boostRestore adds restoreProcs for restoreTime. Programs in the sandbox run in as many
// threads as before, since systrap has read GOMAXPROCS at the start (maxSysmsgThreads).
func boostRestore() {
	gomaxprocs.Add(restoreProcs)
	time.AfterFunc(restoreTime, func() { gomaxprocs.Add(-restoreProcs) })
}
