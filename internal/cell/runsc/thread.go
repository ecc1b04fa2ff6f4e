package runsc

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnOwnThread runs do on a thread of its own, which ends afterwards, so that changes to
// the thread, such as another network namespace, affect nothing else.
//
// gVisor's code enters the sandbox's network namespace and returns. The cell of an
// ordinary user cannot return to the host's namespace, which belongs to another user
// namespace: the thread would stay in the sandbox's.
func OnOwnThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		// The main thread does not end before the process, and /proc shows it as the process.
		// While it is locked here, the nested call gets another thread.
		if unix.Gettid() == unix.Getpid() {
			done <- OnOwnThread(do)
			runtime.UnlockOSThread()
			return
		}
		done <- do() // the thread ends with the goroutine, which never unlocks it
	}()
	return <-done
}
