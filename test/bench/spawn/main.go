// Command spawn measures the minimum cost of starting a program in its environment: the
// time of each of n starts.
//
//	spawn N PROGRAM
//
// It prints one duration in nanoseconds a line. Go's os/exec starts programs as
// posix_spawn does, with vfork and execve.
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: spawn N PROGRAM")
		os.Exit(2)
	}
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "spawn:", err)
		os.Exit(2)
	}
	for range n {
		began := time.Now()
		pid, err := syscall.ForkExec(os.Args[2], os.Args[2:], &syscall.ProcAttr{Files: []uintptr{0, 1, 2}})
		if err != nil {
			fmt.Fprintln(os.Stderr, "spawn:", err)
			os.Exit(1)
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
			fmt.Fprintln(os.Stderr, "spawn:", err)
			os.Exit(1)
		}
		fmt.Println(time.Since(began).Nanoseconds())
	}
}
