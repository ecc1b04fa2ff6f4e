//go:build linux

package main

import (
	"errors"
	"net"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// hold stops process 1, the agent, by tracing all of its threads, and releases it when
// somebody connects to the port args[0].
func hold(args []string) {
	runtime.LockOSThread() // only the tracing thread can release
	l, err := net.Listen("tcp", ":"+args[0])
	if err != nil {
		result("listen", err)
		return
	}
	held := map[int]bool{}
	for grown := true; grown; { // a thread may have begun another meanwhile
		grown = false
		tasks, err := os.ReadDir("/proc/1/task")
		if err != nil {
			result("threads", err)
			return
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			if held[tid] {
				continue
			}
			err := unix.PtraceAttach(tid)
			if err == nil {
				_, err = unix.Wait4(tid, nil, unix.WALL, nil)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) {
				result("trace", err)
				return
			}
			held[tid], grown = true, true
		}
	}
	conn, err := l.Accept()
	if err != nil {
		result("accept", err)
		return
	}
	for tid := range held {
		_ = unix.PtraceDetach(tid)
	}
	conn.Close()
}
