package runsc

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnOwnThread runs do on a thread that nothing else uses, and that ends with
// it: whatever do does to the thread, such as giving it another network
// namespace, concerns nobody else.
//
// gVisor's code enters the sandbox's network namespace and goes back. An
// ordinary user's cell cannot go back to that of the host, which belongs to
// another user namespace; the thread would stay where it is.
func OnOwnThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		// The first thread does not end before the process, and shows as the
		// process in /proc. While it is held here, the next is another.
		if unix.Gettid() == unix.Getpid() {
			done <- OnOwnThread(do)
			runtime.UnlockOSThread()
			return
		}
		done <- do() // the thread ends with its goroutine, since that keeps it locked
	}()
	return <-done
}
